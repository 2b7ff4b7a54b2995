"""What commands read and who types it: prompts, our own input for all, a terminal's keys."""

from __future__ import annotations

import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from rig import wait_for

from dispatcher.bootstrap import shell
from dispatcher.runner.exec import stdio
from dispatcher.runner.exec.stdio import (
    NOISE_LIMIT,
    Keyboard,
    Keys,
    Prompt,
    PromptScanner,
    StdinSpool,
)
from dispatcher.transport.base import LinkClosed, Window
from runner.far import Far

WRAPPER = shell.wrapper("token", sudo="root")
READY, PROMPT = WRAPPER.ready, WRAPPER.prompt


# -- prompts ----------------------------------------------------------------------------


@cases(
    ("pieces", "found", "rest", "said"),
    [
        ([(1, b"motd")], [Prompt.NOTHING], b"", (b"motd", b"")),
        ([(1, b"motd" + READY + b"next")], [Prompt.READY], b"next", (b"motd", b"")),
        ([(1, READY[:3]), (1, READY[3:])], [Prompt.NOTHING, Prompt.READY], b"", (b"", b"")),
        ([(2, READY)], [Prompt.NOTHING], b"", (b"", READY)),  # only standard output tells
        ([(2, b"a" + PROMPT + b"b")], [Prompt.PASSWORD], b"", (b"", b"ab")),
        ([(1, PROMPT)], [Prompt.PASSWORD], b"", (b"", b"")),  # a terminal has one stream
        ([(2, PROMPT[:4]), (2, PROMPT[4:])], [Prompt.NOTHING, Prompt.PASSWORD], b"", (b"", b"")),
        ([(2, PROMPT), (2, b"no" + PROMPT)], [Prompt.PASSWORD] * 2, b"", (b"", b"no")),
        ([(2, PROMPT + PROMPT)], [Prompt.PASSWORD], b"", (b"", b"")),
        ([(2, PROMPT), (1, READY + b"x")], [Prompt.PASSWORD, Prompt.READY], b"x", (b"", b"")),
    ],
)  # fmt: skip
def test_what_the_far_side_says_first(
    pieces: list[tuple[int, bytes]], found: list[Prompt], rest: bytes, said: tuple[bytes, bytes]
) -> None:
    scanner = PromptScanner(WRAPPER)
    answers = [scanner.scan(*piece) for piece in pieces]
    assert [answer for answer, _ in answers] == found
    assert answers[-1][1] == rest
    assert (scanner.said[1], scanner.said[2]) == said


def test_of_noise_the_last_is_kept() -> None:
    scanner = PromptScanner(WRAPPER)
    for _ in range(3):
        scanner.scan(2, b"x" * NOISE_LIMIT)
    scanner.scan(2, b"end")
    assert scanner.said[2] == b"x" * (NOISE_LIMIT - 3) + b"end"
    scanner.scan(1, b"y" * 2 * NOISE_LIMIT + READY)
    assert scanner.said[1] == b"y" * NOISE_LIMIT


# -- keys -------------------------------------------------------------------------------


@cases(
    ("typed", "sent"),
    [
        (b"ls\r", b"ls\r"), (b"~~", b"~"), (b"~x", b"~x"), (b"a~.", b"a~."), (b"\r~~.", b"\r~."),
        (b"\n~a", b"\n~a"), (b"~", b""), (b"\x03\xff", b"\x03\xff"), (b"~\r~~", b"~\r~"),
        (b"~~.~.", b"~.~."), (b"", b""), (b"~.", None), (b"ls\r~.", None), (b"ls\n~.x", None),
        (b"~x\r~.", None),
    ],
)  # fmt: skip
def test_what_is_sent_of_what_is_typed(typed: bytes, sent: bytes | None) -> None:
    assert Keys().feed(typed) == sent
    keys, parts = Keys(), list[bytes]()
    for at in range(len(typed)):
        part = keys.feed(typed[at : at + 1])
        if part is None:
            assert sent is None
            return
        parts.append(part)
    assert b"".join(parts) == sent


@given(st.binary(max_size=20).filter(lambda typed: b"~" not in typed))
def test_without_the_escape_every_key_is_sent(typed: bytes) -> None:
    assert Keys().feed(typed) == typed


# -- our own input ----------------------------------------------------------------------


