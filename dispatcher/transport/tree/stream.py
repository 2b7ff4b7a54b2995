"""A command on a host of the tree, as a ``Link``: one stream among those of a branch.

``take`` and ``lose`` are called by the branch's thread, the rest by the link's owner. What is
read gives the far side credit for more; what is written waits for credit of its own, so a
stream that nobody reads, or whose command does not read, holds back nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dispatcher.bootstrap import payload
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.transport.base import Common, Link, LinkClosed
from dispatcher.transport.process.child import signal_name
from dispatcher.transport.process.openssh import SSH_FAILED, classify

if TYPE_CHECKING:
    from dispatcher.transport.tree.branch import Branch

_PIECE = 32 << 10
_KEPT_ERRORS = 8192  # enough of the first error bytes to tell why a host was not reached
_CREDIT = {tree_relay.OUTPUT: tree_relay.MORE_OUTPUT, tree_relay.ERRORS: tree_relay.MORE_ERRORS}
_WINDOW = {tree_relay.OUTPUT: tree_relay.OUTPUT_WINDOW, tree_relay.ERRORS: tree_relay.ERRORS_WINDOW}


class Stream(Link):
    """See ``Link`` for the contract.

    host: where the command runs. by_ssh: it is reached by ``ssh`` from the inner host, whose
    end says of a failure what ssh's does; its output begins with a marker (``arrived``).
    """

    tells_end = True
    shares = True
    by = "tree"

    def __init__(self, branch: Branch, number: int, host: str, *, by_ssh: bool) -> None:
        self._branch = branch
        self._number = number
        self._host = host
        self._by_ssh = by_ssh
        self._scanner = payload.SyncScanner() if by_ssh else None
        self._arrived = not by_ssh
        self._changed = threading.Condition()
        self._held = {tree_relay.OUTPUT: bytearray(), tree_relay.ERRORS: bytearray()}
        self._ended = {tree_relay.OUTPUT: False, tree_relay.ERRORS: False}
        self._granted = dict(_WINDOW)  # bytes that the far side may still send
        self._taken = {
            tree_relay.OUTPUT: 0,
            tree_relay.ERRORS: 0,
        }  # and not yet given back as credit
        self._room = tree_relay.INPUT_WINDOW
        self._first_errors = b""
        self._ending = Ending(None)
        self._over = False
        self._closed = False
        self._input_open = True
        self._lost: Failure | None = None
        self._ready: Callable[[], None] | None = None

    def is_behind(self) -> bool:
        """Whether the command is on another host than the inner one."""
        return self._by_ssh

    # -- the branch's thread ------------------------------------------------------------------

    def take(self, kind: int, body: bytes) -> None:
        """A frame of ours. Raises: Malformed for what the far side must not say."""
        with self._changed:
            if kind in self._held:
                self._take_bytes(kind, body)
            elif kind in (tree_relay.OUTPUT_END, tree_relay.ERRORS_END):
                self._ended[kind - tree_relay.OUTPUT_END + tree_relay.OUTPUT] = True
                self._no_marker()
            elif kind == tree_relay.TAKEN and len(body) == tree_relay.COUNT.size:
                self._room += tree_relay.COUNT.unpack(body)[0]
                if self._room > tree_relay.INPUT_WINDOW:
                    raise tree_relay.Malformed("credit for input that it was not sent")
            elif kind == tree_relay.ENDED and len(body) == tree_relay.STATUS.size:
                self._end(tree_relay.STATUS.unpack(body)[0])
            else:
                raise tree_relay.Malformed(f"a frame of kind {kind}, {len(body)} bytes")
            self._changed.notify_all()
        self._tell()

    def _take_bytes(self, kind: int, body: bytes) -> None:
        self._granted[kind] -= len(body)
        if self._granted[kind] < 0 or self._ended[kind]:
            raise tree_relay.Malformed("output that nobody asked for")
        if kind == tree_relay.ERRORS:
            self._first_errors += body[: _KEPT_ERRORS - len(self._first_errors)]
        elif self._scanner is not None:
            rest = self._scanner.feed(body)
            size = len(self._scanner.noise)
            if rest is None:
                if size + len(body) > payload.NOISE_LIMIT:
                    raise tree_relay.Malformed("nothing but noise")
                return
            # what came before it is the owner's to judge
            body = self._scanner.finish() + rest
            self._taken[kind] += len(SYNC)
            self._scanner = None
            self._arrived = True
        self._held[kind] += body

    def _no_marker(self) -> None:
        """At the end of output: what was taken for the beginning of a marker was none."""
        if self._scanner is not None and self._ended[tree_relay.OUTPUT]:
            self._held[tree_relay.OUTPUT] += self._scanner.finish()
            self._scanner = None

    def _end(self, status: int) -> None:
        self._ending = Ending(None, signal_name(-status)) if status < 0 else Ending(status)
        self._over = True

    def lose(self, failure: Failure) -> None:
        """The branch is gone, and the stream with it."""
        with self._changed:
            if not self._over:
                self._lost = failure
            self._over = True
            for kind in self._ended:
                self._ended[kind] = True
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        ready = self._ready
        if ready is not None:
            ready()

    # -- the owner ------------------------------------------------------------------------------

    def arrived(self, deadline: float) -> Failure | None:
        """None once the host's shell runs the command; else why it does not."""
        with self._changed:
            while not self._arrived and not self._over:
                left = deadline - time.monotonic()
                if left <= 0:
                    return Failure(Kind.TIMEOUT, f"{self._branch.name} did not reach it in time")
                self._changed.wait(left)
            if self._arrived or self._lost is not None:
                return None if self._arrived else self._lost
        if self._ending.code == SSH_FAILED:
            return classify(self._words(1.0), self._host)
        return Failure(Kind.BOOT, "the login there ended before its shell answered")

    def _words(self, seconds: float) -> str:
        """What came first on standard error, once all of it or ``seconds`` are over."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended[tree_relay.ERRORS], seconds)
            return self._first_errors.decode("utf-8", "replace")

    def watch(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        ready()

    def read(self, limit: int) -> bytes | None:
        data = self._drain(tree_relay.OUTPUT, limit)
        if data:
            return data
        with self._changed:
            over = self._ended[tree_relay.OUTPUT] and not self._held[tree_relay.OUTPUT]
            return b"" if over else None

    def read_errors(self, limit: int) -> bytes:
        return self._drain(tree_relay.ERRORS, limit)

    def _drain(self, kind: int, limit: int) -> bytes:
        count = 0
        with self._changed:
            held = self._held[kind]
            data = bytes(held[:limit])
            del held[:limit]
            self._taken[kind] += len(data)
            if self._taken[kind] >= _WINDOW[kind] // 2 and not self._ended[kind]:
                count, self._taken[kind] = self._taken[kind], 0
                self._granted[kind] += count
        if count:
            self._branch.send(self._number, _CREDIT[kind], tree_relay.COUNT.pack(count))
        return data

    def pulse(self, ping: bytes, every: float, heard: Callable[[], None]) -> bool:
        self._branch.pulse(self._number, ping, every, heard)
        return True

    def write(self, data: bytes) -> None:
        with self._branch.one_write(self._number):
            self._write(data)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        common = data if isinstance(data, Common) else self._branch.common
        if common and data.startswith(common):
            for piece in common.pieces:
                self._take_room(len(piece), len(piece))
                self._branch.send_common(self._number, piece)
            left = left[len(common) :]
        while left:
            size = self._take_room(1, min(len(left), _PIECE))
            self._branch.send(self._number, tree_relay.INPUT, bytes(left[:size]))
            left = left[size:]

    def _take_room(self, least: int, most: int) -> int:
        """Wait until so many bytes of input are welcome; how many of them may go."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open() or self._room >= least)
            if not self._open():
                raise LinkClosed("link closed")
            size = min(most, self._room)
            self._room -= size
            return size

    def _open(self) -> bool:
        return self._input_open and not self._over and not self._closed

    def end_input(self) -> None:
        with self._changed:
            was_open, self._input_open = self._open(), False
            self._changed.notify_all()
        if was_open:
            self._branch.send(self._number, tree_relay.INPUT_END)

    def gone(self) -> bool:
        return self._over

    def errors_ended(self) -> bool:
        with self._changed:
            return self._ended[tree_relay.ERRORS] and not self._held[tree_relay.ERRORS]

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = self._over = True
            for kind in self._ended:
                self._ended[kind] = True
                self._held[kind].clear()
            self._changed.notify_all()
        self._branch.forget(self._number)
        self._tell()

    def ending(self, timeout: float) -> Ending:
        with self._changed:
            self._changed.wait_for(lambda: self._over, max(0.0, timeout))
            ending = self._ending
        if self._by_ssh and ending.code == SSH_FAILED:
            words = self._words(0.1)
            if words.strip() and classify(words, self._host).kind is not Kind.LOST:
                return Ending(None)  # ssh's own failure, not the command's
        return ending

    def failure(self, timeout: float) -> Failure | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over, max(0.0, timeout))
            return self._lost
