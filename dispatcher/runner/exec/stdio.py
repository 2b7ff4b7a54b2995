"""Standard input and output of the commands: prompts, our input for all, a terminal's keys.

Output goes to the sinks unless a ``StdioHandler`` takes it; input is empty unless one writes it:
``StdinSpool`` (ours, for all hosts) or ``Keyboard`` (our terminal, for one).
"""

from __future__ import annotations

import enum
import os
import select
import stat
import termios
import threading
from collections.abc import Callable
from typing import Any, Protocol

from dispatcher.bootstrap.shell import Wrapper
from dispatcher.model.errors import reason
from dispatcher.transport.base import Link, LinkClosed, Window


class StdioHandler(Protocol):
    """Handles the commands' input and output. The hosts' threads call its methods."""

    #: whether ``take_output`` takes the standard output, in the place of the sinks
    takes_output: bool = False

    def start(self, node: int, link: Link) -> None:
        """The command of ``node`` has started; returns at once, may write to ``link`` later."""

    def take_output(self, node: int, data: bytes) -> None:
        """Standard output of ``node``; may block, which holds back that host only."""
        return

    def finish(self, node: int) -> None:
        """Called after all output of ``node``; returns when the work for that is done."""
        return

    def close(self) -> None:
        """Stop writing."""


#: bytes of either stream that are kept to explain a host that refuses the login
NOISE_LIMIT = 4096


class Prompt(enum.Enum):
    """A prompt that ``PromptScanner`` has found."""

    NOTHING = enum.auto()
    PASSWORD = enum.auto()  # one is wanted
    READY = enum.auto()  # for the opening


class PromptScanner:
    """Looks in both streams for the prompts that come before the command can be sent; pure.

    A terminal has to be made silent, and sudo may want a password (see ``bootstrap.shell``). Until
    then nothing of the user's is sent, because sudo would take it for passwords. ``said`` is the
    host's other output, by stream; ``seen`` counts all its bytes.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self._ready = wrapper.ready
        self._prompt = wrapper.prompt
        self.said = {1: b"", 2: b""}
        self.seen = 0

    def scan(self, stream: int, data: bytes) -> tuple[Prompt, bytes]:
        """The prompt in ``data`` of ``stream``; if it is ``READY``, also the bytes after it."""
        self.seen += len(data)
        text = self.said[stream] + data
        if stream == 1 and (at := text.find(self._ready)) >= 0:
            self.said[stream] = text[:at][-NOISE_LIMIT:]
            return Prompt.READY, text[at + len(self._ready) :]
        found = Prompt.PASSWORD if self._prompt in text else Prompt.NOTHING
        self.said[stream] = text.replace(self._prompt, b"")[-NOISE_LIMIT:]
        return found, b""


CHUNK = 64 << 10
_LINK_POLL = 0.5  # seconds between two looks whether a link has ended


class StdinSpool(StdioHandler):
    """Copies of descriptor ``fd`` for any number of links; one thread reads, one a link writes.

    A slow host holds back no other, and takes one chunk of memory: the input goes to an unlinked
    temporary file (mode 0600), where each writer has its own position. A regular file is not
    copied. ``problem`` is the reason if not all of it could be read.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = 0
        self._complete = False
        self._closed = False
        self._grown = threading.Condition()
        self.problem: str | None = None
        self._file: int
        if stat.S_ISREG(os.fstat(fd).st_mode):
            self._start = os.lseek(fd, 0, os.SEEK_CUR)
            self._size = max(self._start, os.fstat(fd).st_size)
            self._file = os.dup(fd)
            self._complete = True
            return
        self._start = 0
        import tempfile  # which takes longer to load than a command to start

        with tempfile.TemporaryFile(prefix="dispatch-stdin-") as file:
            self._file = os.dup(file.fileno())
        threading.Thread(target=self._fill, name="stdin", daemon=True).start()

    def start(self, node: int, link: Link) -> None:
        """Write all of it to ``link`` and end its input, in a thread that ends with the link."""
        threading.Thread(target=self._feed, args=(link,), name="stdin:link", daemon=True).start()

    def close(self) -> None:
        """Let the writers end."""
        with self._grown:
            self._closed = True
            self._grown.notify_all()

    def _fill(self) -> None:
        try:
            while data := os.read(self._fd, CHUNK):
                written = os.pwrite(self._file, data, self._size)
                while written < len(data):
                    written += os.pwrite(self._file, data[written:], self._size + written)
                with self._grown:
                    self._size += len(data)
                    self._grown.notify_all()
        except OSError as error:
            self.problem = f"standard input: {reason(error)}"
        with self._grown:
            self._complete = True
            self._grown.notify_all()

    def _feed(self, link: Link) -> None:
        at = self._start
        try:
            while not link.gone() and not self._closed:
                with self._grown:
                    if at == self._size and not self._complete:
                        self._grown.wait(_LINK_POLL)
                        continue
                    size = self._size
                data = os.pread(self._file, min(CHUNK, size - at), at)
                if not data:
                    break
                link.write(data)
                at += len(data)
            link.end_input()
        except LinkClosed:
            pass  # the command reads no more; whether that is a failure, its exit code says


