"""What a run in the foreground tells other shells: its phase, and where its ranks are.

``Phase`` keeps one word in the job's record, for ``dispatch jobs``::

    connecting --RanksPlaced--> starting --all ranks run--> running
                                   ^                           |
                               restarting <--RunRestarting-- stopping <--a cause, or no rank is left

``OrderServer`` takes ``stacks``, ``restart`` and ``stop``.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.jobs import job_socket, registry
from dispatcher.jobs.job_socket import RestartAnswer, forget, frame, is_ours, listen, refused
from dispatcher.model.errors import DispatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model.formats import Gathered

CONNECTING, STARTING, RUNNING, STOPPING, RESTARTING = registry.PHASES


class Phase(Sink):
    """Keeps the file in ``folder``; a disk that refuses it costs the word, not the job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._awaited = 0  # ranks that have yet to be started
        self._living: set[tuple[int, int]] = set()  # (attempt, rank)
        self.word = ""
        self._become(CONNECTING)

    def event(self, entry: Entry) -> None:
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
                    self._become(STOPPING)  # what the ranks left is looked for
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


#: seconds that a caller has to say what it wants, and to read the answer; and that the answer has
CLIENT_TIMEOUT, ANSWER_TIMEOUT = 5.0, 20.0
#: seconds between two looks whether a caller still waits
STILL_THERE = 0.5

#: is given an answer: its number, its words, and what it has for programs
OnAnswer = Callable[[int, list[str], "Gathered"], None]


class OrderServer(Sink):
    """Listens at ``folder``/control. ask: has the hosts asked where the ranks are.

    make_sink: makes the sink that finds the answer among the events, once somebody asks. restart,
    stop: see ``ControlServer``. Raises: OSError if the socket cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        ask: Callable[[], None],
        make_sink: Callable[[OnAnswer], Sink],
        *,
        restart: Callable[[Mapping[str, Any]], None],
        stop: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._ask = ask
        self._make_sink = make_sink
        self._restart = restart
        self._stop = stop
        self._sink: Sink | None = None
        self._lock = threading.Lock()
        self._callers: dict[Caller, None] = {}
        self._over = threading.Event()
        self._socket = listen(folder)
        self._socket.setblocking(True)
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self) -> None:
        """Answer whoever has called and calls: there is somebody to ask now."""
        self._thread.start()

    def event(self, entry: Entry) -> None:
        if self._sink is not None:
            self._sink.event(entry)
        if isinstance(entry.event, ev.RanksPlaced | ev.RestartWanted | ev.RestartRefused):
            for caller in self._waiting():
                if (answer := caller.restarts.take(entry.event)) is not None:
                    caller.answers.put(answer)

    def finish(self, exit_code: int) -> None:
        """The run has ended: whoever still waits is told so, and nobody can ask any more."""
        self._over.set()
        self._tell(frame(type="verdict", exit_code=exit_code, lines=[]))
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        if self._thread.ident is None:
            self._socket.close()  # the run never began, so nobody else does
        else:
            self._thread.join(timeout=CLIENT_TIMEOUT)
        forget(self._folder)

    def _answered(self, number: int, lines: list[str], found: Gathered) -> None:
        answer = frame(type="stacks", number=number, lines=lines, found=found)
        for caller in self._waiting():
            if caller.order == "stacks":
                caller.answers.put(answer)

    def _waiting(self) -> list[Caller]:
        with self._lock:
            return list(self._callers)

    def _tell(self, answer: bytes) -> None:
        for caller in self._waiting():
            caller.answers.put(answer)

    def _run(self) -> None:
        threads: list[threading.Thread] = []
        while not self._over.is_set():
            try:
                link, _ = self._socket.accept()
            except OSError:
                break  # shut down
            threads = [one for one in threads if one.is_alive()]
            if len(threads) >= job_socket.MOST_CLIENTS or not is_ours(link):
                link.close()
                continue
            one = threading.Thread(target=self._serve, args=(link,), name="order", daemon=True)
            one.start()
            threads.append(one)
        self._socket.close()
        for one in threads:
            one.join(timeout=CLIENT_TIMEOUT)

    def _serve(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError, job_socket.Malformed, queue.Empty):
            link.settimeout(CLIENT_TIMEOUT)
            order = _order(link)
            caller = Caller(str(order["order"]))
            with self._lock:
                self._callers[caller] = None
            try:
                self._take(order, caller)
                link.sendall(caller.wait(link))
            finally:
                with self._lock:
                    del self._callers[caller]

    def _take(self, order: Mapping[str, Any], caller: Caller) -> None:
        """Do what ``order`` says. Raises: Malformed for what is not taken here."""
        if self._over.is_set():
            raise job_socket.Malformed("it is over")
        if caller.order == "stacks":
            with self._lock:
                self._sink = self._sink or self._make_sink(self._answered)
            self._ask()
        elif caller.order == "restart":
            caller.restarts.order()
            try:
                self._restart(order)
            except DispatchError as error:
                caller.answers.put(refused(error.message, error.hint))
        elif caller.order == "stop":
            self._stop(job_socket.way_to_stop(order))
        else:
            raise job_socket.Malformed("not an order")


class Caller:
    """Who waits for an answer to ``order``."""

    def __init__(self, order: str) -> None:
        self.order = order
        self.restarts = RestartAnswer()
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def wait(self, link: socket.socket) -> bytes:
        """The answer. Raises: queue.Empty if none comes, OSError if nobody waits any more."""
        if self.order == "stacks":
            return self.answers.get(timeout=ANSWER_TIMEOUT)
        while True:
            with contextlib.suppress(queue.Empty):
                return self.answers.get(timeout=STILL_THERE)
            link.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if not link.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError
            link.settimeout(CLIENT_TIMEOUT)


def _order(link: socket.socket) -> Mapping[str, Any]:
    """What the caller wants. Raises: OSError, Malformed."""
    received = b""
    while b"\n" not in received:
        data = link.recv(job_socket.LONGEST_ORDER)
        received += data
        if not data or len(received) > job_socket.LONGEST_ORDER:
            raise job_socket.Malformed("not an order")
    return job_socket.parse_order(received.partition(b"\n")[0])
