"""The secrets of a login: one password for all hosts, and answers to hosts' questions.

A wrong password that goes to 200 hosts locks 200 accounts, so one host tries it first and the
others wait (docs/guides/logging-in.md). A host that hangs up has settled nothing: the next one
tries it, ``MOST_UNSETTLED`` in all. A host's question is cut and made harmless.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from dispatcher.transport.base import PromptTimer

if TYPE_CHECKING:
    from dispatcher.transport.ssh_auth.identities import Ask

#: hosts that may hang up on a password that is not known to be right
MOST_UNSETTLED = 3
#: limits of a host's text: lines of one question that are shown, characters in all
MOST_LINES, MOST_TEXT = 24, 4000
#: columns of a terminal that does not report them
_COLUMNS = 80

#: who may be asked for: no host; a single host and jump hosts; all hosts, by ``--ask-pass``
Who = Literal["nobody", "one", "all"]
#: the result for a password: it was right, it was wrong, the connection ended first
Outcome = Literal["right", "wrong", "unsettled"]

_PROMPT = re.compile(
    r"(?:\([^()]{1,200}\) )?"  # sshd: (me@n1)
    r"(?:\S{1,100}'s |"
    r"(?:(?:enter|your|login|unix|ldap|kerberos|ad|windows|domain|account|ssh) ){1,4})?"
    r"password(?: (?:for|of) \S{1,100})? ?: ?",
    re.IGNORECASE,
)


def wants_password(prompt: str, *, echo: bool) -> bool:
    """Whether a prompt of keyboard-interactive asks for the password, and for nothing else.

    A prompt that may mean anything else (``New password:``, ``One-time password:``) goes to the
    user: the password is not sent on a guess.
    """
    return not echo and _PROMPT.fullmatch(prompt) is not None


def harmless(text: str, columns: int) -> list[str]:
    """The lines of a host's ``text``, of printable characters alone, and not too many.

    Each fits into ``columns``: a terminal would wrap a longer line, and its second row would not
    show the host's name.
    """
    lines: list[str] = []
    for line in text[:MOST_TEXT].splitlines():
        shown = "".join(c if c.isprintable() else "?" for c in line.replace("\t", " ")).rstrip()
        lines += _rows(shown, columns)
    return lines[:MOST_LINES]


def _rows(line: str, columns: int) -> Iterator[str]:
    row, free = "", columns
    for c in line:
        width = 1 if c.isascii() else 2  # at most: terminals differ
        if row and width > free:
            yield row
            row, free = "", columns
        row += c
        free -= width
    if row:
        yield row


def _columns() -> int:
    """The width of the terminal where we ask."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.get_terminal_size(terminal.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS


