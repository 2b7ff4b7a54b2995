"""The thread of one host: connect, boot the agent, then read and write until the end.

It owns the link alone. Whatever goes wrong becomes one ``NodeLost`` event; after
that the thread only closes and ends.
"""

from __future__ import annotations

import dataclasses
import math
import queue
import threading
import time
from collections.abc import Callable

from dispatcher.bootstrap import payload
from dispatcher.bootstrap.sync_scanner import SyncScanner, boot_failure
from dispatcher.core.events import run_events as ev
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import (
    CONTROL,
    COUNT,
    HEADER,
    INPUT,
    OUTPUT,
    SAME,
    TAKEN,
    Decoder,
    Frame,
    WireError,
    control,
)
from dispatcher.runner.connect_gate import ConnectGate
from dispatcher.runner.run import reports
from dispatcher.runner.run.output_intake import Body, Credit, literal
from dispatcher.transport.base import Link, LinkClosed, Target, Transport

READ_SIZE = 256 << 10
ERRORS_LIMIT = 64 << 10
#: seconds that the end of a link may come after it has ceased to take our frames
LAST_WORDS = 2.0

#: with this code a program of ssh's contract ends when the connection has, whatever ran there
_SSH_FAILED = 255

#: inbox items that are not bytes to send
_READABLE = object()
_INPUT = object()
_CLOSE = object()

#: to show that we live; and the body of the frame by which an agent does
_PING, _PING_ASIDE = control("ping"), control("ping", aside=True)
_BEAT = control("beat")[HEADER.size :]
#: heartbeats after which we do not wait for one of its to show that we live
_LATE = 1.25


