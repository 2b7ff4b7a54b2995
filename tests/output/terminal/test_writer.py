"""Where lines go and how they look: descriptors, colours, stamps, folds, bars for the footer."""

from __future__ import annotations

import os
import pty
import re
import socket
import termios
from collections.abc import Iterator
from fcntl import F_GETPIPE_SZ, fcntl
from pathlib import Path

import pytest
from rig import wait_for

from dispatcher.core.events.run_events import TICK, Entry, OutputEnded, RanksPlaced
from dispatcher.model.names import fold_numbers
from dispatcher.output.buffered import Filtered
from dispatcher.output.terminal import live_terminal
from dispatcher.output.terminal.asking import TtyLock
from dispatcher.output.terminal.live_terminal import EVERY, FIRST, LEAST, ROWS_LEFT, Terminal, typed
from dispatcher.output.terminal.screen import (
    COLOURS,
    PIPE_SIZE,
    LineFormat,
    Screen,
    Writer,
    can_pause,
    same_file,
    widen,
)
from dispatcher.output.text.fold import Folding
from dispatcher.output.text.lines import CONTINUED


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def seen(pipe: tuple[int, int]) -> bytes:
    try:
        return os.read(pipe[0], 1 << 20)
    except BlockingIOError:
        return b""


# -- descriptors ------------------------------------------------------------------------


def test_which_descriptors_lead_to_the_same_place(pipe: tuple[int, int], tmp_path: Path) -> None:
    copy, other = os.dup(pipe[1]), os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY)
    assert same_file(pipe[1], copy)
    assert not same_file(pipe[1], other)
    assert Writer({1: pipe[1], 2: copy}).together
    assert not Writer({1: pipe[1], 2: other}).together
    assert not Writer({1: pipe[1]}).together
    os.close(copy)
    os.close(other)
    assert not same_file(pipe[1], other)


def test_a_pipe_is_made_wider_and_anything_else_left_alone(
    pipe: tuple[int, int], tmp_path: Path
) -> None:
    Writer({1: pipe[1]})
    assert fcntl(pipe[1], F_GETPIPE_SZ) == PIPE_SIZE
    fd = os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY)
    widen(fd)
    os.close(fd)
    widen(fd)
    assert (tmp_path / "x").read_bytes() == b""


def test_who_may_stop_reading(pipe: tuple[int, int], tmp_path: Path) -> None:
    one, other = socket.socketpair()
    user, tty = pty.openpty()
    fd = os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY)
    assert [can_pause(one_of) for one_of in (pipe[1], one.fileno(), tty, fd)] == [
        True, True, True, False,
    ]  # fmt: skip
    for end in (user, tty, fd):
        os.close(end)
    one.close()
    other.close()
    assert not can_pause(fd)


def test_each_stream_has_its_own_reader(pipe: tuple[int, int]) -> None:
    broken: list[None] = []
    other = os.pipe()
    writer = Writer({1: pipe[1], 2: other[1]}, lambda: broken.append(None))
    os.close(other[0])
    writer.write(2, b"nobody\n")
    writer.write(1, b"one\n")
    writer.write(2, b"nobody\n")
    writer.write(3, b"no such stream\n")
    assert (seen(pipe), broken, writer.pace) == (b"one\n", [None], 1)
    assert not writer.refresh(1.0, lambda columns: [(b"x", 1)])
    os.close(other[1])


def test_a_stream_that_is_full_is_told_of_and_has_not_lost_its_reader(
    pipe: tuple[int, int],
) -> None:
    told: list[str] = []
    full = os.open("/dev/full", os.O_WRONLY)
    writer = Writer(
        {1: full, 2: pipe[1]}, lambda: told.append("broken"), lambda: told.append("full")
    )
    writer.write(1, b"lost\n")
    writer.write(1, b"lost\n")
    writer.write(2, b"two\n")
    assert (seen(pipe), told) == (
        b"error: standard output: no space left on device\ntwo\n", ["full"],
    )  # fmt: skip
    both = Writer({1: full, 2: full}, on_full=lambda: told.append("both"))
    both.write(1, b"lost\n")
    assert told[1:] == ["both", "both"]
    os.close(full)


# -- how lines look ---------------------------------------------------------------------


def test_labels_have_colours_by_their_hue_where_the_stream_is_coloured(
    pipe: tuple[int, int],
) -> None:
    view = LineFormat(lambda rank: f"[{rank}]", hue=lambda rank: rank + 1, coloured=frozenset({2}))
    screen = Screen(view, Writer({1: pipe[1], 2: pipe[1]}))
    screen.output(0, 1, b"a\n")
    screen.output(0, 2, b"b\n")
    screen.output(len(COLOURS) - 1, 2, b"c\n")
    assert seen(pipe) == (
        b"[0] a\n\x1b[%dm[0]!\x1b[0m b\n\x1b[%dm[9]!\x1b[0m c\n" % (COLOURS[1], COLOURS[0])
    )


