"""Who is told sudo's password, and when: rule E-6 of ``exec_machine``.

A wrong one that goes to all hosts locks an account on each. So one host is told it first, and the
others when its command has started. A host that asks again was told a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.core.events.actions import Action
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import value

#: hosts that may fail after they were told sudo's password, before it is known to be right
MOST_UNSETTLED = 3


@value
class AskPassword(Action):
    """Ask the user for the password that sudo wants; ``again``: the one before was wrong."""

    again: bool = False


@value
class SendPassword(Action):
    """Tell the host the password; give up ``seconds`` from now."""

    node: int
    seconds: float


class SudoPassword:
    """Which hosts want the password, and which of them may be told it."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._told: set[int] = set()
        self._first: int | None = None  # who tries it for the others
        self._asked = self._unsettled = 0
        self._asking = self._known = self._proven = False
        self._over = ""  # why nobody is told one any more
        self._wrong: set[int] = set()

    def wanted(self, node: int) -> None:
        """sudo on ``node`` asks for it."""
        again = node in self._told
        if again:
            self._told.discard(node)
            if self._proven or self._asked > 1:
                self._wrong.add(node)
            if not self._proven:
                self._first, self._known = None, False
                if self._asked > 1:
                    self._over = "the password was wrong elsewhere, and is not tried here"
        if node not in self._waiting:
            self._waiting.insert(0 if again else len(self._waiting), node)

    def given(self, given: bool) -> None:
        """The user was asked, and gave one or not."""
        self._asking, self._known = False, given
        self._over = self._over or ("" if given else "no password was given")

    def left(self, node: int, *, started: bool) -> None:
        """``node`` wants it no more; started: its command runs."""
        if node in self._waiting:
            self._waiting.remove(node)
        if node in self._told and started:
            self._proven = True
        elif node == self._first and not self._proven:
            self._first, self._unsettled = None, self._unsettled + 1
            if self._unsettled == MOST_UNSETTLED:
                self._over = "the first hosts that were told the password failed with it"
        self._told.discard(node)

    def orders(self) -> Iterator[AskPassword | int | tuple[int, Failure]]:
        """What is to be done: ask; tell it to a host; that one has failed."""
        waiting, self._waiting = self._waiting, []
        for node in waiting:
            if node in self._wrong:
                yield node, Failure(Kind.SUDO, "wrong password")
            elif self._over:
                yield node, Failure(Kind.SUDO, self._over)
            elif self._known and (self._proven or self._first is None):
                self._first = node
                self._told.add(node)
                yield node
            else:
                self._waiting.append(node)
        if self._waiting and not self._known and not self._asking:
            self._asking, self._asked = True, self._asked + 1
            yield AskPassword(again=self._asked > 1)
