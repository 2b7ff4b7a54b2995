"""The live footer on a terminal emulator: no torn line, nothing left, nothing obeyed."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import pytest
from cases import cases
from emulator import Emulator

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import RanksStalled
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.monitor.run_picture import picture_of
from dispatcher.output.run_state import RunState
from dispatcher.output.terminal.asking import TtyLock
from dispatcher.output.terminal.footer import Footer, drawn
from dispatcher.output.terminal.live_terminal import FIRST, STOPPED, Terminal
from dispatcher.output.terminal.screen import LineFormat, Screen, Writer


class Now:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Tty:
    """A pipe that stands for a terminal of a size that can change, and what shows its bytes."""

    def __init__(self, columns: int = 60, rows: int = 12) -> None:
        self.ends = os.pipe()
        os.set_blocking(self.ends[0], False)
        self.columns, self.rows = columns, rows
        self.emulator = Emulator(columns, rows)

    def size(self, fd: int) -> tuple[int, int]:
        return self.columns, self.rows

    def terminal(
        self,
        typed: Callable[[int], int] = lambda fd: 0,
        tty_lock: TtyLock | None = None,
        in_front: Callable[[int], bool] = lambda fd: True,
    ) -> Terminal:
        end = self.ends[1]
        return Terminal(
            frozenset({1, 2}), end, {1: end, 2: end},
            size=self.size, typed=typed, in_front=in_front, tty_lock=tty_lock or TtyLock(),
        )  # fmt: skip

    def drain(self) -> None:
        try:
            while data := os.read(self.ends[0], 1 << 16):
                self.emulator.feed(data)
        except BlockingIOError:
            pass

    def look(self) -> list[str]:
        self.drain()
        return self.emulator.lines()


@pytest.fixture
def tty() -> Iterator[Tty]:
    tty = Tty(80)
    yield tty
    for fd in tty.ends:
        os.close(fd)


def entry(event: ev.Event) -> Entry:
    return Entry(1, 0.0, event)


def facts() -> ev.Facts:
    return ev.Facts("h", 1, "3.12", 8, 0, ("10.0.0.1",), "m")


def live(tty: Tty, footer: Footer, progress: RunState) -> Screen:
    return Screen(
        LineFormat(lambda rank: f"[{rank}]"),
        tty.terminal(),
        footer=lambda bars, columns: drawn(
            footer.lines(picture_of(progress), bars, columns), columns
        ),
    )


def test_a_run_as_it_is_seen(tty: Tty) -> None:
    now = Now()
    progress = RunState(["n1", "n2", "n3"], now)
    screen = live(tty, Footer(["n1", "n2", "n3"]), progress)

    def happen(*events: ev.Event) -> None:
        for event in events:
            progress.event(entry(event))
            screen.event(entry(event))

    def seen(seconds: float = 1.0) -> list[str]:
        now.now += seconds
        screen.tick(now.now)
        return tty.look()

    happen(ev.NodeConnecting(0), ev.NodeConnecting(1), ev.NodeConnected(1, None, "ssh"))
    seen(FIRST)
    text = "\n".join(seen())
    assert "waiting for n[1-3]" in text
    assert "3 hosts: 1 connected, 1 connecting, 1 waiting" in text
    happen(*(ev.NodeReady(node, facts()) for node in range(3)))
    assert "3 hosts: 3 checked" in seen()[-1]
    happen(*(ev.RankSpawned(node, node, 9) for node in range(3)))
    for rank in range(3):
        progress.output(rank, 1, b"hello\n")
        screen.output(rank, 1, b"hello\n")
    lines = seen()
    assert lines[:3] == ["[0] hello", "[1] hello", "[2] hello"]
    assert len(lines) == 4
    assert "3 ranks: 3 running" in lines[3]
    for rank in range(3):
        screen.output(rank, 2, b"\r%d%% of it" % rank)
    assert [line.rstrip() for line in seen()][3:6] == [
        f"[{rank}] {rank}% of it" for rank in range(3)
    ]
    happen(RanksStalled((1, 2), 60.0), ev.RankExited(0, 0, 0), ev.RankExited(1, 1, 3))
    text = "\n".join(seen())
    assert "no output for 60 s: rank 2" in text
    assert "1 running, 1 done, 1 failed" in text
    happen(ev.NodeLost(2, Failure(Kind.LOST, "x")), ev.JobStopping("rank 1 failed"))
    assert "1 lost" in seen()[-1]
    assert "ending" in seen()[-1]
    screen.close()
    assert tty.look() == [
        *(f"[{rank}] hello" for rank in range(3)),
        *(f"[{rank}]! {rank}% of it" for rank in range(3)),
    ]


def test_lines_are_never_torn(tty: Tty) -> None:
    dice = random.Random(7)
    now = Now()
    progress = RunState(["n1"], now)
    screen = live(tty, Footer(["n1"]), progress)
    wanted = []
    for number in range(200):
        rank = dice.randrange(4)
        text = f"{number} " + "x" * dice.randrange(50)
        wanted.append(f"[{rank}]{'!' * (number % 2)} {text}".rstrip())
        screen.output(rank, 1 + number % 2, text.encode() + b"\n")
        progress.output(rank, 1, b"\n")
        now.now += dice.random() / 5
        screen.tick(now.now)
        tty.drain()
    screen.close()
    assert tty.look() == wanted


def test_a_footer_taller_or_wider_than_the_terminal(tty: Tty) -> None:
    def live(bars: object, columns: int) -> list[tuple[bytes, int]]:
        return [(b"%d" % n + b"-" * (columns - 2), columns) for n in range(99)]

    screen = Screen(LineFormat(lambda rank: f"[{rank}]"), tty.terminal(), footer=live)
    for tick in range(30):
        screen.output(0, 1, b"line %d\n" % tick)
        screen.tick(100.0 + tick)
        tty.look()
    screen.close()
    assert tty.look() == [f"[0] line {tick}" for tick in range(30)]


def test_a_terminal_made_narrower(tty: Tty) -> None:
    terminal = tty.terminal()
    for tick in range(3):
        terminal.refresh(100.0 + tick, lambda columns: [(b"f" * columns, columns)] * 2)
    tty.look()
    tty.columns = 40  # two lines of 79 have become four rows
    terminal.write(1, b"x\n")
    data = os.read(tty.ends[0], 4096)
    assert data.startswith(b"\r\x1b[4A\x1b[J" + b"x\n")


def test_enter_below_the_footer(tty: Tty) -> None:
    count = 0
    terminal = tty.terminal(typed=lambda fd: count)
    for tick in range(3):
        terminal.refresh(100.0 + tick, lambda columns: [(b"footer", 6)])
    for text in (b"one\n", b"two\n"):
        terminal.write(1, text)
        os.write(tty.ends[1], b"typed\n")  # as the terminal echoes it
        count += 6
        terminal.refresh(102.1, lambda columns: [(b"footer", 6)])
        assert tty.look()[-2:] == [text.decode().strip(), "footer"]
    terminal.close()
    assert tty.look() == ["one", "two"]


def test_what_was_typed_before_the_footer_came_is_nothing_to_it(tty: Tty) -> None:
    terminal = tty.terminal(typed=lambda fd: 7)
    terminal.write(1, b"kept\n")
    for tick in range(3):
        footer = [(b"footer %d" % tick, 8)]
        terminal.refresh(100.0 + tick, partial(lambda footer, columns: footer, footer))
    assert tty.look() == ["kept", "footer 2"]


def test_nothing_is_drawn_while_a_secret_is_asked_for(tty: Tty) -> None:
    tty_lock = TtyLock()
    terminal = tty.terminal(tty_lock=tty_lock)
    asked, answered = threading.Event(), threading.Event()

    def ask() -> None:
        with tty_lock.asking():
            asked.set()
            assert answered.wait(60)

    def refresh(now: float) -> None:
        terminal.refresh(now, lambda columns: [(b"footer", 6)])

    refresh(0.0)
    refresh(FIRST)
    assert tty.look() == ["footer"]
    asker = threading.Thread(target=ask)
    asker.start()
    for tick in range(1, 10_000):
        refresh(FIRST + tick / 100_000)  # of the time that is played little passes
        if asked.wait(0.002):
            break
    refresh(STOPPED / 2)
    assert tty.look() == []
    terminal.write(1, b"a line\n")
    refresh(STOPPED)
    assert tty.look() == ["a line"]
    answered.set()
    asker.join()
    refresh(STOPPED + 1)
    assert tty.look() == ["a line", "footer"]
    terminal.close()


def test_after_a_stop_the_shell_keeps_its_lines(tty: Tty) -> None:
    terminal = tty.terminal()
    for tick in range(3):
        terminal.refresh(100.0 + tick, lambda columns: [(b"footer", 6)])
    tty.look()
    os.write(tty.ends[1], b"$ fg\n")
    terminal.refresh(102.0 + 2 * STOPPED, lambda columns: [(b"again", 5)])
    assert tty.look() == ["footer", "$ fg", "again"]


def test_in_the_background_the_rows_are_another_programs(tty: Tty) -> None:
    ours = True
    terminal = tty.terminal(in_front=lambda fd: ours)

    def refresh(now: float) -> None:
        terminal.refresh(now, lambda columns: [(b"footer", 6)])

    for tick in range(3):
        refresh(100.0 + tick)
    ours = False
    os.write(tty.ends[1], b"$ bg\n$ typing\n")
    terminal.write(1, b"a line\n")
    refresh(102.5)
    assert tty.look() == ["footer", "$ bg", "$ typing", "a line"]
    ours = True  # fg
    refresh(103.0)
    assert tty.look()[-2:] == ["a line", "footer"]
    ours = False
    terminal.close()
    assert tty.look()[-1] == "footer"


#: what a terminal must not be made to do, each once seen in a real attack
PAYLOADS = [
    b"\x1b]0;owned\x07", b"\x1b]2;owned\x1b\\", b"\x1b]52;c;ZXZpbA==\x07", b"\x1b[21t", b"\x1b[6n",
    b"\x1b[c", b"\x1b[>c", b"\x1b[2J", b"\x1b[H", b"\x1b[1;1Hevil", b"\x1bc", b"\x1b[!p",
    b"\x1bP$qm\x1b\\", b"\x1bP0;0;0q#0\x1b\\", b"\x1b_G\x1b\\", b"\x1b^x\x1b\\", b"\x1bXx\x1b\\",
    b"\x1b[?1049h", b"\x1b[?25l", b"\x1b[4i", b"\x1b[5i", b"\x1b]8;;http://e\x1b\\x\x1b]8;;\x1b\\",
    b"\x1b]50;$(x)\x07", b"\x1b]9;x\x07", b"\x1b]777;notify;a;b\x07", b"\x1b]99;;x\x1b\\",
    b"\x9b2J", b"\x9d0;owned\x9c", b"\xc2\x9b2J", b"\xc2\x9d0;owned\xc2\x9c", b"\x90q\x9c",
    b"\x0e\x0f\x07\x08\x08\x08\x0b\x0c", b"\x1b(0", b"\x1b#8", b"\x1bD\x1bM\x1bE", b"\x05",
    b"\x1b[31;1" + b";1" * 40 + b"m", b"\x1b[" + b"9" * 80, b"\x1b[1A\x1b[K", b"\x1b[3;1r",
    "\u202eevil\u2066\u2069\u200f".encode(), b"\xff\xfe\xed\xa0\x80\xf5", b"\0",
]  # fmt: skip


@cases("payload", PAYLOADS)
def test_nothing_from_a_rank_is_obeyed_however_it_is_split(payload: bytes) -> None:
    tty = Tty(100, 30)
    for cut in range(len(payload) + 1):
        view = LineFormat(lambda rank: "[0]", terminals=frozenset({1}))
        screen = Screen(view, Writer({1: tty.ends[1]}))
        for part in (b"first\nbefore ", payload[:cut], payload[cut:], b" after\nlast\n"):
            if part:
                screen.output(0, 1, part)
        screen.close()
        tty.drain()
    lines, emulator = tty.look(), tty.emulator
    assert (emulator.title, emulator.answers) == ("", [])
    assert emulator.screen.cursor.hidden is False
    assert lines.count("[0] first") == lines.count("[0] last") == cut + 1
    starts = [at for at, line in enumerate(lines) if line == "[0] first"]
    for start, end in pairwise([*starts, len(lines)]):
        assert lines[start + 1].startswith("[0] before ")
        assert "".join(lines[start + 1 : end - 1]).endswith(" after")
        assert lines[end - 1] == "[0] last"
    for fd in tty.ends:
        os.close(fd)


@cases("payload", PAYLOADS)
def test_nor_in_the_footer_and_the_end(payload: bytes) -> None:
    text = payload.decode("utf-8", "surrogateescape")
    footer = Footer([text, "[red]n2[/red]"])
    picture = picture_of(RunState(["n1", "n2"], Now()))
    emulator = Emulator(100, 30)
    lines = footer.lines(picture, [("[0]", payload.replace(b"\r", b""))], 99)
    for line, columns in drawn(lines, 99):
        assert columns <= 99
        emulator.feed(line + b"\n")
    assert "red" in emulator.lines()[1] or len(payload) > 60
    assert (emulator.title, emulator.answers) == ("", [])
    assert emulator.screen.cursor.y == len(lines)
