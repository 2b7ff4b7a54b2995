"""The launcher's part of process management: fences across nodes, names, spawns. Pure.

``AttemptMachine`` gives it the events whose names begin with "Pmi", and starts and exits of
ranks. Each world has its ``fences``; those of ranks of several worlds are among world 0's. A group
that is made by a fence gets a number, unique in the job: MPI's context id. A spawn goes so::

    asked --refused-------------------------------------> rc=1 to the rank that asked
      |
      +--placed: orders to the nodes--+--all ranks run--> rc=0
                                      |
                                      +--one cannot be started--> rc=1, the others are killed

Hosts of one job trust each other by MPI, and only by it: a host that asks for a world must have
ranks that use MPI, and so must each host that gets ranks of it (``docs/design/security.md``).
"""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf

from dispatcher.core.events import actions as act
from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.run import spawn_placement
from dispatcher.core.run.fences import NAMED, Account, FenceError, Fences, Release
from dispatcher.core.run.spawn_placement import SPAWNED_A_SECOND, SPAWNED_AT_ONCE
from dispatcher.core.run.tables import RankTable
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import JobPlan

#: bytes of the names that ranks of one node may have published at once, and of those they wait for
NAMES_LIMIT = 1 << 20
#: bytes of a value that may be looked up many times. A longer one is deleted by its first lookup,
#: as in Open MPI: a host that repeats its lookup would have dispatch send a thousand times its size
LASTING = 4096
#: memory of a lookup that waits, beside its name: so 4,000 may wait, and a rank waits in one at a
#: time, or in some by its threads
AWAITED = 256
#: refused spawns of a node that the user sees
MOST_TOLD = 20

#: the answer to a spawn that is refused
REFUSED = b"cmd=spawn_result rc=1 msg=refused_by_dispatch\n"


class _World:
    """A world while ranks of it live: its fences, and how far its start has come."""

    def __init__(
        self,
        ranks_of: Mapping[int, Sequence[int]],
        by: mpi_events.PmiSpawnAsked | None,
        account: Account,
        others: Mapping[int, int] | None = None,
    ) -> None:
        self.fences = Fences(ranks_of, others, account)
        self.asked: dict[int, float] = {}  # node -> when it last had to say who is missing
        self.left = {rank for ranks in ranks_of.values() for rank in ranks}  # not yet ended
        self.waiting = set(self.left) if by else set()  # ordered, and not started yet
        # the request to answer, and the world for nodes that start PMIx later: without arguments
        # and keys, which may be a megabyte and were part of the orders
        self.by = replace(by, segments=(), preput=()) if by else None
        self.placed: mpi_events.World | None = None
        self.given_up = False


