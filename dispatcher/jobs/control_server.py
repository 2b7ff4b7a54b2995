"""The launcher's side of a job's socket: attached clients hear the stream, orders become events.

A client must never hold the job back. So the sinks' thread only puts frames into a bounded queue
of each client, and the thread ``control`` reads and writes, never blocking. A slow client loses
output; it is told where, and how many bytes. docs/design/detach.md has who may call.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.jobs import job_socket
from dispatcher.model.errors import DispatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model.formats import Gathered

#: bytes that may wait for one client; notes that a newcomer is told
LIMIT = 4 << 20
MOST_NOTES = 20
#: seconds that clients get to read the rest and the verdict
FLUSH = 5.0
#: seconds between two pictures of the run, for clients that draw a footer
PICTURE = 0.25
#: pictures to one table, which is larger
TABLE = 2
#: a table comes half a second later for each so many ranks: to read 512 takes 11 ms
MANY = 256


class Client:
    """One connection; all but ``fd`` is guarded by the lock of ``ControlServer``."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.received = bytearray()
        self.wants_output = False
        self.wants_picture = False
        self.wants_table = False
        self.wants_stacks = False
        self.restarts = job_socket.RestartAnswer()
        self.attached = False
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._missing: dict[tuple[int, int], int] = {}

    @property
    def idle(self) -> bool:
        return not self._queue and not self._missing

    def put(self, data: bytes) -> None:
        """Queue whole frames, whatever there is room for: only output may be left out."""
        self._queue.append(data)
        self._size += len(data)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Queue the output or, where there is no room, count it."""
        # a gap that has begun lasts until there is room again for a good deal
        limit = LIMIT // 2 if self._missing else LIMIT
        if self._size + len(data) > limit:
            self._missing[rank, stream] = self._missing.get((rank, stream), 0) + len(data)
            return
        self.tell_gap()
        self.put(job_socket.frame(data, type="output", rank=rank, stream=stream, size=len(data)))

    def gap(self, missing: ev.Counts) -> None:
        """Add to the bytes that are missing here, by rank and stream."""
        for key, count in missing.items():
            self._missing[key] = self._missing.get(key, 0) + count

    def tell_gap(self) -> None:
        """Queue the word of what is missing here."""
        if self._missing:
            missing = [[rank, stream, count] for (rank, stream), count in self._missing.items()]
            self._missing = {}
            self.put(job_socket.frame(type="gap", missing=missing))

    def take(self) -> bytes | None:
        """What is to be written next; a gap is told as soon as all before it was."""
        if not self._queue:
            self.tell_gap()
        return self._queue[0] if self._queue else None

    def written(self, count: int) -> None:
        """``count`` bytes of what ``take`` gave were written."""
        first = self._queue.popleft()
        self._size -= count
        if count < len(first):
            self._queue.appendleft(first[count:])


#: bytes of a line without an end that are kept
HEAD = 64 << 10


class StreamPositions:
    """How far the ranks' output is: what a client who comes in the middle has to know.

    Files are read up to where each stream stood, the rest comes live. heads: keep the last ``HEAD``
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
        """(rank, stream, what has come of its line) where that is not whole yet."""
        return [(rank, stream, rest) for (rank, stream), rest in self._rests.items() if rest]


