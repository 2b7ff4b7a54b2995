"""A run whose ranks are watched over: ``Run`` and ``Vigil`` behind the same doors.

Nobody watches until a limit for silence is given, or somebody asks where the ranks are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, Tell
from dispatcher.core.events.monitor_events import NodeSampled, StacksWanted
from dispatcher.core.run.attempt import RUNNING
from dispatcher.core.run.run_machine import TRYING, Run
from dispatcher.plan.job.job_plan import JobPlan

if TYPE_CHECKING:
    from dispatcher.core.hang_monitor import Vigil


class Watched(Run):
    """As ``Run``; samples, stacks and seen output are its own business, not the job's."""

    def __init__(self, plan: JobPlan, *, check: bool = True) -> None:
        super().__init__(plan, check=check)
        self._vigil: Vigil | None = None
        if plan.limits.hang_timeout:
            self._keep_watch()

    def handle(self, event: ev.Event, now: float) -> list[Action]:
        if isinstance(event, ev.NodesHeard):
            for node, ago in zip(event.nodes, event.ago, strict=True):
                if not self.pool.is_resting(node):  # it came before it said so
                    self.handle(ev.NodeHeard(node), now - ago)  # which calls for nothing
            return []
        if isinstance(event, StacksWanted):
            self._keep_watch()
        if self._vigil is None:
            return [] if isinstance(event, NodeSampled) else super().handle(event, now)
        watched = self._watch(self._vigil.handle(event, now), now)
        own = isinstance(event, self._vigil.OWN)
        return watched if own else watched + super().handle(event, now)

    def tick(self, now: float) -> list[Action]:
        watched = [] if self._vigil is None else self._watch(self._vigil.tick(now), now)
        return watched + super().tick(now)

    def next_deadline(self) -> float | None:
        whens = [super().next_deadline()]
        if self._vigil is not None and self.state == TRYING:
            whens.append(self._vigil.next_deadline())
        return min((when for when in whens if when is not None), default=None)

    def excuse(self, seconds: float) -> None:
        super().excuse(seconds)
        if self._vigil is not None:
            self._vigil.excuse(seconds)

    def is_quiet(self, now: float) -> bool:
        """Whether output that was seen must be told now, since the ranks are thought to hang."""
        return self._vigil is not None and self._vigil.is_quiet(now)

    def _keep_watch(self) -> None:
        """From now on somebody can say where the ranks are, and whether they hang."""
        from dispatcher.core.hang_monitor import Vigil

        self._vigil = self._vigil or Vigil(
            self.plan.limits.hang_timeout,
            shows_progress=self.plan.restarts.shows_progress,
            attempt=self.attempt if self._homes else -1,
            living={rank: host for rank, (host, _) in self._homes.items()},
        )

    def _watch(self, actions: list[Action], now: float) -> list[Action]:
        """What the vigil calls for while ranks run; if they hang, they are ended."""
        assert self._vigil is not None
        hung, self._vigil.hung = self._vigil.hung, None
        if self.state != TRYING or self._job.state != RUNNING:
            return [action for action in actions if isinstance(action, Tell)]
        if hung is None:
            return actions
        if hung.rank is not None:
            hung = replace(hung, node=self._job.node_of(hung.rank))
        return actions + self._carry(self._job.stop(hung, now), now)
