"""What became of every rank: a fold over the events, for the report."""

from __future__ import annotations

from dispatcher.core.events.mpi_events import WorldPlaced
from dispatcher.core.events.pmix import MpiFound
from dispatcher.core.events.run_events import RankExited, RankSpawned, RanksPlaced
from dispatcher.core.events.sink import Sink, Stamped


class Endings(Sink):
    """Of the ranks of the present attempt, by rank.

    pids: its process id. nodes: the number of its host. began, ended: seconds since the run
    began. sizes: (rank, stream) -> bytes that came. spawned: the worlds that ranks spawned.
    mpi: host -> which library its ranks use, and what serves it.
    """

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.nodes: dict[int, int] = {}
        self.began: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self.spawned: list[WorldPlaced] = []
        self.mpi: dict[int, MpiFound] = {}

    def event(self, stamped: Stamped) -> None:
        match stamped.event:
            case RanksPlaced():  # of another attempt than what is known
                for known in (self.pids, self.nodes, self.began, self.ended, self.sizes):
                    known.clear()
                self.spawned.clear()
                self.mpi.clear()
            case RankSpawned(node, rank, pid):
                self.pids[rank], self.nodes[rank] = pid, node
                self.began[rank] = stamped.t
            case RankExited(_, rank):
                self.ended[rank] = stamped.t
            case WorldPlaced():
                self.spawned.append(stamped.event)
            case MpiFound(node):
                self.mpi[node] = stamped.event

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        self.sizes[key] = self.sizes.get(key, 0) + len(data)