class ControlServer(ev.Sink):
    """Listens at ``folder``/control. stop: called with "stop", "kill" or the number of the signal
    to stop with when a client orders it. restart: called with what a client orders, raises
    DispatchError if it cannot be done.

    picture: how far the run is, as plain values, or None for nothing to tell. table: likewise, what
    each rank does. sample: called with seconds when somebody wants samples every so often. gather:
    called when somebody wants to know where the ranks are; ``stacks`` takes the answer. heads: see
    ``StreamPositions``. Raises: OSError if the socket cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        stop: Callable[[str], None],
        picture: Callable[[], Mapping[str, Any] | None] = lambda: None,
        heads: bool = False,
        *,
        table: Callable[[], Mapping[str, Any] | None] = lambda: None,
        sample: Callable[[float], None] = lambda seconds: None,
        gather: Callable[[], None] = lambda: None,
        restart: Callable[[Mapping[str, Any]], None] = lambda order: None,
    ) -> None:
        self._restart = restart
        self._folder = folder
        self._stop = stop
        self._picture = picture
        self._table = table
        self._sample = sample
        self._gather = gather
        self._next_picture = 0.0
        self._turns = 0
        self._lock = threading.Lock()
        self._clients: list[Client] = []
        self._positions = StreamPositions(heads)
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
        self._leave_at: float | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._listener = job_socket.listen(folder)
        self._slower = 1  # how much later tables come than small ones do
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Serve whoever has called and calls: the job can be told things now."""
        self._thread.start()

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
                with self._lock:
                    self._positions.placed(world_size)
                    self._tell_all(
                        job_socket.frame(type="placed", world_size=world_size, restart=restart)
                    )
                    self._answer(entry.event)
            case ev.RestartWanted() | ev.RestartRefused():
                with self._lock:
                    self._answer(entry.event)
            case ev.OutputEnded(_, rank, stream):
                with self._lock:
                    self._positions.ended(rank, stream)
                    self._tell_all(job_socket.frame(type="ended", rank=rank, stream=stream))
            case _:
                return
        self._wake()

    def _answer(self, event: ev.Event) -> None:
        for client in self._clients:
            if (answer := client.restarts.take(event)) is not None:
                client.put(answer)

    def say(self, line: str) -> None:
        """A note of dispatch itself, for everybody attached and for newcomers."""
        with self._lock:
            self._notes.append(line)
            self._tell_all(job_socket.frame(type="say", line=line))
        self._wake()

    def stacks(self, number: int, lines: list[str], found: Gathered) -> None:
        """Where the ranks are, in words and for programs, for who has asked."""
        with self._lock:
            asked = [client for client in self._clients if client.wants_stacks]
            for client in asked:
                client.put(job_socket.frame(type="stacks", number=number, lines=lines, found=found))
        self._wake()

    # -- on the main thread ----------------------------------------------------------------

    def finish(self, exit_code: int, lines: Sequence[str]) -> None:
        """Tell the verdict to all clients, give them ``FLUSH`` seconds to read, and leave."""
        with self._lock:
            self._tell_all(job_socket.frame(type="verdict", exit_code=exit_code, lines=list(lines)))
            self._leave_at = time.monotonic() + FLUSH
        self._wake()
        if self._thread.ident is None:
            self._listener.close()  # the run never began, so nobody else does
        else:
            self._thread.join(timeout=FLUSH + 1)
        job_socket.forget(self._folder)

    def _tell_all(self, data: bytes) -> None:
        for client in self._clients:
            if client.attached:
                client.tell_gap()
                client.put(data)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # it has been woken already

    # -- on the thread of its own ---------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._listener, selectors.EVENT_READ)
            waiting.register(self._wake_read, selectors.EVENT_READ)
            while not self._over():
                for client in self._clients:
                    with self._lock:
                        write = selectors.EVENT_WRITE if not client.idle else 0
                    waiting.modify(client.link, selectors.EVENT_READ | write, client)
                for key, mask in waiting.select(self._timeout()):
                    if key.fileobj is self._listener:
                        self._accept(waiting)
                    elif key.data is None:
                        os.read(self._wake_read, 4096)
                    elif not self._serve(key.data, mask):
                        waiting.unregister(key.data.link)
                        with self._lock:
                            self._clients.remove(key.data)
                        key.data.link.close()
                self._show()
        self._listener.close()
        for client in self._clients:
            client.link.close()

    def _timeout(self) -> float | None:
        """Seconds for which nothing is to be done unless somebody calls; None for ever."""
        if self._leave_at is not None:
            return 0.1
        with self._lock:
            looks = any(client.wants_picture or client.wants_table for client in self._clients)
        return max(0.0, self._next_picture - time.monotonic()) if looks else None

    def _show(self) -> None:
        """Tell those who look on how far the run is; who still reads the last picture waits."""
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

    def _over(self) -> bool:
        if self._leave_at is None:
            return False
        with self._lock:
            unread = any(not client.idle for client in self._clients)
        return not unread or time.monotonic() > self._leave_at

    def _accept(self, waiting: selectors.BaseSelector) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            return
        if not job_socket.is_ours(link) or len(self._clients) >= 2 * job_socket.MOST_CLIENTS:
            link.close()
            return
        link.setblocking(False)
        client = Client(link)
        with self._lock:
            self._clients.append(client)
        waiting.register(link, selectors.EVENT_READ, client)

    def _serve(self, client: Client, mask: int) -> bool:
        """Read and write what can be; whether the client is still there."""
        try:
            if mask & selectors.EVENT_READ and not self._read_orders(client):
                return False
            if mask & selectors.EVENT_WRITE:
                with self._lock:
                    data = client.take()
                if data is not None:
                    count = client.link.send(data)
                    with self._lock:
                        client.written(count)
        except BlockingIOError:
            pass
        except (OSError, job_socket.Malformed):
            return False
        return True

    def _read_orders(self, client: Client) -> bool:
        data = client.link.recv(job_socket.LONGEST_ORDER)
        if not data:
            return False
        client.received += data
        if len(client.received) > job_socket.LONGEST_ORDER:
            return False
        while (end := client.received.find(b"\n")) >= 0:
            order = job_socket.parse_order(bytes(client.received[:end]))
            del client.received[: end + 1]
            if not client.attached:
                if order["order"] == "attach" and self._is_full():
                    client.link.send(
                        job_socket.refused(f"{job_socket.MOST_CLIENTS} others are attached to it")
                    )
                    return False
                self._greet(client, order)
            if order["order"] == "stacks":
                with self._lock:
                    client.wants_stacks = True
                self._gather()
            if order["order"] == "stop":
                self._stop(job_socket.way_to_stop(order))
            if order["order"] == "restart":
                self._order_restart(client, order)
        return True

    def _is_full(self) -> bool:
        """Whether nobody more may look on; who stops the job or restarts it still has room."""
        with self._lock:
            return sum(client.attached for client in self._clients) >= job_socket.MOST_CLIENTS

    def _order_restart(self, client: Client, order: Mapping[str, Any]) -> None:
        with self._lock:
            client.restarts.order()
        try:
            self._restart(order)
        except DispatchError as error:
            with self._lock:
                client.put(job_socket.refused(error.message, error.hint))

    def _greet(self, client: Client, order: Mapping[str, Any]) -> None:
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
