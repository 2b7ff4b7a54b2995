"""What the user sees: labels, whole lines, one write a batch, and a reader that leaves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from dispatcher.core.events import OutputEnded, RanksPlaced
from dispatcher.sinks.base import BEAT, Stamped
from dispatcher.sinks.fold import Folding, fold_numbers
from dispatcher.sinks.lines import CONTINUED
from dispatcher.sinks.outlet import Outlet
from dispatcher.sinks.screen import Screen, View


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            pass


@pytest.fixture
def other() -> Iterator[int]:
    ends = os.pipe()
    yield ends[1]
    for fd in ends:
        os.close(fd)


LABELS = View(lambda rank: f"[{rank}]")
BARE = View(lambda rank: "")


def ended(rank: int, stream: int) -> Stamped:
    return Stamped(1, 0.0, OutputEnded(0, rank, stream, 0, 0))


def test_labels_and_whole_lines(pipe: tuple[int, int], other: int) -> None:
    screen = Screen(LABELS, Outlet({1: pipe[1], 2: other}))
    screen.output(0, 1, b"par")
    screen.output(1, 1, b"one\ntwo\nthr")
    screen.output(0, 1, b"tial\n")
    screen.event(ended(1, 1))
    assert os.read(pipe[0], 4096) == b"[1] one\n[1] two\n[0] partial\n[1] thr\n"


def test_no_label(pipe: tuple[int, int]) -> None:
    screen = Screen(BARE, Outlet({1: pipe[1]}))
    screen.output(0, 1, b"x\n")
    assert os.read(pipe[0], 4096) == b"x\n"


def test_streams_do_not_mix(pipe: tuple[int, int]) -> None:
    screen = Screen(BARE, Outlet({1: pipe[1], 2: pipe[1]}))
    screen.output(0, 1, b"out")
    screen.output(0, 2, b"err\n")
    screen.close()
    assert os.read(pipe[0], 4096) == b"err\nout\n"


def test_where_both_streams_meet_they_can_be_told_apart(pipe: tuple[int, int]) -> None:
    screen = Screen(LABELS, Outlet({1: pipe[1], 2: pipe[1]}))
    screen.output(0, 1, b"out\n")
    screen.output(0, 2, b"err\n")
    assert os.read(pipe[0], 4096) == b"[0] out\n[0]! err\n"


def test_colour_only_where_asked(pipe: tuple[int, int]) -> None:
    view = View(lambda rank: "[0]", coloured=frozenset({1}))
    screen = Screen(view, Outlet({1: pipe[1]}))
    screen.output(0, 1, b"x\n")
    assert os.read(pipe[0], 4096) == b"\x1b[36m[0]\x1b[0m x\n"


def test_timestamps(pipe: tuple[int, int]) -> None:
    view = View(lambda rank: "[0]", timestamps=True)
    screen = Screen(view, Outlet({1: pipe[1]}), clock=lambda: 12.3456)
    screen.output(0, 1, b"x\ny\n")
    assert re.fullmatch(rb"(\d\d:\d\d:12\.345 \[0\] [xy]\n){2}", os.read(pipe[0], 4096))


def test_grep(pipe: tuple[int, int]) -> None:
    view = View(lambda rank: "[0]", grep=re.compile(rb"loss|^x$"))
    screen = Screen(view, Outlet({1: pipe[1]}))
    screen.output(0, 1, b"the loss\nx\nxx\ny\n")
    assert os.read(pipe[0], 4096) == b"[0] the loss\n[0] x\n"


def test_an_unfinished_line_is_shown_after_a_while(pipe: tuple[int, int]) -> None:
    screen = Screen(View(lambda rank: "[0]", partial_after=0.2), Outlet({1: pipe[1]}))
    screen.tick(99.0)
    screen.output(0, 1, b"sure?")
    now, beats = 100.0, 1
    while screen.tick(now):
        now, beats = now + BEAT, beats + 1
    assert 3 <= beats <= 5
    screen.output(0, 1, b" yes\n")
    assert os.read(pipe[0], 4096) == b"[0] sure?" + CONTINUED + b"\n[0]  yes\n"


def test_time_stuck_in_a_write_is_no_silence_of_a_rank(pipe: tuple[int, int]) -> None:
    screen = Screen(View(lambda rank: "[0]", partial_after=0.2), Outlet({1: pipe[1]}))
    screen.tick(100.0)
    screen.output(0, 1, b"half a")
    assert screen.tick(1000.0)
    screen.output(0, 1, b" line\n")
    assert os.read(pipe[0], 4096) == b"[0] half a line\n"


def test_a_bar_is_shown_once_at_its_end(pipe: tuple[int, int]) -> None:
    screen = Screen(View(lambda rank: "[0]", partial_after=0.1), Outlet({1: pipe[1]}))
    for percent in range(100):
        screen.output(0, 1, b"\r%d%%" % percent)
        assert not screen.tick(percent)
    screen.output(0, 1, b"\r100%\n")
    assert os.read(pipe[0], 4096) == b"[0] 100%\n"


def test_a_line_of_a_host_that_was_lost_ends_before_the_next_attempt(
    pipe: tuple[int, int],
) -> None:
    screen = Screen(LABELS, Outlet({1: pipe[1]}))
    screen.output(0, 1, b"half a li")
    screen.event(Stamped(1, 0.0, RanksPlaced(1, "a", 1, restart=1)))
    screen.output(0, 1, b"again\n")
    assert os.read(pipe[0], 4096) == b"[0] half a li\n[0] again\n"


def test_what_was_left_out_is_counted_where_it_is_missing(pipe: tuple[int, int]) -> None:
    screen = Screen(View(lambda rank: f"[{rank}]"), Outlet({1: pipe[1]}))
    screen.output(0, 1, b"a\nhal")
    screen.gap({(rank, 1): 1_000_000 for rank in range(8)})
    screen.output(0, 1, b"ved\n")
    screen.gap({(3, 1): 5})
    assert os.read(pipe[0], 4096) == (
        b"[0] a\n[0] hal" + CONTINUED + b"\n... 8,000,000 bytes of 8 ranks not shown\n"
        b"[0] ved\n... 5 bytes of rank 3 not shown\n"
    )


def test_a_reader_that_leaves_is_told_once(pipe: tuple[int, int]) -> None:
    told = []
    screen = Screen(BARE, Outlet({1: pipe[1]}, on_broken=lambda: told.append(1)))
    os.close(pipe[0])
    screen.output(0, 1, b"x\n")
    screen.output(0, 1, b"y\n")
    assert told == [1]


def test_equal_lines_of_many_ranks_are_shown_once(pipe: tuple[int, int]) -> None:
    view = View(
        lambda rank: f"[{rank}]",
        fold=lambda world_size: Folding(world_size),
        fold_label=lambda ranks: f"[{fold_numbers(ranks)}]",
    )
    screen = Screen(view, Outlet({1: pipe[1]}))
    screen.event(Stamped(1, 0.0, RanksPlaced(3, "a", 1)))
    for rank in (2, 0, 1):
        screen.output(rank, 1, b"same\nown %d\n" % (rank // 2))
    assert os.read(pipe[0], 4096) == b"[0-2] same\n"
    screen.close()
    assert os.read(pipe[0], 4096) == b"[2] own 1\n[0-1] own 0\n"
