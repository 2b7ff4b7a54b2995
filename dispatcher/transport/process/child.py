"""A local process as a ``Link``, on pipes or on its own pseudo-terminal.

The child leads its own session, so no terminal signal reaches it. The transport's ``Pump`` reads
its output; the link's owner writes its input. The shell opens a pseudo-terminal by name, which
makes it the controlling one, so nothing need run between fork and exec.
"""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Sequence

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import Link, LinkClosed, RecvBuffer, Window
from dispatcher.transport.process.pump import Pump

#: Bytes held for the owner before the child's writes block.
BUFFER_LIMIT = 1 << 20

_ERRORS_LIMIT = 8192  # enough of the first error bytes to see why a connection failed
_PUMP_LATE = 5.0  # seconds that the pump may take to come to them on a busy machine


class _Buffer(RecvBuffer):
    def __init__(self, pump: Pump, fd: int) -> None:
        super().__init__()
        self._pump = pump
        self._fd = fd
        self._paused = False
        self.first = b""  # the first bytes, kept after they were taken
        pump.add(fd, self._fill)

    def _fill(self, data: bytes) -> bool:
        self.first += data[: _ERRORS_LIMIT - len(self.first)]
        self.feed(data)
        if not data:
            self.close()
        with self._cond:
            self._paused = self._size >= BUFFER_LIMIT
            return not self._paused

    def take(self, limit: int) -> bytes | None:
        data = super().take(limit)
        with self._cond:
            resume = self._paused and self._size < BUFFER_LIMIT // 2
            self._paused = self._paused and not resume
        if resume:
            self._pump.resume(self._fd, self._fill)
        return data

    def lies_unread(self) -> bool:
        """Whether the pipe has bytes, or its end, that the pump has not read yet."""
        if self._paused or self.ended():
            return False  # the pump holds the rest back until the owner reads
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)  # closed meanwhile: it has just ended
        return bool(poller.poll(0))

    def drop(self) -> None:
        if not self.ended():
            self.discard()
            self._pump.drop(self._fd)


class ChildLink(Link):
    """The link to one local child; see ``Link`` for the contract.

    fds: its input, output and error output, where these are not the pipes of ``process``; the
    link owns them from here on.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], pump: Pump, fds: tuple[int, int, int] | None = None
    ) -> None:
        self._process = process
        self._ready: Callable[[], None] = lambda: None
        self._closed = False
        self._input, output, errors = fds or _pipes_of(process)
        os.set_blocking(self._input, False)
        self._input_lock = threading.Lock()  # a writer must not meet a closed, reused number
        self._output, self._errors = _Buffer(pump, output), _Buffer(pump, errors)

    def watch(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._output.watch(ready)
        self._errors.watch(ready)

    def read(self, limit: int) -> bytes | None:
        return self._output.take(limit)

    def read_errors(self, limit: int) -> bytes:
        return self._errors.take(limit) or b""

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                with self._input_lock:
                    if self._input < 0:
                        raise LinkClosed("link closed")
                    left = left[os.write(self._input, left) :]
            except BlockingIOError:
                self._wait_writable()
            except OSError as error:
                if isinstance(error, LinkClosed):
                    raise
                raise LinkClosed(f"the other end is gone: {error.strerror}") from None

    def end_input(self) -> None:
        with self._input_lock:
            if self._input >= 0:
                os.close(self._input)
                self._input = -1

    def gone(self) -> bool:
        return self._process.poll() is not None

    def errors_ended(self) -> bool:
        return self._errors.spent

    def lies_unread(self) -> bool:
        return self._output.lies_unread() or self._errors.lies_unread()

    def _wait_writable(self) -> None:
        poller = select.poll()
        with self._input_lock:
            if self._input < 0:
                return
            poller.register(self._input, select.POLLOUT)
        poller.poll(500)  # then look whether the link was closed meanwhile

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.end_input()
        self._kill()
        self._output.drop()
        self._errors.drop()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            pass  # in an uninterruptible system call: nothing more can be done
        self._ready()

    def _kill(self) -> None:
        if self._process.poll() is None or self._group_lives():
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def _group_lives(self) -> bool:
        # The pid of a reaped leader stays taken as long as its group has members,
        # and only then is a signal to the group safe.
        try:
            os.killpg(self._process.pid, 0)
        except OSError:
            return False
        return True

    def ending(self, timeout: float) -> Ending:
        status = self._wait(timeout)
        if status is None:
            return Ending(None)
        if status < 0:
            return Ending(None, signal=signal_name(-status))
        return Ending(status)

    def _wait(self, timeout: float) -> int | None:
        try:
            return self._process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            return None

    def _first_errors(self, timeout: float) -> bytes:
        """The first error bytes, after the pipe's end or ``timeout`` seconds.

        If the pump has not run yet, waits for it to read the bytes that are in the pipe by then.
        """
        if not self._errors.ended(timeout):  # a grandchild may hold the pipe open
            end = time.monotonic() + _PUMP_LATE
            while self._errors.lies_unread() and time.monotonic() < end:
                self._errors.ended(0.05)
        return self._errors.first


def _pipes_of(process: subprocess.Popen[bytes]) -> tuple[int, int, int]:
    """The child's pipes, taken from the Python objects, which would close them again at exit."""
    pipes = (process.stdin, process.stdout, process.stderr)
    fds = []
    for pipe in pipes:
        assert pipe is not None
        fds.append(os.dup(pipe.fileno()))
        pipe.close()
    return fds[0], fds[1], fds[2]


