"""Errors that our own caller can mend; each owns its exit code and its hint.

::

    DispatchError            125  dispatch or the cluster failed
    |- UsageError              2  bad input; no host was touched
    |   |- HostfileError       2  one or more bad lines of a hostfile
    |   `- PlanError           2  the hosts cannot hold what was asked for
    `- InternalError         125  our bug; shown with a traceback

What goes wrong on a remote host is not an exception: it is a value
(``transport.base.Failure``) and then an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.model import exitcodes


class DispatchError(Exception):
    """``message`` reads ``who: what: why`` in lower case; ``hint`` is one line to paste."""

    exit_code = exitcodes.CLUSTER

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DispatchError):
    """The command line or a file it names is wrong; nothing was started."""

    exit_code = exitcodes.USAGE


class PlanError(UsageError):
    """The request is well formed but these hosts cannot satisfy it."""


class InternalError(DispatchError):
    """A state that must not happen; the message carries the last events."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a text the user wrote.

    line and column count from 1, line 0 is the only one of a text that was typed; source ""
    needs no naming; text is the offending line without its end; width is the number of
    characters the caret line underlines, >= 1.
    """

    source: str
    line: int
    column: int
    text: str
    message: str
    hint: str | None = None
    width: int = 1

    @property
    def where(self) -> str:
        """What goes before the message; a caret is enough in what was typed just now."""
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return f"{place}: " if place else ""

    def __str__(self) -> str:
        shown = self.text.replace("\t", " ")
        lines = [
            self.where + self.message,
            f"  {shown}",
            "  " + " " * (self.column - 1) + "^" * max(1, self.width),
        ]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class HostfileError(UsageError):
    """All mistakes of a hostfile at once, in line order; ``problems`` is never empty."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
