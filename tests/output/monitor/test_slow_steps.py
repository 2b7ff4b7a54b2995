"""Who is slower than the others: from tables of steps, and from lines in any pieces."""

from __future__ import annotations

import random
import re

import pytest
from cases import cases

from dispatcher.core.events.run_events import Entry, RankSpawned, RanksPlaced
from dispatcher.output.monitor.outliers import FRESH, LEAST_STEPS, MOST_LINE, StepLines, Steps
from dispatcher.output.run_state import RunState


def steps_of(count: int, ranks: int, slow: dict[int, float], kind: str) -> Steps:
    """``count`` steps of ``ranks`` that need 1 s, but for those that are ``slow``."""
    steps, random_ = Steps(), random.Random(7)
    now = dict.fromkeys(range(ranks), 0.0)
    for _ in range(count):
        needs = {rank: slow.get(rank, 1.0) * random_.uniform(0.97, 1.03) for rank in now}
        done = {rank: now[rank] + needs[rank] for rank in now}
        together = max(done.values())
        for rank in now:
            when = {"before the wait": done[rank], "alone": done[rank]}.get(kind, together)
            steps.step(rank, when, needs[rank] if kind == "told" else None)
            now[rank] = done[rank] if kind == "alone" else together
    return steps


@cases("kind", ["told", "before the wait", "alone"])
@cases("slow", [{}, {5: 1.8}, {0: 1.8}, {5: 3.0, 2: 2.0}, {4: 1.2}])
def test_who_is_slow(kind: str, slow: dict[int, float]) -> None:
    found = steps_of(30, 8, slow, kind).slow()
    wanted = {rank: ratio for rank, ratio in slow.items() if ratio > 1.5}
    assert {one.rank for one in found} == set(wanted)
    ratios = [one.value / one.usual for one in found]
    assert ratios == pytest.approx([wanted[one.rank] for one in found], rel=0.1)
    assert ratios == sorted(ratios, reverse=True)


@cases(
    ("count", "ranks", "kind"),
    [(4, 8, "told"), (5, 8, "alone"), (30, 2, "told"), (30, 8, "after the wait")],
)
def test_what_tells_nothing(count: int, ranks: int, kind: str) -> None:
    assert steps_of(count, ranks, {1: 4.0}, kind).slow() == []


def test_lines_in_any_pieces() -> None:
    lines = StepLines(
        re.compile(rb"step \d+ took ([\d.]+)"), RunState(["n1", "n\x1b"], lambda: 1.0)
    )
    lines.event(Entry(1, 0.0, RanksPlaced(4, "a", 1)))
    for rank in range(4):
        lines._state.event(Entry(2, 0.0, RankSpawned(rank // 2, rank, 7)))
        took = b"2.5" if rank == 3 else b"1.25"
        text = b"".join(b"x\rstep %d took %s s\nnoise\n" % (n, took) for n in range(8))
        for at in range(0, len(text), 1 + rank):
            lines.output(rank, 1, text[at : at + 1 + rank])
    (word,) = lines.words()
    assert word.startswith("rank 3 on n")
    assert word.endswith(": 2.0x the median step time (2.5 s)")
    assert "\x1b" not in word


def test_a_line_that_was_left_unfinished_is_no_step_of_the_next_attempt() -> None:
    lines = StepLines(re.compile(rb"step (\S+)"), RunState(["n1"], lambda: 1.0))
    lines.output(0, 1, b"step 1 of")
    lines.event(Entry(1, 0.0, RanksPlaced(1, "a", 1, 1)))
    lines.output(0, 1, b"loading\n")
    assert not lines._steps._ranks


def said(lines: StepLines, rank: int, *took: str) -> None:
    lines.output(rank, 1, b"".join(b"step %s\n" % one.encode() for one in took))


@cases(
    ("figure", "counts"),
    [("0", True), ("999999999", True), ("1e9", False), ("-0.1", False), ("nan", False)],
)
def test_which_figures_count(figure: str, counts: bool) -> None:
    lines = StepLines(re.compile(rb"step (\S+)"), RunState(["n1"], lambda: 1.0))
    said(lines, 0, *[figure] * 5)
    known = lines._steps._ranks[0]
    assert (len(known.took), known.lines) == (5 if counts else 0, 5)


def test_a_pattern_without_a_figure_counts_lines() -> None:
    now = [0.0]
    lines = StepLines(re.compile(rb"step"), RunState(["n1"], lambda: now[0]))
    for step in range(1, 41):
        now[0] = float(step)
        for rank in range(4):
            if rank < 3 or step % 2 == 0:
                lines.output(rank, 2, b"step\n")
    assert lines.words() == ("rank 3: 2.0x the median step time (2 s)",)


def test_few_are_told_and_an_answer_is_good_for_a_moment() -> None:
    now = [10.0]
    lines = StepLines(re.compile(rb"step (\S+)"), RunState(["n1"], lambda: now[0]))
    for rank in range(12):
        lines._state.event(Entry(1, 0.0, RankSpawned(0, rank, 7)))
        said(lines, rank, *[str(rank) if rank > 7 else "1"] * LEAST_STEPS)
    told = lines.words()
    assert [words.split(":")[0] for words in told] == [
        "rank 11 on n1", "rank 10 on n1", "rank 9 on n1"
    ]  # fmt: skip
    lines.event(Entry(1, 0.0, RanksPlaced(12, "a", 1)))
    now[0] += FRESH - 0.1
    assert lines.words() == told
    now[0] += 0.1
    assert lines.words() == ()  # another attempt has said nothing yet


def test_a_long_line_is_looked_at_from_its_beginning() -> None:
    lines = StepLines(re.compile(rb"^step (\S+)"), RunState(["n1"], lambda: 1.0))
    lines.output(0, 1, b"step 1 " + b"x" * MOST_LINE + b"\nstep 2\n")
    assert list(lines._steps._ranks[0].took) == [1.0, 2.0]
    lines.output(0, 1, b"y" * 3 * MOST_LINE)
    assert len(lines._rests[0, 1]) == MOST_LINE
