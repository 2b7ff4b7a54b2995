"""The byte stream under one SSH session: a socket, a jump host's channel, a proxy.

``ByteStream`` gives paramiko what it calls on a socket, and reads in large pieces. ``shut`` wakes
any thread that is blocked in it; ``close`` frees the descriptor. Only the thread that reads calls
``close``, so that no descriptor is reused under a thread that still waits for it.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.process.pump import Pump
from dispatcher.transport.ssh.dial import USER_TIMEOUT_MS

_CHUNK, _FULL = 64 << 10, 256 << 10  # bytes taken at once: usually, and while more is waiting
_LINE = 1024
_LAST_WORDS = 0.5  # seconds a program that hung up may take to end its standard error
_REAPED_IN = 0.5  # seconds that one which was killed is waited for
_ERRORS_LIMIT = 4096


class Unanswered(OSError):
    """The kernel gave the connection up; to Python and paramiko it looks like a wait that ended."""


class ByteStream:
    """A socket-like stream; one thread reads it, any may write or shut it."""

    def __init__(self, stream: Any, shut: Callable[[], None], free: Callable[[], None]) -> None:
        self._stream = stream
        self._shut = shut
        self._free = free
        self._held = b""  # bytes that were read too far, from ``_at`` on
        self._at = 0
        self._chunk = _CHUNK
        self._lock = threading.Lock()
        self._closed = False
        self.address: str | None = None
        #: called after each read, while every answer of the peer's is waited for
        self.acknowledge: Callable[[], None] | None = None
        #: takes seconds, or None for as long as usual: see ``Link.expect_answers``
        self.expect_answers: Callable[[float | None], bool] = lambda seconds: False
        #: see ``Link.silence``
        self.silence: Callable[[], tuple[float, bool]] = lambda: (0.0, False)
        self.settimeout = stream.settimeout
        self.send = stream.send

    def recv(self, size: int) -> bytes:
        """Up to ``size`` bytes; ``b""`` at the end. Raises: TimeoutError as the stream does."""
        if not self._held:
            try:
                self._held = self._stream.recv(max(size, self._chunk))
            except TimeoutError as error:
                if error.errno != errno.ETIMEDOUT:
                    raise
                raise Unanswered(error.errno, error.strerror) from None
            acknowledge = self.acknowledge  # another thread may just have ended it
            if acknowledge is not None:
                acknowledge()
            self._chunk = _FULL if len(self._held) >= self._chunk else _CHUNK
        part = self._held[self._at : self._at + size]
        self._at += len(part)
        if self._at == len(self._held):
            self._held, self._at = b"", 0
        return part

    def give_back(self, data: bytes) -> None:
        """Give back bytes that were read too far."""
        self._held, self._at = data + self._held[self._at :], 0

    def shut(self) -> None:
        """Let every blocked read and write end now; any thread, any number of times."""
        try:
            self._shut()
        except (OSError, EOFError):
            pass

    def close(self) -> None:
        """Shut and free; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.shut()
        self._free()

    def words(self) -> str:
        """The error output of a helper program, if there is one."""
        return ""


def over_socket(sock: socket.socket) -> ByteStream:
    """A stream over a connected TCP socket.

    Until its command has started, sshd holds a small packet back as long as the one before it is
    not acknowledged (Nagle), which the kernel here would put off for 40 ms.
    """
    stream = ByteStream(sock, lambda: sock.shutdown(socket.SHUT_RDWR), sock.close)
    stream.settimeout = lambda seconds: _limit(sock, seconds)
    stream.expect_answers = lambda seconds: _expect_answers(sock, seconds)
    stream.silence = lambda: _silence(sock)
    stream.address = str(sock.getpeername()[0])
    if hasattr(socket, "TCP_QUICKACK"):
        stream.acknowledge = lambda: _acknowledge(sock)
    return stream


