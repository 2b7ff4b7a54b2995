"""Placement: tables, and what holds for any cluster."""

from __future__ import annotations

import time

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import PlanError, UsageError
from dispatcher.model.host import Host
from dispatcher.plan.hosts.filters import Choice
from dispatcher.plan.job import placement
from dispatcher.plan.job.placement import (
    TooFewSlots,
    divide_hosts,
    parse_ranks,
    ranks_of,
    shares,
)


@cases(
    ("room", "n_ranks", "map_by", "ranks"),
    [
        ([2, 2], 4, "block", [(0, 1), (2, 3)]), ([1, 2], 3, "block", [(0,), (1, 2)]),
        ([3, 2], 5, "block", [(0, 1, 2), (3, 4)]), ([4, 4], 6, "block", [(0, 1, 2, 3), (4, 5)]),
        ([4, 4], 3, "block", [(0, 1, 2), ()]), ([2, 2], 4, "node", [(0, 2), (1, 3)]),
        ([1, 3], 4, "node", [(0,), (1, 2, 3)]),
        ([3, 1, 2], 6, "node", [(0, 3, 5), (1,), (2, 4)]),
        ([4, 4, 4], 2, "node", [(0,), (1,), ()]),
    ],
)  # fmt: skip
def test_ranks_go_where_the_mapping_says(
    room: list[int], n_ranks: int, map_by: str, ranks: list[tuple[int, ...]]
) -> None:
    assert list(ranks_of(shares(room, n_ranks, map_by=map_by), map_by)) == ranks


@cases(
    ("room", "most", "n_ranks", "counts"),
    [
        ([2, 2], [None, None], 6, (3, 3)), ([2, 2], [None, None], 5, (3, 2)),
        ([2, 2], [2, None], 7, (2, 5)), ([1, 4], [2, 4], 6, (2, 4)),
    ],
)  # fmt: skip
@cases("map_by", ["block", "node"])
def test_extra_ranks_are_dealt_out_in_turn(
    room: list[int], most: list[int | None], n_ranks: int, counts: tuple[int, ...], map_by: str
) -> None:
    assert shares(room, n_ranks, map_by=map_by, most=most, oversubscribe=True) == counts


def test_more_ranks_than_slots_must_be_asked_for() -> None:
    with pytest.raises(TooFewSlots, match="5 ranks, 4 slots, at most None") as caught:
        shares([2, 2], 5)
    assert (caught.value.asked, caught.value.free, caught.value.most) == (5, 4, None)
    assert shares([2, 2], 4) == (2, 2)


def test_max_slots_holds_even_when_asked() -> None:
    with pytest.raises(TooFewSlots) as caught:
        shares([2, 2], 6, most=[2, 3], oversubscribe=True)
    assert caught.value.most == 5
    assert shares([2, 2], 5, most=[2, 3], oversubscribe=True) == (2, 3)
    with pytest.raises(TooFewSlots) as caught:
        shares([2, 2], 5, most=[2, 3])
    assert caught.value.most == 5
    with pytest.raises(TooFewSlots) as caught:
        shares([2, 2], 5, most=[2, None])
    assert caught.value.most is None


rooms = st.lists(st.integers(1, 12), min_size=1, max_size=30)
mappings = st.sampled_from(["block", "node"])


@given(rooms, mappings, st.data())
def test_placement_is_a_bijection(room: list[int], map_by: str, data: st.DataObject) -> None:
    n_ranks = data.draw(st.integers(1, sum(room)))
    counts = shares(room, n_ranks, map_by=map_by)
    placed = ranks_of(counts, map_by)
    assert sorted(rank for ranks in placed for rank in ranks) == list(range(n_ranks))
    assert [len(ranks) for ranks in placed] == list(counts)
    assert all(count <= slots for count, slots in zip(counts, room, strict=True))
    assert all(list(ranks) == sorted(ranks) for ranks in placed), "local ranks rise with ranks"
    assert placed[0][0] == 0, "rank 0 is on the first node"
    if map_by == "block":
        assert [rank for ranks in placed for rank in ranks] == list(range(n_ranks))
    else:
        open_counts = [c for c, slots in zip(counts, room, strict=True) if c < slots]
        assert not open_counts or max(counts) - min(open_counts) <= max(counts)
        assert all(abs(a - b) <= 1 for a in open_counts for b in open_counts), "dealt evenly"


@given(rooms, mappings, st.integers(1, 200), st.data())
def test_oversubscription_respects_every_bound(
    room: list[int], map_by: str, n_ranks: int, data: st.DataObject
) -> None:
    most = [slots + data.draw(st.integers(0, 5)) for slots in room]
    try:
        counts = shares(room, n_ranks, map_by=map_by, most=most, oversubscribe=True)
    except TooFewSlots:
        assert n_ranks > sum(most)
    else:
        assert sum(counts) == n_ranks
        assert all(count <= bound for count, bound in zip(counts, most, strict=True))
        if n_ranks >= sum(room):
            assert all(count >= slots for count, slots in zip(counts, room, strict=True))


