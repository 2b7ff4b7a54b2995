"""``--watch``: the table of a run on the whole screen, opened and given back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dispatcher.agent.wire import STDERR, STDOUT
from dispatcher.errors import UsageError
from dispatcher.plan.job import JobPlan
from dispatcher.sinks.base import Sink
from dispatcher.sinks.canvas import Canvas
from dispatcher.sinks.outlet import same_file
from dispatcher.sinks.screen import Screen
from dispatcher.sinks.table import Table
from dispatcher.sinks.watching import View, Watching


def is_screen() -> bool:
    """Whether a person looks at standard output and at standard error, in one terminal."""
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown", "")
    return not dumb and os.isatty(STDOUT) and os.isatty(STDERR) and same_file(STDOUT, STDERR)


def check(flags: Mapping[str, Any]) -> None:
    """Raises: UsageError where there is no screen for a table."""
    if flags["detach"]:
        raise UsageError("--watch is about the screen, and --detach has none", hint="dispatch top")
    if not is_screen():
        raise UsageError(
            "--watch: standard output and standard error are not one terminal",
            hint="--sample 5 --log-dir DIR keeps the figures in a file",
        )
    if flags["stdin"] != "none" and os.isatty(0):
        raise UsageError("--watch and --stdin would both read what is typed", hint="< FILE")


def open_table(plan: JobPlan, slow: Callable[[], tuple[str, ...]]) -> Table:
    """The fold behind the table of ``plan``; slow: see there."""
    nodes = (*plan.nodes, *plan.spares)
    return Table([node.host.name for node in nodes], time.monotonic, slow)


class Watched:
    """The screen that ``--watch`` shows. Raises: UsageError if the terminal cannot be opened."""

    def __init__(self, hosts: Sequence[str], table: Table) -> None:
        try:
            self._view = View(Canvas(STDOUT), hosts, table.shot)
        except OSError as error:
            raise UsageError(f"--watch: the terminal: {(error.strerror or '').lower()}") from None
        self._sink: Watching | None = None

    def over(self, screen: Screen) -> Sink:
        """``screen``, with the table before it."""
        self._sink = Watching(self._view, screen)
        return self._sink

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The terminal is the shell's for so long."""
        assert self._sink is not None
        with self._sink.lent():
            yield

    def give_back(self) -> None:
        """However the run ended, the terminal is as it was."""
        if self._sink is not None:
            self._sink.give_back()