def test_standard_error_is_marked_only_where_that_is_wanted(pipe: tuple[int, int]) -> None:
    screen = Screen(
        LineFormat(lambda rank: "[0]" if rank == 0 else "", mark_errors=False),
        Writer({1: pipe[1], 2: pipe[1]}),
    )
    screen.output(0, 2, b"a\n")
    marked = Screen(LineFormat(lambda rank: ""), Writer({1: pipe[1], 2: pipe[1]}))
    marked.output(0, 2, b"b\n")  # without a label there is nothing to mark
    assert seen(pipe) == b"[0] a\nb\n"


STAMP = rb"\d\d:\d\d:07\.250 "


def test_stamps_stand_before_folded_and_long_lines_too(pipe: tuple[int, int]) -> None:
    folding = LineFormat(
        lambda rank: f"[{rank}]", timestamps=True, fold=lambda world_size: Folding(world_size),
        fold_label=lambda ranks: "" if len(ranks) == 3 else f"[{len(ranks)} ranks]",
    )  # fmt: skip
    screen = Screen(folding, Writer({1: pipe[1]}), clock=lambda: 7.25)
    screen.event(Entry(1, 0.0, RanksPlaced(3, "a", 1)))
    for rank in range(3):
        screen.output(rank, 1, b"all\n")
    screen.output(0, 1, b"two\n")
    screen.output(1, 1, b"two\n")
    screen.output(0, 1, b"x" * 70_000 + b"\n")
    screen.close()
    lines = seen(pipe).split(b"\n")
    assert re.fullmatch(STAMP + b"all", lines[0])
    assert re.fullmatch(STAMP + rb"\[2 ranks\] two", lines[1])
    assert re.fullmatch(STAMP + rb"\[0\] x{70000}", lines[2])


def test_a_rank_that_has_ended_is_not_waited_for(pipe: tuple[int, int]) -> None:
    view = LineFormat(lambda rank: f"[{rank}]", fold=lambda world_size: Folding(world_size))
    screen = Screen(view, Writer({1: pipe[1]}))
    screen.event(Entry(1, 0.0, RanksPlaced(3, "a", 1)))
    for stream in (1, 2):
        screen.output(2, stream, b"own\n")
    screen.tick(1.0)
    screen.event(Entry(1, 0.0, OutputEnded(0, 2, 1, 0, 0)))
    screen.output(0, 1, b"x\n")
    screen.output(1, 1, b"x\n")
    assert b"x" not in seen(pipe)  # its other stream is open
    screen.event(Entry(1, 0.0, OutputEnded(0, 2, 2, 0, 0)))
    screen.tick(1.0 + TICK)
    for _ in range(20):
        screen.tick(screen._last_tick + TICK)
    assert b"[2 ranks] x\n" in seen(pipe)
    assert not screen.tick(screen._last_tick + TICK)  # nothing waits any more


def test_ranks_that_end_with_the_same_line(pipe: tuple[int, int]) -> None:
    """Each has said it before the next one does; one whose output is not shown counts for none."""
    view = LineFormat(
        lambda rank: f"[{rank}]", fold=lambda world_size: Folding(world_size - 1),
        fold_label=lambda ranks: f"[{fold_numbers(ranks)}]",
    )  # fmt: skip
    screen = Filtered(Screen(view, Writer({1: pipe[1]})), lambda rank, stream: rank < 4)
    screen.event(Entry(1, 0.0, RanksPlaced(5, "a", 1)))
    for rank in (4, 0, 1, 2, 3):
        screen.output(rank, 1, b"step\ndone\n")
        for stream in (1, 2):
            screen.event(Entry(1, 0.0, OutputEnded(0, rank, stream, 0, 0)))
    assert seen(pipe) == b"[0-3] step\n[0-3] done\n"


def test_bars_are_given_to_the_footer(pipe: tuple[int, int]) -> None:
    drawn: list[list[tuple[str, bytes]]] = []

    class Below(Writer):
        def refresh(self, now: float, live: object) -> bool:
            assert callable(live)
            live(80)
            return True

    def footer(bars: list[tuple[str, bytes]], columns: int) -> list[tuple[bytes, int]]:
        assert columns == 80
        drawn.append(bars)
        return []

    view = LineFormat(lambda rank: f"[{rank}]", terminals=frozenset({1}))
    screen = Screen(view, Below({1: pipe[1]}), footer=footer)
    screen.output(3, 1, b"\r30%")
    screen.output(1, 1, b"\r10%")
    screen.output(2, 1, b"no bar")
    screen.output(4, 1, b"\r   \r")
    assert screen.tick(1.0)
    assert drawn == [[("[1]", b"10%"), ("[3]", b"30%")]]
    screen.output(1, 1, b"\n")
    screen.tick(2.0)
    assert drawn[-1] == [("[3]", b"30%")]


