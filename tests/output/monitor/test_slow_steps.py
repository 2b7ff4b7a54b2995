"""Who is slower than the others: from tables of steps, and from lines in any pieces."""

from __future__ import annotations

import random
import re

import pytest

from dispatcher.core.events.run_events import Entry, RankSpawned, RanksPlaced
from dispatcher.output.monitor.outliers import StepLines, Steps


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


@pytest.mark.parametrize("kind", ["told", "before the wait", "alone"])
@pytest.mark.parametrize("slow", [{}, {5: 1.8}, {0: 1.8}, {5: 3.0, 2: 2.0}, {4: 1.2}])
def test_who_is_slow(kind: str, slow: dict[int, float]) -> None:
    found = steps_of(30, 8, slow, kind).slow()
    wanted = {rank: ratio for rank, ratio in slow.items() if ratio > 1.5}
    assert {one.rank for one in found} == set(wanted)
    ratios = [one.value / one.usual for one in found]
    assert ratios == pytest.approx([wanted[one.rank] for one in found], rel=0.1)
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize(
    ("count", "ranks", "kind"),
    [(4, 8, "told"), (5, 8, "alone"), (30, 2, "told"), (30, 8, "after the wait")],
)
def test_what_tells_nothing(count: int, ranks: int, kind: str) -> None:
    assert steps_of(count, ranks, {1: 4.0}, kind).slow() == []


def test_lines_in_any_pieces() -> None:
    lines = StepLines(re.compile(rb"step \d+ took ([\d.]+)"), ["n1", "n\x1b"], lambda: 1.0)
    lines.event(Entry(1, 0.0, RanksPlaced(4, "a", 1)))
    for rank in range(4):
        lines.event(Entry(2, 0.0, RankSpawned(rank // 2, rank, 7)))
        took = b"2.5" if rank == 3 else b"1.25"
        text = b"".join(b"x\rstep %d took %s s\nnoise\n" % (n, took) for n in range(8))
        for at in range(0, len(text), 1 + rank):
            lines.output(rank, 1, text[at : at + 1 + rank])
    (word,) = lines.words()
    assert word.startswith("rank 3 on n")
    assert word.endswith(": 2.0x the median step time (2.5 s)")
    assert "\x1b" not in word


def test_figures_that_are_none() -> None:
    lines = StepLines(re.compile(rb"step (\S+)?"), ["n1"], lambda: 1.0)
    for figure in (b"nan", b"-1", b"1e400", b"x", b""):
        lines.output(0, 1, b"step " + figure + b"\n")
    assert lines.words() == ()
