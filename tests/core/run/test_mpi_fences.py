"""Fences across nodes, and the mapping that tells MPI who shares memory."""

from __future__ import annotations

from collections import Counter

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.run.fences import (
    FENCE_LIMIT,
    MEMBER,
    NAMED,
    NODE_LIMIT,
    ONCE,
    WAITING,
    Account,
    FenceError,
    Fences,
    Release,
)
from dispatcher.core.run.mpi_manager import process_mapping

TWO = {0: (0, 1), 1: (2, 3)}


def test_opens_when_every_node_is_in() -> None:
    fences = Fences(TWO)
    assert fences.commit(0, "WORLD:0", 0, b"a") is None
    assert fences.missing("WORLD:0", 0) == [1]
    assert fences.commit(1, "WORLD:0", 0, b"b") == Release("WORLD:0", 0, (0, 1), (b"a", b"b"))
    assert fences.missing("WORLD:0", 0) == []
    assert fences.commit(1, "WORLD:0", 1, b"") is None


@given(st.permutations(range(5)), st.integers(1, 4))
def test_any_order_gives_everybody_s_keys_once_an_epoch(order: list[int], epochs: int) -> None:
    fences = Fences({node: (node,) for node in range(5)})
    for epoch in range(epochs):
        releases = [fences.commit(node, "WORLD:0", epoch, b"%d" % node) for node in order]
        assert releases[:-1] == [None] * 4
        last = releases[-1]
        assert last is not None
        assert (last.epoch, last.nodes) == (epoch, (0, 1, 2, 3, 4))
        assert sorted(last.packets) == [b"%d" % node for node in range(5)]


def test_groups_and_tags_are_fences_of_their_own() -> None:
    fences = Fences({0: (0, 1), 1: (2, 3), 2: (4,)})
    assert fences.commit(0, "1,2:7", 0, b"") is None
    assert fences.commit(0, "1,2:8", 0, b"") is None
    assert fences.commit(1, "1,2:7", 0, b"") == Release("1,2:7", 0, (0, 1), (b"", b""))
    with pytest.raises(FenceError):
        fences.commit(2, "1,2:7", 1, b"")


def test_nobody_waits_for_a_node_whose_members_have_ended() -> None:
    fences = Fences(TWO)
    assert fences.commit(0, "WORLD:0", 0, b"a") is None
    assert fences.ended(2) == []
    assert fences.ended(3) == [Release("WORLD:0", 0, (0,), (b"a",))]
    assert fences.commit(0, "WORLD:0", 1, b"") == Release("WORLD:0", 1, (0,), (b"",))


@cases(
    ("node", "name", "epoch"),
    [
        (0, "WORLD:0", 1), (0, "WORLD:0", -1), (9, "WORLD:0", 0), (0, "WORLD", 0),
        (0, "NODE:0", 0), (0, ":0", 0), (0, "0,9:0", 0), (0, "2,3:0", 0), (0, "-1:0", 0),
        (0, "0,²:0", 0), (0, "0,2:x", 0), (0, "", 0), (0, "0,1000000000000:1", 0),
        (0, "WORLD:123456789012", 0), (0, "0,1000000000:1", 0), (0, "0,:1", 0),
        (0, "WORLD:²", 0), (0, f"0,{'9' * 5000}:1", 0),
    ],
)  # fmt: skip
def test_what_a_node_may_not_commit(node: int, name: str, epoch: int) -> None:
    with pytest.raises(FenceError):
        Fences(TWO).commit(node, name, epoch, b"")


def test_names_of_barriers_may_be_as_long_as_numbers_are() -> None:
    fences = Fences({0: (0,), 1: (123456789,)})
    assert fences.commit(0, "WORLD:99999999999", 0, b"") is None
    assert fences.commit(0, "0,123456789:1", 0, b"") is None
    assert fences.missing("0,123456789:1", 0) == [1]


def test_only_in_the_present_epoch_somebody_is_missing() -> None:
    fences = Fences({0: (0, 1), 1: (2,), 2: (3,)})
    assert fences.missing("WORLD:0", 0) == []  # nobody has come
    fences.commit(0, "WORLD:0", 0, b"a")
    assert fences.missing("WORLD:0", 0) == [1, 2]
    assert fences.missing("WORLD:0", 1) == []
    assert fences.missing("WORLD:1", 0) == []
    assert fences.ended(2) == []
    assert fences.missing("WORLD:0", 0) == [2]
    assert fences.commit(2, "WORLD:0", 0, b"c") == Release("WORLD:0", 0, (0, 2), (b"a", b"c"))
    assert fences.missing("WORLD:0", 0) == fences.missing("WORLD:0", 1) == []