class Password:
    """One password for many hosts; see above. ask: asks for it; again: the last one was wrong."""

    def __init__(self, ask: Callable[[bool], str | None], timer: PromptTimer) -> None:
        self._ask = ask
        self._timer = timer
        self._changed = threading.Condition()
        self._value: str | None = None
        self._asked = 0
        self._trying: object | None = None  # the login that tries it while it is not proven
        self._proven = False
        self._nobody = False
        self._over = ""  # why there is none, or none any more
        self._wrong_on = ""
        self._unsettled = 0

    def begin(self) -> bool:
        """Ask for it now, unless it is known; whether the user gave one."""
        return self._value is not None or self._asked_for()

    def take(self, who: object, deadline: float) -> str | None:
        """The password for the login ``who``, which must then report the result to ``came``.

        None where there is none (see ``why``), or where it is not known to be right by ``deadline``
        of the timer.
        """
        with self._changed:
            while not self._proven and self._trying not in (None, who) and not self._over:
                left = deadline - self._timer.now()
                if left <= 0:
                    return None
                self._changed.wait(left)
            if self._proven:
                return self._value
            if self._over:
                return None
            self._trying = who
            value = self._value
        if value is None and not self._asked_for():
            return None
        return self._value

    def came(self, who: object, name: str, outcome: Outcome, *, again: bool = True) -> bool:
        """Take the result on the host ``name``; whether ``who`` may ``take`` another one.

        again: whether another can be tried there.
        """
        with self._changed:
            if self._trying != who:
                return False  # another host has proved it: this host has another password
            if outcome == "right":
                self._proven = True
            elif outcome == "wrong":
                self._wrong_on, self._value = name, None
                if again and self._asked < 2:
                    return True
                self._over = f"the password was wrong on {name}, so no other host was sent it"
            else:
                self._unsettled += 1
                if self._unsettled >= MOST_UNSETTLED:
                    self._over = f"{self._unsettled} hosts hung up when they were sent the password"
            self._trying = None
            self._changed.notify_all()
        return False

    def why(self, name: str) -> str:
        """Why the host ``name`` did not get in by it; "" where there was no user to ask."""
        if self._nobody:
            return ""
        if self._proven or self._wrong_on == name:
            return "the password was refused"
        return self._over or "it is not known yet whether the password is right"

    def _asked_for(self) -> bool:
        self._asked += 1
        value = self._ask(self._asked > 1)
        with self._changed:
            self._value = value or None
            self._nobody = value is None
            if not value:
                self._over, self._trying = "no password was given", None
                self._changed.notify_all()
        return bool(value)


class AnyPassword(Protocol):
    """The part of ``Password`` that a login uses; see there."""

    def take(self, who: object, deadline: float) -> str | None: ...
    def came(self, who: object, name: str, outcome: Outcome, *, again: bool = True) -> bool: ...
    def why(self, name: str) -> str: ...


class Passwords:
    """The secrets of all hosts of a run. ask: asks at the terminal, from any thread."""

    def __init__(self, ask: Ask | None = None, who: Who = "nobody") -> None:
        self._ask_whom = ask
        self._who = who
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Password] = {}
        self._turn = threading.Lock()
        self.timer = PromptTimer()

    def serve(self, ask: Ask, who: Who) -> None:
        """Ask through another function from now on; known passwords are not asked for again."""
        self._ask_whom, self._who = ask, who

    def ask(self, prompt: str) -> str | None:
        """The user's answer; None where there is no user to ask. One question at a time."""
        if self._ask_whom is None:
            return None
        self.timer.changed(True)
        try:
            with self._turn:
                return self._ask_whom(prompt)
        finally:
            self.timer.changed(False)

    def begin(self) -> bool:
        """Ask for the password of all hosts, if ``who`` is "all"; False: the user gave none."""
        return self._who != "all" or self._password(("", ""), "all hosts").begin()

    def may_ask(self, *, jump: bool) -> bool:
        """Whether the user may be asked for this host. jump: it is on the way to others."""
        if self._ask_whom is None:
            return False
        return self._who != "nobody" or jump

    def of(self, user: str, name: str, *, jump: bool) -> AnyPassword:
        """The password of ``user`` on the host ``name``, which has the port if it is not 22."""
        if self._who == "all" and not jump:
            return self._password(("", ""), "all hosts")
        return self._password((user, name), f"{user} on {name}")

    def answer(self, name: str, above: Sequence[str], prompt: str) -> str | None:
        """The user's answer to a host's ``prompt``; None where there is none.

        above: the host's text before it.
        """
        columns = _columns()
        name = name[: columns // 2]
        room = columns - len(f"{name}:  ")  # with a blank to type behind
        lines = [line for text in above for line in harmless(text, room)]
        *more, last = harmless(prompt, room) or [""]
        text = "\n".join(f"{name}: {line}" for line in [*lines, *more, last][-MOST_LINES:])
        return self.ask(text + " ")

    def _password(self, key: tuple[str, str], whose: str) -> Password:
        def ask(again: bool) -> str | None:
            return self.ask(f"{'wrong, try again: ' if again else ''}password of {whose}: ")

        with self._lock:
            return self._known.setdefault(key, Password(ask, self.timer))