@cases("map_by", ["block", "node"])
def test_a_lopsided_cluster_is_placed_fast(map_by: str) -> None:
    room = [4096] + [1] * 65535
    started = time.process_time()
    counts = shares(room, sum(room), map_by=map_by)
    assert sum(len(ranks) for ranks in ranks_of(counts, map_by)) == sum(room)
    assert time.process_time() - started < 20.0


def named(hosts: tuple[Choice, ...]) -> list[str]:
    return [choice.host.name for choice in hosts]


@cases(
    ("nnodes", "spares", "used", "spared"),
    [
        (None, None, "abcd", "s"), (None, 0, "abcd", "s"), (None, 3, "a", "bcds"),
        (4, None, "abcd", "s"), (2, None, "ab", "s"), (2, 1, "ab", "cs"), (2, 2, "ab", "cds"),
        (1, 3, "a", "bcds"),
    ],
)  # fmt: skip
def test_hosts_to_use_and_to_spare(
    nnodes: int | None, spares: int | None, used: str, spared: str
) -> None:
    choices = [Choice(Host(name, spare=name == "s"), None) for name in "sabcd"]
    found = divide_hosts(choices, nnodes, spares)
    assert tuple(map(named, found)) == (list(used), list(spared))


@cases(
    ("nnodes", "spares", "least", "used"),
    [(6, None, 2, "abcd"), (6, None, 4, "abcd"), (3, None, 2, "abc"), (6, 1, 3, "abc")],
)
def test_a_range_takes_what_there_is(
    nnodes: int, spares: int | None, least: int, used: str
) -> None:
    choices = [Choice(Host(name), None) for name in "abcd"]
    assert named(divide_hosts(choices, nnodes, spares, least)[0]) == list(used)
    with pytest.raises(PlanError):
        divide_hosts(choices, 6, spares, 5)


@cases(
    ("hosts", "nnodes", "spares", "said"),
    [
        ("ab", None, 2, "--spares 2: no host is left to start on: only 2 hosts: a,b"),
        ("a", 2, None, "--nnodes 2: only 1 host: a"),
        ("ab", 3, 1, "--nnodes 3: only 2 hosts: a,b"),
        ("ab", 2, 1, "--nnodes 2 --spares 1: only 2 hosts: a,b"),
        ("s", None, None, "s: only spares, no host to start on"),
    ],
)
def test_too_few_hosts(hosts: str, nnodes: int | None, spares: int | None, said: str) -> None:
    choices = [Choice(Host(name, spare=name == "s"), None) for name in hosts]
    with pytest.raises(PlanError) as caught:
        divide_hosts(choices, nnodes, spares)
    assert caught.value.message == said


FIRST, MOST = placement.FIRST, placement.MOST_SPAWNED


@cases(
    ("world", "rank", "number", "name"),
    [
        (0, 0, 0, "0"),
        (0, FIRST - 1, FIRST - 1, str(FIRST - 1)),
        (1, 0, FIRST, "1.0"),
        (1, MOST - 1, FIRST + MOST - 1, f"1.{MOST - 1}"),
        (2, 0, FIRST + MOST, "2.0"),
        (placement.MOST_WORLDS, MOST - 1, (1 << 32) - 1, f"{placement.MOST_WORLDS}.{MOST - 1}"),
    ],
)
def test_numbers_of_ranks(world: int, rank: int, number: int, name: str) -> None:
    assert placement.number(world, rank) == number
    assert placement.place(number) == (world, rank)
    assert placement.rank_name(number) == name


@cases(
    ("text", "size", "ranks"),
    [("0", None, [0]), ("0,3-5", 6, [0, 3, 4, 5]), (" 1 , 2-2", None, [1, 2]), ("none", 4, []),
     ("5", 6, [5]), ("3,1", None, [1, 3])],
)  # fmt: skip
def test_a_set_of_ranks(text: str, size: int | None, ranks: list[int]) -> None:
    wanted = parse_ranks(text, "--only", size)
    assert [rank for rank in range(9) if rank in wanted] == ranks


@cases(
    ("text", "size", "why", "hint"),
    [
        ("", None, "--only: not a list of ranks: ''", "--only 0,3-5"),
        ("a", None, "--only: not a list of ranks: 'a'", "--only 0,3-5"),
        ("1,,2", None, "--only: not a list of ranks: '1,,2'", "--only 0,3-5"),
        ("12345678", None, "--only: not a list of ranks: '12345678'", "--only 0,3-5"),
        ("1, 5-3", None, "--only: 5-3: the first is larger than the last", None),
        ("0,4", 4, "--only: 4: the world's ranks are 0-3", None),
        ("0-4", 4, "--only: 4: the world's ranks are 0-3", None),
    ],
)  # fmt: skip
def test_what_is_no_set_of_ranks(text: str, size: int | None, why: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as told:
        parse_ranks(text, "--only", size)
    assert (told.value.message, told.value.hint) == (why, hint)
