"""The groups are Megatron's: its tables, and a second way to compute them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.comm import GroupError
from dispatcher.comm.groups import AXES as BUILT
from dispatcher.comm.groups import ORDER, Box, Groups, build, check_hosts, plan

AXES = ("tp", "cp", "ep", "dp", "pp")


def spell(groups: Iterable[Iterable[int]]) -> str:
    return " ".join("[" + ",".join(map(str, group)) + "]" for group in groups)


PAIRS = "[0,1] [2,3] [4,5] [6,7] [8,9] [10,11] [12,13] [14,15]"
EIGHTS = "[0,8] [1,9] [2,10] [3,11] [4,12] [5,13] [6,14] [7,15]"
FOURS = "[0,1,2,3] [4,5,6,7] [8,9,10,11] [12,13,14,15]"
BY_TWO = "[0,2] [1,3] [4,6] [5,7] [8,10] [9,11] [12,14] [13,15]"
BY_FOUR = "[0,4] [1,5] [2,6] [3,7] [8,12] [9,13] [10,14] [11,15]"
WIDE = {"tp": 2, "pp": 4, "dp": 2}
PIPES = {"tp": 2, "pp": 4, "order": "tp-cp-ep-pp-dp"}
CONTEXT = {"tp": 2, "cp": 2, "dp": 2, "pp": 2}
EXPERTS = {"ep": 4, "pp": 2}


@cases(
    "sizes, axes, expected",
    [
        (WIDE, "tp", PAIRS), (WIDE, "dp", BY_TWO), (WIDE, "tp-dp", FOURS),
        (WIDE, "pp", "[0,4,8,12] [1,5,9,13] [2,6,10,14] [3,7,11,15]"),
        (WIDE, "tp-pp", "[0,1,4,5,8,9,12,13] [2,3,6,7,10,11,14,15]"),
        (PIPES, "pp", "[0,2,4,6] [1,3,5,7] [8,10,12,14] [9,11,13,15]"), (PIPES, "dp", EIGHTS),
        (CONTEXT, "cp", BY_TWO), (CONTEXT, "dp", BY_FOUR), (CONTEXT, "pp", EIGHTS),
        (CONTEXT, "dp-cp", "[0,2,4,6] [1,3,5,7] [8,10,12,14] [9,11,13,15]"),
        (EXPERTS, "ep", FOURS), (EXPERTS, "expert_dp", BY_FOUR), (EXPERTS, "pp", EIGHTS),
        (EXPERTS, "dp", "[0,1,2,3,4,5,6,7] [8,9,10,11,12,13,14,15]"),
    ],
)  # fmt: skip
def test_megatrons_tables_of_sixteen_ranks(sizes: dict[str, Any], axes: str, expected: str) -> None:
    layout = plan(16, **sizes)
    assert spell(layout.groups(axes)) == expected
    assert layout.groups("-".join(reversed(axes.split("-")))) == layout.groups(axes)


small_sizes = st.integers(1, 4)


@given(st.tuples(*[small_sizes] * 5), st.sets(st.sampled_from(AXES)))
def test_groups_are_those_of_the_coordinates(sizes: tuple[int, ...], chosen: set[str]) -> None:
    """Second way: give each rank its coordinates, sort ranks into groups by the fixed ones."""
    # product() turns its last factor fastest; a rank's leftmost axis is the fastest
    points = product(*(range(size) for size in reversed(sizes)))
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, point in enumerate(points):
        place = zip(reversed(AXES), point, strict=True)
        fixed = tuple(at for axis, at in place if axis not in chosen)
        found.setdefault(fixed, []).append(rank)
    expected = [tuple(found[fixed]) for fixed in sorted(found)]
    assert list(Box(AXES, sizes).groups(chosen)) == expected


@given(small_sizes, small_sizes, small_sizes, small_sizes, st.sampled_from([1, 2]))
def test_every_rank_is_in_one_group_of_each_axis(
    tp: int, ep: int, pp: int, more: int, expert_tp: int
) -> None:
    world = tp * ep * pp * more * expert_tp
    layout = plan(world, tp=tp, ep=ep, pp=pp, expert_tp=expert_tp)
    for axes in ("tp", "cp", "dp", "pp", "dp-cp", "ep", "expert_tp", "expert_dp", "ep-expert_dp"):
        groups = layout.groups(axes)
        assert sorted(rank for group in groups for rank in group) == list(range(world))
        assert all(list(group) == sorted(group) for group in groups)
        number, ranks = layout.group_of(axes, world - 1)
        assert groups[number] == ranks
        assert world - 1 in ranks


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        ({"tp": 3}, "does not fit a world of 8 ranks", "must divide 8"),
        ({"tp": 2, "dp": 2}, "tp=2 x cp=1 x pp=1 x dp=2: does not fit", "leave dp out: it is 4"),
        ({"tp": 0}, "tp=0: must be 1 or more", None),
        ({"ep": 3}, "ep=3 x pp=1: does not divide 8", None),
        ({"order": "tp-xx"}, "'xx' is unknown", None),
        ({"order": "tp-tp"}, "'tp' is unknown or there twice", None),
        ({"pp": 2, "order": "tp-dp"}, "lacks pp, whose size is 2", "order='tp-dp-pp'"),
        (
            {"cp": 2, "ep": 2, "pp": 2, "expert_tp": 2, "order": "ep-pp-tp-cp-dp"},
            "the experts' pipelines",
            ORDER,
        ),
    ],
)
def test_what_does_not_fit_is_said(wrong: dict[str, Any], message: str, hint: str | None) -> None:
    with pytest.raises(GroupError) as caught:
        plan(8, **wrong)
    assert message in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


def test_unknown_axes_are_refused() -> None:
    layout = plan(8, tp=2, ep=2)
    for axes in ("xp", "", "tp-tp", "tp-ep", "dp-expert_dp"):
        with pytest.raises(GroupError):
            layout.groups(axes)
    with pytest.raises(GroupError, match="no rank 8 in a world of 8"):
        layout.group_of("tp", 8)


def hosts(*slots: int) -> dict[int, str]:
    """rank -> host, block placement."""
    names = [f"n{index}" for index, count in enumerate(slots, 1) for _ in range(count)]
    return dict(enumerate(names))


def test_tensor_parallel_in_a_host_is_quiet() -> None:
    assert check_hosts(plan(16, tp=8), hosts(8, 8)) == []
    assert check_hosts(plan(12, tp=4), hosts(8, 4)) == []


def test_tensor_parallel_over_hosts_warns() -> None:
    (warning,) = check_hosts(plan(8, tp=4), hosts(2, 2, 2, 2))
    assert "ranks 0, 1, 2, 3 are on n1, n2: tensor parallel over the network is slow" in warning
    assert warning.endswith("put 4 ranks on a host")
    (warning,) = check_hosts(plan(12, tp=4), hosts(3, 3, 3, 3))
    assert warning.endswith("put 4 ranks on a host")
    turns = {rank: f"n{rank % 2}" for rank in range(8)}
    (warning,) = check_hosts(plan(8, tp=2), turns)
    assert "ranks must fill a host" in warning


def test_uneven_slots_that_split_tensor_groups_are_refused() -> None:
    with pytest.raises(GroupError, match="n3 has 2 ranks"):
        check_hosts(
            plan(20, tp=4), {**hosts(8, 8), **dict.fromkeys((16, 17), "n3"), 18: "n4", 19: "n4"}
        )
    with pytest.raises(GroupError, match=r"tp=8: n3 has 4 ranks"):
        check_hosts(plan(24, tp=8), {**hosts(8, 8, 4), **dict.fromkeys(range(20, 24), "n4")})


def test_tensor_parallel_that_is_not_first_in_the_order() -> None:
    (text,) = check_hosts(plan(4, tp=2, order="dp-tp"), hosts(2, 2))
    assert "ranks 0, 2 are on n1, n2" in text
    assert text.endswith("ranks must fill a host before the next, and tp come first in the order")


class Torch:
    """torch.distributed as far as groups are made of it. splits: as NCCL bound to a GPU does."""

    int = "int"

    def __init__(self, *, bound: bool = False, splits: bool = False) -> None:
        self.made: list[list[int]] = []
        self.local: list[list[int]] = []
        self.split: list[Any] = []
        self.limits: set[float] = set()
        self.meshes: list[tuple[Any, ...]] = []
        self.rank = -1
        mesh = SimpleNamespace(DeviceMesh=SimpleNamespace(from_group=self.from_group))
        world = SimpleNamespace(
            bound_device_id="cuda:0" if bound else None,
            _device_types=["cuda", "cpu"],
            _get_backend=lambda kind: SimpleNamespace(supports_splitting=splits or kind == "cuda"),
            split_group=None,
        )
        self.distributed = SimpleNamespace(
            group=SimpleNamespace(WORLD=world),
            new_group=self.new_group,
            split_group=self.split_group,
            device_mesh=mesh,
        )

    def new_group(
        self, ranks: list[Any], *, timeout: timedelta, use_local_synchronization: bool = False
    ) -> tuple[Any, ...]:
        (self.local if use_local_synchronization else self.made).append(ranks)
        self.limits.add(timeout.total_seconds())
        return tuple(ranks)

    def split_group(self, *, split_ranks: list[Any], timeout: timedelta) -> tuple[Any, ...]:
        self.split.append(split_ranks)
        self.limits.add(timeout.total_seconds())
        return next(tuple(ranks) for ranks in split_ranks if self.rank in ranks)

    def arange(self, size: Any, dtype: str) -> Any:
        return SimpleNamespace(reshape=lambda shape: (size, dtype, shape))

    def from_group(self, *words: Any, **more: Any) -> object:
        self.meshes.append((*words, more))
        return object()


class Child:
    """What a split gives."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


