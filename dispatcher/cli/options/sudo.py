"""``--sudo``: as whom, and the password that is asked for at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dispatcher.cli.options.host_options import SudoOptions
from dispatcher.model.errors import ConflictingOptions, NoPassword, UsageError
from dispatcher.model.names import BadName, check_user

AT_A_TERMINAL = "run it at a terminal, or let sudoers grant it with NOPASSWD"


def user(options: SudoOptions) -> str | None:
    """The user that sudo is to make of us; None without ``--sudo``. Raises: UsageError."""
    name: str | None = options.sudo
    if name is None:
        if options.ask_sudo_password:
            raise ConflictingOptions(
                "--ask-sudo-password needs --sudo", hint="--sudo, or --sudo=USER"
            )
        return None
    try:
        check_user(name)
    except BadName as bad:
        raise UsageError(f"--sudo={name}: {bad.message}", hint=bad.hint) from None
    return name


@contextmanager
def password(options: SudoOptions) -> Iterator[Callable[[bool], bytes | None]]:
    """Gives what asks for the password; again: the one that it gave before was wrong.

    With ``--ask-sudo-password`` it was asked already. Raises: NoPassword when it cannot be asked
    now.
    """
    if options.sudo is None:
        yield lambda again: None
        return
    import getpass  # for what few ask for

    from dispatcher.output.terminal.asking import Asking

    prompt = f"password of {options.user or getpass.getuser()} for sudo: "
    asking = Asking()

    def ask(again: bool) -> bytes | None:
        typed = asking.ask(f"wrong, once more: {prompt}" if again else prompt)
        return typed.encode("utf-8", "surrogateescape") if typed else None

    try:
        if not options.ask_sudo_password:
            yield ask
            return
        known = ask(False)
        if known is None:
            raise NoPassword("--ask-sudo-password: no password was given", hint=AT_A_TERMINAL)
        yield lambda again: ask(True) if again else known
    finally:
        asking.close()
