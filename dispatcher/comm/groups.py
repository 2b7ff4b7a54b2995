"""Groups of ranks: which ranks form them (Megatron's order), and a rank's use of them.

The world is a box with one axis a kind of parallelism. In ``order``, as ``tp-cp-ep-dp-pp``, the
leftmost axis has stride 1, and each next stride is the product of the sizes to its left. A group
over some axes is what remains when all other coordinates are fixed; groups are numbered by those,
leftmost fastest. Experts have a second box over the same ranks (tp' x ep x dp' x pp), with the
pipeline groups of the first; ``dp-cp`` and the like join axes of one box.

Source: RankGenerator in megatron/core/parallel_state.py. All ranks make their groups in one
order, or they would wait for each other for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from dispatcher.comm.errors import GroupError
from dispatcher.comm.nccl.communicator import Communicator

ORDER = "tp-cp-ep-dp-pp"
_AXES = ("tp", "cp", "ep", "dp", "pp")
#: An axis of the expert box, as the caller names it -> its name in the order.
_EXPERT = {"ep": "ep", "expert_tp": "tp", "expert_dp": "dp"}

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """One box of ranks: the axes, leftmost fastest, and their sizes."""

    order: tuple[str, ...]
    sizes: tuple[int, ...]

    def groups(self, axes: Iterable[str]) -> tuple[Ranks, ...]:
        """All groups over these axes; together they hold every rank once."""
        wanted = set(axes)
        inside: list[tuple[int, int]] = []
        outside: list[tuple[int, int]] = []
        stride = 1
        for axis, size in zip(self.order, self.sizes, strict=True):
            (inside if axis in wanted else outside).append((size, stride))
            stride *= size
        offsets = _points(inside)
        return tuple(tuple(base + offset for offset in offsets) for base in _points(outside))


def _points(axes: Iterable[tuple[int, int]]) -> list[int]:
    """The ranks at all coordinates of these (size, stride), first axis fastest."""
    points = [0]
    for size, stride in axes:
        points = [point + step * stride for step in range(size) for point in points]
    return points


@dataclass(frozen=True)
class Layout:
    """The groups of a world; ``order`` is complete, ``sizes`` has every axis."""

    world: int
    order: tuple[str, ...]
    sizes: Mapping[str, int]

    @cached_property
    def _dense(self) -> Box:
        sizes = {**self.sizes, "ep": 1}
        return Box(self.order, tuple(sizes[axis] for axis in self.order))

    @cached_property
    def _experts(self) -> Box:
        sizes = {
            "tp": self.sizes["expert_tp"],
            "cp": 1,
            "ep": self.sizes["ep"],
            "dp": self.sizes["expert_dp"],
            "pp": self.sizes["pp"],
        }
        return Box(self.order, tuple(sizes[axis] for axis in self.order))

    def size(self, axes: str) -> int:
        """How many ranks a group over ``axes`` (as "tp" or "dp-cp") has."""
        return prod(self.sizes[axis] for axis in self._split(axes))

    def groups(self, axes: str) -> tuple[Ranks, ...]:
        """All groups over ``axes``, in Megatron's order; GroupError if there are no such axes."""
        names = self._split(axes)
        if any(name in _EXPERT for name in names):
            return self._experts.groups(_EXPERT.get(name, name) for name in names)
        return self._dense.groups(names)

    def group_of(self, axes: str, rank: int) -> tuple[int, Ranks]:
        """(number, ranks) of the group over ``axes`` that ``rank`` is in."""
        for number, ranks in enumerate(self.groups(axes)):
            if rank in ranks:
                return number, ranks
        raise GroupError(f"comm: groups: no rank {rank} in a world of {self.world}")

    def _split(self, axes: str) -> list[str]:
        names = axes.split("-")
        unknown = [name for name in names if name not in self.sizes]
        if unknown or len(set(names)) != len(names):
            raise GroupError(
                f"comm: groups: {axes!r}: is not made of {', '.join(self.sizes)}",
                hint="groups['tp'], groups['dp-cp']",
            )
        expert = [name in _EXPERT or name == "pp" for name in names]
        dense = [name not in _EXPERT for name in names]
        if not (all(expert) or all(dense)):
            raise GroupError(f"comm: groups: {axes!r}: mixes the axes of experts with others")
        return names


