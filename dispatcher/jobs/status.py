"""The state of any run for other shells (its phase, where its ranks are), and their orders to it.

``Phase`` keeps one word in the job's record, for ``dispatch jobs``::

    connecting --RanksPlaced--> starting --all ranks run--> running
                                   ^                           |
                               restarting <--RunRestarting-- stopping <--a cause, or no rank is left

``OrderServer`` takes ``stacks``, ``restart`` and ``stop``. It never blocks: frames go into a
bounded queue of each client, which the thread ``control`` writes. docs/design/detach.md has who may
call.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.jobs import job_socket, registry
from dispatcher.model.errors import DispatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model.formats import Gathered

CONNECTING, STARTING, RUNNING, STOPPING, RESTARTING = registry.PHASES


class Phase(ev.Sink):
    """Keeps the file in ``folder``; a disk that refuses it costs the word, not the job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._awaited = 0  # ranks that have yet to be started
        self._living: set[tuple[int, int]] = set()  # (attempt, rank)
        self.word = ""
        self._become(CONNECTING)

    def event(self, entry: ev.Entry) -> None:
        match event := entry.event:
            case ev.RanksPlaced(world_size):
                self._awaited = world_size
                self._living.clear()
                self._become(STARTING)
            case ev.RankSpawned(_, rank):
                self._living.add((event.attempt, rank))
                self._awaited -= 1
                if self._awaited == 0 and self.word == STARTING:
                    self._become(RUNNING)
            case ev.RankExited(_, rank):
                self._living.discard((event.attempt, rank))
                if not self._living and self._awaited <= 0:
                    self._become(STOPPING)  # the ranks' leftovers are looked for
            case ev.JobStopping():
                self._become(STOPPING)
            case ev.RunRestarting(cause):
                words = getattr(cause, "words", ())  # verdicts are not loaded for this
                if words:
                    with contextlib.suppress(OSError, ValueError):
                        registry.note_program(self._folder, words)
                self._become(RESTARTING)

    def _become(self, word: str) -> None:
        if word != self.word:
            self.word = word
            with contextlib.suppress(OSError):
                registry.note_phase(self._folder, word)


#: bytes that may wait for one client
LIMIT = 4 << 20
#: seconds that clients get to read the rest and the verdict
FLUSH = 5.0


class Client:
    """One connection; all except ``link`` is guarded by the lock of its server."""

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
        """Add to the bytes that this client misses, by rank and stream."""
        for key, count in missing.items():
            self._missing[key] = self._missing.get(key, 0) + count

    def tell_gap(self) -> None:
        """Queue a frame about the bytes that this client misses."""
        if self._missing:
            missing = [[rank, stream, count] for (rank, stream), count in self._missing.items()]
            self._missing = {}
            self.put(job_socket.frame(type="gap", missing=missing))

    def take(self) -> bytes | None:
        """The next bytes to write; a gap is reported after all output before it."""
        if not self._queue:
            self.tell_gap()
        return self._queue[0] if self._queue else None

    def written(self, count: int) -> None:
        """``count`` bytes from ``take`` were written."""
        first = self._queue.popleft()
        self._size -= count
        if count < len(first):
            self._queue.appendleft(first[count:])


#: called with an answer: its number, its text, and its data for programs
OnAnswer = Callable[[int, list[str], "Gathered"], None]


