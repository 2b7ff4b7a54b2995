"""Which ranks form which group: Megatron's order, as arithmetic.

The world is a box with one axis a kind of parallelism. In ``order``, as
``tp-cp-ep-dp-pp``, the leftmost axis has stride 1 (its ranks are neighbours), and
each next stride is the product of the sizes to its left. A group over some axes is
what remains when all other coordinates are fixed; groups are numbered by those
fixed coordinates, leftmost fastest, and list their ranks in ascending order.

Experts lie in a second box over the same ranks (as in Megatron, ep and cp are never
in one): tp' x ep x dp' x pp, whose pipeline groups are those of the first. So the
axes are tp, cp, dp, pp of the first box and ``ep``, ``expert_tp``, ``expert_dp`` of
the second; ``dp-cp`` and the like join axes of one box.

Source: RankGenerator in megatron/core/parallel_state.py. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from dispatcher.comm.errors import GroupError

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

    @property
    def mesh(self) -> tuple[tuple[str, int], ...]:
        """The first box as a DeviceMesh has it: (axis, size), last one fastest."""
        dense = [axis for axis in self.order if axis != "ep"]
        return tuple((axis, self.sizes[axis]) for axis in reversed(dense))

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
        raise GroupError(
            f"comm: groups: {asked}: does not fit a world of {world} ranks",
            hint=_fitting(world, used),
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
            f"comm: groups: {order}: the pipelines of the experts would not be those of the model",
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


def _fitting(world: int, used: int) -> str:
    if world % used == 0:
        return f"leave dp out: it is {world // used}"
    return f"tp x cp x pp must divide {world}"


@dataclass(frozen=True)
class Spread:
    """How the groups over one axis lie on the hosts: the most hosts any one spans, and that one."""

    axes: str
    hosts: int
    example: Ranks


def spread(layout: Layout, axes: str, host_of: Mapping[int, str]) -> Spread:
    """The group over ``axes`` that spans the most hosts."""
    worst = max(layout.groups(axes), key=lambda ranks: len({host_of[rank] for rank in ranks}))
    return Spread(axes, len({host_of[rank] for rank in worst}), worst)


def check_hosts(layout: Layout, host_of: Mapping[int, str]) -> list[str]:
    """Warnings about tensor parallel groups that span hosts.

    Raises GroupError when the hosts' numbers of ranks are uneven and tp does not divide
    them, so that some tp group has to be split and others not.
    """
    found = spread(layout, "tp", host_of)
    if found.hosts < 2:
        return []
    slots: dict[str, int] = {}
    for host in host_of.values():
        slots[host] = slots.get(host, 0) + 1
    tp = layout.sizes["tp"]
    uneven = len(set(slots.values())) > 1
    odd = [host for host, count in slots.items() if count % tp]
    if uneven and odd:
        raise GroupError(
            f"comm: groups: tp={tp}: {odd[0]} has {slots[odd[0]]} ranks,"
            " so some tensor parallel groups would be split over hosts",
            hint=f"give every host a number of slots that {tp} divides",
        )
    where = sorted({host_of[rank] for rank in found.example})
    why = (
        f"put {tp} ranks on a host"
        if odd
        else "ranks must fill a host before the next, and tp come first in the order"
    )
    return [
        f"comm: groups: tp={tp}: ranks {', '.join(map(str, found.example))} are on"
        f" {', '.join(where)}: tensor parallel over the network is slow: {why}"
    ]
