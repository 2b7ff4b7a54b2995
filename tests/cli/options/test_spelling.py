"""One spelling for one thing over all commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.entry import load_command
from dispatcher.cli.help import page, sections
from dispatcher.cli.options.removed import REMOVED

from ..conftest import Parsed

#: words -> exit code, standard output, standard error
Dispatch = Callable[..., "tuple[int, str, str]"]


def names(about: click.Command) -> set[str]:
    return {name.lstrip("-") for parameter in about.params for name in parameter.opts}


@pytest.fixture
def dispatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Dispatch:
    """dispatch.toml of the current folder, that of the test, is read, and no other."""
    monkeypatch.delenv("DISPATCH_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return call


@cases(
    ("name", "line", "wanted"),
    [
        ("run", "-np 4 --fanout_tree a.py -np 5",
         {"np": 4, "fanout_tree": "auto", "words": ("a.py", "-np", "5")}),
        ("run", "-np=4 --machinefile f a.py", {"np": 4, "hostfile": ("f",), "words": ("a.py",)}),
        ("run", "-x -np a.py", {"exports": ("-np",), "np": None, "words": ("a.py",)}),
        ("run", "-H n1 -- -np", {"hostfile": ("n1",), "words": ("-np",)}),
        ("exec", "-np 22 true", {"no_stdin": True, "ssh_port": 22, "words": ("true",)}),
        ("exec", "-wdir true", {"lists": ("dir",), "words": ("true",)}),
        ("exec", "--sudo true", {"sudo": "root", "words": ("true",)}),
        ("exec", "--sudo=me true --sudo", {"sudo": "me", "words": ("true", "--sudo")}),
        ("run", "-wdira -n16 a.py -ppn", {"lists": ("dira",), "np": 16, "words": ("a.py", "-ppn")}),
        ("run", "-x --alive train.py --alive 3 --tree",
         {"exports": ("--alive",), "words": ("train.py", "--alive", "3", "--tree")}),
        ("exec", "-w n1 -- --alive 3", {"lists": ("n1",), "words": ("--alive", "3")}),
        ("exec", "-w --alive echo --alive -w",
         {"lists": ("--alive",), "words": ("echo", "--alive", "-w")}),
        ("dsx", "-w n1 -bc a -g x", {"copy": True, "group": ("x",), "words": ("a",)}),
        ("dsx", "-w n1 --rcopy a -g x", {"rcopy": True, "group": ("x",), "words": ("a",)}),
        ("dsx", "-w n1 a -c", {"copy": False, "words": ("a", "-c")}),
        ("dsx", "-w -c a -g x", {"lists": ("-c",), "copy": False, "words": ("a", "-g", "x")}),
    ],
)  # fmt: skip
def test_what_a_line_says(parsed: Parsed, name: str, line: str, wanted: dict[str, object]) -> None:
    options = parsed(name, *line.split())
    assert {field: getattr(options, field) for field in wanted} == wanted


def test_words_of_mpirun_are_no_short_options(parsed: Parsed) -> None:
    with pytest.raises(click.NoSuchOption) as caught:
        parsed("run", "-w", "n1", "-ppn", "2", "a.py")
    assert caught.value.option_name == "-ppn"


#: the name that an option had in version 0.1 -> in a command that has it by its name of today
OLD = {
    "alive": "exec", "beats-lost": "run", "fan-out": "exec", "host-faults": "run", "live": "shell",
    "mpi-patience": "run", "over": "check", "stop-after": "exec", "tree": "put", "rdzv": "run",
}  # fmt: skip


@cases(("old", "name"), OLD.items())
def test_an_old_name_is_refused_with_the_one_of_today(
    old: str, name: str, dispatch: Dispatch
) -> None:
    new = REMOVED[old].split("--")[1].split()[0].strip("`")
    assert old not in names(load_command(name))
    assert new in names(load_command(name))
    for word in (f"--{old}", f"--{old}=3"):
        code, _, err = dispatch(name, word, "-w", "n1")
        assert (code, err.splitlines()[0]) == (
            2, f"error: --{old} was removed: {REMOVED[old]} [unknown-option]",
        )  # fmt: skip
    Path("dispatch.toml").write_text(f"[{name}]\n{old} = 3\n")
    code, _, err = dispatch(name, "-w", "n1")
    assert (code, f"error: dispatch.toml [{name}]: --{old} was removed" in err) == (2, True)
    Path("dispatch.toml").write_text(f"[all]\n{old} = 3\n")
    code, _, err = dispatch("hosts", "n1")
    assert (code, f"note: dispatch.toml [all]: --{old} was removed" in err) == (0, True)


def test_help_shows_options_by_subject() -> None:
    """In so many that a reader looks for the subject first; in the manual as well."""
    about = load_command("run")
    found = sections(about, click.Context(about, **about.context_settings))
    assert list(found)[:4] == ["Hosts", "Program", "Ranks", "Environment"]
    assert max(map(len, found.values())) <= 13
    assert {names.split()[0] for names, _ in found["Other"]} <= {
        "--version",
        "--profile",
        "-h",
        "--help",
    }
    context = click.Context(about, info_name="dispatch run", **about.context_settings)
    lines = page(context, brief=False).splitlines()
    assert [line[:-1] for line in lines if line[:1].strip() and line[-1:] == ":"] == (
        ["Examples", *found]
    )


# -- -H and -w ------------------------


def hosts_of_run(dispatch: Dispatch, *words: str) -> tuple[list[str], str]:
    code, out, err = dispatch(*words, "--dry-run", "--json", "--no-python", "true")
    plan = promises.told(out) if code == 0 else {"nodes": []}
    return [f"{node['host']}:{len(node['ranks'])}" for node in plan["nodes"]], err


def test_hosts_of_a_run_by_list_and_by_file(tmp_path: Path, dispatch: Dispatch) -> None:
    (tmp_path / "hostfile").write_text("n1 slots=2\n")
    (tmp_path / "n3").write_text("output of n3\n")
    for words, wanted in (
        (["-w", "n[1-2]:2,n4:1"], ["n1:2", "n2:2", "n4:1"]),
        (["-w", "n1:1", "--hosts=n4:1"], ["n1:1", "n4:1"]),
        (["-H", "hostfile", "-w", "n2:1"], ["n1:2", "n2:1"]),
        (["-w", "n3:1"], ["n3:1"]),
    ):
        assert hosts_of_run(dispatch, *words) == (wanted, ""), words
    found, said = hosts_of_run(dispatch, "-H", "hostfile", "-w", "n1:1")
    assert found == []
    assert "n1 is named twice" in said


def test_a_list_is_never_a_file(tmp_path: Path, dispatch: Dispatch) -> None:
    """Files of that name are in every folder that ``exec --output-dir`` wrote."""
    (tmp_path / "localhost").write_text("n1 slots=2\n")
    assert dispatch("exec", "-w", "localhost", "echo", "x")[1] == "localhost: x\n"
    found, _ = hosts_of_run(dispatch, "-w", "localhost", "--nproc-per-node", "1")
    assert found == ["localhost:1"]


def test_a_file_may_have_one_list_as_a_text(tmp_path: Path, dispatch: Dispatch) -> None:
    (tmp_path / "dispatch.toml").write_text("[all]\nhosts = 'n[1-2]:1'\n")
    assert dispatch("hosts", "-f")[1] == "n[1-2]\n"
    assert hosts_of_run(dispatch)[0] == ["n1:1", "n2:1"]


# -- -x: exports in a run, leaves hosts out elsewhere ------------------------


def test_who_confuses_the_two_meanings_of_x_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["-H", "n[1-3]:1", "--dry-run", "--no-python", "true"]
    assert cli.main(["-x", "n2", *run]) == 2
    said = capsys.readouterr().err
    assert "-x n2: a host, but in a run -x exports a variable" in said
    assert "hint: to leave the host out: --exclude n2" in said
    monkeypatch.setenv("n2", "a variable of that name")
    assert cli.main(["-x", "n2", *run]) == 0
    capsys.readouterr()
    assert cli.main(["exec", "-w", "n[1-3]", "-x", "DEBUG=1", "env"]) == 2
    assert "hint: a variable goes before the command: -- env NAME=VALUE COMMAND" in (
        capsys.readouterr().err
    )
