"""The launcher's part of process management: fences across nodes, names, spawns, patience.

``Job`` hands it the events whose names begin with ``Pmi``, and what becomes of
ranks; it carries out what is returned. Pure, like all of ``core``.

A spawn goes so::

    asked --refused-------------------------------------> rc=1 to the rank that asked
      |
      +--placed: orders to the nodes--+--all ranks run--> rc=0
                                      |
                                      +--one cannot be started--> rc=1, the others are killed

What a rank does with rc=1 is MPI's business (its error handler); a world that was
given up is no failure of the job.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import (
    Action,
    AnswerRank,
    AskWaiting,
    ReleaseFence,
    ServePmix,
    SignalRanks,
    SpawnRanks,
    Tell,
)
from dispatcher.core.run import spawn_placement as spawn
from dispatcher.core.run.kvs import FenceError, Fences, Release
from dispatcher.core.run.roll import Roll
from dispatcher.plan.job import worlds
from dispatcher.plan.job.job_plan import JobPlan

#: names that one job may have published at once
MOST_NAMES = 4096


class _World:
    """A world while ranks of it live: its fences, and how far its start has come."""

    def __init__(self, ranks_of: Mapping[int, Sequence[int]], by: tuple[int, int] | None) -> None:
        self.fences = Fences(ranks_of)
        self.left = {rank for ranks in ranks_of.values() for rank in ranks}  # not yet ended
        self.waiting = set(self.left) if by else set()  # ordered, and not yet heard of
        self.by = by  # node and rank that await the answer
        self.given_up = False


class Mpi:
    """MPI's side of one job. roll: where ranks live, which spawned ones are added to.

    hostnames: node -> what the host calls itself.
    """

    def __init__(self, plan: JobPlan, roll: Roll, hostnames: Mapping[int, str]) -> None:
        self._plan = plan
        self._roll = roll
        self._hostnames = hostnames
        self._worlds = {0: _World({node.index: node.ranks for node in plan.nodes}, None)}
        self._n_worlds = 1
        self._serving: set[int] = set()  # nodes that were told to serve PMIx
        self._names: dict[bytes, bytes] = {}

    # -- fences -------------------------------------------------------------------

    def commit(self, event: mpi_events.PmiCommitted) -> list[Action]:
        """A node is in. Raises: FenceError if it may not be."""
        world = self._worlds.get(event.world)
        if world is None:
            if event.world >= self._n_worlds:
                raise FenceError(f"a barrier of world {event.world}, which does not exist")
            return []
        release = world.fences.commit(event.node, event.fence, event.epoch, event.keys)
        return _released(event.world, release)

    def late(self, index: int, fence: str, epoch: int, seconds: float) -> list[Action]:
        """Ask the nodes that ``fence`` still waits for whom they are waiting for."""
        world = self._worlds.get(index)
        missing = world.fences.missing(fence, epoch) if world else []
        return [AskWaiting(node, index, fence, epoch, seconds) for node in missing]

    # -- PMIx ---------------------------------------------------------------------

    def serve(self, node: int) -> list[Action]:
        """Have the agent of ``node`` serve PMIx, unless it does."""
        if node in self._serving:
            return []
        self._serving.add(node)
        return [ServePmix(node)]

    # -- names --------------------------------------------------------------------

    def ask(self, event: mpi_events.PmiAsked) -> list[Action]:
        """The answer to a rank's publish, lookup or unpublish."""
        return [AnswerRank(event.node, event.rank, self._answer(event))]

    def _answer(self, event: mpi_events.PmiAsked) -> bytes:
        service = event.service
        if event.verb == "publish":
            if not event.port or len(self._names) >= MOST_NAMES:
                return b"cmd=publish_result rc=1 msg=cannot_be_published\n"
            self._names[service] = event.port
            return b"cmd=publish_result rc=0\n"
        if event.verb == "unpublish":
            found = self._names.pop(service, None) is not None
            return b"cmd=unpublish_result rc=0\n" if found else _unknown(b"unpublish")
        port = self._names.get(service)
        return _unknown(b"lookup") if port is None else b"cmd=lookup_result rc=0 port=%s\n" % port

    # -- spawns -------------------------------------------------------------------

    def spawn(self, event: mpi_events.PmiSpawnAsked) -> list[Action]:
        """Place the world that a rank asks for and have it started, or refuse."""
        if not self._roll.is_alive(event.rank, event.node):
            return []
        index = self._n_worlds
        spawned = sum(rank >= worlds.FIRST for rank in self._roll.alive())
        try:
            world = spawn.place(
                event, index, self._plan, self._roll.load(), spawned, self._hostnames
            )
        except spawn.Refused as refused:
            return _refused(event.node, event.rank, str(refused))
        self._n_worlds += 1
        ranks_of = world.ranks_of()
        self._worlds[index] = _World(ranks_of, (event.node, event.rank))
        for rank, node in enumerate(world.nodes):
            self._roll.call(world.number(rank), node)
        placed = mpi_events.WorldPlaced(index, event.rank, world.number(0), world.nodes)
        return [Tell(placed), *(SpawnRanks(node, world) for node in sorted(ranks_of))]

    def started(self, rank: int) -> list[Action]:
        """``rank`` runs; the answer to its spawn if it was the last one awaited."""
        index, own = worlds.place(rank)
        world = self._worlds.get(index)
        if world is None or own not in world.waiting:
            return []
        world.waiting.discard(own)
        if world.waiting or world.by is None or world.given_up:
            return []
        node, asker = world.by
        return [AnswerRank(node, asker, b"cmd=spawn_result rc=0\n")]

    def not_started(self, event: ev.RankFailedToStart) -> list[Action] | None:
        """A rank could not be started: its world is given up. None for a planned rank."""
        index, _ = worlds.place(event.rank)
        world = self._worlds.get(index)
        if world is None or world.by is None:
            return None
        node, asker = world.by
        first = not world.given_up
        world.given_up = True
        ranks: dict[int, list[int]] = {}
        for own in sorted(world.left):
            number = worlds.number(index, own)
            ranks.setdefault(self._roll.nodes[number], []).append(number)
        self._leave(event.rank)
        if not first:
            return []
        # the orders to start are on their way before these, so nobody starts after them
        kills = [SignalRanks(n, signal.SIGKILL, tuple(own)) for n, own in sorted(ranks.items())]
        host = self._plan.nodes[event.node].host.name
        why = f"{host}: {event.step} {event.what}: {os.strerror(event.errno).lower()}"
        return [*kills, *_refused(node, asker, why)]

    # -- ends ---------------------------------------------------------------------

    def ended(self, rank: int, status: int, mpi: str = "") -> list[Action] | None:
        """``rank`` exited: if with 0, no fence waits for it any more, unless it never came to one.

        None: the exit is no failure, since the rank's world was given up.
        """
        index, own = worlds.place(rank)
        world = self._worlds.get(index)
        if world is None:
            return []
        self._leave(rank)
        if world.given_up:
            self._roll.statuses.pop(rank, None)
            return None
        releases = world.fences.ended(own) if status == 0 and mpi != "never" else []
        return [action for release in releases for action in _released(index, release)]

    def _leave(self, rank: int) -> None:
        index, own = worlds.place(rank)
        world = self._worlds[index]
        world.left.discard(own)
        if not world.left:
            del self._worlds[index]


def _refused(node: int, rank: int, why: str) -> list[Action]:
    line = b"cmd=spawn_result rc=1 msg=refused_by_dispatch\n"
    return [Tell(mpi_events.SpawnRefused(node, rank, why)), AnswerRank(node, rank, line)]


def _unknown(verb: bytes) -> bytes:
    return b"cmd=%s_result rc=1 msg=service_not_found\n" % verb


def _released(world: int, release: Release | None) -> list[Action]:
    if release is None:
        return []
    return [ReleaseFence(release.nodes, world, release.fence, release.epoch, release.packets)]