def test_packets_count_for_one_epoch() -> None:
    fences = Fences(TWO)
    for epoch in range(3):
        fences.commit(0, "WORLD:0", epoch, b"x" * (FENCE_LIMIT - 1))  # a single one may
        assert fences.commit(1, "WORLD:0", epoch, b"x") is not None
    with pytest.raises(FenceError, match="not a barrier"):
        fences.commit(0, "WORLD", 0, b"")


def test_a_refused_commit_leaves_nothing_behind() -> None:
    fences = Fences(TWO)
    for _ in range(2):
        with pytest.raises(FenceError, match="out of turn"):
            fences.commit(0, "2,3:0", 0, b"")
    assert fences.missing("2,3:0", 0) == []
    assert fences.ended(0) == fences.ended(1) == []


def test_a_second_commit_and_too_many_bytes_are_refused() -> None:
    fences = Fences(TWO)
    fences.commit(0, "WORLD:0", 0, b"x" * (FENCE_LIMIT - 1))
    with pytest.raises(FenceError):
        fences.commit(0, "WORLD:0", 0, b"")
    with pytest.raises(FenceError, match="the keys of one barrier take more than 15 MiB"):
        fences.commit(1, "WORLD:0", 0, b"xx")


def test_what_lies_in_closed_fences_is_bounded_for_each_node() -> None:
    fences, packet = Fences(TWO), b"x" * ((1 << 20) - WAITING)
    for tag in range(4):
        fences.commit(0, f"WORLD:{tag}", 0, packet)
    with pytest.raises(FenceError, match="its barriers take more than"):
        fences.commit(0, "WORLD:9", 0, packet)
    assert fences.missing("WORLD:9", 0) == []
    fences.commit(1, "WORLD:9", 0, packet)  # another has room
    for tag in range(4):
        assert fences.commit(1, f"WORLD:{tag}", 0, b"") is not None
    assert fences.commit(0, "WORLD:9", 0, packet) is not None
    assert fences._account.lying == {0: 0, 1: 0}


