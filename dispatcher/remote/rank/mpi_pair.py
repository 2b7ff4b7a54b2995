"""One end of a pair of hosts measured over MPI: the whole program of a rank; loads no dispatch.

Two ranks, one on each host. Rank 0 plays ping-pong, then sends, then receives. A direction is
measured in rounds that double in size until one takes long enough: so a slow link needs few
bytes and a fast one is not measured by its latency, and nothing is left under way when it is
over. The round is over when the other end has all of it and said so. Nothing is waited for beyond
the deadline: requests are tested, and a rank that is late leaves without MPI_Finalize, which
would wait for the other end.

The result is a line of standard output, ``MARK`` and JSON: latency (s, there and back), rate
(bytes/s that this end sent), why (what went wrong), lack (what this host itself lacks).
Any Python from 3.8 on with mpi4py can run it. argv: seconds for a direction, seconds for all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "dispatch pair: "
PINGS = 20
#: bytes of the first round of a direction, of a message, and of the last round
FIRST, PIECE, MOST = 1 << 16, 1 << 22, 1 << 30
#: messages under way
AHEAD = 4


class End:
    """This end of the pair on ``world``; ``until``: when all is late."""

    def __init__(self, world: Any, until: float) -> None:
        self._world = world
        self._until = until
        self._other = 1 - world.Get_rank()
        self._word = array("q", [0])
        self._piece = memoryview(bytearray(PIECE))

    def wait(self, request: Any) -> None:
        """Raises: TimeoutError."""
        while not request.Test():
            if time.monotonic() > self._until:
                raise TimeoutError("no answer in time")
            os.sched_yield()

    def say(self, number: int) -> None:
        self.wait(self._world.Isend(array("q", [number]), self._other))

    def hear(self) -> int:
        self.wait(self._world.Irecv(self._word, self._other))
        return self._word[0]

    def ping(self) -> float:
        """Seconds there and back."""
        times = []
        for _ in range(PINGS):
            began = time.monotonic()
            self.say(1)
            self.hear()
            times.append(time.monotonic() - began)
        return sorted(times)[len(times) // 2]

    def pong(self) -> None:
        for _ in range(PINGS):
            self.hear()
            self.say(1)

    def send(self, seconds: float) -> float:
        """Bytes/s that arrived at the other end."""
        size = FIRST
        while True:
            began = time.monotonic()
            self.say(size)
            under_way = []
            for at in range(0, size, PIECE):
                piece = self._piece[: min(PIECE, size - at)]
                under_way.append(self._world.Isend(piece, self._other))
                if len(under_way) == AHEAD:
                    self.wait(under_way.pop(0))
            for request in under_way:
                self.wait(request)
            self.hear()
            took = time.monotonic() - began
            if took > seconds / 2 or size >= MOST:
                self.say(0)
                return size / max(took, 1e-6)
            size *= 2

    def receive(self) -> None:
        while True:
            left = self.hear()
            if not 0 < left <= MOST:
                return
            while left:
                piece = self._piece[: min(PIECE, left)]
                self.wait(self._world.Irecv(piece, self._other))
                left -= len(piece)
            self.say(1)


def measure(seconds: float, limit: float) -> dict[str, Any]:
    """What this end knows; see the head of the file."""
    found: dict[str, Any] = {"latency": None, "rate": None, "why": "", "lack": ""}
    try:
        mpi = import_module("mpi4py.MPI")
    except ImportError as error:
        found["lack"] = f"{sys.executable}: {error}; --python PATH names another"[:400]
        return found
    try:
        world = mpi.COMM_WORLD
        if world.Get_size() != 2:
            found["lack"] = f"MPI has made a world of {world.Get_size()}"
            return found
        end = End(world, time.monotonic() + limit)
        if world.Get_rank() == 0:
            found["latency"] = end.ping()
            found["rate"] = end.send(seconds)
            end.receive()
        else:
            end.pong()
            end.receive()
            found["rate"] = end.send(seconds)
    except (TimeoutError, mpi.Exception) as error:
        found["why"] = (str(error).splitlines() or ["MPI failed"])[0][:400]
    return found


if __name__ == "__main__":
    told = measure(*map(float, sys.argv[1:3]))
    print(MARK + json.dumps(told), flush=True)
    if told["why"] or told["lack"]:
        os._exit(1)  # not by MPI_Finalize
