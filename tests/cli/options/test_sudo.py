"""``--sudo``: as whom, and the password that is asked for at a terminal."""

from __future__ import annotations

import pytest
from cases import cases

from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.options.host_options import sudo_password, sudo_user
from dispatcher.model.errors import UsageError


@cases(
    ("options", "name"),
    [(ExecOptions(), None), (ExecOptions(sudo="root"), "root"),
     (ExecOptions(sudo="ml", ask_sudo_password=True), "ml")],
)  # fmt: skip
def test_as_whom(options: ExecOptions, name: str | None) -> None:
    assert sudo_user(options) == name


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
        sudo_user(options)
    assert caught.value.message.startswith(said)
    if hint is not None:
        assert caught.value.hint == hint


class Asked:
    """In the place of the terminal: what is asked there, and what it answers."""

    def __init__(self, answer: str | None) -> None:
        self.answer = answer
        self.prompts: list[str] = []
        self.count = self.closed = 0

    def __call__(self) -> Asked:
        return self

    def ask(self, prompt: str) -> str | None:
        self.prompts.append(prompt)
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
    asked = Asked("secret")
    monkeypatch.setattr("dispatcher.output.terminal.asking.Asking", asked)
    with sudo_password(options) as ask:
        assert asked.count == count
        assert asked.closed == 0
        told = [ask(False), ask(True)]
    assert told == ([None, None] if user is None else [b"secret", b"secret"])
    prompt = f"password of {user} for sudo: "
    assert asked.prompts == ([] if user is None else [prompt, f"wrong, try again: {prompt}"])
    assert asked.closed == (0 if user is None else 1)


def test_a_password_that_has_to_be_given_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(None)
    monkeypatch.setattr("dispatcher.output.terminal.asking.Asking", asked)
    options = ExecOptions(sudo="root", ask_sudo_password=True)
    with (
        pytest.raises(UsageError, match="--ask-sudo-password: no password was given"),
        sudo_password(options),
    ):
        raise AssertionError("it goes on without one")
    assert asked.closed == 1