class OrderServer(ev.Sink):
    """Listens at ``folder``/control. stop: called with "stop", "kill" or the number of the signal
    to stop with when a client orders it. restart: called with what a client orders, raises
    DispatchError if it cannot be done. gather: called when a client asks where the ranks
    are; ``stacks`` takes the answer. make_sink: makes the sink that finds it among the events, when
    a client first asks. Raises: OSError if the socket cannot be made.
    """

    #: orders that clients may send; and whether they are disconnected after an answer
    orders: tuple[str, ...] = ("stacks", "restart", "stop")
    hangs_up = True

    def __init__(
        self,
        folder: Path,
        stop: Callable[[str], None],
        *,
        gather: Callable[[], None] = lambda: None,
        make_sink: Callable[[OnAnswer], ev.Sink] = lambda told: ev.Sink(),
        restart: Callable[[Mapping[str, Any]], None] = lambda order: None,
    ) -> None:
        self._folder = folder
        self._stop = stop
        self._gather = gather
        self._make_sink = make_sink
        self._restart = restart
        self._sink: ev.Sink | None = None
        self._lock = threading.Lock()
        self._clients: list[Client] = []
        self._leave_at: float | None = None
        self._listener = job_socket.listen(folder)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Start to serve clients, those who connected before included."""
        self._thread.start()

    # -- on the sinks' thread -----------------------------------------------------------

    def event(self, entry: ev.Entry) -> None:
        if self._sink is not None:
            self._sink.event(entry)
        if isinstance(entry.event, ev.RanksPlaced | ev.RestartWanted | ev.RestartRefused):
            with self._lock:
                for client in self._clients:
                    if (answer := client.restarts.take(entry.event)) is not None:
                        client.put(answer)
            self._wake()

    def stacks(self, number: int, lines: list[str], found: Gathered) -> None:
        """Send the places of the ranks, as text and as data, to the clients that asked."""
        with self._lock:
            asked = [client for client in self._clients if client.wants_stacks]
            for client in asked:
                client.put(job_socket.frame(type="stacks", number=number, lines=lines, found=found))
        self._wake()

    # -- on the main thread ----------------------------------------------------------------

    def finish(self, exit_code: int, lines: Sequence[str] = ()) -> None:
        """Tell the verdict to all clients, give them ``FLUSH`` seconds to read, and leave."""
        with self._lock:
            self._tell_all(job_socket.frame(type="verdict", exit_code=exit_code, lines=list(lines)))
            self._leave_at = time.monotonic() + FLUSH
        self._wake()
        if self._thread.ident is None:
            self._close()  # the run never began, so no thread will
        else:
            self._thread.join(timeout=FLUSH + 1)
        job_socket.forget(self._folder)

    def _tell_all(self, data: bytes) -> None:
        for client in self._clients:
            if client.attached:
                client.tell_gap()
                client.put(data)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it has been woken already, or has ended
            self._wake_write.send(b"\0")

    # -- on its own thread -------------------------------------------------------------

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
                        self._wake_read.recv(4096)
                    elif not self._serve(key.data, mask):
                        waiting.unregister(key.data.link)
                        with self._lock:
                            self._clients.remove(key.data)
                        key.data.link.close()
                self._show()
        self._close()

    def _close(self) -> None:
        for link in (self._listener, self._wake_read, self._wake_write):
            link.close()
        for client in self._clients:
            client.link.close()

    def _timeout(self) -> float | None:
        """Seconds until there is work without a client's order; None for ever."""
        return None if self._leave_at is None else 0.1

    def _show(self) -> None:
        """Send the state of the run to attached clients."""

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
        """Read and write as far as possible; whether the client is still connected."""
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
                        return not (self.hangs_up and client.idle)
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
            if order["order"] not in self.orders:
                return False
            if not client.attached and not self._greet(client, order):
                return False
            if order["order"] == "stacks":
                with self._lock:
                    client.wants_stacks = True
                self._sink = self._sink or self._make_sink(self.stacks)
                self._gather()
            if order["order"] == "stop":
                self._stop(job_socket.way_to_stop(order))
            if order["order"] == "restart":
                self._order_restart(client, order)
        return True

    def _order_restart(self, client: Client, order: Mapping[str, Any]) -> None:
        with self._lock:
            client.restarts.order()
        try:
            self._restart(order)
        except DispatchError as error:
            with self._lock:
                client.put(job_socket.refused(error.message, error.hint))

    def _greet(self, client: Client, order: Mapping[str, Any]) -> bool:
        """Take in a client with its first ``order``; False for one too many."""
        with self._lock:
            client.attached = True
        return True
