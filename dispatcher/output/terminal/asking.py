"""Asks for secrets on the terminal: ``Asking`` asks, ``TtyLock`` keeps other output away.

Always at /dev/tty, so standard input and output can be anything. getpass cannot be cancelled from
another thread, and a run that ends then must not leave a terminal without echo. Lines are still
shown: each wipes the prompt, which is written again below it. A process has one terminal, so there
is one lock, ``OURS``, and one question at a time.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import threading
from collections.abc import Iterator
from typing import Any

from dispatcher.model.paths import in_front, keep_memory_ours

#: seconds that a question waits for the painter, which may be stuck in a paused terminal
ASK_LIMIT = 1.0
_WIPE = b"\r\x1b[K"


class TtyLock:
    """Coordinates the threads that ask, the one that paints, and those that write lines."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._asking = 0
        self._drawn = False
        self._writing = threading.Lock()
        self._prompt = b""
        self.turn = threading.Lock()  # held while a question is open

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Keep the space below the lines free of a footer in this context."""
        with self._state:
            self._asking += 1
            self._state.wait_for(lambda: not self._drawn, ASK_LIMIT)
        try:
            yield
        finally:
            with self._state:
                self._asking -= 1

    def draws(self) -> bool:
        """Whether the painter may draw; if so, something is drawn from now on."""
        with self._state:
            self._drawn = self._drawn or not self._asking
            return not self._asking

    def taken_away(self) -> None:
        """Note that the footer was wiped."""
        with self._state:
            self._drawn = False
            self._state.notify_all()

    @contextlib.contextmanager
    def lines(self) -> Iterator[tuple[bytes, bytes]]:
        """Text to write before and after whole lines in this context."""
        with self._writing:
            yield (_WIPE, self._prompt) if self._prompt else (b"", b"")

    def show(self, fd: int, prompt: bytes) -> None:
        """Write ``prompt``, whose last line stays below what others write; raises: OSError."""
        with self._writing:
            os.write(fd, prompt)
            self._prompt = prompt.rpartition(b"\n")[2]

    def answered(self, fd: int) -> None:
        """End the prompt and its line. Raises: OSError."""
        with self._writing:
            self._prompt = b""
            os.write(fd, b"\n")


OURS = TtyLock()


class Asking:
    """Asks for a secret; ``close`` cancels the question and makes the terminal echo again.

    From the first question on, dispatch's memory cannot be dumped to a file, nor read by other
    processes of the user.
    """

    def __init__(self, tty_lock: TtyLock = OURS) -> None:
        self._tty = tty_lock
        self._lock = threading.Lock()
        self._closed = False
        self._silent: tuple[int, list[Any]] | None = None
        self._wake: int | None = None

    def ask(self, prompt: str) -> str | None:
        """Return the typed line, maybe empty; None without a terminal, or when cancelled."""
        try:
            fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        wakes, wake = os.pipe2(os.O_CLOEXEC)
        try:
            with self._tty.turn, self._tty.asking():
                with self._lock:
                    if self._closed:
                        return None
                    self._wake = wake
                if not _come_to_front(fd, wakes):
                    return None
                with self._lock:
                    before = termios.tcgetattr(fd)
                    self._silent = (fd, before)
                    mode = termios.tcgetattr(fd)
                    mode[3] &= ~termios.ECHO
                    termios.tcsetattr(fd, termios.TCSAFLUSH, mode)
                self._tty.show(fd, prompt.encode("utf-8", "backslashreplace"))
                try:
                    keep_memory_ours()
                    line = _line(fd, wakes)
                finally:
                    with self._lock:
                        self._restore()
                    self._tty.answered(fd)
                return None if line is None else line.decode("utf-8", "surrogateescape")
        except (OSError, termios.error):
            return None
        finally:
            with self._lock:
                self._restore()
                self._wake = None
                for one in (fd, wakes, wake):
                    os.close(one)

    def close(self) -> None:
        """Cancel, also from another thread: the terminal echoes again, ``ask`` returns None."""
        with self._lock:
            self._closed = True
            self._restore()
            if self._wake is not None:
                os.write(self._wake, b"x")

    def _restore(self) -> None:
        if self._silent is not None:
            fd, before = self._silent
            self._silent = None
            termios.tcsetattr(fd, termios.TCSANOW, before)


def _come_to_front(fd: int, wakes: int) -> bool:
    """Wait until dispatch is in the foreground of ``fd``; False if ``wakes`` cancels."""
    if not in_front(fd):
        os.write(fd, b"dispatch has a question: bring it to the foreground (fg)\n")
    while not (front := in_front(fd)) and not select.select([wakes], [], [], 0.2)[0]:
        pass
    return front


def _line(fd: int, wakes: int) -> bytes | None:
    """The line that is typed at ``fd``, without its end; None if ``wakes`` cancels."""
    typed = b""
    poller = select.poll()
    for one in (fd, wakes):
        poller.register(one, select.POLLIN)
    while not typed.endswith(b"\n"):
        if wakes in dict(poller.poll()):
            return None
        more = os.read(fd, 1024)
        if not more:
            break
        typed += more
    return typed.rstrip(b"\n")
