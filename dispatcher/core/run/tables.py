"""The hosts of a run and what is known of each, by their numbers. Pure.

A host is *linked* from the order to reach it until it is given up; it is *out* when it
will not be used (any more), which says nothing about its link; it is *armed* while
ranks may live there. A host that is given up while armed is *fenced*: only time tells
that its ranks are dead (``restart.fence``), and if its lease rests (``pause``), not even that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from dispatcher.core.events.run_events import Facts
from dispatcher.core.run import restart
from dispatcher.plan.job.job_plan import NodePlan
from dispatcher.plan.job.request import Limits


class Pool:
    """places: each host as it was first planned, spares last. limits: of the run."""

    def __init__(self, places: Sequence[NodePlan], limits: Limits) -> None:
        self.places = tuple(places)
        self.linked: set[int] = set()
        self.facts: dict[int, Facts] = {}  # of hosts whose agent found nothing wrong
        self.out: dict[int, str] = {}  # host -> why
        self.faults: Counter[int] = Counter()  # attempts that ended there
        self.silent: dict[int, float] = {}  # host -> when it must have been heard again
        self._limits = limits
        self._armed: set[int] = set()
        self.over: set[int] = set()  # given up when their agent's process had ended
        self._fences: dict[int, float] = {}
        self._resting: dict[int, bool] = {}  # told to rest its lease -> whether it said it does

    def name(self, host: int) -> str:
        return self.places[host].host.name

    @property
    def answering(self) -> set[int]:
        """Hosts with an agent that has answered and can be told things."""
        return self.linked & self.facts.keys()

    def arm(self, host: int) -> None:
        """Ranks are about to be started there."""
        self._armed.add(host)

    def swept(self, host: int) -> None:
        """Nothing of ours lives there."""
        self._armed.discard(host)

    def unlink(self, host: int, now: float, *, over: bool = False) -> None:
        """``host`` is given up, or has ended its part. over: its agent's process had ended."""
        self.linked.discard(host)
        self.silent.pop(host, None)
        if host in self._armed:
            self._armed.discard(host)
            rests = host in self._resting
            self._fences[host] = math.inf if rests else now + restart.fence(self._limits)
            if over:
                self.over.add(host)

    def cleared(self, host: int) -> None:
        """It was looked at again: nothing of ours lives there."""
        self._fences.pop(host, None)

    def fences(self) -> dict[int, float]:
        """Hosts that were given up and can be looked at -> when their ranks are surely dead."""
        return {host: when for host, when in self._fences.items() if self._is_alone(host)}

    def _is_alone(self, host: int) -> bool:
        """Whether no other host in use is this one by a second name."""
        known = {h: facts.machine for h, facts in self.facts.items() if h in {*self.linked, host}}
        return bool(known.get(host)) and [*known.values()].count(known[host]) == 1

    def dead_at(self) -> float:
        """When the ranks of all hosts that were given up are surely dead; inf: never."""
        return max(self._fences.values(), default=0.0)

    def undead(self) -> list[str]:
        """Names of hosts that were given up and whose ranks may live for ever."""
        return [self.name(host) for host, when in self._fences.items() if when == math.inf]

    def rest(self, host: int) -> None:
        """``host`` is being told to let its lease rest."""
        self._resting[host] = False

    def rests(self, host: int) -> None:
        """``host`` said that its lease rests; it gives no beat until it goes on."""
        self._resting[host] = True

    def is_resting(self, host: int) -> bool:
        """Whether ``host`` said that its lease rests, and nothing since."""
        return self._resting.get(host, False)

    def beats(self, host: int) -> None:
        """``host`` gave its beat: if it said before that its lease rests, it has gone on."""
        if self._resting.get(host):
            del self._resting[host]

    def leave_out(self, host: int, why: str) -> None:
        self.out.setdefault(host, why)

    def waiting(self, seats: Collection[int]) -> list[int]:
        """Hosts without a seat that may get one, also those whose agent has yet to answer."""
        return [h for h in sorted(self.linked) if h not in seats and h not in self.out]

    def hear(self, host: int, now: float) -> None:
        """``host`` has shown a sign of life; somebody should listen for the next."""
        if host in self.linked:
            until = now + self._limits.heartbeat * self._limits.beats_lost
            self.silent[host] = max(self.silent.get(host, 0.0), until)

    def deafen(self, hosts: Iterable[int]) -> None:
        """Others listen to ``hosts`` from now on."""
        for host in hosts:
            self.silent.pop(host, None)

    def fallen_silent(self, now: float) -> list[int]:
        """Hosts that have not been heard in time; each is told once."""
        found = [host for host, when in self.silent.items() if when <= now]
        self.deafen(found)
        return found

    @property
    def patience(self) -> str:
        return f"nothing heard for {self._limits.heartbeat * self._limits.beats_lost:.0f} s"