_SIZE_POLL = 0.25
_CHUNK = 4096
_ESCAPE, _LEAVE = b"~", b"."


class Keyboard(StdioHandler):
    """Passes the keys and the size of terminal ``fd`` to the command of one link.

    Our terminal passes every key unchanged, so Ctrl-C is the command's; ``~.`` at the start of a
    line leaves, as in ssh. Sizes are looked at four times a second: a signal handler would need the
    main thread, which waits elsewhere. leave: called when the user wants away.
    """

    problem: str | None = None

    def __init__(self, fd: int, leave: Callable[[], None]) -> None:
        self._fd = fd
        self._leave = leave
        self._before: list[Any] | None = None
        self._keys = Keys()
        self._closing, self._close = os.pipe2(os.O_CLOEXEC)
        self._thread: threading.Thread | None = None

    def start(self, node: int, link: Link) -> None:
        """Give ``link`` every key from now on."""
        self._before = termios.tcgetattr(self._fd)
        import tty

        tty.setraw(self._fd)
        self._thread = threading.Thread(
            target=self._run, args=(link,), name="keyboard", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Leave the terminal as it was found."""
        os.close(self._close)
        if self._thread is not None:
            self._thread.join(1.0)
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
            self._before = None

    def _run(self, link: Link) -> None:
        size = None
        try:
            while True:
                now = os.get_terminal_size(self._fd)
                if now != size:
                    size = now
                    link.resize(Window(now.columns, now.lines))
                readable, _, _ = select.select([self._fd, self._closing], [], [], _SIZE_POLL)
                if self._closing in readable:
                    return
                if self._fd in readable and not self._pass(link):
                    return
        except (OSError, LinkClosed):
            return  # one of the two ends is gone, and the loop learns that by itself

    def _pass(self, link: Link) -> bool:
        typed = os.read(self._fd, _CHUNK)
        keys = self._keys.feed(typed)
        if keys is None or not typed:
            self._leave()
            return False
        link.write(keys)
        return True


class Keys:
    """Filters the escape out of typed keys; pure."""

    def __init__(self) -> None:
        self._at_start = True
        self._escaped = False

    def feed(self, typed: bytes) -> bytes | None:
        """The bytes of ``typed`` to send; None: the user wants to leave."""
        keys = b""
        for code in typed:
            key = bytes((code,))
            if self._escaped:
                self._escaped = False
                if key == _LEAVE:
                    return None
                keys += _ESCAPE if key != _ESCAPE else b""
            elif self._at_start and key == _ESCAPE:
                self._escaped = True
                continue
            keys += key
            self._at_start = key in (b"\r", b"\n")
        return keys
