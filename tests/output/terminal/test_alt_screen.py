"""The other screen on a terminal of the test's own: taken, drawn on, given back as it was."""

from __future__ import annotations

import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator
from fcntl import ioctl
from typing import Any

import pytest
from rig import wait_for

from dispatcher.output.terminal import alt_screen
from dispatcher.output.terminal.alt_screen import (
    ENTER,
    LEAVE,
    AltScreen,
)


class Desk:
    """A terminal: ``user`` is the end where somebody looks and types."""

    def __init__(self) -> None:
        self.user, self.tty = pty.openpty()
        os.set_blocking(self.user, False)
        self.resize(50, 10)
        self.before = termios.tcgetattr(self.tty)
        self.screen = AltScreen(self.tty)

    def resize(self, columns: int, rows: int) -> None:
        ioctl(self.user, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def shown(self) -> bytes:
        """All that was written since the last look."""
        data = b""
        try:
            while piece := os.read(self.user, 1 << 16):
                data += piece
        except BlockingIOError:
            pass
        return data

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.tty)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.screen.close()
    os.close(desk.user)
    os.close(desk.tty)


def test_it_is_taken_drawn_on_and_given_back(desk: Desk) -> None:
    screen = desk.screen
    screen.draw([b"too early"])
    assert (screen.typed(), desk.shown()) == (b"", b"")
    before = screen.taken
    assert screen.enter()
    assert (before, screen.taken) == (False, True)
    assert desk.shown() == ENTER
    modes = desk.modes()
    assert not modes[3] & (termios.ICANON | termios.ECHO)
    assert modes[3] & termios.ISIG  # Ctrl-C does what it always does
    screen.draw([b"one", b"two"])
    assert desk.shown() == b"\x1b[2J\x1b[Hone\x1b[K\r\r\ntwo\x1b[K\x1b[J"
    screen.draw([b"three"])
    assert desk.shown() == b"\x1b[Hthree\x1b[K\x1b[J"
    desk.resize(60, 10)
    screen.draw([b"four"])
    assert desk.shown() == b"\x1b[2J\x1b[Hfour\x1b[K\x1b[J"
    assert screen.size == (60, 10)
    screen.leave()
    assert not screen.taken
    assert desk.shown() == LEAVE
    assert desk.modes() == desk.before
    screen.leave()
    screen.draw([b"too late"])
    assert desk.shown() == b""


def test_keys_come_without_enter(desk: Desk) -> None:
    desk.screen.enter()
    assert desk.screen.typed() == b""
    os.write(desk.user, b"qs\x1b[A")
    typed = b""

    def read() -> bool:
        nonlocal typed
        typed += desk.screen.typed()
        return typed == b"qs\x1b[A"

    wait_for(read, 30, "the keys are there")
    desk.screen.leave()
    os.write(desk.user, b"ls\n")
    assert desk.screen.typed() == b""  # that is the shell's


def test_taken_twice_it_is_given_back_as_it_was_first(desk: Desk) -> None:
    desk.screen.enter()
    assert desk.screen.enter()
    desk.screen.leave()
    assert desk.modes() == desk.before


def test_a_paused_terminal_costs_pictures_and_holds_nobody(desk: Desk) -> None:
    desk.screen.enter()
    picture = [b"x" * 1000] * 100
    for _ in range(5):
        desk.screen.draw(picture)
    left = len(desk.screen._rest)
    assert left > 0
    desk.screen.draw([b"dropped"])
    assert len(desk.screen._rest) == left
    shown = b""

    def goes_on() -> bool:
        nonlocal shown
        shown += desk.shown()
        desk.screen.draw([b"end"])
        return b"end" in shown

    wait_for(goes_on, 30, "it goes on where it was")
    assert b"dropped" not in shown
    assert shown.count(b"\x1b[J") >= 2


def test_what_is_left_of_a_picture_does_not_stand_before_the_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alt_screen, "LAST", 60.0)  # seconds for us to read
    desk.screen.enter()
    desk.screen.draw([b"x" * 1000] * 100)
    reader = threading.Thread(target=desk.screen.leave)
    reader.start()
    shown = b""

    def is_left() -> bool:
        nonlocal shown
        shown += desk.shown()
        return not reader.is_alive()

    wait_for(is_left, 60, "it is given back")
    shown += desk.shown()
    assert shown.endswith(b"\x18" + LEAVE)
    assert desk.modes() == desk.before


def test_in_the_background_nobody_draws(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.screen.enter()
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: 1)
    desk.shown()
    os.write(desk.user, b"ls\n")
    ours = [desk.screen.is_ours]
    assert desk.screen.typed() == b""
    modes = desk.modes()
    desk.screen.leave()
    assert desk.modes() == modes  # who is in the foreground has set them
    assert not desk.screen.enter()
    assert not desk.screen.taken
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
    ours.append(desk.screen.is_ours)
    assert ours == [False, True]
    assert desk.screen.enter()


def test_a_terminal_that_tells_no_size(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.resize(0, 0)
    assert desk.screen.size == (1, 1)

    def none(fd: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", none)
    assert desk.screen.size == (80, 24)


def test_what_is_no_terminal_is_refused(tmp_path: Any) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError):
        AltScreen(fd)
    os.close(fd)


def test_a_terminal_that_cannot_be_opened_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "ttyname", lambda fd: "/dev/nowhere")
    desk = Desk()
    assert desk.screen.enter()
    assert desk.shown() == ENTER
    desk.screen.close()
    os.write(desk.tty, b"ours")  # the descriptor that was given is still open
    assert desk.shown() == LEAVE + b"ours"
    os.close(desk.user)
    os.close(desk.tty)
