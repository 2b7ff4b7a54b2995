"""Hosts that do as they are told, for the tests of a ``RunMachine``."""

from __future__ import annotations

from typing import Any

from dispatcher.core.events import actions as act
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.run import run_machine
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.plan.job.request import Limits, Restarts

from ..conftest import facts, make_plan

GONE = Failure(Kind.UNREACHABLE, "no route to host")
#: how it is told
WHY = "unreachable: no route to host"


class World:
    """Hosts that do as they are told, for a ``RunMachine``; what is not told to happen goes well.

    ended: the verdict. done: all actions so far.
    """

    def __init__(
        self, n_hosts: int = 2, *, spares: int = 0, np: int | None = None, check: bool = True,
        limits: Limits | None = None, **rules: Any,
    ) -> None:  # fmt: skip
        plan = make_plan(
            n_hosts + spares,
            spares=spares or None,
            np=np,
            limits=limits or Limits(),
            restarts=Restarts(**rules),
        )
        self.run = RunMachine(plan, check=check)
        self.now = 0.0
        self.done: list[act.Action] = []
        self.ended: verdicts.Verdict | None = None
        self.mute: set[int] = set()  # hosts that answer nothing
        self.attempts: dict[int, int] = {}  # host -> the attempt its link is at
        self.homes: dict[int, int] = {}  # living rank -> host
        self.take(self.run.begin())

    def since(self, event: ev.Event) -> list[act.Action]:
        """What ``event`` leads to."""
        at = len(self.done)
        self.tell(event)
        return self.done[at:]

    def end_well(self) -> None:
        """Every rank exits with 0, and nothing is left."""
        for rank in list(self.homes):
            self.exits(rank, 0)
        for _ in range(2):
            if self.ended is None:
                self.swept()

    def tell(self, event: ev.Event) -> None:
        self.take(self.run.handle(event, self.now))

    def at(self, cls: type[ev.Event], host: int, *args: Any) -> None:
        """An event of the attempt that the host's link stands at."""
        self.tell(cls(host, *args, attempt=self.attempts.get(host, 0)))

    def wait(self, seconds: float) -> None:
        """Time passes, while hosts are heard."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 2.0, end)
            for host in set(self.attempts) - self.mute:
                self.tell(ev.NodeHeard(host))
            self.take(self.run.tick(self.now))

    def take(self, actions: list[act.Action]) -> None:
        for action in actions:
            self.done.append(action)
            match action:
                case act.End(verdict):
                    assert self.ended is None
                    self.ended = verdict
                case act.StartRanks(plan, node):
                    host = self.run.host_at(node)
                    self.homes.update(dict.fromkeys(plan.nodes[node].ranks, host))

    def ready(self, *hosts: int, **fields: Any) -> None:
        """The hosts answer that they are ready (for the attempt they were last told of)."""
        for host in hosts:
            told = [
                action.attempt
                for action in self.done
                if isinstance(action, (act.OpenLink, act.Prepare)) and action.node == host
            ]
            self.attempts[host] = told[-1]
            head = self.run.host_at(0) == host
            known = facts(host, port=4000 + self.attempts[host] if head else None, **fields)
            self.at(ev.NodeReady, host, known)

    def probed(self, *hosts: int) -> None:
        for host in hosts:
            self.at(ev.NodeProbed, host, (f"10.0.0.{self.run.host_at(0) + 1}",))

    def exits(self, rank: int, status: int) -> None:
        host = self.homes.pop(rank)
        self.at(ev.RankExited, host, rank, status)
        for stream in (1, 2):
            self.at(ev.OutputEnded, host, rank, stream, 3, 3)

    def checks(self) -> list[act.Action]:
        """The orphan checks that were ordered."""
        return [action for action in self.done if isinstance(action, act.CheckOrphans)]

    def killed(self, *ranks: int) -> None:
        """The ranks end by SIGTERM."""
        for rank in ranks:
            self.exits(rank, -15)

    def sweep(self, *hosts: int) -> None:
        """Nothing is left on the hosts."""
        for host in hosts:
            self.at(ev.NodeSwept, host, 0)

    def fail(self, rank: int, status: int = 3) -> None:
        """One rank fails, the others die of it, all hosts sweep."""
        self.exits(rank, status)
        for other in list(self.homes):
            if self.homes[other] not in self.mute:
                self.exits(other, -15)
        self.swept()
        if self.run.state == run_machine.CLOSING:
            self.swept()

    def swept(self) -> None:
        """All hosts that answer have nothing left."""
        for host in set(self.attempts) - self.mute:
            self.at(ev.NodeSwept, host, 0)

    def lose(self, host: int, ending: Ending | None = None) -> None:
        self.mute.add(host)
        self.homes = {rank: at for rank, at in self.homes.items() if at != host}
        self.tell(ev.NodeLost(host, GONE, ending))

    def orders(self, since: int = 0) -> list[act.Action]:
        return [action for action in self.done[since:] if not isinstance(action, act.Tell)]

    def told(self, kind: type[ev.Event]) -> list[Any]:
        found = [a.event for a in self.done if isinstance(a, act.Tell)]
        return [event for event in found if isinstance(event, kind)]

    def starts(self) -> list[act.StartRanks]:
        return [action for action in self.done if isinstance(action, act.StartRanks)]


def started(n_hosts: int = 2, **options: Any) -> World:
    """A world whose ranks run, two on each host; all spares are ready."""
    world = World(n_hosts, **options)
    world.ready(*range(len(world.run.hosts.planned)))
    world.probed(*range(1, n_hosts))
    assert len(world.homes) == 2 * n_hosts
    return world


def again(world: World, *hosts: int) -> None:
    """The hosts (all of them if none is named) answer for the attempt under way."""
    seats = hosts or tuple(world.run.host_at(n) for n in range(len(world.run.plan.nodes)))
    world.ready(*seats)
    world.probed(*(host for host in seats if host != world.run.host_at(0)))
