"""``--sudo``: as whom, and the password that is asked for at a terminal."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.options import sudo
from dispatcher.model.errors import UsageError

from ..conftest import Terminal


@cases(
    ("options", "name"),
    [(ExecOptions(), None), (ExecOptions(sudo="root"), "root"),
     (ExecOptions(sudo="ml", ask_sudo_password=True), "ml")],
)  # fmt: skip
def test_as_whom(options: ExecOptions, name: str | None) -> None:
    assert sudo.user(options) == name


@cases(
    ("options", "said", "hint"),
    [
        (ExecOptions(ask_sudo_password=True), "--ask-sudo-password needs --sudo",
         "--sudo, or --sudo=USER"),
        (ExecOptions(sudo="a b"), "--sudo=a b: ", None),
        (ExecOptions(sudo=""), "--sudo=: empty user name", "write user@host"),
    ],
)  # fmt: skip
def test_as_nobody(options: ExecOptions, said: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        sudo.user(options)
    assert caught.value.message.startswith(said)
    if hint is not None:
        assert caught.value.hint == hint


class Asked:
    """In the place of the terminal: what is asked there, and what it answers."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.prompts: list[str] = []
        self.count = self.closed = 0

    def __call__(self, prompt: str) -> Asked:
        self.prompts.append(prompt)
        return self

    def ask(self) -> bytes | None:
        self.count += 1
        return self.answer

    def close(self) -> None:
        self.closed += 1


@cases(
    ("options", "count", "user"),
    [
        (ExecOptions(), 0, None),
        (ExecOptions(sudo="root"), 0, "me"),
        (ExecOptions(sudo="root", user="ml"), 0, "ml"),
        (ExecOptions(sudo="root", ask_sudo_password=True), 1, "me"),
    ],
)
def test_when_it_is_asked_for(
    options: ExecOptions, count: int, user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    asked = Asked(b"secret")
    monkeypatch.setattr(sudo, "Asking", asked)
    with sudo.password(options) as ask:
        assert asked.count == count
        assert asked.closed == 0
        told = [ask(), ask()]
    assert told == ([None, None] if user is None else [b"secret", b"secret"])
    assert asked.count == (0 if user is None else count or 2)
    assert asked.prompts == ([] if user is None else [f"password of {user} for sudo: "])
    assert asked.closed == (0 if user is None else 1)


def test_a_password_that_has_to_be_given_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(None)
    monkeypatch.setattr(sudo, "Asking", asked)
    options = ExecOptions(sudo="root", ask_sudo_password=True)
    with (
        pytest.raises(UsageError, match="--ask-sudo-password: no password was given"),
        sudo.password(options),
    ):
        raise AssertionError("it goes on without one")
    assert asked.closed == 1


# -- at a terminal ------------------------


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


def asking(one: sudo.Asking, answers: list[bytes | None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(one.ask()), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("secret\n", b"secret"),
        ("\n", None),
        ("s\u00e4\n", "s\u00e4".encode()),
        (" a b \n", b" a b "),
    ],
)
def test_what_is_typed_is_not_shown(tty: Terminal, typed: str, answer: bytes | None) -> None:
    answers: list[bytes | None] = []
    thread = asking(sudo.Asking("password: "), answers)
    tty.until("password: ")
    assert not tty.echoes()
    tty.type(typed)
    thread.join(20)
    assert answers == [answer]
    assert tty.echoes()
    assert tty.leave() == "password: \r\n"


def test_it_is_called_off_from_another_thread(tty: Terminal) -> None:
    answers: list[bytes | None] = []
    one = sudo.Asking("password: ")
    thread = asking(one, answers)
    tty.until("password: ")
    one.close()
    wait_for(tty.echoes, 10, lambda: "the terminal echoes again")
    tty.type("\n")
    thread.join(20)
    assert answers == [None]
    assert one.ask() is None  # and never again
    assert tty.leave().count("password: ") == 1


@cases("path", ["/dev/null", "/dev/null/none"])
def test_no_terminal(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda name, *more, **others: real(
            path if name == "/dev/tty" else name, *more, **others
        ),
    )  # fmt: skip
    assert sudo.Asking("password: ").ask() is None
