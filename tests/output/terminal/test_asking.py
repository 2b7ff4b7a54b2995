"""Secrets asked for at a terminal, and what else is written there meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cases import cases
from cli.conftest import Terminal
from rig import wait_for

from dispatcher.output.terminal import asking as module
from dispatcher.output.terminal.asking import OURS, Asking, TtyLock
from dispatcher.output.terminal.screen import Writer


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setattr(module, "keep_memory_ours", lambda: None)  # of the tests' own process
    made = Terminal()
    yield made
    made.leave()


# -- who asks for a secret --------------------------------------------------------------


def test_who_asks_waits_until_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_LIMIT", 60.0)
    lock = TtyLock()
    assert lock.draws()
    entered = threading.Event()

    def ask() -> None:
        with lock.asking(), lock.asking():
            entered.set()

    asks = threading.Thread(target=ask)
    asks.start()
    assert not entered.wait(0.05)
    wait_for(lambda: not lock.draws(), 30, "somebody asks")
    lock.taken_away()
    asks.join(60)
    assert entered.is_set()
    assert lock.draws()


def test_a_painter_that_is_stuck_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_LIMIT", 0.02)
    lock = TtyLock()
    lock.draws()
    with lock.asking():
        assert not lock.draws()
    assert lock.draws()


def test_an_answer_that_fails_lets_others_draw() -> None:
    lock = TtyLock()
    with pytest.raises(KeyboardInterrupt), lock.asking():
        raise KeyboardInterrupt
    assert lock.draws()


# -- what is typed ---------------------------------------------------------------------


@pytest.fixture
def tty(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """/dev/tty is the terminal of the test."""
    real = os.open

    def open_(path: Any, *more: Any, **others: Any) -> int:
        if path == "/dev/tty":
            assert more[0] & os.O_NOCTTY
            path = terminal.path
        return real(path, *more, **others)

    monkeypatch.setattr(os, "open", open_)
    return terminal


def asking(one: Asking, answers: list[str | None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(one.ask("password: ")), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("secret\n", "secret"), ("\n", ""), ("s\u00e4\n", "s\u00e4"), (" a b \n", " a b ")],
)
def test_what_is_typed_is_not_shown(tty: Terminal, typed: str, answer: str | None) -> None:
    answers: list[str | None] = []
    thread = asking(Asking(), answers)
    tty.until("password: ")
    assert not tty.echoes()
    tty.type(typed)
    thread.join(60)
    assert answers == [answer]
    assert tty.echoes()
    assert tty.leave() == "password: \r\n"


def test_in_the_background_a_question_waits(tty: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    is_ours = threading.Event()
    monkeypatch.setattr("dispatcher.output.terminal.asking.in_front", lambda fd: is_ours.is_set())
    answers: list[str | None] = []
    one = Asking()
    thread = asking(one, answers)
    tty.until("bring it to the foreground")
    assert tty.echoes()
    is_ours.set()
    tty.until("password: ")
    tty.type("secret\n")
    thread.join(60)
    is_ours.clear()
    thread = asking(one, answers)
    tty.until("bring it to the foreground")
    one.close()
    thread.join(60)
    assert answers == ["secret", None]


def test_it_is_called_off_from_another_thread(tty: Terminal) -> None:
    answers: list[str | None] = []
    one = Asking()
    thread = asking(one, answers)
    tty.until("password: ")
    one.close()
    wait_for(tty.echoes, 30, lambda: "the terminal echoes again")
    tty.type("\n")
    thread.join(60)
    assert answers == [None]
    assert one.ask("password: ") is None  # and never again
    assert tty.leave().count("password: ") == 1


@cases("path", ["/dev/null", "/dev/null/none"])
def test_no_terminal(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda name, *more, **others: real(
            path if name == "/dev/tty" else name, *more, **others
        ),
    )  # fmt: skip
    assert Asking().ask("password: ") is None


def test_lines_go_above_what_is_asked(tty: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str | None] = []
    thread = asking(Asking(), answers)
    tty.until("password: ")
    fd = os.open(tty.path, os.O_WRONLY | os.O_NOCTTY)
    writer = Writer({1: fd})
    writer.write(1, b"n2: up\n")
    tty.type("secret\n")
    thread.join(60)
    writer.write(1, b"n3: up\n")
    os.close(fd)
    assert answers == ["secret"]
    wiped = "password: \r\x1b[Kn2: up\r\npassword: \r\nn3: up\r\n"
    assert tty.until("n3: up\r\n") == wiped


def test_one_question_at_a_time(tty: Terminal) -> None:
    answers: list[str | None] = []
    threads = [asking(Asking(), answers) for _ in range(2)]
    tty.until("password: ")
    assert OURS.turn.locked()
    tty.type("first\n")
    wait_for(lambda: answers == ["first"] and tty.text.count("password: ") == 2, 30, "the second")
    tty.type("second\n")
    for thread in threads:
        thread.join(60)
    assert answers == ["first", "second"]


def test_memory_that_has_a_secret_is_not_dumped() -> None:
    code = (
        "import ctypes; from dispatcher.model.paths import keep_memory_ours\n"
        "keep_memory_ours(); print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"0\n"