class Nccl:
    """A communicator that notes its splits."""

    def __init__(self) -> None:
        self.splits: list[tuple[int, int, str]] = []
        self.children: list[Child] = []

    def split(self, color: int, key: int, *, name: str) -> Any:
        self.splits.append((color, key, name))
        self.children.append(Child())
        return self.children[-1]


def built(rank: int = 5, **more: Any) -> Groups:
    return build(plan(8, tp=2, pp=2), rank, [f"n{r // 4}" for r in range(8)], **more)


class TestBuild:
    def test_each_group_of_a_rank(self) -> None:
        groups = built()
        assert (groups.tp.ranks, groups.tp.rank, groups.tp.size, groups.tp.number) == (
            (4, 5), 1, 2, 2,
        )  # fmt: skip
        assert groups.tp.hosts == ("n1",)
        assert (groups.pp.ranks, groups.pp.rank, groups.pp.hosts) == ((1, 5), 1, ("n0", "n1"))
        assert (groups.dp.ranks, groups.dp.number) == ((5, 7), 3)
        assert (groups.cp.ranks, groups.ep.ranks) == ((5,), (5,))
        assert [groups[axes].axes for axes in BUILT] == list(BUILT)
        assert (groups.tp.process_group, groups.tp.nccl) == (None, None)

    @cases("bound, splits", [(False, False), (True, False), (True, True)])
    def test_all_ranks_make_all_of_torchs_groups_once_in_one_order(
        self, bound: bool, splits: bool
    ) -> None:
        orders = []
        for rank in range(8):
            torch = Torch(bound=bound, splits=splits)
            torch.rank = rank
            groups = built(rank, torch=torch, timeout=3600.0)
            orders.append((torch.made, torch.split))
            for axes in BUILT:
                assert groups[axes].process_group == groups[axes].ranks
            assert torch.limits == {3600.0}  # not torch's own half hour
            # a rank alone asks nobody, unless NCCL would split the world for it
            assert torch.local == ([] if bound else [[rank]])
        assert all(order == orders[0] for order in orders)
        singly, split = orders[0]
        assert len(singly) == len({tuple(ranks) for ranks in singly})
        if splits:
            assert (singly, len(split)) == ([], 5)  # one an axis, of those that differ
            assert split[0] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        else:
            assert singly[:4] == [[0, 1], [2, 3], [4, 5], [6, 7]]
            assert [0] not in singly or bound

    def test_axes_with_the_same_groups_share_a_communicator(self) -> None:
        nccl = Nccl()
        groups = built(nccl=nccl)
        assert [split[2] for split in nccl.splits] == ["tp", "cp", "dp", "pp", "tp-pp"]
        assert nccl.splits[0] == (2, 5, "tp")
        assert groups.dp.nccl is groups["dp-cp"].nccl
        assert groups.cp.nccl is groups.ep.nccl  # of one rank each
        groups.close()
        assert [child.closed for child in nccl.children] == [1] * 5

    def test_only_the_axes_asked_for(self) -> None:
        groups = built(axes=("tp", "tp-dp"))
        assert groups["tp-dp"].ranks == (4, 5, 6, 7)
        with pytest.raises(GroupError, match="'pp': was not built") as caught:
            groups["pp"]
        assert caught.value.hint == "job.parallel(..., also=['pp'])"
        with pytest.raises(GroupError, match="'xp': is not made of"):
            groups["xp"]
        groups.close()  # there are no communicators

    def test_a_mesh_over_the_same_groups(self) -> None:
        groups = built(torch=(torch := Torch()), device_type="cuda")
        mesh = groups.mesh()
        assert groups.mesh() is mesh
        members = [groups[axes].process_group for axes in ("pp", "dp", "cp", "tp")]
        more = {"mesh": (8, "int", [2, 2, 1, 2]), "mesh_dim_names": ("pp", "dp", "cp", "tp")}
        assert torch.meshes == [(members, "cuda", more)]
        with pytest.raises(GroupError, match="torch was not started"):
            built().mesh()
