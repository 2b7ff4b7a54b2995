"""``--rsh``: the commands over hosts that only some program of the user's can reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: the contract of mpirun's launch agents: the host, then words for a shell
AGENT = """#!/bin/sh
FAKE_HOST=$1; shift; export FAKE_HOST
exec /bin/sh -c "$*"
"""
#: kubectl's contract: exec -i POD -- PROGRAM ARGS
KUBECTL = """#!/bin/sh
[ "$1 $2 $4" = "exec -i --" ] || { echo "unknown command: $*" >&2; exit 1; }
FAKE_HOST=$3; shift 4; export FAKE_HOST
exec "$@"
"""


def dispatch(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dispatcher", *words],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("verb", ["run", "exec"])
@pytest.mark.parametrize(
    ("name", "text", "more"),
    [("kubexec.sh", AGENT, ""), ("kubectl", KUBECTL, " exec -i {host} --")],
)
def test_each_contract(tmp_path: Path, verb: str, name: str, text: str, more: str) -> None:
    rsh = program(tmp_path, name, text) + more
    # one machine under two names
    how = ["--no-python", "--check", "none"] if verb == "run" else []
    words = ["sh", "-c", 'echo "at $FAKE_HOST with $1"', "sh", "a  b'c"]
    ended = dispatch(verb, *how, "-H", "pod-1,pod-2", "--rsh", rsh, *words)
    assert ended.returncode == 0, ended.stderr
    lines = sorted(line.partition("at ")[2] for line in ended.stdout.splitlines())
    assert lines == ["pod-1 with a  b'c", "pod-2 with a  b'c"]


def test_the_agents_words_explain_a_failure(tmp_path: Path) -> None:
    rsh = program(tmp_path, "gone", '#!/bin/sh\necho "no pod named $1" >&2; exit 1\n')
    ended = dispatch("--no-python", "-H", "pod-1", "--rsh", rsh, "true")
    assert ended.returncode == 125
    assert "no pod named pod-1" in ended.stderr
    assert f"hint: {rsh} pod-1 'python3 -V'\n" in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rsh", "ssh", "--transport", "ssh"], "--rsh and --transport exclude each other"),
        (["--rsh", "ssh 'x"], "--rsh: no closing quotation"),
        (["--rsh", "ssh {hots}"], "unknown field {hots}"),
        (["--rsh", "ssh", "--host-keys", "strict"], "--host-keys is for SSH, not for --rsh"),
        (["--rsh", "ssh", "--user", "bob"], "n1: user bob is set, which --rsh does not"),
        (["--transport", "slurm", "--ssh-port", "22"], "which --transport slurm does not use"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "exec"])
def test_refused_before_any_host(verb: str, words: list[str], said: str) -> None:
    ended = dispatch(verb, "-H", "n1", *words, "train.py")
    assert ended.returncode == 2
    assert said in ended.stderr


def test_slurm_is_an_srun_step_a_host(tmp_path: Path) -> None:
    program(tmp_path, "srun", """#!/bin/sh
for word in "$@"; do
    case $word in --nodelist=*) FAKE_HOST=${word#*=};; esac
done
export FAKE_HOST
while [ "$1" != sh ]; do shift; done
exec "$@"
""")  # fmt: skip
    ended = dispatch(
        "--no-python", "--check", "none", "--transport", "slurm", "sh", "-c", "echo at $FAKE_HOST",
        SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-2]", SLURM_TASKS_PER_NODE="1(x2)",
        PATH=f"{tmp_path}:{os.environ['PATH']}",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "at n1" in ended.stdout
    assert "at n2" in ended.stdout
    assert "hosts of Slurm job 7" in ended.stderr
