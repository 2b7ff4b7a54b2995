"""A command on a host of the tree, as a ``Link``: one channel among those of a branch."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from dispatcher.bootstrap.payload import NOISE_LIMIT, SyncScanner
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import ERRORS, OUTPUT, Malformed
from dispatcher.remote.tree_relay import STATUS
from dispatcher.transport.base import Common
from dispatcher.transport.mux_link import Connection, MuxLink
from dispatcher.transport.process.child import signal_name
from dispatcher.transport.process.openssh import SSH_FAILED, classify

_ERRORS_LIMIT = 8192  # enough of the first error bytes to tell why a host was not reached


class RelayConnection(Connection, Protocol):
    """What a stream wants of the branch that carries it: ``Branch``, which tells more of each.

    name: of the inner host. common: what many of its streams write first.
    """

    name: str
    common: Common

    def send_common(self, channel: int, chunk: Common) -> None:
        """Let ``chunk`` be the channel's next input."""

    def pulse(
        self, channel: int, ping: bytes, every: float, on_heartbeat: Callable[[], None]
    ) -> None:
        """Ping the channel's command; see ``Link.pulse``."""

    def one_write(self, channel: int) -> AbstractContextManager[None]:
        """Nothing comes between what is sent of the channel meanwhile."""


class Stream(MuxLink):
    """See ``Link`` for the contract.

    host: where the command runs. by_ssh: it is reached by ``ssh`` from the inner host, whose
    end says of a failure what ssh's does; its output begins with a marker (``arrived``).
    """

    shares = True
    by = "tree"

    def __init__(self, branch: RelayConnection, number: int, host: str, *, by_ssh: bool) -> None:
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

    # -- the branch's thread ------------------------------------------------------------------

    def _arriving(self, kind: int, body: bytes) -> bytes:
        if kind == ERRORS:
            self._first_errors += body[: _ERRORS_LIMIT - len(self._first_errors)]
        elif self._scanner is not None:
            rest = self._scanner.feed(body)
            if rest is None:
                if len(self._scanner.noise) + len(body) > NOISE_LIMIT:
                    raise Malformed("nothing but noise")
                return b""
            # what came before it is the owner's to judge
            body = self._scanner.finish() + rest
            self._credit[kind].taken(len(SYNC))
            self._scanner = None
            self._arrived = True
        return body

    def _left_over(self, kind: int) -> bytes:
        if self._scanner is None or kind != OUTPUT:
            return b""
        noise = self._scanner.finish()  # what was taken for the beginning of a marker was none
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
        return Failure(Kind.BOOT, "the login there ended before its shell answered")

    def _words(self, seconds: float) -> str:
        """What came first on standard error, once all of it or ``seconds`` are over."""
        self._held[ERRORS].ended(seconds)
        return self._first_errors.decode("utf-8", "replace")

    def pulse(self, ping: bytes, every: float, on_heartbeat: Callable[[], None]) -> bool:
        self._branch.pulse(self._channel, ping, every, on_heartbeat)
        return True

    def write(self, data: bytes) -> None:
        common = data if isinstance(data, Common) else self._branch.common
        with self._branch.one_write(self._channel):
            if common and data.startswith(common):
                for chunk in common.chunks:
                    self._take_credit(len(chunk), len(chunk))
                    self._branch.send_common(self._channel, chunk)
                data = data[len(common) :]
            super().write(data)

    def ending(self, timeout: float) -> Ending:
        ending = super().ending(timeout)
        if self._by_ssh and ending.code == SSH_FAILED:
            words = self._words(0.1)
            if words.strip() and classify(words, self._host).kind is not Kind.LOST:
                return Ending(None)  # ssh's own failure, not the command's
        return ending