class Reads(Far):
    """Takes input; ``go`` lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.ended = threading.Event()
        self.text = b""

    def write(self, data: bytes) -> None:
        assert self.go.wait(60)
        if self.is_gone:
            raise LinkClosed
        self.text += data

    def end_input(self) -> None:
        self.ended.set()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def test_each_host_reads_all_at_its_own_pace(pipe: tuple[int, int]) -> None:
    spool = StdinSpool(pipe[0])
    quick, slow = Reads(), Reads()
    slow.go.clear()
    spool.start(0, quick)
    spool.start(1, slow)
    text = b"x" * 300_000
    for part in (b"first ", text):
        view = memoryview(part)
        while view:
            view = view[os.write(pipe[1], view) :]
    wait_for(lambda: quick.text == b"first " + text, 20, "the quick one has all")
    assert not quick.ended.is_set()
    assert slow.text == b""
    os.close(pipe[1])
    assert quick.ended.wait(60)
    late = Reads()
    spool.start(2, late)
    slow.go.set()
    for one in (slow, late):
        assert one.ended.wait(60)
        assert one.text == b"first " + text
    assert spool.problem is None
    spool.close()


def test_a_file_is_read_from_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"0123456789" * 20_000)
    with open(tmp_path / "in", "rb") as file:
        os.lseek(file.fileno(), 5, os.SEEK_SET)
        spool = StdinSpool(file.fileno())
        links = [Reads(), Reads()]
        for link in links:
            spool.start(0, link)
        for link in links:
            assert link.ended.wait(60)
            assert link.text == (b"0123456789" * 20_000)[5:]
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 5  # nobody else's place is moved
        os.lseek(file.fileno(), 1 << 20, os.SEEK_SET)  # beyond its end
        beyond = Reads()
        StdinSpool(file.fileno()).start(0, beyond)
        assert beyond.ended.wait(60)
        assert beyond.text == b""


@pytest.mark.parametrize("how", ["gone", "closed", "refuses"])
def test_nobody_writes_to_a_command_that_is_over(
    pipe: tuple[int, int], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "_LINK_POLL", 0.02)
    before = set(threading.enumerate())
    spool, link = StdinSpool(pipe[0]), Reads()
    spool.start(0, link)
    os.write(pipe[1], b"some")
    wait_for(lambda: link.text == b"some", 20, "it reads")
    if how == "closed":
        spool.close()
    else:
        link.is_gone = True
    if how == "refuses":
        os.write(pipe[1], b"more")
    os.close(pipe[1])
    wait_for(lambda: set(threading.enumerate()) <= before, 20, "its thread has ended")
    assert link.text == b"some"


def test_input_that_cannot_be_read_is_told() -> None:
    fd = os.open("/", os.O_RDONLY)
    spool, link = StdinSpool(fd), Reads()
    spool.start(0, link)
    assert link.ended.wait(60)
    assert spool.problem == "standard input: is a directory"
    os.close(fd)


# -- a terminal -------------------------------------------------------------------------


class Shown(Reads):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[Window] = []

    def resize(self, window: Window) -> None:
        self.sizes.append(window)


class Desk:
    """A terminal with a keyboard that is given to a command."""

    def __init__(self) -> None:
        self.user, self.tty = pty.openpty()
        self.resize(90, 30)
        self.left: list[None] = []
        self.before = termios.tcgetattr(self.tty)
        self.keyboard = Keyboard(self.tty, lambda: self.left.append(None))
        self.link = Shown()

    def resize(self, columns: int, rows: int) -> None:
        ioctl(self.user, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def types(self, keys: bytes) -> None:
        os.write(self.user, keys)

    def close(self) -> None:
        self.keyboard.close()
        os.close(self.user)
        os.close(self.tty)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def test_every_key_is_the_command_s_from_its_start_to_its_end(desk: Desk) -> None:
    assert termios.tcgetattr(desk.tty) == desk.before  # nothing is changed before
    desk.keyboard.start(0, desk.link)
    assert not termios.tcgetattr(desk.tty)[3] & (termios.ISIG | termios.ECHO | termios.ICANON)
    desk.types(b"ls\x03\x1a~x")
    wait_for(lambda: desk.link.text == b"ls\x03\x1a~x", 20, lambda: repr(desk.link.text))
    wait_for(lambda: desk.link.sizes == [Window(90, 30)], 20, "the first size is told")
    desk.resize(120, 50)
    wait_for(lambda: desk.link.sizes == [Window(90, 30), Window(120, 50)], 20, "and the next")
    assert desk.left == []


def test_the_terminal_is_given_back_as_it_was() -> None:
    desk = Desk()
    desk.keyboard.start(0, desk.link)
    desk.keyboard.close()
    assert termios.tcgetattr(desk.tty) == desk.before
    assert desk.keyboard._thread is not None
    desk.keyboard._thread.join(60)
    assert not desk.keyboard._thread.is_alive()
    os.close(desk.user)
    os.close(desk.tty)


def test_the_escape_leaves_a_host_that_does_not_answer(desk: Desk) -> None:
    desk.keyboard.start(0, desk.link)
    desk.types(b"a\r~.b")
    wait_for(lambda: desk.left, 20, "the user has left")
    assert desk.keyboard._thread is not None
    desk.keyboard._thread.join(60)
    assert not desk.keyboard._thread.is_alive()
    assert len(desk.left) == 1


def test_a_keyboard_that_was_never_needed_changes_nothing(desk: Desk) -> None:
    assert desk.keyboard._thread is None
    assert desk.keyboard.problem is None


def test_a_command_that_is_gone_takes_no_key(desk: Desk) -> None:
    desk.keyboard.start(0, desk.link)
    desk.link.is_gone = True
    desk.types(b"x")
    assert desk.keyboard._thread is not None
    desk.keyboard._thread.join(60)
    assert not desk.keyboard._thread.is_alive()
    assert desk.left == []
