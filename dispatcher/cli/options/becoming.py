"""``--sudo``: as whom, and where the one password comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dispatcher.cli.options.sudo import Asking
from dispatcher.model.errors import UsageError
from dispatcher.model.names import BadName, check_user


def user(flags: Mapping[str, Any]) -> str | None:
    """The user that sudo is to make of us; None without ``--sudo``. Raises: UsageError."""
    name: str | None = flags["sudo"]
    if name is None:
        if flags["ask_sudo_password"]:
            raise UsageError("--ask-sudo-password: for what?", hint="--sudo, or --sudo=USER")
        return None
    try:
        check_user(name)
    except BadName as bad:
        raise UsageError(f"--sudo={name}: {bad.message}", hint=bad.hint) from None
    return name


@contextmanager
def password(flags: Mapping[str, Any]) -> Iterator[Callable[[], bytes | None]]:
    """Gives what asks for the password; with ``--ask-sudo-password`` it was asked already.

    Raises: UsageError when it cannot be asked now.
    """
    if flags["sudo"] is None:
        yield lambda: None
        return
    import getpass  # for what few ask for

    prompt = f"password of {flags['user'] or getpass.getuser()} for sudo: "
    asking = Asking(prompt)
    try:
        if not flags["ask_sudo_password"]:
            yield asking.ask
            return
        known = asking.ask()
        if known is None:
            raise UsageError("--ask-sudo-password: no password was given")
        yield lambda: known
    finally:
        asking.close()
