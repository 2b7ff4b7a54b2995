"""``connect``: what is asked of the process that holds connections, and what is printed."""

from __future__ import annotations

import socket
from typing import Any

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.model.errors import NoConnectionDaemon
from dispatcher.remote.protocol.mux import Malformed
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_socket import DROP, LIST

#: what the daemon answers
Answer = dict[str, Any] | Exception | None


@cases(
    ("words", "answer", "order", "shown"),
    [
        (["--list"], {"hosts": ["n2", "n10", "n1"], "idle": 600.0}, (LIST, {}),
         ("n[1-2,10] (3), for 600 idle seconds\n", "")),
        (["--list"], {"hosts": [], "idle": 600.0}, (LIST, {}),
         ("", "note: no connections are kept\n")),
        (["--list"], None, (LIST, {}), ("", "note: no connections are kept\n")),
        (["--close"], None, (DROP, {"hosts": None}), ("", "note: no connections are kept\n")),
        (["--close"], {"hosts": []}, (DROP, {"hosts": None}), ("", "")),
        (["--close", "-w", "n[1-2]"], {"hosts": ["n1"]}, (DROP, {"hosts": ["n1", "n2"]}), ("", "")),
    ],
)  # fmt: skip
def test_list_and_close(
    words: list[str], answer: Answer, order: Any, shown: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked = []

    def ask(kind: int, **more: Any) -> Any:
        asked.append((kind, more))
        return answer

    monkeypatch.setattr(daemon_socket, "ask_daemon", ask)
    assert cli.main(["connect", *words]) == 0
    assert asked == [order]
    assert capsys.readouterr() == shown


def test_connections_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer, hosts, idle in (
        ({"hosts": ["n2", "n1"], "idle": 600}, ["n1", "n2"], 600.0), (None, [], None),
    ):  # fmt: skip
        monkeypatch.setattr(daemon_socket, "ask_daemon", lambda kind, answer=answer, **more: answer)
        for way in ("--list", "--close"):
            assert cli.main(["connect", way, "--json"]) == 0
            told = promises.told(capsys.readouterr().out)
            assert (told["hosts"], told["idle"]) == (hosts, idle)


@cases("error", [OSError("gone"), Malformed("rubbish")])
def test_a_process_that_does_not_answer(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(kind: int, **more: Any) -> Any:
        raise error

    monkeypatch.setattr(daemon_socket, "ask_daemon", ask)
    assert cli.main(["connect", "--list"]) == 125
    said = f"error: the process that holds connections: {error} [no-connection-daemon]\n"
    assert capsys.readouterr().err == said


def test_one_of_the_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["connect", "--list", "--close"]) == 2
    assert (
        capsys.readouterr().err
        == "error: --list and --close exclude each other [conflicting-options]\n"
    )


def test_a_silent_process_is_ended_by_close_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[bool] = []

    def ask(kind: int, **order: Any) -> Any:
        raise NoConnectionDaemon("pid 7 does not answer", hint="dispatch connect --close")

    def call() -> socket.socket:
        return socket.socket()

    def end() -> bool:
        ended.append(True)
        return True

    monkeypatch.setattr(daemon_socket, "ask_daemon", ask)
    monkeypatch.setattr(daemon_socket, "dial_or_start", call)
    monkeypatch.setattr(daemon_socket, "why_silent", lambda link: "pid 7 does not answer")
    monkeypatch.setattr(daemon_socket, "kill_daemon", end)
    for words in (["--list"], ["--close", "-w", "n1"], ["-w", "n1"]):
        assert cli.main(["connect", *words]) == 125
        assert capsys.readouterr().err == (
            "error: pid 7 does not answer [no-connection-daemon]\n"
            "  hint: dispatch connect --close\n"
        )
    assert not ended
    assert cli.main(["connect", "--close"]) == 0
    assert ended == [True]
    note = "note: pid 7 does not answer: it was killed, and its connections are closed\n"
    assert capsys.readouterr().err == note
