"""What other shells may learn of a run that goes on: its phase, and where its ranks are.

The phase, from the event stream, for ``dispatch jobs``::

    connecting --RanksPlaced--> starting --all ranks run--> running
                                   ^                           |
                               restarting <--RunRestarting-- stopping <--a cause, or no rank is left

A file of one word in the job's record, replaced whenever the word changes (four times in
a run that goes well), so that a look at it asks nobody and cannot hang. That the launcher
lives at all is not said here: see ``registry``.

Where the ranks are: the terminal has a run in the foreground, so nobody attaches to it and nobody
else stops it; but who sees it hang wants to look without ending it, mostly from a second shell. One
thread waits in ``accept`` and serves one caller after the other; nothing else is begun, or loaded,
before somebody asks. Who may call is the same as for ``control_server``. Whoever orders anything
else is hung up on.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.jobs import job_socket, registry
from dispatcher.jobs.job_socket import frame, is_ours, listen

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
            case ev.RunRestarting():
                self._become(RESTARTING)

    def _become(self, word: str) -> None:
        if word != self.word:
            self.word = word
            with contextlib.suppress(OSError):
                registry.note_phase(self._folder, word)


#: seconds that a caller has to say what it wants, and to read the answer; and that the answer has
CLIENT_TIMEOUT, ANSWER_TIMEOUT = 5.0, 20.0

#: is given an answer: its number, its words, and what it has for programs
OnAnswer = Callable[[int, list[str], "Gathered"], None]


class StacksServer(Sink):
    """Listens at ``folder``/control. ask: has the hosts asked where the ranks are.

    make_sink: makes the sink that finds the answer among the events, once somebody asks.
    Raises: OSError if the socket cannot be made.
    """

    def __init__(
        self, folder: Path, ask: Callable[[], None], make_sink: Callable[[OnAnswer], Sink]
    ) -> None:
        self._folder = folder
        self._ask = ask
        self._make_sink = make_sink
        self._sink: Sink | None = None
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._over = threading.Event()
        self._socket = listen(folder)
        self._socket.setblocking(True)
        self._thread = threading.Thread(target=self._run, name="stacks", daemon=True)

    def event(self, entry: Entry) -> None:
        if self._thread.ident is None:
            self._thread.start()  # the run has begun, so there is somebody to ask
        if self._sink is not None:
            self._sink.event(entry)

    def finish(self, exit_code: int) -> None:
        """The run has ended: whoever still waits is told so, and nobody can ask any more."""
        self._over.set()
        self._answers.put(frame(type="verdict", exit_code=exit_code, lines=[]))
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        if self._thread.ident is None:
            self._socket.close()  # the run never began, so nobody else does
        else:
            self._thread.join(timeout=CLIENT_TIMEOUT)
        (self._folder / "control").unlink(missing_ok=True)

    def _answered(self, number: int, lines: list[str], found: Gathered) -> None:
        self._answers.put(frame(type="stacks", number=number, lines=lines, found=found))

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                link, _ = self._socket.accept()
            except OSError:
                break  # shut down
            with link, contextlib.suppress(OSError, job_socket.Malformed, queue.Empty):
                link.settimeout(CLIENT_TIMEOUT)
                if is_ours(link) and _order(link) == "stacks":
                    link.sendall(self._answer())
        self._socket.close()

    def _answer(self) -> bytes:
        """Ask, and wait for the answer. Raises: queue.Empty if there is none."""
        if self._sink is None:
            self._sink = self._make_sink(self._answered)
        while not self._over.is_set() and not self._answers.empty():
            self._answers.get()  # it came too late for who had asked
        self._ask()
        return self._answers.get(timeout=ANSWER_TIMEOUT)


def _order(link: socket.socket) -> str:
    """What the caller wants. Raises: OSError, Malformed."""
    received = b""
    while b"\n" not in received:
        data = link.recv(job_socket.LONGEST_ORDER)
        received += data
        if not data or len(received) > job_socket.LONGEST_ORDER:
            raise job_socket.Malformed("not an order")
    return str(job_socket.parse_order(received.partition(b"\n")[0])["order"])
