"""``--watch``: the table of a run on the whole screen, opened and given back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dispatcher.core.events.sink import Sink
from dispatcher.model.errors import UsageError
from dispatcher.output.monitor.live_table import Table
from dispatcher.output.terminal.alt_screen import Canvas
from dispatcher.output.terminal.outlet import same_file
from dispatcher.output.terminal.screen import Screen
from dispatcher.output.terminal.watching import View, Watching
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.remote.protocol.wire import STDERR, STDOUT


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
