"""Our end of the link to one inner host: the thread that reads and writes it.

Owners of streams never touch the link. What they send waits here, orders before input, and
is bounded by each stream's credit; what comes in is given to the streams at once, which hold
no more than they granted. So a link that stands still delays only what is behind it.

What is common to many streams crosses the link for the first of them; the others are then
told that it is their next input, each when its own writer comes to it. The root alone decides
which chunk the relay keeps in which place (``ChunkCache``): it has a chunk put there (KEEP),
and then given to one stream after the other (KEPT). All of that goes down one lane, so nothing
is lost when a chunk takes the place of another: whoever was promised the old one has had it by
then. Where the link is itself such a stream, the same bytes are common there, so that a tree's
links carry them once at any depth.

When the link ends, so do all its streams: that of the inner host itself with the reason,
those behind it with its name.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from dispatcher.bootstrap.payload import SyncScanner, boot_failure, link_ended
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.names import size
from dispatcher.remote.protocol import mux
from dispatcher.remote.tree_relay import KEEP, KEPT, PULSE
from dispatcher.transport.base import Asides, Common, Link, LinkClosed
from dispatcher.transport.tree.stream import Stream

#: places; a relay keeps so many chunks at most, four times what a stream may be ahead of another
CACHE_SIZE = 32


class ChunkCache:
    """Which chunks a relay has, as the root knows it.

    Places are taken in turn, and nobody notes who has yet to read what lies there: one that
    comes too late for a chunk has it sent once more, which is never more than if each had been
    sent its own. Pieces are told apart by identity: to compare them would take as long as to
    send them.
    """

    def __init__(self) -> None:
        self._lying: dict[int, tuple[int, bytes]] = {}  # the oldest first

    def place(self, chunk: bytes) -> tuple[int, bool]:
        """The place of ``chunk``, and whether it has to be put there first."""
        found = self._lying.get(id(chunk))
        if found is not None:
            return found[0], False
        place = len(self._lying)
        if place == CACHE_SIZE:
            place, _ = self._lying.pop(next(iter(self._lying)))
        self._lying[id(chunk)] = place, chunk
        return place, True


_READ_SIZE = 256 << 10
_WRITE_SIZE = 64 << 10
_ERRORS_LIMIT = 8192
#: reads before what waits to be written has its turn
_READS = 8
#: frames of a relay without data at once, and a second; its standard error, in bytes: it has none
_MOST_ASIDES, _ASIDES_RATE = 10_000, 500.0
_MOST_ERRORS = 16 << 20
#: seconds that the end of a link may come after it has ceased to take our frames
_LAST_WORDS = 2.0
_NOTHING = Common(b"")
_URGENT = frozenset({mux.OPEN, mux.CLOSE, mux.MORE_OUTPUT, mux.MORE_ERRORS})


class Branch:
    """One inner host. name: what it is called in messages. payload: the relay's source.

    common: what many of its streams write first. open_link: gives the link on which it is
    started; called once, by the branch's thread.
    """

    def __init__(
        self,
        name: str,
        payload: bytes,
        open_link: Callable[[], Link | Failure],
        common: Common = _NOTHING,
    ) -> None:
        self.name = name
        self.common = common
        #: why there is no relay (any more), and whether the host itself was never reached
        self.failure: Failure | None = None
        self.unreached = False
        self.address: str | None = None
        self._payload = payload
        self._open_link = open_link
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._streams: dict[int, Stream] = {}
        self._number = 0
        self._orders: deque[tuple[bytes, ...]] = deque()  # frames, and each in its parts
        self._input: deque[tuple[bytes, ...]] = deque()
        self._chunks = ChunkCache()
        self._rang = threading.Event()
        self._settled = threading.Event()  # the relay has answered, or never will
        self._closing = False
        self._beats: dict[int, Callable[[], None]] = {}  # stream -> told of a sign of life
        self._ping, self._every, self._next_pulse = b"", 0.0, math.inf
        self._halfway: set[int] = set()  # streams of which a write is under way
        self._owed: set[int] = set()  # those of them that are to be pinged after it
        self._scanner: SyncScanner | None = SyncScanner()
        self._frames = mux.Frames()
        self._asides = Asides(_MOST_ASIDES, _ASIDES_RATE)
        self._errors, self._n_errors = b"", 0
        self._thread = threading.Thread(target=self._run, name=f"tree:{name}", daemon=True)
        self._thread.start()

    # -- any thread -------------------------------------------------------------------------

    def stream(self, words: Sequence[str], host: str, known: str = "") -> Stream:
        """The link of a command there; it may be written to before the relay has answered.

        known: lines for known_hosts; the command is then an ``ssh`` to ``host``.
        """
        with self._lock:
            self._number += 1
            stream = Stream(self, self._number, host, by_ssh=bool(known))
            lost = self.failure
            if lost is None:
                self._streams[self._number] = stream
                body = "\0".join((known, *words)).encode("utf-8", "surrogateescape")
                self._orders.append((mux.frame(self._number, mux.OPEN, body),))
        if lost is not None:
            stream.lose(self._as_seen_by(stream, lost))
        self._rang.set()
        return stream

    def send(self, number: int, kind: int, body: bytes = b"") -> None:
        """Send a frame of a stream; returns at once."""
        with self._lock:
            if number in self._streams:
                lane = self._orders if kind in _URGENT else self._input
                lane.append((mux.frame(number, kind, body),))
        self._rang.set()

    def send_common(self, number: int, chunk: Common) -> None:
        """Let ``chunk`` be the next input of a stream; the relay may have it already."""
        with self._lock:
            if number in self._streams:
                place, is_new = self._chunks.place(chunk)
                if is_new:
                    header = mux.HEADER.pack(place, KEEP, len(chunk))
                    self._input.append((header, chunk))
                self._input.append((mux.frame(number, KEPT, mux.COUNT.pack(place)),))
        self._rang.set()

    def pulse(
        self, number: int, ping: bytes, every: float, on_heartbeat: Callable[[], None]
    ) -> None:
        """Ping the command of a stream, with all others; see ``Link.pulse``."""
        with self._lock:
            self._beats[number] = on_heartbeat
            self._ping, self._every = ping, every
            self._next_pulse = min(self._next_pulse, time.monotonic() + every)
        self._rang.set()

    @contextmanager
    def one_write(self, number: int) -> Iterator[None]:
        """Nothing comes between what is sent of this stream; a ping that is due comes after."""
        with self._lock:
            self._halfway.add(number)
        try:
            yield
        finally:
            with self._lock:
                self._halfway.discard(number)
                if number in self._owed:
                    self._pulse_to([number])
            self._rang.set()

    def forget(self, number: int) -> None:
        """Nobody listens to a stream any more."""
        with self._lock:
            self._streams.pop(number, None)
            self._beats.pop(number, None)

    def wait(self, seconds: float) -> Failure | None:
        """None once the relay has answered; else why it has not, or does not any more."""
        if not self._settled.wait(max(0.0, seconds)):
            return Failure(Kind.TIMEOUT, f"no answer from {self.name} in time")
        return self.failure

    def close(self) -> None:
        """End the relay, and with it all behind it; idempotent."""
        self._closing = True
        self._rang.set()
        link = self._link
        if link is not None:
            link.close()  # who writes to it is freed
        self._thread.join(1.0)

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        failure = Failure(Kind.PROTOCOL, "internal error")
        try:
            opened = self._open_link()
            if isinstance(opened, Failure):
                failure, self.unreached = opened, True
                return
            self._link, self.address = opened, opened.address
            failure = self._serve(opened)
        finally:
            if self._link is not None:
                self._link.close()
            with self._lock:
                self.failure = failure
                streams = list(self._streams.values())
                self._streams.clear()
            self._settled.set()
            for stream in sorted(streams, key=Stream.is_behind):
                stream.lose(self._as_seen_by(stream, failure))

    def _as_seen_by(self, stream: Stream, failure: Failure) -> Failure:
        if not stream.is_behind():
            return failure
        how = f"{self.name}, through which it was reached, is gone"
        if self._scanner is not None:
            how = f"{self.name} was not reached" if self.unreached else f"no relay on {self.name}"
        return Failure(Kind.LOST, f"{how}: {failure.why}")

    def _serve(self, link: Link) -> Failure:
        """Carry frames until the link ends; why it did."""
        parts = [self._payload]
        link.watch(self._rang.set)
        while not self._closing:
            self._rang.clear()
            failure = self._read(link)
            if failure is not None:
                return failure
            parts = parts or self._next()
            if not parts:
                left = self._next_pulse - time.monotonic()
                self._rang.wait(None if left == math.inf else max(0.0, left))
                continue
            try:
                for data in _writes(parts) if link.shares else [b"".join(parts)]:
                    link.write(data)
            except LinkClosed:
                return self._last_words(link)
            parts = []
        return Failure(Kind.LOST, "closed")

    def _next(self) -> list[bytes]:
        """Parts of frames to write, orders first."""
        parts: list[bytes] = []
        size = 0
        with self._lock:
            if time.monotonic() >= self._next_pulse:
                self._next_pulse = time.monotonic() + self._every
                self._owed.update(self._halfway & self._beats.keys())
                self._pulse_to(self._beats.keys() - self._halfway)
            while size < _WRITE_SIZE and (lane := self._orders or self._input):
                frame = lane.popleft()
                parts += frame
                size += sum(map(len, frame))
        return parts

    def _pulse_to(self, numbers: Collection[int]) -> None:
        """Queue a ping for the commands of ``numbers``, behind all input that is waiting."""
        self._owed.difference_update(numbers)
        ping = mux.COUNT.pack(len(self._ping)) + self._ping
        body = ping + b"".join(map(mux.COUNT.pack, numbers))
        self._input.append((mux.frame(0, PULSE, body),))

    def _take_pulse(self, body: bytes) -> None:
        """Tell whose commands have shown a sign of life."""
        if len(body) % mux.COUNT.size:
            raise mux.Malformed(f"a pulse of {len(body)} bytes")
        with self._lock:
            known = [self._beats.get(number) for (number,) in mux.COUNT.iter_unpack(body)]
        for on_heartbeat in known:
            if on_heartbeat is not None:  # else it was closed meanwhile
                on_heartbeat()

    def _read_errors(self, link: Link) -> None:
        while self._n_errors <= _MOST_ERRORS and (errors := link.read_errors(_READ_SIZE)):
            self._errors = (self._errors + errors)[-_ERRORS_LIMIT:]
            self._n_errors += len(errors)

    def _read(self, link: Link) -> Failure | None:
        """Take what is there; a Failure when the link ended or broke the protocol."""
        for _ in range(_READS):
            self._read_errors(link)
            noise = 0 if self._scanner is None else self._scanner.dropped
            if max(self._n_errors, noise) > _MOST_ERRORS:
                return Failure(Kind.PROTOCOL, f"a flood: {size(_MOST_ERRORS)} of noise")
            data = link.read(_READ_SIZE)
            if data is None:
                return None
            if not data:
                return self._end_of(link)
            if self._scanner is not None:
                rest = self._scanner.feed(data)
                if rest is None:
                    continue
                self._scanner = None
                self._settled.set()
                data = rest
            try:
                for number, kind, body in self._frames.feed(data):
                    brings = kind in (mux.OUTPUT, mux.ERRORS) and body and number in self._streams
                    if not brings and self._asides.came():
                        return Failure(Kind.PROTOCOL, f"a flood: more than {_MOST_ASIDES:,} "
                                       "frames without data")  # fmt: skip
                    if kind == PULSE:
                        self._take_pulse(body)
                        continue
                    with self._lock:
                        stream = self._streams.get(number)
                    if stream is not None:  # else it was closed meanwhile
                        stream.take(kind, body)
            except mux.Malformed as error:
                return Failure(Kind.PROTOCOL, f"{self.name} passes on: {error}")
        self._rang.set()  # there may be more, after what waits to be written
        return None

    def _last_words(self, link: Link) -> Failure:
        """The link takes nothing any more: read why."""
        deadline = time.monotonic() + _LAST_WORDS
        while (left := deadline - time.monotonic()) > 0:
            self._rang.clear()
            failure = self._read(link)
            if failure is not None:
                return failure
            self._rang.wait(left)
        return Failure(Kind.LOST, "the link was closed")

    def _end_of(self, link: Link) -> Failure:
        """Why the stream of frames ended."""
        status = link.ending(1.0)
        self._read_errors(link)
        known = link.failure(0.0)
        if known is not None:
            self.unreached = self._scanner is not None
            return known
        if self._scanner is not None:
            by_hand = f"ssh {self.name} python3 -V"
            return boot_failure(by_hand, self._scanner.finish(), self._errors, status.code)
        return link_ended("its relay", status, self._errors)


def _writes(parts: Sequence[bytes]) -> Iterator[bytes]:
    """``parts`` joined, but for what is common: on the way of that it may be known already."""
    for is_common, some in itertools.groupby(parts, lambda part: isinstance(part, Common)):
        group = list(some)
        yield from group if is_common else [b"".join(group)]
