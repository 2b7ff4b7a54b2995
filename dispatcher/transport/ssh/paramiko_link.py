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
from dispatcher.transport.ssh.paramiko_internals import Pipe
from dispatcher.transport.ssh.recv_buffer import EventAdapter
from dispatcher.transport.ssh.session import Session

_CHUNK = 32000  # a packet's worth


class ParamikoLink(Link):
    """The link to one command on one host; see ``Link`` for the contract.

    release: takes the session when the link is closed and its command has ended;
    otherwise, and without it, the session is ended.
    """

    tells_end = True

    def __init__(
        self, session: Session, pipe: Pipe, release: Callable[[Session], None] | None = None
    ) -> None:
        self._session = session
        self._pipe = pipe
        self._release = release
        self._closed = False
        self.address = session.wire.address

    def watch(self, ready: Callable[[], None]) -> None:
        event = EventAdapter(ready)
        self._pipe.in_buffer.set_event(event)
        self._pipe.in_stderr_buffer.set_event(event)
        self._pipe.on_status = ready
        if self._pipe.status_event.is_set():
            ready()

    def read(self, limit: int) -> bytes | None:
        return self._pipe.take(self._pipe.in_buffer, limit)

    def read_errors(self, limit: int) -> bytes:
        return self._pipe.take(self._pipe.in_stderr_buffer, limit) or b""

    def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._closed or self._pipe.closed or not self._session.active:
                raise LinkClosed("link closed")
            try:
                sent = self._pipe.send(data[at : at + _CHUNK])
            except (OSError, EOFError, SSHException):
                raise LinkClosed("the other end is gone") from None
            if sent == 0:
                raise LinkClosed("link closed")
            at += sent

    def end_input(self) -> None:
        try:
            self._pipe.shutdown_write()
        except (OSError, EOFError, SSHException):
            pass  # the connection is gone, and the input with it

    def resize(self, window: Window) -> None:
        self._session.resize(self._pipe, window)

    def gone(self) -> bool:
        return bool(self._pipe.status_event.is_set())

    def errors_ended(self) -> bool:
        return bool(self._pipe.in_stderr_buffer.spent)

    def failure(self, timeout: float) -> Failure | None:
        seen = self._session.silence()
        return None if seen is None else Failure(Kind.UNREACHABLE, seen)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._release is None or not self.gone() or not self._session.active:
            self._session.end()
            return
        self._pipe.close()
        self._release(self._session)

    def ending(self, timeout: float) -> Ending:
        self._pipe.status_event.wait(max(0.0, timeout))
        if self._pipe.exit_signal is not None:
            return Ending(None, self._pipe.exit_signal)
        return Ending(self._pipe.exit_code)
