"""What the foreground of a job in the background waits for, and what it ends with."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli.options import connect_options
from dispatcher.cli.run.detach import _Foreground
from dispatcher.model.errors import UsageError
from dispatcher.model.paths import RunPaths


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., int]:
    def wait(*words: dict[str, Any]) -> int:
        """The exit code, when the launcher says ``words`` and hangs up."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in words))
            theirs.shutdown(socket.SHUT_WR)
            code = _Foreground(ours, RunPaths(tmp_path), "run-1").wait()
            ours.shutdown(socket.SHUT_RDWR)
            theirs.settimeout(10)
            self_answers.append(theirs.recv(100))
        return code

    self_answers: list[bytes] = []
    wait.answers = self_answers  # type: ignore[attr-defined]
    return wait


@pytest.mark.parametrize(("ranks", "words"), [(1, "1 rank runs"), (2, "2 ranks run")])
def test_it_ends_when_the_ranks_run(
    told: Callable[..., int], ranks: int, words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert told({"pid": 77}, {"running": ranks}) == 0
    assert capsys.readouterr().out == (
        f"job run-1: {words} (launcher: pid 77)\n  logs: {tmp_path}\n  dispatch attach run-1\n"
    )


@pytest.mark.parametrize(("words", "code"), [([{"ended": 3}], 3), ([], 125), ([{"pid": 1}], 125)])
def test_a_launcher_that_ends_before_shows_what_it_said(
    told: Callable[..., int], words: list[dict[str, Any]], code: int, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    RunPaths(tmp_path).launcher.write_text("error: it failed\n")
    assert told(*words) == code
    assert capsys.readouterr().err == "error: it failed\n"


def test_a_launcher_that_said_nothing(
    told: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunPaths(tmp_path).launcher.write_text("")
    assert told({"ended": 4}) == 4
    assert "job run-1 ended before it was seen to run, code 4" in capsys.readouterr().err


@pytest.mark.parametrize("secret", ["abc", None])
def test_it_asks_for_the_launcher(
    told: Callable[..., int], secret: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunPaths(tmp_path).launcher.write_text("error: refused\n")
    asked: list[str] = []

    def ask_here(prompt: str) -> str | None:
        asked.append(prompt)
        return secret

    monkeypatch.setattr(connect_options, "ask_here", ask_here)
    words = {"ask": "passphrase of id: "}, {"ended": 125}
    if secret is None:
        with pytest.raises(
            UsageError, match="there is no terminal to ask for the passphrase of id"
        ):
            told(*words)
    else:
        assert told(*words) == 125
        assert told.answers == [b'{"answer": "abc"}\n']  # type: ignore[attr-defined]
    assert asked == ["passphrase of id: "]
