"""The launcher's end of a job's socket, at which other shells ask and order.

``JobServer`` holds nothing up: frames go into the queue of each client, which the thread
``control`` writes. docs/design/detach.md has who may call.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dispatcher.core.events import run_events as ev
from dispatcher.jobs import job_socket
from dispatcher.jobs.job_socket import frame
from dispatcher.model.errors import DispatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model.formats import Gathered

#: frames that may wait for one client; one that reads so slowly is disconnected
MOST_WAITING = 1000
#: seconds that clients get to read the rest and the verdict
FLUSH = 5.0
#: notes that a new client gets
MOST_NOTES = 20
#: seconds between two pictures of the run, for clients that draw a footer
PICTURE = 0.25
#: pictures to one table, which is larger
TABLE = 2
#: a table comes half a second later for each ``MANY`` ranks: to read 512 takes 11 ms
MANY = 256


class Client:
    """One connection; all except ``link`` is guarded by the lock of its server."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.received = bytearray()
        self.has_ordered = False
        self.looks_on = False
        self.wants_picture = False
        self.wants_table = False
        self.wants_stacks = False
        self.restarts = job_socket.RestartAnswer()
        self.waiting: deque[bytes] = deque()  # frames, the first of them perhaps in part


class Orders(Protocol):
    """The run that serves the clients; called on the server's thread."""

    def picture(self) -> Mapping[str, Any]:
        """The progress of the run, as plain values."""

    def progress(self) -> Mapping[str, Any]:
        """The ranks' last progress as text, and the seconds left, if they are known."""

    def table(self) -> Mapping[str, Any]:
        """The state of each rank, likewise."""

    def sample(self, seconds: float) -> None:
        """Have the ranks measured so often from now on."""

    def gather(self) -> None:
        """Find where the ranks are; ``JobServer.stacks`` takes the answer."""

    def stop(self, way: str) -> None:
        """End the job: "stop", "kill" or the number of the signal to begin with."""

    def restart(self, order: Mapping[str, Any]) -> None:
        """Start the ranks again as ``order`` has it. Raises: DispatchError, Malformed."""


