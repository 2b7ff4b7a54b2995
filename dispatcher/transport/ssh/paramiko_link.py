"""``ParamikoLink``: one command's channel as a ``Link``.

The session's own thread fills the channel's buffers and rings the owner; no
thread and no descriptor is spent a link. Standard output and error share one
window of 1 MiB: what the owner does not take is not sent.
"""

from __future__ import annotations

from collections.abc import Callable

from paramiko.ssh_exception import SSHException

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import Link, LinkClosed, Window
from dispatcher.transport.ssh.paramiko_internals import SshChannel
from dispatcher.transport.ssh.session import Session

_CHUNK = 32000  # a packet's worth


class ParamikoLink(Link):
    """The link to one command on one host; see ``Link`` for the contract.

    release: takes the session when the link is closed and its command has ended;
    otherwise, and without it, the session is ended.
    """

    tells_end = True

    def __init__(
        self,
        session: Session,
        channel: SshChannel,
        release: Callable[[Session], None] | None = None,
    ) -> None:
        self._session = session
        self._channel = channel
        self._release = release
        self._closed = False
        self._watched = 0.0
        self.address = session.stream.address

    def watch(self, ready: Callable[[], None]) -> None:
        self._channel.in_buffer.watch(ready)
        self._channel.in_stderr_buffer.watch(ready)
        self._channel.on_status = ready
        if self._channel.status_event.is_set():
            ready()

    def read(self, limit: int) -> bytes | None:
        return self._channel.take(self._channel.in_buffer, limit)

    def read_errors(self, limit: int) -> bytes:
        return self._channel.take(self._channel.in_stderr_buffer, limit) or b""

    def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._closed or self._channel.closed or not self._session.active:
                raise LinkClosed("link closed")
            try:
                sent = self._channel.send(data[at : at + _CHUNK])
            except (OSError, EOFError, SSHException):
                raise LinkClosed("the other end is gone") from None
            if sent == 0:
                raise LinkClosed("link closed")
            at += sent

    def end_input(self) -> None:
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, SSHException):
            pass  # the connection is gone, and the input with it

    def resize(self, window: Window) -> None:
        self._session.resize(self._channel, window)

    def expect_answers(self, seconds: float) -> bool:
        self._watched = seconds
        return self._session.stream.expect_answers(seconds)

    def answers(self) -> bool:
        return not self._watched or self._session.stream.answers()

    def gone(self) -> bool:
        return bool(self._channel.status_event.is_set())

    def errors_ended(self) -> bool:
        return bool(self._channel.in_stderr_buffer.spent)

    def failure(self, timeout: float) -> Failure | None:
        did, seen = self._session.broken_by(), self._session.silence()
        if did is not None:
            return Failure(Kind.PROTOCOL, did)
        if seen is None:
            return None
        if self._watched:
            seen = f"no answer for {self._watched:g} s"
        return Failure(Kind.UNREACHABLE, seen)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._release is None or not self.gone() or not self._session.active:
            self._session.end()
            return
        try:
            self._channel.close()
        except (OSError, EOFError, SSHException):
            self._session.end()  # the connection went just now
            return
        if self._watched:
            self._session.stream.expect_answers(None)
        self._release(self._session)

    def ending(self, timeout: float) -> Ending:
        self._channel.status_event.wait(max(0.0, timeout))
        if self._channel.exit_signal is not None:
            return Ending(None, self._channel.exit_signal)
        return Ending(self._channel.exit_code)
