"""The user's terminal as the terminal of one command far away: keys there, sizes too.

From the start of the command to its end our terminal passes every key unchanged, so
Ctrl-C is the command's. ``~.`` at the start of a line leaves a host that does not
answer any more, as in ssh. Sizes are looked at four times a second: a signal handler
would need the main thread, which waits elsewhere.
"""

from __future__ import annotations

import os
import select
import termios
import threading
import tty
from collections.abc import Callable
from typing import Any

from dispatcher.transport.base import Link, LinkClosed, Window

_LOOK = 0.25
_CHUNK = 4096
_ESCAPE, _LEAVE = b"~", b"."


class Keyboard:
    """Terminal ``fd`` for the command of one link. leave: called when the user wants away."""

    problem: str | None = None
    hears = False

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
        tty.setraw(self._fd)
        self._thread = threading.Thread(
            target=self._run, args=(link,), name="keyboard", daemon=True
        )
        self._thread.start()

    def heard(self, node: int, data: bytes) -> None:
        """Nothing is expected: output goes to the sinks."""

    def finish(self, node: int) -> None:
        """Nothing is left to do."""

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
                readable, _, _ = select.select([self._fd, self._closing], [], [], _LOOK)
                if self._closing in readable:
                    return
                if self._fd in readable and not self._pass(link):
                    return
        except (OSError, LinkClosed):
            return  # one of the two ends is gone, and the loop hears of it

    def _pass(self, link: Link) -> bool:
        typed = os.read(self._fd, _CHUNK)
        keys = self._keys.feed(typed)
        if keys is None or not typed:
            self._leave()
            return False
        link.write(keys)
        return True


class Keys:
    """What is typed, less the escape; pure."""

    def __init__(self) -> None:
        self._at_start = True
        self._escaped = False

    def feed(self, typed: bytes) -> bytes | None:
        """What is to be sent of ``typed``; None: the user wants to leave."""
        keys = b""
        for code in typed:
            key = bytes((code,))
            if self._escaped:
                self._escaped = False
                if key == _LEAVE:
                    return None
                keys += _ESCAPE if key != _ESCAPE else b""
            elif self._at_start and key == _ESCAPE:
                self._escaped, self._at_start = True, False
                continue
            keys += key
            self._at_start = key in (b"\r", b"\n")
        return keys
