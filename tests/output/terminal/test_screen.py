"""What the user sees: labels, whole lines, one write a batch, and a reader that leaves."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import cases

from dispatcher.core.events.run_events import TICK, Entry, OutputEnded, RanksPlaced
from dispatcher.model.names import fold_numbers
from dispatcher.output.terminal.screen import LineFormat, Screen, Writer
from dispatcher.output.text.fold import Folding
from dispatcher.output.text.lines import BLOCK, CONTINUED, LINE_LIMIT, Spill
from dispatcher.plan.job.placement import FIRST
from output.descriptors import open_below


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


LABELS = LineFormat(lambda rank: f"[{rank}]")
ZERO = LineFormat(lambda rank: "[0]")
FOLDED = LineFormat(
    lambda rank: f"[{rank}]",
    fold=lambda world_size: Folding(world_size),
    fold_label=lambda ranks: f"[{fold_numbers(ranks)}]",
)
BARE = LineFormat(lambda rank: "")


def seen_on_a_terminal(partial_after: float = 0.0) -> LineFormat:
    return LineFormat(lambda rank: "[0]", terminals=frozenset({1}), partial_after=partial_after)


def ended(rank: int, stream: int) -> Entry:
    return Entry(1, 0.0, OutputEnded(0, rank, stream, 0, 0))


@cases("view", [LABELS, FOLDED])
def test_every_byte_arrives_in_a_pipe(view: LineFormat) -> None:
    text = b"\xd1\xb5\0\x1b[2J \r\n\xff  \n"
    (ours, into), shown = os.pipe(), b""
    screen = Screen(view, Writer({1: into}))
    screen.event(Entry(1, 0.0, RanksPlaced(1, "a", 1)))
    screen.output(0, 1, text)
    screen.close()
    os.close(into)
    while data := os.read(ours, 4096):
        shown += data
    os.close(ours)
    assert shown == b"".join(b"[0] " + line for line in text.splitlines(keepends=True) if line)


def test_labels_and_whole_lines(pipe: tuple[int, int], other: int) -> None:
    screen = Screen(LABELS, Writer({1: pipe[1], 2: other}))
    screen.output(0, 1, b"par")
    screen.output(1, 1, b"one\ntwo\nthr")
    screen.output(0, 1, b"tial\n")
    screen.event(ended(1, 1))
    assert os.read(pipe[0], 4096) == b"[1] one\n[1] two\n[0] partial\n[1] thr\n"


def test_equal_lines_of_many_tell_as_well_which_stream_they_are_of(
    pipe: tuple[int, int], other: int
) -> None:
    for errors, folded in ((pipe[1], b"[0-1] x\n[0-1]! x\n"), (other, b"[0-1] x\n")):
        screen = Screen(FOLDED, Writer({1: pipe[1], 2: errors}))
        screen.event(Entry(1, 0.0, RanksPlaced(2, "a", 1)))
        for stream in (1, 2):
            for rank in (0, 1):
                screen.output(rank, stream, b"x\n")
        assert os.read(pipe[0], 4096) == folded


def test_grep(pipe: tuple[int, int]) -> None:
    view = LineFormat(lambda rank: "[0]", grep=re.compile(rb"loss|^x$"))
    screen = Screen(view, Writer({1: pipe[1]}))
    screen.output(0, 1, b"the loss\nx\nxx\ny\nthe loss")
    screen.output(1, 1, b"nothing")
    screen.close()
    assert os.read(pipe[0], 4096) == b"[0] the loss\n[0] x\n[0] the loss\n"


def test_an_unfinished_line_is_shown_after_a_while(pipe: tuple[int, int]) -> None:
    screen = Screen(seen_on_a_terminal(partial_after=0.2), Writer({1: pipe[1]}))
    screen.tick(99.0)
    screen.output(0, 1, b"sure?")
    now, beats = 100.0, 1
    while screen.tick(now):
        now, beats = now + TICK, beats + 1
    assert 3 <= beats <= 5
    screen.output(0, 1, b" yes\n")
    assert os.read(pipe[0], 4096) == b"[0] sure?" + CONTINUED + b"\n[0]  yes\n"


def test_time_stuck_in_a_write_is_no_silence_of_a_rank(pipe: tuple[int, int]) -> None:
    screen = Screen(seen_on_a_terminal(partial_after=0.2), Writer({1: pipe[1]}))
    screen.tick(100.0)
    screen.output(0, 1, b"half a")
    assert screen.tick(1000.0)
    screen.output(0, 1, b" line\n")
    assert os.read(pipe[0], 4096) == b"[0] half a line\n"


def test_a_long_line_is_cut_for_a_person_and_marked(pipe: tuple[int, int]) -> None:
    screen = Screen(seen_on_a_terminal(), Writer({1: pipe[1]}))
    screen.output(0, 1, b"x" * LINE_LIMIT + b"y\n")
    assert os.read(pipe[0], 1 << 20) == b"[0] " + b"x" * LINE_LIMIT + CONTINUED + b"\n[0] y\n"


def passing(screen: Screen, seconds: float) -> int:
    """Let time pass; how many beats of it somebody asked for."""
    beats = [screen.tick(screen._last_tick + TICK) for _ in range(round(seconds / TICK))]
    return sum(beats)


def bar_of(screen: Screen, seconds: int) -> None:
    for second in range(seconds):
        screen.output(0, 1, b"\r%d%%" % second)
        passing(screen, 1.0)


def test_a_bar_is_seen_in_a_log_now_and_then_and_at_its_end(pipe: tuple[int, int]) -> None:
    screen = Screen(ZERO, Writer({1: pipe[1]}))
    passing(screen, 1.0)
    bar_of(screen, 100)
    screen.output(0, 1, b"\r100%\nnext\n")
    assert passing(screen, 100.0) == 0
    marked = b"".join(b"[0] %d%%%s\n" % (percent, CONTINUED) for percent in (29, 60, 91))
    assert os.read(pipe[0], 4096) == marked + b"[0] 100%\n[0] next\n"


def test_a_bar_that_rests_is_not_shown_again(pipe: tuple[int, int]) -> None:
    screen = Screen(ZERO, Writer({1: pipe[1]}))
    screen.output(0, 1, b"\r42%")
    passing(screen, 100.0)
    assert passing(screen, 1.0) == 0
    screen.close()
    assert os.read(pipe[0], 4096) == b"[0] 42%" + CONTINUED + b"\n[0] 42%\n"


def test_bars_below_each_other_are_one_bar(pipe: tuple[int, int]) -> None:
    footer: list[tuple[str, bytes]] = []

    def draw(bars: list[tuple[str, bytes]], columns: int) -> list[tuple[bytes, int]]:
        footer.extend(bars)
        return []

    view = LineFormat(lambda rank: "[0]", terminals=frozenset({1}))
    live = Screen(view, Writer({1: pipe[1]}), footer=draw)
    log = Screen(ZERO, Writer({1: pipe[1]}))
    for second in range(31):
        for screen in (live, log):
            screen.output(0, 1, b"\router %d\n\rinner %d\x1b[A" % (second, second))
            passing(screen, 1.0)
    marked = b"".join(b"[0] %s 29%s\n" % (bar, CONTINUED) for bar in (b"outer", b"inner"))
    assert os.read(pipe[0], 4096) == marked
    assert live._live(80) == []
    assert footer == [("[0]", b"outer 30"), ("[0]", b"inner 30")]
    for screen in (live, log):
        screen.output(0, 1, b"\n\n")
        assert passing(screen, 1.0) <= 5  # that the cursor rests below them is seen soon
        assert os.read(pipe[0], 4096) == b"[0] outer 30\n[0] inner 30\n"


@pytest.mark.parametrize(
    ("terminals", "state_after", "footer", "is_shown"),
    [({}, 0.0, False, False), ({1}, 30.0, True, False), ({1}, 30.0, False, True),
     ({}, 30.0, True, True)],
)  # fmt: skip
def test_where_a_bar_is_shown_before_its_end(
    pipe: tuple[int, int], terminals: set[int], state_after: float, footer: bool, is_shown: bool
) -> None:
    view = LineFormat(lambda rank: "[0]", terminals=frozenset(terminals), state_after=state_after)
    screen = Screen(
        view, Writer({1: pipe[1]}), footer=(lambda bars, columns: []) if footer else None
    )
    bar_of(screen, 31)
    screen.output(0, 1, b"\rdone\n")
    shown = b"[0] 29%" + CONTINUED + b"\n" if is_shown else b""
    assert os.read(pipe[0], 4096) == shown + b"[0] done\n"


def test_a_line_held_open_for_minutes_comes_whole_in_a_log(pipe: tuple[int, int]) -> None:
    screen = Screen(ZERO, Writer({1: pipe[1]}))
    screen.output(0, 1, b"one\nloading")
    assert passing(screen, 300.0) < 31 / TICK
    for _ in range(40):
        screen.output(0, 1, b".")
        passing(screen, 1.0)
    screen.output(0, 1, b" done\n")
    assert os.read(pipe[0], 4096).decode().splitlines() == [
        "[0] one",
        "[0] loading \N{LEFTWARDS ARROW WITH HOOK}",
        "[0] loading" + 30 * "." + " \N{LEFTWARDS ARROW WITH HOOK}",
        "[0] loading" + 40 * "." + " done",
    ]


def test_lines_that_follow_each_other_are_never_shown_before_their_end(
    pipe: tuple[int, int],
) -> None:
    screen = Screen(ZERO, Writer({1: pipe[1]}))
    for number in range(100):  # a chunk always ends in the middle of a line
        screen.output(0, 1, b"%d\nline " % number)
        passing(screen, 1.0)
    assert CONTINUED not in os.read(pipe[0], 1 << 16)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield fd
    os.close(fd)


def written(fd: int) -> list[bytes]:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", closefd=False) as file:
        return file.read().splitlines()


PIECE = b"x" * 50_000
LONG = PIECE * 20


def say_long(screen: Screen) -> None:
    """Ranks 0 and 1 say a long line each, at once, and on standard error short ones meanwhile."""
    for number in range(20):
        for rank in (0, 1):
            screen.output(rank, 1, b"%d" % rank + PIECE)
            screen.output(rank, 2, b"error %d\n" % number)
    for rank in (0, 1):
        screen.output(rank, 1, b"end\nafter\n")


def test_a_line_of_any_length_is_whole_in_a_log(log: int) -> None:
    screen = Screen(LABELS, Writer({1: log, 2: log}))
    say_long(screen)
    lines = written(log)
    assert {line for line in lines if len(line) > 100} == {
        b"[%d] " % rank + (b"%d" % rank + PIECE) * 20 + b"end" for rank in (0, 1)
    }
    assert lines.count(b"[0]! error 7") == 1
    assert len(lines) == 2 * 20 + 2 + 2


def test_long_lines_keep_their_place_among_folded_ones(log: int) -> None:
    screen = Screen(FOLDED, Writer({1: log}))
    screen.event(Entry(1, 0.0, RanksPlaced(2, "a", 1)))
    screen.output(0, 1, b"before\n")
    say_long(screen)
    screen.close()
    lines = written(log)
    assert [line[:10] for line in lines] == [
        b"[0] before", b"[0] 0xxxxx", b"[0] after", b"[1] 1xxxxx", b"[1] after"
    ]  # fmt: skip
    assert len(lines[1]) == len(lines[3]) == len(LONG) + 27


def test_where_long_lines_waited_is_given_back(
    log: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    screen = Screen(ZERO, Writer({1: log}))
    screen.output(0, 1, LONG)
    assert open_below(tmp_path) == ["(deleted)", "log"]
    screen.close()
    assert open_below(tmp_path) == ["log"]


def test_grep_looks_into_long_lines(log: int) -> None:
    view = LineFormat(lambda rank: f"[{rank}]", grep=re.compile(rb"^1x.*end$"))
    screen = Screen(view, Writer({1: log}))
    say_long(screen)
    assert [line[:6] for line in written(log)] == [b"[1] 1x"]


def test_without_room_for_long_lines_nothing_is_lost_and_it_is_said(
    log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spill.__init__, "__defaults__", (3 * BLOCK,))
    screen = Screen(ZERO, Writer({1: log, 2: log}))
    for _ in range(20):
        screen.output(0, 1, PIECE)
    screen.output(0, 1, b"\n")
    for _ in range(2):
        screen.output(0, 1, PIECE)
    screen.output(0, 1, b"\n")
    screen.close()
    *lines, whole, said = written(log)
    assert b"".join(n.removeprefix(b"[0] ").removesuffix(CONTINUED) for n in lines) == LONG
    assert all(line.endswith(CONTINUED) for line in lines[:-1])
    assert whole == b"[0] " + PIECE * 2
    assert said.startswith(b"note: 1 line of more than 64 KiB came in pieces, as marked: no room")


def test_a_line_of_a_host_that_was_lost_ends_before_the_next_attempt(pipe: tuple[int, int]) -> None:
    screen = Screen(ZERO, Writer({1: pipe[1]}))
    screen.output(0, 1, b"half a li")
    screen.event(Entry(1, 0.0, RanksPlaced(1, "a", 1, restart=1)))
    screen.output(0, 1, b"again\n")
    assert os.read(pipe[0], 4096) == b"[0] half a li\n[0] again\n"


@cases(
    ("chunks", "seen"),
    [
        ([(0, b"a\r\xff\x1b[0m"), (0, b"b")], b"a\r\xff\x1b[0mb"),  # nothing added, nothing taken
        ([(0, b"10%\r20%\r\n")], b"10%\r20%\r\n"),
        ([(0, b"par"), (1, b"one\ntwo"), (0, b"tial\n")], b"one\npartial\ntwo"),
        ([(0, b"a"), (1, b"b")], b"a\nb"),
        ([(0, b"x" * 200_000), (1, b"one\n"), (0, b"y\n")], b"one\n" + b"x" * 200_000 + b"y\n"),
        ([(0, b"\0\n\n\0")], b"\0\n\n\0"), ([], b""),
    ],
)  # fmt: skip
def test_bytes_for_a_program_are_exact(chunks: list[tuple[int, bytes]], seen: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        view = LineFormat(lambda rank: "", exact=frozenset({1}))
        screen = Screen(view, Writer({1: file.fileno()}))
        for rank, data in chunks:
            screen.output(rank, 1, data)
        for n in range(100):
            screen.tick(float(n))
        screen.event(ended(0, 1))
        screen.close()
        file.seek(0)
        assert file.read() == seen


def test_exact_lines_of_several_ranks_in_one_place(pipe: tuple[int, int]) -> None:
    """Both streams lead there, as for ``2>&1``: an open line of the one is ended for the other."""
    view = LineFormat(lambda rank: "", exact=frozenset({1, 2}))
    screen = Screen(view, Writer({1: pipe[1], 2: pipe[1]}))
    screen.output(0, 1, b"no end")
    screen.event(ended(0, 1))
    screen.output(1, 2, b"err\n")
    screen.output(1, 1, b"out\n")
    assert os.read(pipe[0], 4096) == b"no end\nerr\nout\n"


def test_a_gap_in_exact_lines_stands_where_bytes_are_missing(pipe: tuple[int, int]) -> None:
    view = LineFormat(lambda rank: "", exact=frozenset({1}))
    screen = Screen(view, Writer({1: pipe[1]}))
    screen.output(0, 1, b"begun")
    screen.gap({(0, 1): 5})
    screen.output(0, 1, b"gone on\n")
    screen.gap({(FIRST, 1): 5})
    assert os.read(pipe[0], 4096) == (
        b"begun\n... 5 bytes of rank 0 not shown\ngone on\n... 5 bytes of rank 1.0 not shown\n"
    )


def test_a_rank_that_is_alone_waits_for_no_line_end(pipe: tuple[int, int]) -> None:
    view = LineFormat(lambda rank: "", exact=frozenset({1}), is_alone=True)
    screen = Screen(view, Writer({1: pipe[1]}))
    screen.output(0, 1, b"50%")
    assert os.read(pipe[0], 9) == b"50%"