def test_each_fence_that_waits_counts_though_nothing_is_in_it() -> None:
    fences = Fences(TWO)
    for tag in range(NODE_LIMIT // WAITING):
        assert fences.commit(0, f"WORLD:{tag}", 0, b"") is None
    with pytest.raises(FenceError, match="its barriers take more than"):
        fences.commit(0, "WORLD:99999", 0, b"")
    assert fences.commit(1, "WORLD:99999", 0, b"") is None
    assert fences.commit(1, "WORLD:0", 0, b"") is not None
    assert fences.commit(0, "WORLD:99999", 0, b"") is not None


def test_a_node_has_one_account_for_all_worlds() -> None:
    account, packet = Account(), b"x" * (NODE_LIMIT // 2)
    one, two, three = (Fences(TWO, account=account) for _ in range(3))
    one.commit(0, "WORLD:0", 0, packet)
    one.commit(1, "WORLD:1", 0, b"")
    two.commit(0, "0,2:5", 0, packet[: -4 * WAITING])
    with pytest.raises(FenceError, match="its barriers take more than"):
        three.commit(0, "WORLD:0", 0, packet)
    three.commit(1, "WORLD:0", 0, packet)
    one.close()
    assert three.commit(0, "WORLD:0", 0, packet) is not None
    two.close()
    three.close()
    assert {*account.lying.values(), *account.named.values()} == {0}


STEPS = st.one_of(
    st.tuples(st.just("ended"), st.integers(0, 6)),
    st.tuples(st.sampled_from(["WORLD", "0,2", "2-4", "1,3-5"]), st.integers(0, 2)),
)


@given(st.lists(STEPS, max_size=30))
def test_a_fence_opens_when_all_are_in_or_have_ended(steps: list[tuple[str, int]]) -> None:
    ranks_of = {0: {0, 1}, 1: {2, 3}, 2: {4}}
    groups = {"WORLD": {*range(5)}, "0,2": {0, 2}, "2-4": {2, 3, 4}, "1,3-5": {1, 3, 4, 5}}
    fences = Fences(
        {n: tuple(r) for n, r in ranks_of.items()}, {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    )
    ranks_of = {**ranks_of, 2: {4, 5}}
    ended: set[int] = set()
    waiting: dict[str, list[int]] = {}
    epochs: Counter[str] = Counter()
    for what, number in steps:
        opened: set[str] = set()
        if what == "ended":
            opened = {release.fence for release in fences.ended(number)}
            ended.add(number)
        elif groups[what] & ranks_of[number] and number not in waiting.get(what, []):
            waiting.setdefault(what, []).append(number)
            release = fences.commit(number, f"{what}:1", epochs[what], b"%d" % number)
            opened = {f"{what}:1"} if release else set()
        for group, nodes in [*waiting.items()]:
            here = groups[group] - ({5} if group == "WORLD" else set())
            left = {n for n, r in ranks_of.items() if here & r and not here & r <= ended}
            missing = sorted(left - {*nodes})
            assert (f"{group}:1" in opened) == (not missing)
            assert fences.missing(f"{group}:1", epochs[group]) == missing
            if not missing:
                del waiting[group]
                epochs[group] += 1


def test_groups_count_by_their_members_and_names_for_who_comes_first() -> None:
    fences = Fences({0: tuple(range(500)), 1: (500,)})
    group = ",".join(map(str, range(501)))
    for tag in range(NODE_LIMIT // (501 * MEMBER)):
        fences.commit(0, f"{group}:{tag}", 0, b"")
    with pytest.raises(FenceError, match="its barriers take more than"):
        fences.commit(0, f"{group}:99", 0, b"")
    fences = Fences(TWO)
    for tag in range(NODE_LIMIT // (NAMED + len("1,2:99999"))):
        assert fences.commit(0, f"1,2:{10_000 + tag}", 0, b"") is None
        assert fences.commit(1, f"1,2:{10_000 + tag}", 0, b"") is not None
    with pytest.raises(FenceError, match="its barriers take more than"):
        fences.commit(0, "1,2:1", 0, b"")
    assert fences.commit(1, "0,3:1", 0, b"") is None  # the other one may still be the first


@cases(
    ("nodes", "text"),
    [
        ([0], "(vector,(0,1,1))"),
        ([0] * 8 + [1] * 8, "(vector,(0,2,8))"),
        ([0, 1, 0, 1], "(vector,(0,2,1),(0,2,1))"),
        ([0] * 2 + [1] * 4, "(vector,(0,1,2),(1,1,4))"),
        ([0, 0, 1, 1, 0], "(vector,(0,2,2),(0,1,1))"),
    ],
)
def test_mapping(nodes: list[int], text: str) -> None:
    assert process_mapping(nodes) == text


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_mapping_says_each_rank_s_node(nodes: list[int]) -> None:
    text = process_mapping(nodes).removeprefix("(vector,(").removesuffix("))")
    told = []
    for block in text.split("),("):
        first, n_nodes, each = map(int, block.split(","))
        told += [node for node in range(first, first + n_nodes) for _ in range(each)]
    assert told == nodes


def test_a_meeting_is_forgotten_when_it_is_over() -> None:
    fences = Fences(TWO)
    for _ in range(2):  # the same again is a meeting of its own
        assert fences.commit(0, f"0-2:{ONCE + 7}", 0, b"a") is None
        opened = fences.commit(1, f"0-2:{ONCE + 7}", 0, b"b")
        assert opened == Release(f"0-2:{ONCE + 7}", 0, (0, 1), (b"a", b"b"), once=True)
        assert fences._groups == {}
    for number in range(3 * NODE_LIMIT // NAMED // 4 + 9):  # many that stayed would be too many
        assert fences.commit(0, f"0:{ONCE + number}", 0, b"") is not None


def test_ranks_of_several_worlds_meet_by_their_numbers() -> None:
    fences = Fences(TWO, {0: 0, 1: 0, 2: 1, 3: 1, 1 << 20: 1, (1 << 20) + 1: 2})
    name = f"3,1048576-1048577:{ONCE}"
    assert fences.commit(1, name, 0, b"a") is None
    assert fences.missing(name, 0) == [2]
    with pytest.raises(FenceError):  # it has no rank there
        fences.commit(0, name, 0, b"")
    opened = fences.commit(2, name, 0, b"b")
    assert opened is not None
    assert opened.nodes == (1, 2)


@cases(
    "group",
    [
        "0-4",
        "3-0",
        "0-1,1-2",
        "0-1,0-1",
        "0-",
        "-1",
        "0-1-2",
        "0-99999999999",
        "1,0-1",
        "2,2",
        "2,1",
        "0,1,1",
    ],
)
def test_spans_that_cannot_be(group: str) -> None:
    fences = Fences(TWO)
    with pytest.raises(FenceError):
        fences.commit(1, f"{group}:{ONCE}", 0, b"")
