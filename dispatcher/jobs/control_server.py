"""The launcher's side of the socket of a background job: sends the stream to attached clients.

A client must never hold the job back: a slow client loses output. It gets a note with the place and
the number of bytes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.jobs import job_socket
from dispatcher.jobs.status import Client, OrderServer

#: notes that a new client gets
MOST_NOTES = 20
#: seconds between two pictures of the run, for clients that draw a footer
PICTURE = 0.25
#: pictures to one table, which is larger
TABLE = 2
#: a table comes half a second later for each ``MANY`` ranks: to read 512 takes 11 ms
MANY = 256
#: bytes of a line without an end that are kept
HEAD = 64 << 10


class StreamPositions:
    """The positions in the ranks' output, for a client that attaches in the middle.

    Files are read up to each stream's position, the rest comes live. heads: keep the last ``HEAD``
    bytes of lines that are not whole yet, since ``merged.log`` takes whole lines only.
    """

    def __init__(self, heads: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._heads = heads
        self._clock = clock
        self._until = 0.0
        self._world_size: int | None = None
        self._passed: dict[tuple[int, int], int] = {}
        self._ended: dict[tuple[int, int], None] = {}
        self._rests: dict[tuple[int, int], bytes] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Count the bytes, and keep the head of a line that is not whole."""
        key = (rank, stream)
        self._passed[key] = self._passed.get(key, 0) + len(data)
        self._until = self._clock()
        if self._heads:
            end = data.rfind(b"\n") + 1
            rest = data[end:] if end else self._rests.get(key, b"") + data
            self._rests[key] = rest[-HEAD:]

    def ended(self, rank: int, stream: int) -> None:
        """The stream is at its end, so no line of it is waited for."""
        self._ended[rank, stream] = None
        self._rests.pop((rank, stream), None)

    def placed(self, world_size: int) -> None:
        """An attempt begins: all streams are open again, and bytes are counted on."""
        self._world_size = world_size
        self._ended.clear()

    def hello(self) -> dict[str, Any]:
        """The fields of the first frame; see ``job_socket``."""
        return {
            "world_size": self._world_size,
            "passed": [[rank, stream, count] for (rank, stream), count in self._passed.items()],
            "ended": [[rank, stream] for rank, stream in self._ended],
            "until": self._until,
        }

    def rests(self) -> list[tuple[int, int, bytes]]:
        """(rank, stream, beginning of its line) for each line that is not whole yet."""
        return [(rank, stream, rest) for (rank, stream), rest in self._rests.items() if rest]


class ControlServer(OrderServer):
    """picture: the state of the run, as plain values, or None to send nothing. table: likewise,
    the state of each rank. sample: called with seconds when a client wants samples every so often.
    heads: see ``StreamPositions``. All else: see ``OrderServer``.
    """

    orders, hangs_up = job_socket.ORDERS, False

    def __init__(
        self,
        folder: Path,
        stop: Callable[[str], None],
        picture: Callable[[], Mapping[str, Any] | None] = lambda: None,
        heads: bool = False,
        *,
        table: Callable[[], Mapping[str, Any] | None] = lambda: None,
        sample: Callable[[float], None] = lambda seconds: None,
        **orders: Any,
    ) -> None:
        self._picture = picture
        self._table = table
        self._sample = sample
        self._next_picture = 0.0
        self._turns = 0
        self._slower = 1  # how much later tables come than those of few ranks
        self._positions = StreamPositions(heads)
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
        super().__init__(folder, stop, **orders)

    # -- on the sinks' thread -----------------------------------------------------------

    def output(self, rank: int, stream: int, data: bytes) -> None:
        with self._lock:
            self._positions.output(rank, stream, data)
            for client in self._clients:
                if client.wants_output:
                    client.output(rank, stream, data)
        self._wake()

    def event(self, entry: ev.Entry) -> None:
        match entry.event:
            case ev.RanksPlaced(world_size, restart=restart):
                told = job_socket.frame(type="placed", world_size=world_size, restart=restart)
                with self._lock:
                    self._positions.placed(world_size)
                    self._tell_all(told)
            case ev.OutputEnded(_, rank, stream):
                with self._lock:
                    self._positions.ended(rank, stream)
                    self._tell_all(job_socket.frame(type="ended", rank=rank, stream=stream))
                self._wake()
        super().event(entry)

    def say(self, line: str) -> None:
        """Send a note of dispatch itself to all attached clients and to new clients."""
        with self._lock:
            self._notes.append(line)
            self._tell_all(job_socket.frame(type="say", line=line))
        self._wake()

    # -- on its own thread -------------------------------------------------------------

    def _timeout(self) -> float | None:
        if self._leave_at is not None:
            return super()._timeout()
        with self._lock:
            looks = any(client.wants_picture or client.wants_table for client in self._clients)
        return max(0.0, self._next_picture - time.monotonic()) if looks else None

    def _show(self) -> None:
        now = time.monotonic()
        if now < self._next_picture:
            return
        self._next_picture = now + PICTURE
        self._turns += 1
        with self._lock:
            pictures = [one for one in self._clients if one.wants_picture and one.idle]
            tables = [one for one in self._clients if one.wants_table and one.idle]
        if pictures and (picture := self._picture()) is not None:
            self._put(pictures, job_socket.frame(type="picture", picture=picture))
        due = tables and self._turns % (TABLE * self._slower) == 0
        if due and (table := self._table()) is not None:
            self._slower = 1 + len(table.get("rows", ())) // MANY
            self._put(tables, job_socket.frame(type="table", table=table))

    def _put(self, clients: Sequence[Client], data: bytes) -> None:
        with self._lock:
            if self._leave_at is None:  # else they would never have read all
                for client in clients:
                    client.put(data)

    def _greet(self, client: Client, order: Mapping[str, Any]) -> bool:
        with self._lock:  # who stops the job or restarts it still has room
            looking = sum(one.attached for one in self._clients)
        if order["order"] == "attach" and looking >= job_socket.MOST_CLIENTS:
            why = f"{job_socket.MOST_CLIENTS} others are attached to it"
            client.link.send(job_socket.refused(why))
            return False
        output, every = job_socket.wants_output(order), job_socket.wants_table(order)
        if every is not None:
            self._sample(every)
        with self._lock:
            client.attached, client.wants_output = True, output
            client.wants_picture = order.get("picture") is True
            client.wants_table = every is not None
            rests = self._positions.rests() if order.get("rests") is True else []
            client.put(job_socket.frame(type="hello", **self._positions.hello(), rests=len(rests)))
            for rank, stream, data in rests:
                client.put(
                    job_socket.frame(data, type="rest", rank=rank, stream=stream, size=len(data))
                )
            for note in self._notes if output else ():
                client.put(job_socket.frame(type="say", line=note))
        return True
