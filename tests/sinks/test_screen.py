"""What the user sees: labels, whole lines, one write a batch, and a reader that leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dispatcher.core.events import OutputEnded
from dispatcher.sinks.base import Stamped
from dispatcher.sinks.screen import Screen


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            pass


def ended(rank: int, stream: int) -> Stamped:
    return Stamped(1, 0.0, OutputEnded(0, rank, stream, 0, 0))


def test_labels_and_whole_lines(pipe: tuple[int, int]) -> None:
    screen = Screen(lambda rank: f"[{rank}]", fds={1: pipe[1], 2: pipe[1]})
    screen.output(0, 1, b"par")
    screen.output(1, 1, b"one\ntwo\nthr")
    screen.output(0, 1, b"tial\n")
    screen.event(ended(1, 1))
    assert os.read(pipe[0], 4096) == b"[1] one\n[1] two\n[0] partial\n[1] thr\n"


def test_no_label(pipe: tuple[int, int]) -> None:
    screen = Screen(lambda rank: "", fds={1: pipe[1]})
    screen.output(0, 1, b"x\n")
    assert os.read(pipe[0], 4096) == b"x\n"


def test_streams_do_not_mix(pipe: tuple[int, int]) -> None:
    screen = Screen(lambda rank: "", fds={1: pipe[1], 2: pipe[1]})
    screen.output(0, 1, b"out")
    screen.output(0, 2, b"err\n")
    screen.close()
    assert os.read(pipe[0], 4096) == b"err\nout\n"


def test_colour_only_where_asked(pipe: tuple[int, int]) -> None:
    screen = Screen(lambda rank: "[0]", fds={1: pipe[1]}, colour=frozenset({1}))
    screen.output(0, 1, b"x\n")
    assert os.read(pipe[0], 4096) == b"\x1b[36m[0]\x1b[0m x\n"


def test_a_reader_that_leaves_is_told_once(pipe: tuple[int, int]) -> None:
    told = []
    screen = Screen(lambda rank: "", fds={1: pipe[1]}, on_broken=lambda: told.append(1))
    os.close(pipe[0])
    screen.output(0, 1, b"x\n")
    screen.output(0, 1, b"y\n")
    assert told == [1]