def signal_name(number: int) -> str:
    """``KILL`` for 9; the bare number for a signal without a name here."""
    try:
        return signal.Signals(number).name[3:]
    except ValueError:
        return str(number)


def start(argv: Sequence[str], pump: Pump, wrap: type[ChildLink] = ChildLink) -> Link | Failure:
    """A link to ``argv`` run in its own session, or why it could not be started."""
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
    except FileNotFoundError:
        hint = f"command -v {argv[0]}  # on this host"
        return Failure(Kind.BOOT, f"{argv[0]}: no such program", hint)
    except OSError as error:
        # Out of processes or descriptors now, maybe not in a moment.
        return Failure(Kind.BOOT, f"{argv[0]}: {error.strerror}", retryable=True)
    return wrap(process, pump)


class TerminalLink(ChildLink):
    """``end_input`` only stops our writing: a terminal has no end but the key for it.

    master, slave: the two sides of the terminal, ours from here on.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], pump: Pump, master: int, slave: int
    ) -> None:
        errors, unused = os.pipe()
        os.close(unused)
        self._size_of: int | None = os.dup(master)
        # a terminal that no process has open reads as ended: until the child has
        self._slave: int | None = slave
        super().__init__(process, pump, (os.dup(master), master, errors))

    def read(self, limit: int) -> bytes | None:
        data = super().read(limit)
        if data:
            self._let_go()
        return data

    def gone(self) -> bool:
        gone = super().gone()
        if gone:
            self._let_go()
        return gone

    def resize(self, window: Window) -> None:
        if self._size_of is not None:
            _set_size(self._size_of, window)

    def close(self) -> None:
        super().close()
        self._let_go()
        fd, self._size_of = self._size_of, None
        if fd is not None:
            os.close(fd)

    def _let_go(self) -> None:
        fd, self._slave = self._slave, None
        if fd is not None:
            os.close(fd)


def on_terminal(argv: Sequence[str], pump: Pump, window: Window) -> Link | Failure:
    """A link to ``argv`` run in its own session on a new terminal, or why it could not be."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        return Failure(Kind.BOOT, f"no terminal: {error.strerror}", retryable=True)
    _set_size(master, window)
    take = f'exec <>{shlex.quote(os.ttyname(slave))} >&0 2>&1 && exec "$@"'
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", take, "sh", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        os.close(master)
        os.close(slave)
        return Failure(Kind.BOOT, f"{argv[0]}: {error.strerror}", retryable=True)
    return TerminalLink(process, pump, master, slave)


def _set_size(fd: int, window: Window) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", window.rows, window.columns, 0, 0))
