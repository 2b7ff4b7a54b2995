"""The link to one host's agent: connect, boot the agent, then read and write until the end.

Whatever goes wrong becomes one ``NodeLost`` event. Each state has one time by which something is
due::

    connecting --link--> booting --ready for an attempt--> serving --close()--> over
        |                   |                                 |
        |                   +--- the link takes no frames ----+--> deaf --its end, or time--> over
        |                   |                                      (what it said last is read)
        +---- final --------+--- no answer in time, its end, a broken protocol ------------> over
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.bootstrap import payload
from dispatcher.bootstrap.payload import boot_failure, flood_hint, link_ended, remote_message
from dispatcher.core.events import run_events as ev
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import HEADER, WireError, control
from dispatcher.runner.loop import CLOSE, READABLE, ConnectGate, HostLink
from dispatcher.runner.run import reports
from dispatcher.runner.run.host_intake import HostIntake
from dispatcher.transport.base import Link, LinkClosed, Target, Transport

READ_SIZE = 256 << 10
ERRORS_LIMIT = 64 << 10
#: reads that empty a link's buffer of standard error
_READS = 8
#: seconds that the end of a link may come after it has stopped taking our frames
LAST_WORDS = 2.0

#: with this code a program like ssh ends when the connection has, whatever the command returned
_SSH_FAILED = 255

#: states of an open link; due then: the agent's answer, our next ping, the end of its last words
BOOTING, SERVING, DEAF = "booting", "serving", "deaf"

#: an item of its inbox: there is input
_INPUT = object()

#: to show that we live
_WATCH = control("watch")
_PING = control("ping")
#: seconds until we look again whether a host's kernel answers, and within which one that is asked
#: every second does
_AGAIN, _ANSWERS = 0.5, 1.5
#: heartbeats after which we do not wait for one of its to show that we live
_LATE = 1.25


@dataclass(eq=False, repr=False, kw_only=True)
class AgentLink(HostLink):
    """Reaches one node and carries frames both ways.

    prepare: the agent's first order, for ``attempt``. gate: says when to connect, and when again.
    heartbeat: seconds between two of the agent's. unreachable: of silence of the host's kernel
    until it is lost, if the link can show that; self_fencing: the agent must check that as well.
    credit: output bytes that the agent may have under way. These are called from its thread: tell
    with events, output with (node, rank, stream, data), input_taken with (node, bytes that its
    readers of standard input have taken), on_heartbeat with the node when it gave a beat that
    we did not wait for, on_silence with (node, since when it is not heard, None: it is).
    """

    node: int
    target: Target
    transport: Transport
    command: str
    prepare: bytes
    gate: ConnectGate
    boot_timeout: float
    heartbeat: float
    credit: int
    tell: Callable[[ev.Event], None]
    output: Callable[[int, int, int, bytes], None]
    input_taken: Callable[[int, int], None] = lambda node, nbytes: None
    on_heartbeat: Callable[[int], None] = lambda node: None
    on_silence: Callable[[int, float | None], None] = lambda node, since: None
    unreachable: float = math.inf
    self_fencing: bool = False
    attempt: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.name = f"link:{self.target.host}"
        self.intake = HostIntake(
            self.node, self.attempt, credit=self.credit, tell=self.tell, output=self.output,
            input_taken=self.input_taken, on_heartbeat=self._beaten, on_ready=self._is_ready,
        )  # fmt: skip
        self._state = BOOTING
        self._due = 0.0  # when the state's time is over
        self._beat = False  # it was just heard, and must be answered
        self._watched = False  # the link can show whether the host's kernel answers
        self._heard = 0.0  # when the last beat came
        self._unheard: float | None = None  # since when its kernel, which had all, does not
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._errors = bytearray()
        self._ending: Ending | None = None  # as it was reported

    # -- called by other threads ----------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queue ``frame`` for the agent; returns at once."""
        self.post(frame)

    def send_input(self, frame: bytes) -> None:
        """Queue an INPUT ``frame``; all that ``send`` was given goes before it."""
        self._input.put(frame)
        self.post(_INPUT)

    def taken(self, nbytes: int) -> None:
        """The sinks took ``nbytes`` of this host's output; give credit back in large portions."""
        if count := self.intake.taken(nbytes):
            self.send(control("credit", count=count))

    def done(self, event: ev.Event) -> None:
        """All sinks have ``event``; it may be another host's."""
        if self.intake.done(event):
            self.wake()

    def again(self, prepare: bytes, attempt: int) -> None:
        """Have the agent prepare ``attempt``; its answer divides old frames from new frames."""
        self.intake.again(attempt)
        self.send(prepare)

    def finish(self) -> None:
        """Let the agent end its part; after its answer the link may end without being a loss."""
        self.intake.is_finishing = True
        self.send(control("finish"))

    def close(self) -> None:
        self._closed.set()
        super().close()

    # -- the thread ---------------------------------------------------------------------

    def open(self) -> None:
        opened = self._connect()
        if isinstance(opened, Failure):
            self.lose(opened)
            return
        self.link = opened
        by = opened.by or self.transport.name
        self.tell(ev.NodeConnected(self.node, opened.address, by, opened.steps))
        self._greet(opened)

    def step(self, item: object) -> bool:
        if item is CLOSE:
            self.over = True
        elif self.link is not None:
            if item is None and self._has_input():
                item = self._input.get()
                self.intake.input_unpaid += len(item) - HEADER.size
            failure = self._turn(self.link, item)
            if failure is not None:
                self.lose(failure)
        return True

    def due(self) -> float:
        if self._has_input():
            return 0.0
        now = time.monotonic()
        room = self.intake.room(now) if self.intake.is_held else math.inf
        return min(self._due, now + self.intake.due(now), now + room, threading.TIMEOUT_MAX)

    def leave(self) -> None:
        self.gate.given_up(self.node)
        if self.link is not None and self.intake.is_over:
            self.link.let_end()
        else:
            super().leave()

    def lose(self, failure: Failure) -> None:
        self.over = True
        if not self.stopping and not self.intake.is_over:
            for left in self.intake.left_out():
                self.tell(left)
            unheard = 0.0 if self._unheard is None else time.monotonic() - self._unheard
            self.tell(ev.NodeLost(self.node, failure, self._ending, round(unheard, 1)))

    def _connect(self) -> Link | Failure:
        """A link, or the reason why none was opened in the time that the gate gives."""
        while True:
            attempt = self.gate.enter(self.node)
            if self.stopping:
                return Failure(Kind.LOST, "given up")
            self.tell(ev.NodeConnecting(self.node, attempt.number))
            opened = self.transport.open(self.target, self.command, attempt.until)
            if isinstance(opened, Link):
                self.gate.reached(self.node)
                return opened
            again = self.gate.failed(self.node, opened)
            if isinstance(again, Failure):
                return again
            if self._closed.wait(again):
                return opened

    def _greet(self, link: Link) -> None:
        """Send the agent's source and its first order; from now on its answer is due."""
        self._state, self._due = BOOTING, time.monotonic() + self.boot_timeout
        self._watched = self.unreachable < math.inf and link.expect_answers(self.unreachable)
        watch = _WATCH if self._watched and self.self_fencing else b""
        self._write(link, payload.payload() + watch + self.prepare)
        link.watch(self.wake)

    def _turn(self, link: Link, item: object) -> Failure | None:
        """Act on ``item``, and on due times; returns the failure if the link is over."""
        if item is READABLE:
            self._readable, self.intake.is_held = False, True
        if self.intake.is_held and not self.intake.room(time.monotonic()):
            self.intake.is_held = False
            failure = self._read(link)
            if failure is not None:
                return failure
        if late := self.intake.late():
            return Failure(Kind.PROTOCOL, late)
        frames = item if isinstance(item, bytes) else b""
        is_due = time.monotonic() >= self._due
        if self._state == SERVING and is_due and not self._beat and self._is_silent(link):
            self._due = time.monotonic() + _AGAIN
        elif self._state == SERVING and (self._beat or is_due):
            if self.intake.is_held:  # it may have said long ago that it lives
                self._note_heartbeat()
            frames += _PING
            self._expect_heartbeat()
        elif is_due and self._state != SERVING:
            deaf = Failure(Kind.LOST, "the link was closed")
            return deaf if self._state == DEAF else self._late(link)
        self._write(link, frames)
        return None

    def _is_silent(self, link: Link) -> bool:
        """Whether its kernel does not answer. If so do not write, since that would only restart the
        wait for its end; until then no beat counts as missed.
        """
        now = time.monotonic()
        silent, has_all = link.silence()
        if silent >= _ANSWERS:
            self._unheard = now - silent if has_all else None
            self.on_silence(self.node, now - silent)
            self._note_heartbeat()
            return True
        self._unheard = None
        if not self.intake.rests:
            self.on_silence(self.node, None if self._watched else self._heard + self.heartbeat)
        return False

    def _has_input(self) -> bool:
        return self._state != DEAF and not self._input.empty()

    def _write(self, link: Link, frames: bytes) -> None:
        """Send ``frames``; a link that takes none may still bring its last output."""
        if not frames or self._state == DEAF:
            return
        self._unheard = None
        try:
            link.write(frames)
        except LinkClosed:
            self._state, self._due = DEAF, time.monotonic() + LAST_WORDS

    def _read(self, link: Link) -> Failure | None:
        """Read the data that is there now, as far as the quota allows; the rest waits."""
        try:
            self._take_errors(link)
            while not (self.stopping or self.intake.is_held):
                if self.intake.take():
                    continue
                data = link.read(READ_SIZE)
                if data is None:
                    return None
                if not data:
                    return self._end_of(link)
                self.intake.feed(data)
        except (WireError, reports.ReportError) as error:
            hint = None if self.intake.is_synced else flood_hint(self._by_hand("true"))
            return Failure(Kind.PROTOCOL, str(error), hint)
        return None

    def _by_hand(self, command: str) -> str:
        return self.transport.by_hand(self.target, command)

    def _beaten(self) -> None:
        self._beat = True
        self._heard = time.monotonic()
        self.on_silence(self.node, None)
        self._note_heartbeat()

    def _is_ready(self) -> None:
        if self._state != DEAF:
            self._state, self._heard = SERVING, time.monotonic()
            self._expect_heartbeat()

    def _note_heartbeat(self) -> None:
        if not self.intake.rests:
            self.on_heartbeat(self.node)

    def _expect_heartbeat(self) -> None:
        """The agent was just heard; we answer a beat, so that one wake-up serves both."""
        self._beat = False
        self._due = time.monotonic() + self.heartbeat * _LATE

    def _take_errors(self, link: Link) -> None:
        while not self.intake.is_held and (size := self._read_errors(link)):
            self.intake.charge("standard error", size)

    def _read_errors(self, link: Link) -> int:
        data = link.read_errors(READ_SIZE)
        self._errors += data
        del self._errors[:-ERRORS_LIMIT]
        return len(data)

    def _last_errors(self, link: Link) -> bytes:
        """The host's standard error, with the rest in the link's buffer; more may follow."""
        for _ in range(_READS):
            if not self._read_errors(link):
                break
        return bytes(self._errors)

    def _end_of(self, link: Link) -> Failure:
        status = link.ending(1.0)
        if status not in (Ending(None), Ending(_SSH_FAILED)):
            self._ending = status
        errors = self._last_errors(link)
        known = link.failure(0.0)
        if known is not None:
            return known
        if not self.intake.is_synced:
            noise = self.intake.noise()
            failure = boot_failure(self._by_hand("python3 -V"), noise, errors, status.code)
            return self.transport.explain(self.target, failure)
        return link_ended("the agent", status, errors)

    def _late(self, link: Link) -> Failure:
        """The failure of an agent that did not answer in time; it quotes the host's output."""
        last_words = remote_message(self._last_errors(link) or self.intake.noise())
        return Failure(
            Kind.TIMEOUT,
            f"no answer from the agent within {self.boot_timeout:.0f} s{last_words}",
            hint=payload.slow_hint(self._by_hand("true")),
        )
