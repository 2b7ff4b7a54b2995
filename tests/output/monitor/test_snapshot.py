"""The table of all ranks: what is known of each, how it looks, what keys change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import cases
from emulator import Emulator
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import GpuSample, NodeSampled, RankSample
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.monitor.run_picture import Snapshot, snapshot_of
from dispatcher.output.run_state import LAST, RunState
from dispatcher.output.terminal.footer import drawn
from dispatcher.output.terminal.rank_table import HELP, ViewState, WatchTable, keys

GIB = 1 << 30


class Run:
    """A run on n0 and n1 with two ranks each, by a clock that stands still."""

    def __init__(self, own: tuple[tuple[int, ...] | None, ...] = ((0,), (1,), (0,), (1,))) -> None:
        self.own = own
        self.now = 100.0
        self.slow: tuple[str, ...] = ()
        self.state = RunState(["n0", "n1"], lambda: self.now)
        self.happens(ev.RanksPlaced(4, "n0", 1))
        for rank in range(4):
            self.happens(ev.RankSpawned(rank // 2, rank, 1000 + rank))

    def happens(self, event: ev.Event) -> None:
        self.state.event(Entry(1, 0.0, event))

    def sample(
        self, node: int, at: float, cpu: float, *gpus: GpuSample, late: bool = False
    ) -> None:
        ranks = tuple(
            RankSample(rank, "R", cpu * (rank + 1), GIB, 2, 1, self.own[rank])
            for rank in (2 * node, 2 * node + 1)
        )
        self.happens(NodeSampled(node, at, ranks, gpus, late))

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.state, self.slow)

    def row(self, rank: int) -> Any:
        (row,) = (row for row in self.snapshot().ranks if row.rank == str(rank))
        return row


def test_a_rank_from_start_to_end() -> None:
    run = Run()
    assert (run.row(3).host, run.row(3).local_rank, run.row(3).pid) == ("n1", 1, 1003)
    assert run.row(3).state == "starts"
    run.state.output(3, 1, b"one\ntwo\n")
    run.now += 7
    assert (run.row(3).last_line, run.row(3).silence) == ("two", 7.0)
    run.sample(1, 50.0, 1.0)
    assert (run.row(3).state, run.row(3).rss, run.row(3).cpu) == ("runs", GIB, None)
    run.sample(1, 52.0, 1.25)
    assert run.row(3).cpu == pytest.approx(50.0)  # a quarter second each of four, in two
    run.happens(ev.RankExited(1, 3, -9))
    assert (run.row(3).state, run.row(3).alive, run.row(3).cpu) == ("signal 9", False, None)
    run.happens(ev.RankExited(1, 2, 0))
    assert run.row(2).state == "done"
    run.happens(ev.NodeLost(0, Failure(Kind.LOST, "why")))
    assert run.row(0).state == "lost"
    run.happens(ev.RanksPlaced(4, "n0", 1, 1))
    assert run.snapshot().ranks == ()


def test_a_rank_that_is_started_again_has_no_share_of_its_old_process() -> None:
    run = Run()
    run.sample(0, 50.0, 100.0)
    run.happens(ev.RankSpawned(0, 0, 2000))
    run.sample(0, 52.0, 0.5)
    assert run.row(0).cpu is None
    assert run.row(1).cpu == 0.0  # less than before is nothing, not less


@cases(
    ("own", "seen"),
    [
        (((0,), (1,)), [0, 1]),
        (((3, 2), (1,)), [3, 1]),
        ((None, (1,)), [None, 1]),
        (((), (9,)), [None, None]),
    ],
)
def test_which_gpu_is_a_ranks_own(
    own: tuple[tuple[int, ...] | None, ...], seen: list[int | None]
) -> None:
    run = Run(own)
    run.sample(0, 1.0, 1.0, *(GpuSample(i, float(i), 1024, 2048, None, 50.0) for i in range(4)))
    for rank, gpu in enumerate(seen):
        row, known = run.row(rank), (float(gpu), 1024) if gpu is not None else (None, None)
        assert (row.gpu_used, row.gpu_memory, row.gpu_watts) == (*known, None)


def test_gpus_that_do_not_answer_are_named() -> None:
    run = Run()
    run.sample(1, 1.0, 1.0, late=True)
    assert run.snapshot().late_gpus == ("n1",)
    assert any("GPUs do not answer: n1" in line for line in picture(run.snapshot()))
    run.sample(1, 2.0, 1.0)
    assert run.snapshot().late_gpus == ()


@cases(
    ("chunks", "last"),
    [
        ([b"a\nb"], "b"),
        ([b"a\n\n\n"], "a"),
        ([b"10%\r20%\r"], "20%"),
        ([b"ab", b"cd"], "abcd"),
        ([b"\x1b]52;c;x\x07hello"], "\\x1b]52;c;x\\x07hello"),
        ([b"\xff\n"], "\\xff"),
        ([b"\r\x1b[2KDownloading 3\x1b[K"], "Downloading 3"),
        ([b"\router 2/3", b"\n\rinner 1/9\x1b[A"], "inner 1/9"),
        ([b""], ""),
        ([b"x" * 2 * LAST], "x" * LAST),
    ],
)
def test_the_last_line_is_harmless(chunks: list[bytes], last: str) -> None:
    run = Run()
    for chunk in chunks:
        run.state.output(0, 1, chunk)
    assert run.row(0).last_line == last


def test_a_bar_and_a_line_are_two() -> None:
    run = Run()
    run.state.output(0, 2, b"\rstep 4 of 4")
    run.state.output(0, 1, b"saved\n")
    assert run.row(0).last_line == "saved"


def test_words_that_come_before_the_news_of_the_start_are_kept() -> None:
    run = Run()
    run.state.output(9, 1, b"early\n")
    run.happens(ev.RankSpawned(1, 9, 1009))
    assert run.row(9).last_line == "early"


def test_a_shot_survives_json() -> None:
    run = Run()
    run.state.output(0, 1, b"\xff\n")
    run.sample(0, 1.0, 1.0, GpuSample(0, None, 1, 2, 3.5, 4.0))
    run.slow = ("rank 1 on n0: 2.0x",)
    snapshot = run.snapshot()
    assert Snapshot.of_plain(json.loads(json.dumps(snapshot.plain()))) == snapshot


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN, st.sampled_from(["picture", "ranks", "late_gpus", "slow", "row"]))
def test_anything_else_is_no_shot(value: Any, where: str) -> None:
    plain = json.loads(json.dumps(Run().snapshot().plain()))
    if where == "row":
        plain["ranks"][0] = value
    else:
        plain[where] = value
    try:
        assert isinstance(Snapshot.of_plain(plain), Snapshot)
    except ValueError:
        pass


# -- what it looks like -------------------------------------------------------------


def picture(
    snapshot: Snapshot, look: ViewState | None = None, columns: int = 100, rows: int = 12
) -> list[str]:
    """What a terminal shows, which nothing but text may reach."""
    lines, _ = WatchTable(["n0", "n1"]).lines(snapshot, look or ViewState(), columns, rows)
    emulator = Emulator(columns + 1, rows)
    emulator.feed(b"\r\n".join(line for line, _ in drawn(lines, columns)))
    assert emulator.answers == []
    return emulator.lines()


def test_the_name_of_the_job_is_the_first_line() -> None:
    lines, _ = WatchTable(["n0", "n1"], "lr-1").lines(Run().snapshot(), ViewState(), 60, 12)
    assert lines[0].plain == "lr-1"


def test_who_is_slow_stands_above_the_table() -> None:
    run = Run()
    run.slow = ("rank 1 on n0: 2.0x", "rank 3 on \x1b[Jn1: 1.6x")
    lines = picture(run.snapshot())
    assert lines[1] == "rank 1 on n0: 2.0x"
    assert lines[2].startswith("rank 3 on ")
    assert lines[3].startswith("RANK")


def test_the_whole_picture() -> None:
    run = Run()
    run.state.output(1, 1, b"step 7\n")
    run.now += 65
    for at in (1.0, 3.0):
        run.sample(0, at, at, GpuSample(0, 97.0, 40 * GIB, 80 * GIB, 612.4, 61.0))
    lines = picture(run.snapshot())
    assert "2 hosts: 2 running · 4 ranks: 4 running" in lines[0]
    assert lines[1].split() == [
        "RANK", "HOST", "LOCAL", "PID", "STATE", "CPU", "RSS", "GPU", "GMEM", "POWER", "SILENCE",
        "LAST", "LINE",
    ]  # fmt: skip
    assert [" ".join(line.split()) for line in lines[2:5]] == [
        "0 n0 0 1000 runs 100% 1.0G 97% 40G 612W 65 s",
        "1 n0 1 1001 runs 200% 1.0G - - - 65 s step 7",
        "2 n1 0 1002 starts - - - - - 65 s",
    ]
    assert lines[-1] == f"1-4 of 4, by rank   {HELP}"


def test_hostile_lines_and_markup_stay_text() -> None:
    run = Run()
    run.state.output(0, 1, b"[red]\x1b[2J\x1b]0;title\x07 \x1b[31mred\x1b[0m\ttab\n")
    lines = picture(run.snapshot(), columns=140)
    assert "[red]\\x1b[2J\\x1b]0;title\\x07 red" in lines[2]


@cases("columns", [1, 5, 40, 300])
@cases("rows", [1, 2, 3, 50])
def test_it_fits_into_any_window(columns: int, rows: int) -> None:
    run = Run()
    run.state.output(0, 1, b"wide " * 100)
    lines, _ = WatchTable(["n0", "n1"]).lines(run.snapshot(), ViewState(), columns, rows)
    assert len(lines) <= rows
    assert all(line.cell_len <= columns for line in lines)


# -- keys ----------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=8)))
def test_any_keys_leave_a_look_that_can_be_drawn(typed: list[bytes]) -> None:
    watch, snapshot, look = WatchTable(["n0", "n1"]), Run().snapshot(), ViewState()
    for data in typed:
        for key in keys(data):
            look = look.pressed(key, watch.page)
        lines, look = watch.lines(snapshot, look, 60, 8)
        assert 0 < len(lines) <= 8