class JobServer(ev.Sink):
    """Listens at ``folder``/control; ``start`` begins to answer. Raises: OSError."""

    def __init__(self, folder: Path, orders: Orders) -> None:
        self._folder = folder
        self._orders = orders
        self._lock = threading.Lock()
        self._clients: list[Client] = []
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
        self._next_picture = 0.0
        self._turns = 0
        self._slower = 1  # how much later tables come than those of few ranks
        self._leave_at: float | None = None
        self._listener = job_socket.listen(folder)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Start to serve clients, those who connected before included."""
        self._thread.start()

    # -- on other threads -----------------------------------------------------------------

    def event(self, entry: ev.Entry) -> None:
        if isinstance(entry.event, ev.RanksPlaced | ev.RestartWanted | ev.RestartRefused):
            with self._lock:
                for client in self._clients:
                    if (answer := client.restarts.take(entry.event)) is not None:
                        client.waiting.append(answer)
            self._wake()

    def say(self, line: str) -> None:
        """Send a note of dispatch itself to all clients and to new ones."""
        with self._lock:
            self._notes.append(line)
            self._tell_all(frame(type="say", line=line))
        self._wake()

    def stacks(self, number: int, lines: list[str], found: Gathered) -> None:
        """Send the places of the ranks, as text and as data, to the clients that asked."""
        with self._lock:
            answer = frame(type="stacks", number=number, lines=lines, found=found)
            for client in self._clients:
                if client.wants_stacks:
                    client.waiting.append(answer)
        self._wake()

    def finish(self, exit_code: int, lines: Sequence[str] = ()) -> None:
        """Tell the verdict to all clients, give them ``FLUSH`` seconds to read, and leave."""
        with self._lock:
            self._tell_all(frame(type="verdict", exit_code=exit_code, lines=list(lines)))
            self._leave_at = time.monotonic() + FLUSH
        self._wake()
        if self._thread.ident is None:
            self._close()  # the run never began, so no thread will
        else:
            self._thread.join(timeout=FLUSH + 1)
        job_socket.forget(self._folder)

    def _tell_all(self, data: bytes) -> None:
        for client in self._clients:
            if client.has_ordered:
                client.waiting.append(data)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it has been woken already, or has ended
            self._wake_write.send(b"\0")

    # -- on its own thread -----------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._listener, selectors.EVENT_READ)
            waiting.register(self._wake_read, selectors.EVENT_READ)
            while not self._over():
                for client in self._clients:
                    with self._lock:
                        write = selectors.EVENT_WRITE if client.waiting else 0
                    waiting.modify(client.link, selectors.EVENT_READ | write, client)
                for key, mask in waiting.select(self._timeout()):
                    if key.fileobj is self._listener:
                        self._accept(waiting)
                    elif key.data is None:
                        self._wake_read.recv(4096)
                    elif not self._serve(key.data, mask):
                        self._leave(waiting, key.data)
                for client in [one for one in self._clients if len(one.waiting) > MOST_WAITING]:
                    self._leave(waiting, client)
                self._show()
        self._close()

    def _leave(self, waiting: selectors.BaseSelector, client: Client) -> None:
        waiting.unregister(client.link)
        with self._lock:
            self._clients.remove(client)
        client.link.close()

    def _close(self) -> None:
        for link in (self._listener, self._wake_read, self._wake_write):
            link.close()
        for client in self._clients:
            client.link.close()

    def _timeout(self) -> float | None:
        """Seconds until there is work without a client's order; None for ever."""
        if self._leave_at is not None:
            return 0.1
        with self._lock:
            looks = any(one.wants_picture or one.wants_table for one in self._clients)
        return max(0.0, self._next_picture - time.monotonic()) if looks else None

    def _over(self) -> bool:
        if self._leave_at is None:
            return False
        with self._lock:
            unread = any(client.waiting for client in self._clients)
        return not unread or time.monotonic() > self._leave_at

    def _show(self) -> None:
        """Send the state of the run to the clients that look on, if it is time."""
        now = time.monotonic()
        if now < self._next_picture:
            return
        self._next_picture = now + PICTURE
        self._turns += 1
        with self._lock:
            pictures = [one for one in self._clients if one.wants_picture and not one.waiting]
            tables = [one for one in self._clients if one.wants_table and not one.waiting]
        if pictures:
            self._put(pictures, frame(type="picture", picture=self._orders.picture()))
        if tables and self._turns % (TABLE * self._slower) == 0:
            table = self._orders.table()
            self._slower = 1 + len(table.get("ranks", ())) // MANY
            self._put(tables, frame(type="table", table=table))

    def _put(self, clients: Sequence[Client], data: bytes) -> None:
        with self._lock:
            if self._leave_at is None:  # else they would never have read all
                for client in clients:
                    client.waiting.append(data)

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
                # only this thread takes frames away
                count = client.link.send(client.waiting[0])
                with self._lock:
                    first = client.waiting.popleft()
                    if count < len(first):
                        client.waiting.appendleft(first[count:])
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
            client.has_ordered = True
            if order["order"] == "attach":
                if not client.looks_on and not self._show_to(client, order):
                    return False
            elif order["order"] == "stacks":
                client.wants_stacks = True
                self._orders.gather()
            elif order["order"] == "progress":
                with self._lock:
                    client.waiting.append(frame(type="progress", **self._orders.progress()))
            elif order["order"] == "stop":
                self._orders.stop(job_socket.way_to_stop(order))
            elif order["order"] == "restart":
                self._order_restart(client, order)
        return True

    def _order_restart(self, client: Client, order: Mapping[str, Any]) -> None:
        with self._lock:
            client.restarts.order()
        try:
            self._orders.restart(order)
        except DispatchError as error:
            with self._lock:
                client.waiting.append(job_socket.refused(error.message, error.hint))

    def _show_to(self, client: Client, order: Mapping[str, Any]) -> bool:
        """Take in a client that looks on; False for one too many."""
        # a client that stops the job or restarts it still has room
        if sum(one.looks_on for one in self._clients) >= job_socket.MOST_CLIENTS:
            why = f"{job_socket.MOST_CLIENTS} others are attached to it"
            client.link.send(job_socket.refused(why))
            return False
        every = job_socket.wants_table(order)
        if every is not None:
            self._orders.sample(every)
        with self._lock:
            client.looks_on = True
            client.wants_picture = order.get("picture") is True
            client.wants_table = every is not None
            for note in self._notes if order.get("notes") is True else ():
                client.waiting.append(frame(type="say", line=note))
        return True
