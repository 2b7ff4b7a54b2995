"""Who passes files on to whom, and what an inner host must know to reach those below it.

The hosts are cut into as many runs as there are branches; the first of each run is its
head, which we serve, and which does the same with the rest of its run. So bytes leave
this machine once a branch. Heads reach the others by their own ``ssh``, with their own
configuration; what they cannot reach we serve ourselves afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.bootstrap import copy_program, shell
from dispatcher.model.host_part import Host
from dispatcher.remote.copy.copy_relay import split
from dispatcher.remote.protocol.wire import SYNC
from dispatcher.transfer.put_files import Group, names_of

#: branches when the user does not say
BRANCHES = 8
#: a tree pays from so many hosts on, when all of them together take so many bytes
MANY_HOSTS, MANY_BYTES = 64, 8 << 30

_SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ClearAllForwardings=yes",
)  # fmt: skip


@dataclass(frozen=True)
class Branch:
    """A run of hosts, as indexes: the head, and those below it."""

    head: int
    below: tuple[int, ...]
    branches: int


def pays(hosts: int, size: int) -> bool:
    """Whether to use a tree that nobody asked for. size: bytes for one host."""
    return hosts >= MANY_HOSTS and hosts * size >= MANY_BYTES


def branches_of(nodes: Sequence[int], branches: int) -> list[Branch]:
    """``nodes`` in at most ``branches`` branches."""
    return [Branch(head, tuple(below), branches) for head, *below in split(list(nodes), branches)]


def instructions(
    branch: Branch, hosts: Sequence[Host], groups: Sequence[tuple[Group, ...]]
) -> dict[str, Any]:
    """What the head is told besides its own order. hosts, groups: of all nodes."""
    return {
        "below": [
            [node, _argv(hosts[node]), [[dest, names_of(paths)] for dest, paths in groups[node]]]
            for node in branch.below
        ],
        "branches": branch.branches,
        "opening": shell.opening(copy_program.words("exit 1", ()), stdin=True),
        "marker": SYNC,
    }


def _argv(host: Host) -> list[str]:
    user = ["-l", host.user] if host.user is not None else []
    port = ["-p", str(host.port)] if host.port is not None else []
    return [*_SSH, *user, *port, "--", host.name, shell.COMMAND]
