"""The groups a rank is in, as it uses them: ``groups.tp``, ``groups['dp-cp']``.

Each is a set of ranks, a torch process group if torch was started, and an NCCL
communicator if one was built. All of them are made in one order that is the same
on every rank: ranks that build groups in different orders wait for each other for
ever. Axes with the same groups (dp and dp-cp when cp is 1) share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.comm.errors import GroupError
from dispatcher.comm.groups import Layout, Ranks
from dispatcher.comm.nccl.communicator import Communicator

#: Built for everybody; joins are built only where they are more than one of these.
AXES = ("tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "ep", "expert_tp", "expert_dp")


@dataclass(frozen=True)
class Group:
    """My group over some axes: ``ranks`` in the world, ``rank`` and ``size`` within it.

    number is that of the group among those over the same axes; process_group is torch's,
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
            names = [axis for axis, _ in self.layout.mesh]
            shape = [size for _, size in self.layout.mesh]
            ranks = self._torch.arange(self.layout.world, dtype=self._torch.int)
            # the order says which axis is fastest; a mesh's last is, and mesh names follow it
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
    nccl: Communicator | None = None,
    device_type: str = "cpu",
) -> Groups:
    """This rank's groups over ``axes``; every rank calls it with the same layout and axes."""
    process_groups: dict[Ranks, Any] = {}
    communicators: dict[tuple[Ranks, ...], Communicator | None] = {}
    mine: dict[str, Group] = {}
    for name in axes:
        everyone = layout.groups(name)
        number, ranks = layout.group_of(name, rank)
        if torch is not None:
            for each in everyone:
                if each not in process_groups:
                    process_groups[each] = torch.distributed.new_group(list(each))
        if nccl is not None and everyone not in communicators:
            communicators[everyone] = nccl.split(number, rank, name=name)
        mine[name] = Group(
            name,
            number,
            ranks,
            ranks.index(rank),
            tuple(dict.fromkeys(host_of[member] for member in ranks)),
            process_groups.get(ranks),
            communicators.get(everyone),
        )
    return Groups(layout, mine, torch, device_type)
