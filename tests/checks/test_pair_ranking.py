"""Rounds of pairs, and who is to blame: any number of hosts, one or a few of them bad."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.checks.pair_ranking import (
    LATE,
    InsideHost,
    Pair,
    below,
    doubtful,
    is_bad,
    next_round,
    rank_pairs,
    slow_rails,
    tournament,
)

RATE = 1e9


def measured(a: int, b: int, bad: set[int], how: str) -> Pair:
    """A pair as hosts would measure it, of which those in ``bad`` are throttled, cut or late."""
    if not bad & {a, b}:
        return Pair(a, b, 1e-4, RATE * (1 + a / 100), RATE)
    if how == "cut":
        return Pair(a, b, why="no answer")
    if how == "late":
        return Pair(a, b, 0.2, RATE, RATE)
    there, back = (RATE / 50 if host in bad else RATE for host in (a, b))
    return Pair(a, b, 1e-4, there, back)


@given(st.integers(0, 41))
def test_in_a_tournament_all_meet_all_once(count: int) -> None:
    hosts = list(range(10, 10 + count))
    met = set()
    for nth in range(max(0, count - 1 + count % 2)):
        pairs = tournament(hosts, nth)
        playing = [host for pair in pairs for host in pair]
        assert len(playing) == len(set(playing)) == count - count % 2
        for pair in pairs:
            assert frozenset(pair) not in met
            met.add(frozenset(pair))
    assert len(met) == count * (count - 1) // 2


def played(count: int, bad: set[int], how: str, rounds: int = 4) -> tuple[list[Pair], int]:
    """The pairs of as many rounds as are needed, and how many those were."""
    hosts = list(range(count))
    pairs: list[Pair] = []
    for nth in range(rounds):
        if nth > 1 and not doubtful(hosts, rank_pairs(pairs, 0.5)):
            return pairs, nth
        chosen = next_round(hosts, pairs, nth, 0.5)
        playing = [host for pair in chosen for host in pair]
        assert len(playing) == len(set(playing))
        pairs += [measured(a, b, bad, how) for a, b in chosen]
    return pairs, rounds


@given(st.integers(4, 40), st.sampled_from(["slow", "cut", "late"]), st.data())
def test_one_bad_host_is_found(count: int, how: str, data: st.DataObject) -> None:
    bad = {data.draw(st.integers(0, count - 1))}
    pairs, rounds = played(count, bad, how)
    found = rank_pairs(pairs, 0.5)
    assert (set(found.culprits), found.links) == (bad, ())
    assert rounds == 2 or count % 2 or count < 6  # an odd one out may need a third


@given(st.integers(10, 40), st.data())
def test_two_bad_hosts_are_found(count: int, data: st.DataObject) -> None:
    hosts = st.integers(0, count - 1)
    bad = set(data.draw(st.lists(hosts, min_size=2, max_size=2, unique=True)))
    pairs, _ = played(count, bad, "slow")
    assert set(rank_pairs(pairs, 0.5).culprits) == bad


@given(st.integers(2, 40))
def test_nobody_is_accused_for_nothing(count: int) -> None:
    pairs, rounds = played(count, set(), "slow")
    assert (rank_pairs(pairs, 0.5).bad, rounds <= 2 + count % 2) == (frozenset(), True)


def test_one_pair_is_bad_by_its_rate_or_its_latency() -> None:
    def bad(latency: float, rate: float) -> bool:
        return is_bad(Pair(0, 1, latency, rate, rate), 100.0, 0.0, 0.5)

    assert [bad(LATE, 50.0), bad(LATE, 49.0), bad(LATE * 1.01, 50.0)] == [False, True, True]


def test_a_bad_link_is_no_bad_host() -> None:
    pairs = [Pair(0, 1, 1e-4, 1e6, 1e9), *(Pair(a, b, 1e-4, 1e9, 1e9) for a, b in
             ((2, 3), (0, 2), (1, 3)))]  # fmt: skip
    found = rank_pairs(pairs, 0.5)
    assert (found.culprits, found.links) == ((), ((0, 1),))


@cases("pairs", [[], [Pair(0, 1, why="no answer")]])
def test_little_is_known(pairs: list[Pair]) -> None:
    found = rank_pairs(pairs, 0.5)
    assert (found.culprits, found.median) == ((), 0.0)
    assert found.bad == {(pair.a, pair.b) for pair in pairs}


@cases(
    ("rates", "slow"),
    [
        ({}, []),
        ({(0, 1): (48.0, 47.0), (2, 3): (46.0, 48.0)}, []),
        ({(0, 1): (48.0, 12.0), (0, 2): (48.0, 47.0), (1, 2): (48.0, 11.0)}, [(1, 1, 12.0, 48.0)]),
        ({(0, 1): (48.0, None), (0, 2): (48.0, 47.0), (1, 2): (48.0, None)}, [(1, 1, 0.0, 48.0)]),
        ({(2, 3): (24.0,), (0, 1): (48.0,), (1, 4): (48.0,)}, []),  # half is enough
        ({(3, 2): (23.0,), (0, 1): (48.0,), (1, 4): (48.0,)},
         [(2, 0, 23.0, 48.0), (3, 0, 23.0, 48.0)]),
        # two ends of a rail that was measured once: nobody knows which of them it is
        ({(0, 1): (48.0, 12.0)}, [(0, 1, 12.0, 48.0), (1, 1, 12.0, 48.0)]),
        ({(0, 1): (), (1, 2): (48.0,)}, []),
    ],
)  # fmt: skip
def test_rails_far_below_the_usual(
    rates: dict[tuple[int, int], tuple[float | None, ...]], slow: list[object]
) -> None:
    measured = [Pair(a, b, 1e-5, 1.0, 1.0, rails=rails) for (a, b), rails in rates.items()]
    assert slow_rails(measured, 0.5) == slow


H100, OTHER = "NVIDIA H100 80GB HBM3", "NVIDIA RTX A6000"


@cases(
    ("inside", "short"),
    [
        ([], {}),
        ([(4.6e11, H100, 8)], {}),
        ([(4.6e11, H100, 8), (4.59e11, H100, 8)], {1: 4.6e11}),
        ([(3.7e11, H100, 8), (3.44e11, H100, 8)], {1: 3.45e11}),  # without NVLink SHARP
        ([(3.44e11, H100, 8)] * 2, {0: 3.45e11, 1: 3.45e11}),  # also where all are alike
        ([(3.7e11, H100, 4)], {}),  # of four of them nothing is known
        ([(4.4e11, "NVIDIA H200", 8), (2.2e11, "NVIDIA A100-SXM4-80GB", 8)], {1: 2.28e11}),
        ([(1e11, OTHER, 2), (1e11, OTHER, 2), (4e10, OTHER, 2)], {2: 5e10}),
    ],
)
def test_hosts_that_are_slow_by_themselves(
    inside: list[tuple[float, str, int]], short: dict[int, float]
) -> None:
    measured = {host: InsideHost(*one) for host, one in enumerate(inside)}
    assert below(measured, 0.5) == pytest.approx(short)
    assert below(measured, 0.1, by_kind=False) == {}