def plan(
    world: int,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int | None = None,
    cp: int = 1,
    ep: int = 1,
    expert_tp: int | None = None,
    order: str = ORDER,
) -> Layout:
    """The layout of ``world`` ranks; dp None means what is left, expert_tp None means tp.

    Raises GroupError when the sizes do not multiply to the world, or the order leaves
    out an axis that is larger than 1.
    """
    etp = tp if expert_tp is None else expert_tp
    given = {"tp": tp, "cp": cp, "ep": ep, "pp": pp, "expert_tp": etp}
    if dp is not None:
        given["dp"] = dp
    for axis, size in given.items():
        if size < 1:
            raise GroupError(f"comm: groups: {axis}={size}: must be 1 or more")
    used = tp * cp * pp
    if world % used or (dp is not None and used * dp != world):
        asked = f"tp={tp} x cp={cp} x pp={pp}" + (f" x dp={dp}" if dp is not None else "")
        divide, left = f"tp x cp x pp must divide {world}", f"leave dp out: it is {world // used}"
        raise GroupError(
            f"comm: groups: {asked}: does not fit a world of {world} ranks",
            hint=divide if world % used else left,
        )
    experts = etp * ep * pp
    if world % experts:
        raise GroupError(
            f"comm: groups: expert_tp={etp} x ep={ep} x pp={pp}: does not divide {world} ranks"
        )
    sizes = {
        "tp": tp,
        "cp": cp,
        "dp": world // used,
        "pp": pp,
        "ep": ep,
        "expert_tp": etp,
        "expert_dp": world // experts,
    }
    layout = Layout(world, _complete(order, sizes), sizes)
    if layout._dense.groups(["pp"]) != layout._experts.groups(["pp"]):
        raise GroupError(
            f"comm: groups: {order}: the experts' pipelines would differ from the model's",
            hint=f"order='{ORDER}'",
        )
    return layout