class MpiManager:
    """Answers the MPI requests of one job. ranks: where ranks live; spawned ranks are added.

    hostnames: node -> the host's own name. here: nodes on the launcher's own machine.
    """

    def __init__(
        self, plan: JobPlan, ranks: RankTable, hostnames: Mapping[int, str], here: Collection[int]
    ) -> None:
        self._plan = plan
        self._ranks = ranks
        self._hosts = spawn_placement.Hosts(plan.nodes, hostnames, here)
        planned = {node.index: node.ranks for node in plan.nodes}
        self._account = Account()
        self._worlds = {0: _World(planned, None, self._account, ranks.nodes)}
        self._n_worlds = 1
        self._n_met = 0
        self._serving: set[int] = set()  # nodes with the order to serve PMIx
        self._names: dict[bytes, mpi_events.PmiAsked] = {}  # service -> its publish
        self._awaited: dict[bytes, deque[mpi_events.PmiAsked]] = {}  # service -> waiting lookups
        self._awaiting: Counter[int] = Counter()  # rank -> its lookups that wait
        self._names_size: Counter[int] = Counter()  # node -> bytes
        self._awaited_size: Counter[int] = Counter()  # the same of those that wait
        self._using: set[int] = set()  # nodes whose ranks have come to MPI
        self._may_spawn: dict[int, tuple[float, float]] = {}  # node -> ranks it might, and when
        self._n_refused: Counter[int] = Counter()

    # -- fences -------------------------------------------------------------------

    def commit(self, event: mpi_events.PmiCommitted) -> list[act.Action] | None:
        """Note a node's commit; None: its world is over. Raises: FenceError if it is impossible."""
        if self._plan.mpi == "none":
            raise FenceError(f"{event.name} in a job without MPI")
        self._using.add(event.node)
        world = self._worlds.get(event.world)
        if world is None:
            if event.world >= self._n_worlds:
                raise FenceError(f"a barrier of world {event.world}, which does not exist")
            return None
        release = world.fences.commit(event.node, event.fence, event.epoch, event.keys)
        return self._released(event.world, release)

    def late(self, index: int, fence: str, epoch: int, now: float) -> list[act.Action] | None:
        """Ask the nodes missing from ``fence`` which of their ranks are missing.

        None: they were all asked just now for another fence of that world, so ask later. Otherwise
        a node that opens many fences could make the others seem to flood dispatch with answers.
        """
        world, seconds = self._worlds.get(index), self._plan.limits.mpi_stall_warning
        if world is None or not (missing := world.fences.missing(fence, epoch)):
            return []
        nodes = [node for node in missing if world.asked.get(node, -inf) + seconds <= now]
        world.asked.update(dict.fromkeys(nodes, now))
        return [act.AskWaiting(node, index, fence, epoch, seconds) for node in nodes] or None

    # -- what ranks ask for -------------------------------------------------------

    def request(self, event: mpi_events.Request, now: float) -> list[act.Action]:
        """Return the actions for a rank's request: an answer, a new world, or PMIx on its node.

        Raises: FenceError for a request that a rank cannot have made.
        """
        if self._plan.mpi == "none":
            raise FenceError(f"{event.name} in a job without MPI")
        match event:
            case mpi_events.PmiAsked():
                return self._answer(event)
            case mpi_events.PmiSpawnAsked(node):
                if node not in self._using:
                    raise FenceError("it wants to spawn, but its ranks do not use MPI")
                return self._spawn(event, now)
            case mpi_events.PmixWanted(node) if node not in self._serving:
                self._serving.add(node)
                worlds = [world.placed for world in self._worlds.values() if world.placed]
                return [act.ServePmix(node), *(act.ShareWorld(node, world) for world in worlds)]
        return []

    def _answer(self, event: mpi_events.PmiAsked) -> list[act.Action]:
        """Answer a rank's publish, lookup or unpublish, and the lookups that waited for it."""
        service = event.service
        if event.verb == "publish":
            size = len(service) + len(event.port) + NAMED
            is_long = len(event.port) > LASTING and not event.once
            if not event.port or is_long or self._names_size[event.node] + size > NAMES_LIMIT:
                return [_answer(event, b"cmd=publish_result rc=1 msg=cannot_be_published\n")]
            self._forget(service)
            self._names[service] = event
            self._names_size[event.node] += size
            served: list[act.Action] = []
            while service in self._names and (one := self._next_awaiting(service)):
                served += self._answer(one)
            return [_answer(event, b"cmd=publish_result rc=0\n"), *served]
        if event.verb == "unpublish":
            found = self._forget(service)
            line = b"cmd=unpublish_result rc=0\n" if found else _unknown(b"unpublish")
            return [_answer(event, line)]
        known = self._names.get(service)
        if known is not None:
            if known.once:
                self._forget(service)
            return [_answer(event, b"cmd=lookup_result rc=0 port=%s\n" % known.port)]
        size = len(service) + AWAITED
        if not event.wait or self._awaited_size[event.node] + size > NAMES_LIMIT:
            return [_answer(event, _unknown(b"lookup"))]
        self._wait(event)
        return []

    def _wait(self, event: mpi_events.PmiAsked) -> None:
        self._awaited.setdefault(event.service, deque()).append(event)
        self._awaited_size[event.node] += len(event.service) + AWAITED
        self._awaiting[event.rank] += 1

    def _next_awaiting(self, service: bytes) -> mpi_events.PmiAsked | None:
        """Take out the lookup that has waited longest for ``service``."""
        waiting = self._awaited.get(service)
        if waiting is None:
            return None
        event = waiting.popleft()
        self._awaited_size[event.node] -= len(service) + AWAITED
        self._awaiting[event.rank] -= 1
        if not waiting:
            del self._awaited[service]
        return event

    def _forget(self, service: bytes) -> bool:
        known = self._names.pop(service, None)
        if known is None:
            return False
        self._names_size[known.node] -= len(service) + len(known.port) + NAMED
        return True

    def uses(self, node: int) -> None:
        """Note that a rank of ``node`` uses MPI."""
        self._using.add(node)

    # -- spawns -------------------------------------------------------------------

    def _spawn(self, event: mpi_events.PmiSpawnAsked, now: float) -> list[act.Action]:
        if not self._ranks.is_alive(event.rank, event.node):
            return []
        index = self._n_worlds
        before, at = self._may_spawn.get(event.node, (inf, now))
        most = min(SPAWNED_AT_ONCE, before + (now - at) * SPAWNED_A_SECOND)
        try:
            world = spawn_placement.place(
                event, index, self._hosts, self._ranks.load(), self._ranks.n_spawned, self._using,
                most,
            )  # fmt: skip
        except spawn_placement.NotSpawned as refused:
            self._n_refused[event.node] += 1
            if self._n_refused[event.node] > MOST_TOLD:
                return [_answer(event, REFUSED)]
            return _refused(event, str(refused))
        self._may_spawn[event.node] = most - world.size, now
        self._n_worlds += 1
        ranks_of = world.ranks_of()
        made = self._worlds[index] = _World(ranks_of, event, self._account)
        for rank, node in enumerate(world.nodes):
            self._ranks.call(world.number(rank), node)
        placed = mpi_events.WorldPlaced(index, event.rank, world.number(0), world.nodes)
        shared: list[act.Action] = []
        if event.ask:
            segments = tuple(mpi_events.Segment(s.nprocs, (b"",)) for s in world.segments)
            made.placed = replace(world, segments=segments, preput=())
            shared = [act.ShareWorld(node, world) for node in sorted(self._serving)]
        return [
            act.Tell(placed),
            *shared,
            *(act.SpawnRanks(node, world) for node in sorted(ranks_of)),
        ]

    def started(self, rank: int) -> list[act.Action]:
        """Note that ``rank`` runs; answer its spawn if it was the last rank awaited."""
        index, own = placement.place(rank)
        world = self._worlds.get(index)
        if world is None or own not in world.waiting:
            return []
        world.waiting.discard(own)
        if world.waiting or world.by is None or world.given_up:
            return []
        which = b" world=%d" % index if world.by.ask else b""
        return [_answer(world.by, b"cmd=spawn_result rc=0%s\n" % which)]

    def not_started(self, event: ev.RankFailedToStart) -> list[act.Action] | None:
        """Give up the world of a rank that could not be started; None for a planned rank."""
        index, _ = placement.place(event.rank)
        world = self._worlds.get(index)
        if world is None or world.by is None:
            return None
        left = sorted(world.left) if not world.given_up else []
        self._leave(event.rank)
        if world.given_up:
            return []
        world.given_up = True
        ranks: dict[int, list[int]] = {}
        for own in left:
            number = placement.number(index, own)
            ranks.setdefault(self._ranks.nodes[number], []).append(number)
        # the orders to start were sent before these, so no rank starts after them
        to, killed = self._plan.signal_to, sorted(ranks.items())
        kills = [act.SignalRanks(n, signal.SIGKILL, tuple(own), to) for n, own in killed]
        host = self._plan.nodes[event.node].host.name
        why = f"{host}: {event.step} {event.what}: {os.strerror(event.errno).lower()}"
        return [*kills, *_refused(world.by, why)]

    # -- ends ---------------------------------------------------------------------

    def ended(self, rank: int, status: int, mpi: str = "") -> list[act.Action] | None:
        """Note that ``rank`` exited: fences do not wait for it if it used MPI and exited with 0.

        None: the exit does not count as a failure, because the rank's world was given up.
        """
        index, own = placement.place(rank)
        world = self._worlds.get(index)
        if world is None:
            return []
        self._leave(rank)
        if world.given_up:
            self._ranks.statuses.pop(rank, None)
            return None
        if status != 0 or mpi == "never":
            return []
        releases = [(index, release) for release in world.fences.ended(own)]
        if index:
            releases += [(0, release) for release in self._worlds[0].fences.ended(rank)]
        return [action for where in releases for action in self._released(*where)]

    def _leave(self, rank: int) -> None:
        index, own = placement.place(rank)
        world = self._worlds[index]
        world.left.discard(own)
        if self._awaiting.pop(rank, 0):  # else there is no need to look at all lookups
            lookups = [one for waiting in self._awaited.values() for one in waiting]
            for numbers in (self._awaited, self._awaited_size, self._awaiting):
                numbers.clear()
            for one in lookups:
                if one.rank != rank:
                    self._wait(one)
        if not world.left and index:
            world.fences.close()
            del self._worlds[index]

    def _released(self, world: int, release: Release | None) -> list[act.Action]:
        if release is None:
            return []
        self._n_met += release.once
        number = self._n_met if release.once else 0
        fence, epoch, nodes, keys = release.fence, release.epoch, release.nodes, release.packets
        return [act.ReleaseFence(nodes, world, fence, epoch, keys, number)]


def _refused(event: mpi_events.PmiSpawnAsked, why: str) -> list[act.Action]:
    return [act.Tell(mpi_events.SpawnRefused(event.node, event.rank, why)), _answer(event, REFUSED)]


def _answer(event: mpi_events.PmiAsked | mpi_events.PmiSpawnAsked, line: bytes) -> act.AnswerRank:
    return act.AnswerRank(event.node, event.rank, line, event.ask)


def _unknown(verb: bytes) -> bytes:
    return b"cmd=%s_result rc=1 msg=service_not_found\n" % verb


def process_mapping(node_of: Sequence[int]) -> str:
    """The value of ``PMI_process_mapping``: which ranks share a node, as runs.

    node_of: the node of each rank. A block (X,Y,Z) says: nodes X to X+Y-1 have Z consecutive ranks
    each. Source: MPICH's PMI v1 wiki.
    """
    blocks: list[list[int]] = []  # first node, nodes, ranks on each
    for node, same in groupby(node_of):
        count = len([*same])
        if blocks and blocks[-1][2] == count and sum(blocks[-1][:2]) == node:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, count])
    return "(vector" + "".join(f",({a},{b},{c})" for a, b, c in blocks) + ")"
