"""What a shell is told may follow, asked as the shells ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher import cli

KNOWN_HOSTS = """\
# a comment
gpu01,10.0.0.1 ssh-ed25519 AAAA
[gpu02]:2222 ssh-ed25519 AAAA
|1|abc=|def= ssh-ed25519 AAAA
@cert-authority *.site ssh-ed25519 AAAA
"""
CONFIG = """\
Host login web-?
    HostName 10.0.0.9
host=store !web
"""


@pytest.fixture
def asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> object:
    """Ask as bash does: the words, and the number of the one at the cursor."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(KNOWN_HOSTS)
    (tmp_path / ".ssh" / "config").write_text(CONFIG)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DISPATCH_SSH_CONFIG", raising=False)

    def ask(words: str, at: str, shell: str = "bash") -> list[str]:
        monkeypatch.setenv("_DISPATCH_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", at)
        assert cli.main([]) == 0
        return capsys.readouterr().out.splitlines()

    return ask


@pytest.mark.parametrize(
    ("words", "at", "wanted"),
    [
        ("dispatch ex", "1", ["file,ex", "plain,exec"]),
        ("dispatch tr", "1", ["file,tr"]),
        ("dispatch --max-r", "1", ["plain,--max-restarts"]),
        ("dispatch run --max-r", "2", ["plain,--max-restarts"]),
        ("dispatch -H hosts --map-by ", "4", ["plain,slot", "plain,node"]),
        ("dispatch exec --command-t", "2", ["plain,--command-timeout"]),
        ("dispatch -H gpu", "2", ["file,gpu", "plain,gpu01", "plain,gpu02"]),
        ("dispatch -H gpu01,st", "2", ["file,gpu01,st", "plain,gpu01,store"]),
        ("dispatch exec -w l", "3", ["plain,login"]),
    ],
)
def test_bash(asked: object, words: str, at: str, wanted: list[str]) -> None:
    assert callable(asked)
    found = asked(words, at)
    assert [line for line in found if "10.0" not in line] == wanted


def test_fish_names_the_word_itself(asked: object) -> None:
    assert callable(asked)
    assert [line.partition("\t")[0] for line in asked("dispatch ex", "ex", "fish")] == [
        "file,ex",
        "plain,exec",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_loads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert f"_DISPATCH_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_a_real_bash(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on this machine")
    program = tmp_path / "dispatch"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dispatcher "$@"\n')
    program.chmod(0o755)
    text = f"""
source <({program} completion bash) || exit 3
compopt() {{ :; }}  # works only where the line editor calls
COMP_WORDS=({program} swe); COMP_CWORD=1
_dispatch_completion {program} swe {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        [bash, "--norc", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.split()[:1] == ["sweep"], done.stderr
