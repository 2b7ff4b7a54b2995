"""Whoever looks at the ranks of a run: the table, and what shows it, where either is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

from dispatcher.cli.showing import Showing
from dispatcher.plan.job import JobPlan
from dispatcher.sinks.base import Sink
from dispatcher.sinks.screen import Screen

if TYPE_CHECKING:
    from dispatcher.cli.overview import Watched


class Seen:
    """Nothing, and nothing loaded, unless ``showing`` wants something.

    sinks: who is to be told of the run. As a context: in the end the terminal is as it was.
    """

    def __init__(self, plan: JobPlan, showing: Showing, hosts: Sequence[str]) -> None:
        self.sinks: list[Sink] = []
        self._watched: Watched | None = None
        if showing.watch:
            from dispatcher.cli.overview import Watched, open_table

            table = open_table(plan)
            self.sinks.append(table)
            self._watched = Watched(hosts, table)

    def over(self, screen: Screen) -> Sink:
        """What stands before the lines, else the lines."""
        return screen if self._watched is None else self._watched.over(screen)

    def lent(self) -> AbstractContextManager[None]:
        """The terminal is the shell's for so long."""
        return nullcontext() if self._watched is None else self._watched.lent()

    def __enter__(self) -> Seen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watched is not None:
            self._watched.give_back()
