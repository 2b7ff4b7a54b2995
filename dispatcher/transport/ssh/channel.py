"""paramiko's channels and packets, bounded, and sure of their end.

What has arrived on one stream of an SSH channel and was not taken yet.

Stands where paramiko has its ``BufferedPipe``, which copies every byte into an
array and out again; here the pieces stay as they came until they are taken. Bounded by
the channel's window, which the peer is held to.

paramiko's ``Packetizer``: bounded, without a timer, and knows when the host was heard last.

It is given to the session, which is called when the host has been silent (``silent``).

paramiko's ``Channel``, made fit for a command's output: bounded, and sure of its end.

The receive window is enforced (paramiko would buffer all that a peer sends beyond
it), and ``exit-signal`` is understood as well as ``exit-status``.

What a channel says goes out in the order in which it was decided. paramiko decides
under a lock and sends after it, so that a write may overtake the close it raced
with; sshd ends the whole connection for data on a channel that is closed ("data
packet referred to nonexistent channel"), and with it every other channel: behind a
jump host, all hosts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from paramiko.channel import Channel
from paramiko.common import cMSG_CHANNEL_FAILURE, cMSG_CHANNEL_REQUEST
from paramiko.message import Message
from paramiko.packet import Packetizer
from paramiko.ssh_exception import SSHException


class Arrived:
    """Filled by the session's thread, emptied by the owner of the link."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._event: Any = None
        self._cond = threading.Condition()  # reentrant: ``wait`` takes

    def __len__(self) -> int:
        return self._size

    @property
    def spent(self) -> bool:
        """Whether all was taken and no more can come."""
        return self._ended and not self._size

    def take(self, limit: int) -> bytes | None:
        """Up to ``limit`` bytes; ``None``: none now; ``b""``: the end."""
        with self._cond:
            if not self._size:
                return b"" if self._ended else None
            taken: list[bytes] = []
            while limit and self._pieces:
                piece = self._pieces.popleft()
                if len(piece) > limit:
                    self._pieces.appendleft(piece[limit:])
                    piece = piece[:limit]
                taken.append(piece)
                limit -= len(piece)
            data = b"".join(taken)
            self._size -= len(data)
            return data

    def wait(self, limit: int, seconds: float | None) -> bytes:
        """As ``take``, but waits. Raises: TimeoutError."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._cond:
            while (data := self.take(limit)) is None:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._cond.wait(left)
            return data

    # -- what paramiko calls, on the session's thread --------------------------------------

    def set_event(self, event: Any) -> None:
        with self._cond:
            self._event = event
            if self._size or self._ended:
                event.set()

    def feed(self, data: bytes) -> None:
        with self._cond:
            if data:
                self._pieces.append(data)
                self._size += len(data)
                self._tell()

    def close(self) -> None:
        with self._cond:
            self._ended = True
            self._tell()

    def _tell(self) -> None:
        if self._event is not None:
            self._event.set()
        self._cond.notify_all()


_MAX_READ = 1 << 18  # no honest packet is larger: the protocol's own limit is 35000


class Packets(Packetizer):  # type: ignore[misc]
    """Packets of one connection; see ``session`` for what is changed."""

    heard = 0.0  # when the last bytes came
    silent: Callable[[float], None]

    def read_all(self, n: int, check_rekey: bool = False) -> Any:
        if n > _MAX_READ:
            raise Misbehaved(f"it announces a packet of {n} bytes")
        found = super().read_all(n, check_rekey)
        self.heard = time.monotonic()
        return found

    def _check_keepalive(self) -> None:
        """paramiko calls it when nothing came for ``_active_check_timeout``."""
        self.silent(time.monotonic() - self.heard)

    def sends(self) -> bool:
        """Whether somebody is sending, and maybe for long."""
        free = self._Packetizer__write_lock.acquire(blocking=False)
        if free:
            self._Packetizer__write_lock.release()
        return not free

    def start_handshake(self, timeout: float) -> None:
        """Nothing: deadlines are the caller's, and a timer would be a thread more."""

    def _log(self, level: int, msg: Any) -> None:
        pass


#: Bytes a peer may send before we have read: the bound on memory a link.
WINDOW = 1 << 20


class Misbehaved(SSHException):  # type: ignore[misc]
    """The peer broke a bound that protects our memory."""


