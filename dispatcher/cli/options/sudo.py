"""``--sudo``: as whom, and the password that is asked for at the terminal.

The rest goes on while it is typed. Not getpass: it cannot be called off from another thread,
and a run that is ended meanwhile must not leave a terminal that echoes nothing.
"""

from __future__ import annotations

import os
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dispatcher.cli.options.host_options import SudoOptions
from dispatcher.model.errors import ConflictingOptions, UsageError
from dispatcher.model.names import BadName, check_user


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
def password(options: SudoOptions) -> Iterator[Callable[[], bytes | None]]:
    """Gives what asks for the password; with ``--ask-sudo-password`` it was asked already.

    Raises: UsageError when it cannot be asked now.
    """
    if options.sudo is None:
        yield lambda: None
        return
    import getpass  # for what few ask for

    prompt = f"password of {options.user or getpass.getuser()} for sudo: "
    asking = Asking(prompt)
    try:
        if not options.ask_sudo_password:
            yield asking.ask
            return
        known = asking.ask()
        if known is None:
            raise UsageError("--ask-sudo-password: no password was given")
        yield lambda: known
    finally:
        asking.close()


class Asking:
    """Asks at /dev/tty; ``close`` calls it off and makes the terminal echo again."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._lock = threading.Lock()
        self._closed = False
        self._silent: tuple[int, list[Any]] | None = None

    def ask(self) -> bytes | None:
        """What was typed; None where nobody is there, or nothing was."""
        try:
            fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            with self._lock:
                if self._closed:
                    return None
                before = termios.tcgetattr(fd)
                self._silent = (fd, before)
                mode = termios.tcgetattr(fd)
                mode[3] &= ~termios.ECHO
                termios.tcsetattr(fd, termios.TCSAFLUSH, mode)
            os.write(fd, self._prompt.encode())
            line = self._line(fd)
            os.write(fd, b"\n")
        except (OSError, termios.error):
            return None
        else:
            return line or None
        finally:
            with self._lock:
                self._restore()
                os.close(fd)

    @staticmethod
    def _line(fd: int) -> bytes:
        typed = b""
        while not typed.endswith(b"\n") and (more := os.read(fd, 1024)):
            typed += more
        return typed.rstrip(b"\n")

    def close(self) -> None:
        """Call it off, from another thread too: the terminal echoes again, ``ask`` gives None."""
        with self._lock:
            self._closed = True
            self._restore()

    def _restore(self) -> None:
        if self._silent is not None:
            fd, before = self._silent
            self._silent = None
            termios.tcsetattr(fd, termios.TCSANOW, before)