class HostThread(threading.Thread):
    """Reaches one node and carries frames both ways.

    prepare: the agent's first order, sent right behind its source.
    gate: says when to connect, and when again. tell: takes events, from this
    thread. output: takes (node, rank, stream, data), from this thread.
    heartbeat: seconds between two of the agent's. credit: output bytes that the
    agent may have under way, as ``prepare`` grants them. input_taken: takes (node,
    number of bytes) that the node's readers of standard input have taken, from this thread.
    body: the bytes that a frame of output brings.
    heard: takes the node when it gave a beat that nobody waits for, from this thread.
    """

    def __init__(
        self,
        *,
        node: int,
        ranks: frozenset[int],
        target: Target,
        transport: Transport,
        command: str,
        prepare: bytes,
        gate: ConnectGate,
        boot_timeout: float,
        heartbeat: float,
        credit: int,
        tell: Callable[[ev.Event], None],
        output: Callable[[int, int, int, bytes], None],
        input_taken: Callable[[int, int], None] = lambda node, nbytes: None,
        heard: Callable[[int], None] = lambda node: None,
        body: Body = literal,
    ) -> None:
        super().__init__(name=f"link:{target.host}", daemon=True)
        self.node = node
        self.ranks = ranks
        self._target = target
        self._transport = transport
        self._command = command
        self._prepare = prepare
        self._gate = gate
        self._boot_timeout = boot_timeout
        self._heartbeat = heartbeat
        self._credit = Credit(credit)
        self._tell = tell
        self._output = output
        self._input_taken = input_taken
        self._heard = heard
        self._body = body
        self._beat = False  # it was just heard, and is to be answered
        self._next_ping = 0.0
        self._rests = False  # it said so, and its next beat is news
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._input_unpaid = 0  # input bytes written and not yet given back as credit
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._readable = False
        self._closed = threading.Event()
        self._stopping = False  # nothing that happens from now on is news
        self._finishing = False  # the agent's next ``swept`` is its last word
        self._scanner = SyncScanner()
        self._decoder = Decoder()
        self._synced = False
        self._ready = False
        self._errors = bytearray()
        self._ending: Ending | None = None  # as it was told
        self._received: dict[tuple[int, int], int] = {}
        self._ended: set[tuple[int, int]] = set()
        self._ordered = 0  # the latest attempt that the agent was told to prepare
        self.attempt = 0  # the attempt that the link's frames are of

    # -- called by other threads ----------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queue ``frame`` for the agent; returns at once."""
        self._inbox.put(frame)

    def send_input(self, frame: bytes) -> None:
        """Queue an INPUT ``frame``; all that ``send`` was given goes before it."""
        self._input.put(frame)
        self._inbox.put(_INPUT)

    def taken(self, nbytes: int) -> None:
        """The sinks took ``nbytes`` of this host's output; give credit back in large portions."""
        if count := self._credit.taken(nbytes):
            self.send(control("credit", count=count))

    def again(self, prepare: bytes, attempt: int) -> None:
        """Have the agent prepare ``attempt``; its answer divides old frames from new ones."""
        self._ordered = attempt
        self.send(prepare)

    def finish(self) -> None:
        """Let the agent end its part; after its answer the end of the link is no loss."""
        self._finishing = True
        self.send(control("finish"))

    def close(self) -> None:
        """Ask the thread to close the link and end."""
        self._stopping = True
        self._closed.set()
        self._inbox.put(_CLOSE)

    # -- the thread ---------------------------------------------------------------------

    def run(self) -> None:
        link = None
        try:
            opened = self._connect()
            if isinstance(opened, Failure):
                self._lose(opened)
                return
            link = opened
            by = link.by or self._transport.name
            self._tell(ev.NodeConnected(self.node, link.address, by, link.steps))
            failure = self._serve(link)
            if failure is not None:
                self._lose(failure)
        except Exception as error:  # a bug here must not look like a silent host
            self._lose(Failure(Kind.PROTOCOL, f"internal error: {type(error).__name__}: {error}"))
            raise
        finally:
            self._gate.given_up(self.node)
            if link is not None:
                link.close()

    def _lose(self, failure: Failure) -> None:
        if not self._stopping:
            self._tell(ev.NodeLost(self.node, failure, self._ending))

    def _connect(self) -> Link | Failure:
        """A link, or why there is none in the time that the gate gives."""
        while True:
            attempt = self._gate.enter(self.node)
            if self._stopping:
                return Failure(Kind.LOST, "given up")
            self._tell(ev.NodeConnecting(self.node, attempt.number))
            opened = self._transport.open(self._target, self._command, attempt.until)
            if isinstance(opened, Link):
                self._gate.reached(self.node)
                return opened
            pause = self._gate.failed(self.node, opened)
            if pause is None or self._closed.wait(pause):
                return opened

    def _serve(self, link: Link) -> Failure | None:
        """Carry frames until the link is closed (None) or fails."""
        boot_deadline = time.monotonic() + self._boot_timeout
        frames = payload.payload() + self._prepare
        deaf: float | None = None  # it takes nothing any more; until when to wait for its end
        pulsed = False  # its beats come by a way of their own
        link.watch(self._wake)
        while True:
            now = time.monotonic()
            try:
                if frames and deaf is None:
                    link.write(frames)
            except LinkClosed:
                # what it said last, its reason among it, may still be on the way
                deaf = now + LAST_WORDS
            due = deaf or (self._next_ping if self._ready else boot_deadline)
            has_input = deaf is None and not self._input.empty()
            try:
                wait = 0.0 if has_input else max(0.0, due - time.monotonic())
                item = self._inbox.get(timeout=min(wait, threading.TIMEOUT_MAX))
            except queue.Empty:
                item = None
            if item is _CLOSE:
                return None
            if item is _READABLE:
                self._readable = False
                failure = self._read(link)
                if failure is not None:
                    return failure
            frames = item if isinstance(item, bytes) else b""
            if item is None and has_input:  # nothing else is waiting
                frames = self._input.get()
                self._input_unpaid += len(frames) - HEADER.size
            now = time.monotonic()
            if deaf is not None:
                if now >= deaf:
                    return Failure(Kind.LOST, "the link was closed")
            elif self._ready and (self._beat or now >= self._next_ping):
                frames += _PING
                self._expect_beat()
                if pulsed or link.pulse(_PING_ASIDE, self._heartbeat, self._hear):
                    pulsed, self._next_ping = True, math.inf
            elif not self._ready and now >= boot_deadline:
                return self._late(link)

    def _wake(self) -> None:
        if not self._readable:
            self._readable = True
            self._inbox.put(_READABLE)

    def _read(self, link: Link) -> Failure | None:
        """Take what is there now; a Failure when the stream ended or broke the protocol."""
        self._take_errors(link)
        while (data := link.read(READ_SIZE)) is not None:
            if not data:
                return self._end_of(link)
            if not self._synced:
                rest = self._scanner.feed(data)
                if rest is None:
                    continue
                self._synced = True
                self._tell(ev.NodeBooted(self.node, len(self._scanner.noise)))
                data = rest
            try:
                self._take_all(self._decoder.feed(data))
            except (WireError, reports.ReportError) as error:
                return Failure(Kind.PROTOCOL, str(error))
        return None

    def _take_all(self, frames: list[Frame]) -> None:
        """Take ``frames``; output of one stream that came together goes on together."""
        together: dict[tuple[int, int], list[bytes]] = {}
        try:
            for frame in frames:
                if frame.kind in (OUTPUT, SAME):
                    self._check_output(frame)
                    body = self._body(frame)
                    self._credit.given(len(body), len(self.ranks))
                    together.setdefault((frame.rank, frame.stream), []).append(body)
                else:
                    self._give(together)
                    self._take(frame)
        finally:
            self._give(together)

    def _give(self, together: dict[tuple[int, int], list[bytes]]) -> None:
        """Hand output to the sinks, and forget it."""
        for (rank, stream), bodies in together.items():
            data = bodies[0] if len(bodies) == 1 else b"".join(bodies)
            self._received[rank, stream] = self._received.get((rank, stream), 0) + len(data)
            self._output(self.node, rank, stream, data)
        together.clear()

    def _check_output(self, frame: Frame) -> None:
        if frame.rank not in self.ranks or (frame.rank, frame.stream) in self._ended:
            raise reports.ReportError(f"output of rank {frame.rank}, which is not this node's")

    def _take(self, frame: Frame) -> None:
        if frame.body == _BEAT and frame.kind == CONTROL and not self._rests:
            self._beat = True
            self._hear()
            return
        if frame.kind == CONTROL:
            for event in reports.read(self.node, self.ranks, frame.body):
                if isinstance(event, ev.NodeReady):
                    self._begin(event.attempt)
                elif self.attempt and isinstance(event, ev.OfAttempt):
                    event = dataclasses.replace(event, attempt=self.attempt)
                if isinstance(event, (ev.NodePaused, ev.NodeHeard)):
                    self._rests = isinstance(event, ev.NodePaused)
                if isinstance(event, ev.NodeSwept) and self._finishing:
                    self._stopping = True
                self._tell(event)
            return
        if frame.kind == TAKEN:
            (count,) = COUNT.unpack(frame.body)
            if count > self._input_unpaid:
                raise reports.ReportError("credit for input that it was not sent")
            self._input_unpaid -= count
            self._input_taken(self.node, count)
            return
        if frame.kind == INPUT:
            raise reports.ReportError("input for the launcher")
        self._check_output(frame)
        key = (frame.rank, frame.stream)
        self._ended.add(key)
        (sent,) = COUNT.unpack(frame.body)
        received = self._received.get(key, 0)
        self._tell(
            ev.OutputEnded(
                self.node, frame.rank, frame.stream, received, sent, attempt=self.attempt
            )
        )

    def _begin(self, attempt: int) -> None:
        """From here on the frames are of ``attempt``."""
        if attempt != self._ordered or (self._ready and attempt <= self.attempt):
            raise reports.ReportError(f"ready for attempt {attempt}, which was not asked for")
        self._ready = True
        self._expect_beat()
        self.attempt = attempt
        self._received.clear()
        self._ended.clear()

    def _hear(self) -> None:
        if not self._rests:
            self._heard(self.node)

    def _expect_beat(self) -> None:
        """We have just been heard there; a beat is answered, so that one wake-up serves both."""
        self._beat = False
        self._next_ping = time.monotonic() + self._heartbeat * _LATE

    def _take_errors(self, link: Link) -> None:
        while data := link.read_errors(READ_SIZE):
            self._errors += data
            del self._errors[:-ERRORS_LIMIT]

    def _end_of(self, link: Link) -> Failure:
        """Why the stream ended."""
        status = link.ending(1.0)
        if status not in (Ending(None), Ending(_SSH_FAILED)):
            self._ending = status
        self._take_errors(link)
        known = link.failure(0.0)
        if known is not None:
            return known
        if not self._synced:
            noise = self._scanner.finish()
            return boot_failure(self._target.host, noise, bytes(self._errors), status.code)
        how = "the link ended" if status.code is None else f"agent ended with {status.code}"
        if status.signal is not None:
            how = f"agent killed by SIG{status.signal}"
        said = bytes(self._errors).decode("utf-8", "backslashreplace").strip().splitlines()
        return Failure(Kind.LOST, how + (f"; it said: {said[-1][-400:]}" if said else ""))

    def _late(self, link: Link) -> Failure:
        """The agent did not answer in time; quote what the host said instead."""
        self._take_errors(link)
        said = (bytes(self._errors) or self._scanner.finish()).decode("utf-8", "backslashreplace")
        last = "; ".join(said.strip().splitlines()[-3:])[-400:]
        return Failure(
            Kind.TIMEOUT,
            f"no answer from the agent within {self._boot_timeout:.0f} s"
            + (f"; remote said: {last}" if last else ""),
            hint=f"slow login files on that host? try: time ssh {self._target.host} true",
        )