class Pipe(Channel):  # type: ignore[misc]
    """A channel that holds the peer to its window and knows how the command ended."""

    def __init__(self, chanid: int, window: int) -> None:
        super().__init__(chanid)
        self.in_buffer, self.in_stderr_buffer = Arrived(), Arrived()
        self.refusal = ""
        self.exit_code: int | None = None
        self.exit_signal: str | None = None
        self.on_status: Callable[[], None] = lambda: None
        self._granted = window  # grown before the peer is told: see acknowledge
        self._received = 0
        self._unsent: deque[Message] = deque()
        self._sending = threading.Lock()

    # -- what is sent ------------------------------------------------------------

    def say(self, message: Any) -> bool:
        """Send a message about this channel, unless it is closed: then False."""
        with self.lock:
            if self.closed:
                return False
            self._unsent.append(message)
        self._send_in_turn()
        return True

    def shutdown_write(self) -> None:
        with self.lock:
            end = None if self.closed else self._send_eof()
            if end is not None:
                self._unsent.append(end)
        self._send_in_turn()

    def close(self) -> None:
        with self.lock:
            self._unsent.extend(last for last in self._close_internal() if last is not None)
        self._send_in_turn()

    def _handle_close(self, m: Any) -> None:
        with self.lock:
            self._unsent.extend(last for last in self._close_internal() if last is not None)
            self.transport._unlink_channel(self.chanid)
        self._send_in_turn()

    def _send(self, s: bytes, m: Any) -> int:
        with self.lock:
            if self.closed:
                raise OSError("socket is closed")
            size = int(self._wait_for_send_window(len(s)))
            if size:
                m.add_string(s[:size])
                self._unsent.append(m)
        self._send_in_turn()
        return size

    def _send_in_turn(self) -> None:
        """Send what is unsent; whoever sends already goes on with what others add.

        The channel's lock is not held: its reader needs it, also while a writer waits
        for new keys.
        """
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                while self._unsent:
                    self.transport._send_user_message(self._unsent.popleft())
            finally:
                self._sending.release()

    # -- what has come -----------------------------------------------------------

    def take(self, stream: Arrived, limit: int) -> bytes | None:
        """Up to ``limit`` bytes of a stream; ``None``: none now; ``b""``: the end."""
        data = stream.take(limit)
        if data:
            self._acknowledge(len(data))
        return data

    def recv(self, nbytes: int) -> bytes:
        """As a socket; for a session that runs through this channel."""
        data = self.in_buffer.wait(nbytes, self.timeout)
        if data:
            self._acknowledge(len(data))
        return data

    def _acknowledge(self, size: int) -> None:
        grant = self._check_add_window(size)
        if grant > 0:
            self._granted += grant
            message = Message()
            message.add_byte(b"\x5d")  # SSH_MSG_CHANNEL_WINDOW_ADJUST
            message.add_int(self.remote_chanid)
            message.add_int(grant)
            try:
                self.say(message)
            except (EOFError, OSError, SSHException):
                pass  # the connection is gone; the end is in the buffer already

    def _count(self, size: int) -> None:
        self._received += size
        if self._received > self._granted:
            raise Misbehaved("it sends more than its window allows")

    def _feed(self, m: Any) -> None:
        data = m.get_binary()
        self._count(len(data))
        self.in_buffer.feed(data)

    def _feed_extended(self, m: Any) -> None:
        code, data = m.get_int(), m.get_binary()
        self._count(len(data))
        if code == 1:
            self.in_stderr_buffer.feed(data)

    def _handle_request(self, m: Any) -> None:
        kind, wants_reply = m.get_text(), m.get_boolean()
        if kind == "exit-status":
            self.exit_code = min(m.get_int(), 255)
            self._end_is_known()
        elif kind == "exit-signal":
            name = m.get_text()
            self.exit_signal = "".join(c for c in name[:20] if c.isalnum() or c in "@.-")
            self._end_is_known()
        if wants_reply:
            reply = Message()
            reply.add_byte(cMSG_CHANNEL_FAILURE)
            reply.add_int(self.remote_chanid)
            self.say(reply)

    def _set_closed(self) -> None:
        super()._set_closed()
        self.on_status()  # the buffers rang before the end was known

    def _end_is_known(self) -> None:
        self.status_event.set()
        self.on_status()

    def _log(self, level: int, msg: str, *args: Any) -> None:
        pass


def request(pipe: Pipe, name: str, *, wants_reply: bool) -> Any:
    """The start of a channel request; what it carries is to be added."""
    message = Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(pipe.remote_chanid)
    message.add_string(name)
    message.add_boolean(wants_reply)
    return message


class Bell:
    """What paramiko takes for an event on a buffer: rings the link's owner."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.set = ring

    def clear(self) -> None:
        """Nothing: the owner reads until nothing is left."""

    def is_set(self) -> bool:
        return False