def _complete(order: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The order with the axes it leaves out at its end; those must have size 1."""
    names = order.lower().split("-")
    for name in names:
        if name not in _AXES or names.count(name) > 1:
            raise GroupError(f"comm: groups: order {order!r}: {name!r} is unknown or there twice")
    for axis in _AXES:
        if axis not in names:
            if sizes[axis] > 1:
                raise GroupError(
                    f"comm: groups: order {order!r}: lacks {axis}, whose size is {sizes[axis]}",
                    hint=f"order='{order}-{axis}'",
                )
            names.append(axis)
    return tuple(names)


def check_hosts(layout: Layout, host_of: Mapping[int, str]) -> list[str]:
    """Warnings about tensor parallel groups that span hosts.

    Raises GroupError when the hosts' numbers of ranks are uneven and tp does not divide
    them, so that some tp group has to be split and others not.
    """
    widest = max(layout.groups("tp"), key=lambda ranks: len({host_of[rank] for rank in ranks}))
    where = sorted({host_of[rank] for rank in widest})
    if len(where) < 2:
        return []
    slots = Counter(host_of.values())
    tp = layout.sizes["tp"]
    uneven = len(set(slots.values())) > 1
    undivided = [host for host, count in slots.items() if count % tp]
    if uneven and undivided:
        n = slots[undivided[0]]
        raise GroupError(
            f"comm: groups: tp={tp}: {undivided[0]} has {n} rank{'s' * (n != 1)},"
            " so some tensor parallel groups would be split over hosts",
            hint=f"give every host a number of slots that {tp} divides",
        )
    why = (
        f"put {tp} ranks on a host"
        if undivided
        else "ranks must fill a host before the next, and tp come first in the order"
    )
    return [
        f"comm: groups: tp={tp}: ranks {', '.join(map(str, widest))} are on"
        f" {', '.join(where)}: tensor parallel over the network is slow: {why}"
    ]


#: Always built; ``also`` of ``parallel`` adds joins.
AXES = ("tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "ep", "expert_tp", "expert_dp")


@dataclass(frozen=True)
class Group:
    """My group over some axes: ``ranks`` in the world, ``rank`` and ``size`` within it.

    number is the group's, among the groups over the same axes; process_group is torch's,
    nccl the raw communicator, each None if that was not started before ``parallel``.
    """

    axes: str
    number: int
    ranks: Ranks
    rank: int
    hosts: tuple[str, ...]
    process_group: Any = None
    nccl: Communicator | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)


class Groups:
    """This rank's group over every axis, and the layout of them all."""

    def __init__(
        self, layout: Layout, mine: dict[str, Group], torch: Any, device_type: str
    ) -> None:
        self.layout = layout
        self._mine = mine
        self._torch = torch
        self._device_type = device_type
        self._mesh: Any = None

    def __getitem__(self, axes: str) -> Group:
        """The group over ``axes``, as "tp" or "dp-cp"; GroupError for one that was not built."""
        if axes in self._mine:
            return self._mine[axes]
        self.layout.size(axes)
        raise GroupError(
            f"comm: groups: {axes!r}: was not built", hint=f"job.parallel(..., also=['{axes}'])"
        )

    @property
    def tp(self) -> Group:
        """Tensor parallel: the ranks that share each layer."""
        return self["tp"]

    @property
    def cp(self) -> Group:
        """Context parallel: the ranks that share a sequence."""
        return self["cp"]

    @property
    def dp(self) -> Group:
        """Data parallel: the ranks with the same weights and other data."""
        return self["dp"]

    @property
    def pp(self) -> Group:
        """Pipeline parallel: the stages, first to last."""
        return self["pp"]

    @property
    def ep(self) -> Group:
        """Expert parallel: the ranks that hold one set of experts between them."""
        return self["ep"]

    def mesh(self) -> Any:
        """torch's DeviceMesh of pp, dp, cp, tp over these same process groups.

        ``mesh['dp', 'tp']`` and the like work; nothing new is built. GroupError without torch.
        """
        if self._torch is None:
            raise GroupError("comm: mesh: torch was not started", hint="job.init_torch() first")
        if self._mesh is None:
            # the order says which axis is fastest; a mesh's last is, and mesh names follow it
            names = [axis for axis in reversed(self.layout.order) if axis != "ep"]
            shape = [self.layout.sizes[axis] for axis in names]
            ranks = self._torch.arange(self.layout.world, dtype=self._torch.int)
            self._mesh = self._torch.distributed.device_mesh.DeviceMesh.from_group(
                [self[name].process_group for name in names],
                self._device_type,
                mesh=ranks.reshape(shape),
                mesh_dim_names=tuple(names),
            )
        return self._mesh

    def close(self) -> None:
        """Close the NCCL communicators of the groups; torch's groups go with the process group."""
        for nccl in dict.fromkeys(group.nccl for group in self._mine.values()):
            if nccl is not None:
                nccl.close()


def build(
    layout: Layout,
    rank: int,
    host_of: Sequence[str],
    *,
    axes: Sequence[str] = AXES,
    torch: Any = None,
    timeout: float = 600.0,
    nccl: Communicator | None = None,
    device_type: str = "cpu",
) -> Groups:
    """This rank's groups over ``axes``; every rank calls it with the same layout and axes.

    timeout is for torch's groups, in seconds.
    """
    process_groups: dict[tuple[Ranks, ...], Any] = {}
    communicators: dict[tuple[Ranks, ...], Communicator | None] = {}
    mine: dict[str, Group] = {}
    for name in axes:
        everyone = layout.groups(name)
        number, ranks = layout.group_of(name, rank)
        if torch is not None and everyone not in process_groups:
            from dispatcher.comm.torch_bridge import process_group

            process_groups[everyone] = process_group(torch, everyone, rank, timeout)
        if nccl is not None and everyone not in communicators:
            communicators[everyone] = nccl.split(number, rank, name=name)
        mine[name] = Group(
            name,
            number,
            ranks,
            ranks.index(rank),
            tuple(dict.fromkeys(host_of[member] for member in ranks)),
            process_groups.get(everyone),
            communicators.get(everyone),
        )
    return Groups(layout, mine, torch, device_type)
