"""The link to one inner host, and the commands that it carries, each as a ``Link``.

One thread reads and writes the link (``Branch``). Frames from the streams' owners wait here, orders
before input, as far as each stream's credit goes. When the link ends, so do all its streams: that
of the inner host itself with the reason, those behind it with its name.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from dispatcher.bootstrap.payload import NOISE_LIMIT, SyncScanner, boot_failure, link_ended
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.model.names import size
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import ERRORS, OUTPUT, Malformed
from dispatcher.remote.tree_relay import STATUS
from dispatcher.transport.base import Asides, Link, LinkClosed
from dispatcher.transport.mux_link import MuxLink
from dispatcher.transport.process.child import signal_name
from dispatcher.transport.process.openssh import SSH_FAILED, classify

_READ_SIZE = 256 << 10
_WRITE_SIZE = 64 << 10
#: enough of the first error bytes to see why a host was not reached
_ERRORS_LIMIT = 8192
#: reads before a write gets its turn
_READS = 8
#: frames of a relay without data at once, and a second; its standard error, in bytes: it has none
_MOST_ASIDES, _ASIDES_RATE = 10_000, 500.0
_MOST_ERRORS = 16 << 20
#: seconds that the end of a link may come after it has stopped taking our frames
_LAST_WORDS = 2.0
_URGENT = frozenset({mux.OPEN, mux.CLOSE, mux.MORE_OUTPUT, mux.MORE_ERRORS})


class Branch:
    """One inner host. name: for messages. payload: the relay's source.

    open_link: gives the link on which it is started; called once, by the branch's thread.
    """

    def __init__(self, name: str, payload: bytes, open_link: Callable[[], Link | Failure]) -> None:
        self.name = name
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
        self._orders: deque[bytes] = deque()
        self._input: deque[bytes] = deque()
        self._rang = threading.Event()
        self._settled = threading.Event()  # the relay has answered, or never will
        self._closing = False
        self._scanner: SyncScanner | None = SyncScanner()
        self._frames = mux.Decoder()
        self._asides = Asides(_MOST_ASIDES, _ASIDES_RATE)
        self._errors, self._n_errors = b"", 0
        self._thread = threading.Thread(target=self._run, name=f"tree:{name}", daemon=True)
        self._thread.start()

    # -- any thread -------------------------------------------------------------------------

    def stream(self, words: Sequence[str], host: str, known: str = "") -> Stream:
        """The link of a command on it; it may be written to before the relay has answered.

        known: lines for known_hosts; the command is then an ``ssh`` to ``host``.
        """
        with self._lock:
            self._number += 1
            stream = Stream(self, self._number, host, by_ssh=bool(known))
            lost = self.failure
            if lost is None:
                self._streams[self._number] = stream
                body = "\0".join((known, *words)).encode("utf-8", "surrogateescape")
                self._orders.append(mux.frame(self._number, mux.OPEN, body))
        if lost is not None:
            stream.lose(self._as_seen_by(stream, lost))
        self._rang.set()
        return stream

    def send(self, number: int, kind: int, body: bytes = b"") -> None:
        """Send a frame of a stream; returns at once."""
        with self._lock:
            if number in self._streams:
                lane = self._orders if kind in _URGENT else self._input
                lane.append(mux.frame(number, kind, body))
        self._rang.set()

    def forget(self, number: int) -> None:
        """Drop a stream, which has no listener any more."""
        with self._lock:
            self._streams.pop(number, None)

    def wait(self, seconds: float) -> Failure | None:
        """None once the relay has answered; else why it has not, or why it stopped."""
        if not self._settled.wait(max(0.0, seconds)):
            return Failure(Kind.TIMEOUT, f"no answer from {self.name} in time")
        return self.failure

    def close(self) -> None:
        """End the relay, and with it all behind it; idempotent."""
        self._closing = True
        self._rang.set()
        link = self._link
        if link is not None:
            link.close()  # a blocked writer is freed
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
        """Carry frames until the link ends; the reason why it ended."""
        data = self._payload
        link.watch(self._rang.set)
        while not self._closing:
            self._rang.clear()
            failure = self._read(link)
            if failure is not None:
                return failure
            data = data or self._next()
            if not data:
                self._rang.wait()
                continue
            try:
                link.write(data)
            except LinkClosed:
                return self._last_words(link)
            data = b""
        return Failure(Kind.LOST, "closed")

    def _next(self) -> bytes:
        frames: list[bytes] = []
        size = 0
        with self._lock:
            while size < _WRITE_SIZE and (lane := self._orders or self._input):
                frames.append(lane.popleft())
                size += len(frames[-1])
        return b"".join(frames)

    def _read_errors(self, link: Link) -> None:
        while self._n_errors <= _MOST_ERRORS and (errors := link.read_errors(_READ_SIZE)):
            self._errors = (self._errors + errors)[-_ERRORS_LIMIT:]
            self._n_errors += len(errors)

    def _read(self, link: Link) -> Failure | None:
        """Read what has come; a Failure when the link ended or broke the protocol."""
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
                    with self._lock:
                        stream = self._streams.get(number)
                    if stream is not None:  # else it was closed meanwhile
                        stream.take(kind, body)
            except Malformed as error:
                return Failure(Kind.PROTOCOL, f"{self.name} passes on: {error}")
        self._rang.set()  # there may be more, after what waits to be written
        return None

    def _last_words(self, link: Link) -> Failure:
        """Read why the link takes nothing any more."""
        deadline = time.monotonic() + _LAST_WORDS
        while (left := deadline - time.monotonic()) > 0:
            self._rang.clear()
            failure = self._read(link)
            if failure is not None:
                return failure
            self._rang.wait(left)
        return Failure(Kind.LOST, "the link was closed")

    def _end_of(self, link: Link) -> Failure:
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


class Stream(MuxLink):
    """See ``Link`` for the contract.

    host: where the command runs. by_ssh: it is reached by ``ssh`` from the inner host; a failure
    then ends as ssh's does, and its output begins with a marker (``arrived``).
    """

    by = "tree"

    def __init__(self, branch: Branch, number: int, host: str, *, by_ssh: bool) -> None:
        super().__init__(branch, number)
        self._branch = branch
        self._host = host
        self._by_ssh = by_ssh
        self._scanner = SyncScanner() if by_ssh else None
        self._arrived = not by_ssh
        self._first_errors = b""

    def is_behind(self) -> bool:
        """Whether the command is on another host than the inner one."""
        return self._by_ssh

    # -- the branch's thread ----------------------------------------------------------------

    def _arriving(self, kind: int, body: bytes) -> bytes:
        if kind == ERRORS:
            self._first_errors += body[: _ERRORS_LIMIT - len(self._first_errors)]
        elif self._scanner is not None:
            rest = self._scanner.feed(body)
            if rest is None:
                if len(self._scanner.noise) + len(body) > NOISE_LIMIT:
                    raise Malformed("nothing but noise")
                return b""
            # the owner judges the bytes before it
            body = self._scanner.finish() + rest
            self._credit[kind].taken(len(SYNC))
            self._scanner = None
            self._arrived = True
        return body

    def _left_over(self, kind: int) -> bytes:
        if self._scanner is None or kind != OUTPUT:
            return b""
        noise = self._scanner.finish()  # its last bytes looked like the start of a marker
        self._scanner = None
        return noise

    def _ending_of(self, body: bytes) -> tuple[Ending, Failure | None]:
        if len(body) != STATUS.size:
            raise Malformed(f"a status of {len(body)} bytes")
        status = STATUS.unpack(body)[0]
        return (Ending(None, signal_name(-status)) if status < 0 else Ending(status)), None

    # -- the owner ------------------------------------------------------------------------------

    def arrived(self, deadline: float) -> Failure | None:
        """None once the host's shell runs the command; else why it does not."""
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: self._arrived or self._over, left):
                return Failure(Kind.TIMEOUT, f"{self._branch.name} did not reach it in time")
            if self._arrived or self._lost is not None:
                return None if self._arrived else self._lost
        if self._ending.code == SSH_FAILED:
            return classify(self._words(1.0), self._host)
        return Failure(Kind.BOOT, "the login ended before the host's shell answered")

    def _words(self, seconds: float) -> str:
        """The first error output, once all of it has come or ``seconds`` are over."""
        self._held[ERRORS].ended(seconds)
        return self._first_errors.decode("utf-8", "replace")

    def ending(self, timeout: float) -> Ending:
        ending = super().ending(timeout)
        if self._by_ssh and ending.code == SSH_FAILED:
            words = self._words(0.1)
            if words.strip() and classify(words, self._host).kind is not Kind.LOST:
                return Ending(None)  # ssh's own failure, not the command's
        return ending
