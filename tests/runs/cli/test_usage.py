"""Bad input: a clear error, exit code 2, no traceback, and no host touched."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plan.hostile_inputs import HOSTILE

from dispatcher import cli
from dispatcher.cli.run import launch

from ..conftest import Desk

#: how each kind of the table is said on a command line
AS_WORDS: dict[str, Callable[[Any], list[str]]] = {
    "hosts": lambda value: ["-H", value, "train.py"],
    "include": lambda value: ["-H", "w[0-1]:4", "--include", value, "train.py"],
    "exclude": lambda value: ["-H", "w[0-1]:4", "--exclude", value, "train.py"],
    "np": lambda value: ["-H", "w[0-1]:4", "--np", value, "train.py"],
    "nnodes": lambda value: ["-H", "w[0-1]:4", "--nnodes", value, "train.py"],
    "nproc": lambda value: ["-H", "w[0-1]:4", "--nproc-per-node", value, "train.py"],
    "export": lambda value: ["-H", "w0:4", "-x", value, "train.py"],
}


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fails the test if the run would go on to reach a host."""

    def touched(*arguments: object) -> int:
        raise AssertionError("a host would have been touched")

    monkeypatch.setattr(launch, "_run", touched)
    monkeypatch.chdir(tmp_path)


@pytest.mark.timeout(400)  # some six hundred commands
def test_hostile_inputs_at_the_command_line(
    untouched: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0
    for kind, value, *_ in HOSTILE:
        if kind in AS_WORDS:
            words = AS_WORDS[kind](value)
        elif kind == "hostfile":
            data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            words = ["-H", "-", "train.py"]
        else:
            continue
        try:
            code = cli.main(words)
        except AssertionError:
            code = -1
        said = capsys.readouterr()
        assert code == 2, (kind, value, said.err)
        assert said.err.startswith("error: "), (kind, value, said.err)
        assert "Traceback" not in said.err
        assert said.out == ""
        seen += 1
    assert seen >= 200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no hosts"),
        (["train.py"], "no hosts"),
        (["-H", "n1"], "no program"),
        (["-H", "", "x"], "-H: empty"),
        (["-H", "n1", ""], "no program"),
        (["-H", "absent/hostfile", "x"], "no such file"),
        (["-H", ".", "x"], "is a directory"),
        (["-H", "n1", "--np", "0", "x"], "--np"),
        (["-H", "n1", "--np", "two", "x"], "--np"),
        (["-H", "n1:2", "--np", "3", "x"], "3 ranks but only 2 slots"),
        (["-H", "n1", "--nnodes", "2", "x"], "--nnodes 2"),
        (["-H", "n1", "--nproc-per-node", "many", "x"], "--nproc-per-node"),
        (["-H", "n1", "--ssh-port", "70000", "x"], "--ssh-port"),
        (["-H", "n1", "--grace", "nan", "x"], "--grace"),
        (["-H", "n1", "--grace", "-1", "x"], "--grace"),
        (["-H", "n1", "--lease", "1", "x"], "lease"),
        (["-H", "n1", "--omp", "no", "x"], "--omp"),
        (["-H", "n1", "--map-by", "board", "x"], "map-by"),
        (["-H", "n1", "--nosuch", "x"], "nosuch"),
        (["-H", "n1", "-x", "RANK=1", "x"], "RANK"),
        (["-H", "n1", "-x", "NOT_SET_ANYWHERE", "x"], "NOT_SET_ANYWHERE"),
        (["-H", "n1", "--env-file", "absent", "x"], "absent"),
        (["-H", "n1", "--env-file", ".", "x"], "--env-file"),
        (["-H", "n1", "--include", "n1", "--exclude", "n1", "x"], "exclude each other"),
        (["-H", "n1", "-m", "--no-python", "x"], "exclude each other"),
        (["-H", "n1", "--json", "x"], "--json needs --dry-run"),
        (["-H", "n1", "--user", "-oProxyCommand=x", "x"], "user"),
        (["-H", "n1", "--python", "", "x"], "python"),
        (["-H", "n1", "--agent-python", "a b", "x"], "--agent-python"),
        (["-H", "n1", "--log-dir", "/proc/no", "x"], "--log-dir"),
        (["-H", "n1", "--chdir", "a\0b", "x"], "NUL"),
        (["-H", "n1", "/bin/true"], "hint: --no-python /bin/true"),
    ],
)
def test_wrong_arguments(
    untouched: None, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error


def test_help_loads_nothing_heavy() -> None:
    probe = (
        "import sys\nfrom dispatcher.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'paramiko', 'rich', 'ClusterShell', 'torch', 'mpi4py', 'cryptography'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert "Examples:" in done.stdout


def test_ctrl_c_before_the_run_leaves_no_traceback() -> None:
    probe = (
        "from dispatcher import cli\n"
        "def call(words): raise KeyboardInterrupt\n"
        "cli._call = call\ncli.console()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_a_caller_keeps_its_handlers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert cli.main(["-H", "localhost", "--quiet", "--no-python", "true"]) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_more_hosts_than_open_files(desk: Desk) -> None:
    done = subprocess.run(
        ["prlimit", "--nofile=128:256",
         *desk.argv("-H", "n[1-300]:1", "--no-python", "true")],
        cwd=desk.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "300 hosts need 1264 open files, at most 256 are allowed" in done.stderr
