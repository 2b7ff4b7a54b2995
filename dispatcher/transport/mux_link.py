"""A command at the far end of a channel, as a ``Link``: the near end of ``remote.protocol.mux``.

The thread that reads the connection calls ``take`` and ``lose``, the link's owner the rest. Each
read grants the far end more, and each write waits for credit. So a link that is not read, or
whose command does not read, holds back no other.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from typing import Protocol

from dispatcher.model.failure import Ending, Failure
from dispatcher.remote.protocol import mux
from dispatcher.transport.base import Link, LinkClosed, RecvBuffer

_CHUNK = 32 << 10
_MORE = {mux.OUTPUT: mux.MORE_OUTPUT, mux.ERRORS: mux.MORE_ERRORS}
_END_OF = {mux.OUTPUT_END: mux.OUTPUT, mux.ERRORS_END: mux.ERRORS}


class MuxConnection(Protocol):
    """A connection that carries the frames of many links; any thread may call."""

    def send(self, channel: int, kind: int, body: bytes = b"") -> None:
        """Send a frame. Raises: LinkClosed where the connection is known to be gone."""

    def forget(self, channel: int) -> None:
        """Drop the channel, which has no listener any more."""


class MuxLink(Link):
    """See ``Link`` for the contract. channel: of ``connection``, where it is opened."""

    tells_end = True

    def __init__(self, connection: MuxConnection, channel: int) -> None:
        self._connection = connection
        self._channel = channel
        self._changed = threading.Condition(threading.Lock())
        self._held = {mux.OUTPUT: RecvBuffer(), mux.ERRORS: RecvBuffer()}
        self._credit = {
            mux.OUTPUT: mux.Credit(mux.OUTPUT_WINDOW),
            mux.ERRORS: mux.Credit(mux.ERRORS_WINDOW),
        }
        self._input_credit = mux.Credit(mux.INPUT_WINDOW)
        self._ending = Ending(None)
        self._lost: Failure | None = None
        self._over = False
        self._closed = False
        self._input_open = True
        self._ready: Callable[[], None] = lambda: None

    # -- the connection's thread ----------------------------------------------------------------

    def take(self, kind: int, body: bytes) -> None:
        """Take a frame of our channel. Raises: Malformed if the far end must not send it."""
        with self._changed:
            if self._closed:
                return  # it was under way, and the far end is about to get our close
            if kind in self._held:
                if self._held[kind].ended():
                    raise mux.Malformed("output after its end")
                self._credit[kind].use(len(body))
                self._held[kind].feed(self._arriving(kind, body))
            elif kind in _END_OF:
                self._held[_END_OF[kind]].feed(self._left_over(_END_OF[kind]))
                self._held[_END_OF[kind]].close()
            elif kind == mux.MORE_INPUT:
                self._input_credit.grant(body)
            elif kind == mux.ENDED:
                self._ending, self._lost = self._ending_of(body)
                self._over = True
            else:
                self._answered(kind, body)
            self._changed.notify_all()
        self._ready()

    def lose(self, failure: Failure | None) -> None:
        """End the link: the connection is gone, and the command with it. failure: why, if known."""
        with self._changed:
            if not self._over:
                self._lost = failure
            self._over = True
            for held in self._held.values():
                held.close()
            self._changed.notify_all()
        self._ready()

    def _arriving(self, kind: int, body: bytes) -> bytes:
        """The part of ``body`` that is for the owner. Raises: Malformed."""
        return body

    def _left_over(self, kind: int) -> bytes:
        """The bytes that ``_arriving`` has held back, at the end of the stream."""
        return b""

    @abc.abstractmethod
    def _ending_of(self, body: bytes) -> tuple[Ending, Failure | None]:
        """How the command ended, and the failure if the host caused it. Raises: Malformed."""

    def _answered(self, kind: int, body: bytes) -> None:
        """Take a frame that is the protocol's own. Raises: Malformed."""
        raise mux.Malformed(f"a frame of kind {kind}, {len(body)} bytes")

    # -- the owner --------------------------------------------------------------------------------

    def watch(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        ready()

    def read(self, limit: int) -> bytes | None:
        return self._take(mux.OUTPUT, limit)

    def read_errors(self, limit: int) -> bytes:
        return self._take(mux.ERRORS, limit) or b""

    def _take(self, kind: int, limit: int) -> bytes | None:
        with self._changed:
            data, more = self._held[kind].take(limit), b""
            if data and not self._held[kind].ended():
                more = self._credit[kind].taken(len(data))
        if more:
            self._send(_MORE[kind], more)
        return data

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            size = self._take_credit(min(len(left), _CHUNK))
            self._connection.send(self._channel, mux.INPUT, bytes(left[:size]))
            left = left[size:]

    def _take_credit(self, most: int) -> int:
        """Wait until the far end takes input; how many bytes may go, ``most`` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open() or self._input_credit.left > 0)
            if not self._open():
                raise LinkClosed("link closed")
            size = min(most, self._input_credit.left)
            self._input_credit.use(size)
            return size

    def _open(self) -> bool:
        return self._input_open and not self._over and not self._closed

    def end_input(self) -> None:
        with self._changed:
            was_open, self._input_open = self._open(), False
            self._changed.notify_all()
        if was_open:
            self._send(mux.INPUT_END)

    def _send(self, kind: int, body: bytes = b"") -> None:
        """Send a frame that may get lost: if the connection is gone, readers see that anyway."""
        try:
            self._connection.send(self._channel, kind, body)
        except LinkClosed:
            pass

    def gone(self) -> bool:
        return self._over

    def errors_ended(self) -> bool:
        return self._held[mux.ERRORS].spent

    def close(self) -> None:
        self._leave(mux.CLOSE)

    def _leave(self, kind: int) -> None:
        """Stop listening; a frame of ``kind`` informs the far end, unless it knows."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            # the far end has closed it as well
            known = self._over and all(held.ended() for held in self._held.values())
            self._over = True
            for held in self._held.values():
                held.discard()
            self._changed.notify_all()
        if not known:
            self._send(kind)
        self._connection.forget(self._channel)
        self._ready()

    def ending(self, timeout: float) -> Ending:
        with self._changed:
            self._changed.wait_for(lambda: self._over, max(0.0, timeout))
            return self._ending

    def failure(self, timeout: float) -> Failure | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over, max(0.0, timeout))
            return self._lost
