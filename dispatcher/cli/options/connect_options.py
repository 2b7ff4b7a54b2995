"""``--fanout-tree``: which hosts are reached through which, as the flags say; and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dispatcher.model.errors import UsageError
from dispatcher.model.frozen import Value, value
from dispatcher.model.host_part import Host
from dispatcher.model.hostset import fold

if TYPE_CHECKING:
    from dispatcher.transport.base import Target, Transport
    from dispatcher.transport.tree.topology import Topology

#: how many hosts may connect at once where nobody says: inner hosts do most of the work
WINDOW = 1024


@value
class Fanout(Value):
    """The hosts of a tree and who opens whom, by index. run_id: what the relays carry."""

    hosts: tuple[Host, ...]
    topology: Topology
    run_id: str | None = None

    def lines(self) -> list[str]:
        """The tree in words, a line for each host that opens others."""
        names = [host.name for host in self.hosts]
        tree = self.topology
        return [
            f"tree        {tree.depth} levels; from here {fold(names[i] for i in tree.heads)}",
            *(
                f"            {names[i]} opens {fold(names[child] for child in children)}"
                for i, children in enumerate(tree.children)
                if children
            ),
        ]

    def parents(self) -> dict[str, str]:
        """Of each host that is not opened from here the one that opens it, by name."""
        names = [host.name for host in self.hosts]
        pairs = zip(names, self.topology.parents, strict=True)
        return {name: names[parent] for name, parent in pairs if parent is not None}

    def above(self, places: Sequence[Host]) -> dict[int, tuple[int, ...]]:
        """For each of ``places`` by its index those it is reached through, nearest first."""
        number = {host.place: i for i, host in enumerate(self.hosts)}
        index = {host.place: i for i, host in enumerate(places)}
        ways = {}
        for at, host in enumerate(places):
            if host.place in number:
                way = (self.hosts[i].place for i in self.topology.above(number[host.place]))
                ways[at] = tuple(index[place] for place in way if place in index)
        return ways

    def transport(
        self, flags: Mapping[str, Any], direct: Transport, say: Callable[[str], None]
    ) -> Transport:
        from dispatcher.bootstrap import payload
        from dispatcher.transport.tree.tree_transport import TreeTransport

        first = flags.get("agent_python")
        return TreeTransport(
            [target(host) for host in self.hosts],
            self.topology,
            direct,
            command=payload.command(first=[first] if first else [], run_id=self.run_id),
            common=payload.payload() if self.run_id is not None else b"",
            config=flags["ssh_config"],
            say=say,
        )


def target(host: Host) -> Target:
    from dispatcher.transport.base import Target

    return Target(host.name, host.user, host.port)


def fanout(
    flags: Mapping[str, Any], hosts: Sequence[Host], run_id: str | None = None
) -> Fanout | None:
    """The tree that the flags ask for, if they do; spares and this machine are not in it.

    Raises: UsageError where there can be none.
    """
    text = flags.get("fanout_tree")
    if text is None:
        return None
    from dispatcher.transport.tree.topology import (  # for those who want a tree
        parse_branches,
        plan_tree,
    )

    branches = parse_branches(text)
    if flags.get("rsh") is not None or flags["transport"] == "slurm":
        raise UsageError("--fanout-tree is for SSH: hosts open each other by ssh")
    for name in ("pty", "keep"):
        if flags.get(name):
            raise UsageError(f"--fanout-tree and --{name} exclude each other")
    from dispatcher.api.transports import is_local

    remote = tuple(host for host in hosts if not is_local(host))
    return Fanout(remote, plan_tree(len(remote), branches), run_id)