def test_what_was_not_shown_is_summed_up_at_the_end(pipe: tuple[int, int]) -> None:
    screen = Screen(LineFormat(lambda rank: "[0]"), Writer({1: pipe[1], 2: pipe[1]}))
    screen.output(0, 1, b"ha")
    screen.gap({(0, 1): 1000, (1, 1): 500, (3, 2): 7})
    screen.say("note: \udcff")
    screen.close()
    assert seen(pipe).decode().splitlines() == [
        f"[0] ha{CONTINUED.decode()}", "... 1,500 bytes of 2 ranks not shown",
        "... 7 bytes of rank 3 not shown", "note: \\xff",
        "note: 1,507 bytes of output were not shown, as marked above",
    ]  # fmt: skip


# -- a footer ---------------------------------------------------------------------------


class Below:
    """A terminal with a footer, of a size that can change; what is written to it."""

    def __init__(self, pipe: tuple[int, int], size: tuple[int, int] = (80, 24)) -> None:
        self.pipe = pipe
        self.size: tuple[int, int] | None = size
        self.asked: list[int] = []
        self.terminal = Terminal(
            frozenset({1}), pipe[1], {1: pipe[1], 2: pipe[1]}, size=self._size,
            typed=lambda fd: 0, tty_lock=TtyLock(),
        )  # fmt: skip

    def _size(self, fd: int) -> tuple[int, int]:
        assert fd == self.pipe[1]
        if self.size is None:
            raise OSError
        return self.size

    def live(self, columns: int) -> list[tuple[bytes, int]]:
        self.asked.append(columns)
        return [(b"line %d" % n, 6) for n in range(30)]

    def at(self, now: float) -> bytes:
        assert self.terminal.refresh(now, self.live)
        return seen(self.pipe)


def test_pictures_come_after_a_while_and_then_now_and_then(pipe: tuple[int, int]) -> None:
    below = Below(pipe)
    assert below.at(100.0) == b""
    assert below.at(100.0 + FIRST - 0.01) == b""
    first = below.at(100.0 + FIRST)
    assert first.count(b"\n") == 24 - ROWS_LEFT
    assert below.asked == [79]
    below.at(100.0 + FIRST + EVERY - 0.01)
    assert below.asked == [79]
    assert below.at(100.0 + FIRST + EVERY) == b""  # it is the same picture
    assert below.asked == [79, 79]


@pytest.mark.parametrize(
    ("size", "is_drawn"),
    [((LEAST, 24), True), ((LEAST - 1, 24), False), ((80, ROWS_LEFT + 1), True),
     ((80, ROWS_LEFT), False), (None, False)],
)  # fmt: skip
def test_in_a_small_window_there_is_no_footer(
    pipe: tuple[int, int], size: tuple[int, int], is_drawn: bool
) -> None:
    below = Below(pipe, size)
    below.at(100.0)
    assert bool(below.at(100.0 + FIRST)) == is_drawn


def test_lines_go_above_the_footer_and_other_streams_beside_it(pipe: tuple[int, int]) -> None:
    below = Below(pipe, (80, ROWS_LEFT + 2))
    below.terminal.write(1, b"plain\n")
    assert seen(pipe) == b"plain\n"
    below.at(100.0)
    assert below.at(100.0 + FIRST) == b"line 0\nline 1\n"
    below.terminal.write(1, b"x\n")
    assert seen(pipe) == b"\r\x1b[2A\x1b[Jx\nline 0\nline 1\n"
    below.terminal.write(2, b"elsewhere\n")
    assert seen(pipe) == b"elsewhere\n"
    below.size = (80, ROWS_LEFT)  # the window is too small now
    assert below.at(100.0 + FIRST + EVERY) == b"\r\x1b[2A\x1b[J"
    below.terminal.close()
    assert seen(pipe) == b""


def test_a_terminal_whose_size_is_not_known_any_more(pipe: tuple[int, int]) -> None:
    below = Below(pipe, (80, ROWS_LEFT + 2))
    below.at(100.0)
    below.at(100.0 + FIRST)
    below.size = None
    below.terminal.close()
    assert seen(pipe) == b"\r\x1b[2A\x1b[J"


def test_whole_lines_that_were_typed_are_counted() -> None:
    user, tty = pty.openpty()
    os.write(user, b"ls\nhal")
    wait_for(lambda: typed(tty) == 3)  # the kernel carries it over in its own time
    assert typed(tty) == 3
    modes = termios.tcgetattr(tty)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(tty, termios.TCSANOW, modes)
    assert typed(tty) == 0  # nothing of it is shown
    os.close(user)
    os.close(tty)
    assert typed(tty) == 0
    assert live_terminal.typed is typed