def _acknowledge(sock: socket.socket) -> None:
    """Acknowledge now what was read, and the next few packets as they come."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    except OSError:
        pass  # it is being closed


def _expect_answers(sock: socket.socket, seconds: float | None) -> bool:
    """Have the kernel end the connection after ``seconds`` without an answer from the other one.

    It asks after a second of silence (tcp(7)), and judges at the next full one: so many
    seconds at least, one more at most.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return False
    most = USER_TIMEOUT_MS if seconds is None else int(1000 * (seconds + 0.5))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(seconds is not None))
        for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            sock.setsockopt(socket.IPPROTO_TCP, name, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, most)
    except OSError:
        return False  # it is being closed
    return True


def _silence(sock: socket.socket) -> tuple[float, bool]:
    """See ``Link.silence``."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        under_way, *heard = _TCP_INFO.unpack(info)
    except (OSError, struct.error):
        return 0.0, False
    return min(heard) / 1000, not under_way


#: of ``struct tcp_info``: packets that are not acknowledged; milliseconds since data came, and
#: since an acknowledgement did
_TCP_INFO = struct.Struct("@24xI24xII")


def _limit(sock: socket.socket, seconds: float) -> None:
    """Let a read or write of ``sock`` wait for ``seconds`` at most; it then fails with EAGAIN.

    The kernel keeps the time: with Python's own timeout each call would be two, poll first.
    """
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    sock.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, limit)


def over_channel(channel: Any) -> ByteStream:
    """A stream over an open ``direct-tcpip`` channel; its close wakes readers by itself."""
    return ByteStream(channel, channel.close, channel.close)


class ProxyStream(ByteStream):
    """A stream over the standard input and output of a ``ProxyCommand``."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes], pump: Pump) -> None:
        super().__init__(sock, lambda: sock.shutdown(socket.SHUT_RDWR), self._end)
        self._sock = sock
        self._process = process
        self._pump = pump
        self._words = b""
        self._silent = threading.Event()  # standard error has ended
        assert process.stderr is not None
        self._errors = os.dup(process.stderr.fileno())
        process.stderr.close()
        pump.add(self._errors, self._take)

    def _take(self, data: bytes) -> bool:
        if not data:
            self._silent.set()
        self._words = (self._words + data)[:_ERRORS_LIMIT]
        return True

    def words(self) -> str:
        # asked when the stream has ended: the last words may still be on their way
        self._silent.wait(_LAST_WORDS)
        return self._words.decode("utf-8", "replace").strip()

    def _end(self) -> None:
        self._sock.close()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        # The stream's end may be seen before the words that were written ahead of it.
        self._pump.drop(self._errors, self._take)
        try:
            self._process.wait(_REAPED_IN)
        except subprocess.TimeoutExpired:
            pass


def over_command(command: str, pump: Pump) -> ByteStream | Failure:
    """A stream over ``sh -c "exec COMMAND"``, as ssh runs a ``ProxyCommand``.

    The command is the user's own text with tokens already checked to be plain
    words. One socket pair is its standard input and output.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", "exec " + command],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        return Failure(Kind.CONFIG, f"ProxyCommand: {error.strerror}")
    finally:
        theirs.close()
    return ProxyStream(ours, process, pump)


def read_identification(stream: ByteStream, lines: int = 50) -> tuple[str, str]:
    """The peer's ``SSH-...`` line, and the lines that it sent before it.

    Raises: EOFError with the words before as its argument when the stream ends;
    ValueError when no such line comes within a bound.
    """
    before: list[str] = []
    for _ in range(lines):
        try:
            line = _read_line(stream)
        except (EOFError, OSError) as error:
            reason = getattr(error, "strerror", None) or ""
            raise EOFError(" ".join(before) or reason.lower()) from None
        if line.startswith("SSH-"):
            return line, " ".join(before)
        before.append(line)
    raise ValueError("no ssh banner in its output: " + before[0][:80])


def _read_line(stream: ByteStream) -> str:
    data = b""
    while b"\n" not in data:
        if len(data) > _LINE:
            raise ValueError("no ssh banner in its output")
        try:
            more = stream.recv(_LINE)
        except (TimeoutError, BlockingIOError):
            continue  # the thread that shuts the stream watches the deadline
        if not more:
            raise EOFError
        data += more
    line, _, rest = data.partition(b"\n")
    stream.give_back(rest)
    return line.rstrip(b"\r").decode("utf-8", "replace")
