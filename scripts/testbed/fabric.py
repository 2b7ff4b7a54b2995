"""The network between the hosts: one bridge in the keeper's own network namespace.

Nothing of it is visible in the machine's own network. Each host has ``eth0``, whose other end is
a port of the bridge named ``p<index>``. The functions run inside the keeper's namespace; the
commands that come later get there by ``enter``.

A *cut* keeps the carrier up and the neighbour entries in place (login and each host know each
other's hardware address for good), so packets just vanish: no FIN, no RST, no ICMP, no "no route
to host". That is what a broken switch looks like from its far side.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable

from . import kernel
from .entry import roots_path
from .layout import LOGIN, Member, RigError, hardware_address

BRIDGE = "fabric"
THRESHOLDS = "/proc/sys/net/ipv4/neigh/default/gc_thresh"


def batch(lines: Iterable[str], tool: str = "ip") -> None:
    """Run many ``ip`` (or ``bridge``) commands in one process.

    Raises: RigError with the tool's own words.
    """
    ended = _run([tool, "-batch", "-"], "\n".join(lines) + "\n")
    if ended.returncode != 0:
        raise RigError(f"{tool}: {ended.stderr.strip()}")


def _run(argv: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": roots_path()}
    try:
        return subprocess.run(
            argv, input=text, env=env, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise RigError(f"{argv[0]}: not found: apt-get install iproute2") from None


def build() -> None:
    """Make the bridge in the namespace we are in."""
    try:
        # Ports with IPv6 would talk to their hosts by themselves, even when cut.
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as file:
            file.write("1")
    except FileNotFoundError:
        pass  # a kernel without IPv6
    batch(["link set lo up", f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up"])


def attach(pids: dict[Member, int]) -> None:
    """Give each host its ``eth0``, and the bridge the other end of it."""
    lines = []
    for member, pid in pids.items():
        port = f"p{member.index}"
        lines.append(
            f"link add {port} type veth peer name eth0 netns {pid}"
            f" address {hardware_address(member.index)}"
        )
        lines.append(f"link set {port} master {BRIDGE} up")
    batch(lines)


def address_commands(member: Member, members: Iterable[Member]) -> list[str]:
    """What a host runs inside itself to bring up its network."""
    lines = [
        "link set lo up",
        f"addr add {member.address}/16 dev eth0",
        "link set eth0 up",
    ]
    friends = members if member.name == LOGIN else [m for m in members if m.name == LOGIN]
    lines += [
        f"neigh replace {friend.address} lladdr {hardware_address(friend.index)}"
        " dev eth0 nud permanent"
        for friend in friends
        if friend.index != member.index
    ]
    return lines


def make_room(count: int) -> None:
    """Raise the machine's neighbour table limits so that ``count`` hosts may all meet.

    The table is one for all namespaces. Raised limits stay: other clusters may rely on them.
    """
    needed = max(1024, 2 * count * min(count, 128))
    for step, wanted in (("3", 4 * needed), ("2", 2 * needed), ("1", needed)):
        try:
            with open(THRESHOLDS + step) as file:
                now = int(file.read())
            if now < wanted:
                with open(THRESHOLDS + step, "w") as file:
                    file.write(str(wanted))
        except OSError:
            return  # not ours to change here (a container); small clusters work all the same


def enter(keeper: int) -> None:
    """Be in the fabric's network namespace from now on."""
    kernel.join(keeper, ["net"])


def cut(index: int, way: str = "both") -> None:
    """Lose every packet on the link of host ``index``, ``both`` ways or only ``to``/``from`` it."""
    _CUTS[way](f"p{index}", hardware_address(index))


def _cut_both(port: str, hardware: str) -> None:
    batch([f"link set dev {port} state 0"], "bridge")


def _cut_to(port: str, hardware: str) -> None:
    _tc(["qdisc", "replace", "dev", port, "root", "bfifo", "limit", "1"])


def _cut_from(port: str, hardware: str) -> None:
    # A locked port takes frames only from addresses the bridge has learnt; make it forget.
    batch([f"link set dev {port} learning off locked on"], "bridge")
    _run(["bridge", "fdb", "del", hardware, "dev", port, "master"])


_CUTS: dict[str, Callable[[str, str], None]] = {
    "both": _cut_both,
    "to": _cut_to,
    "from": _cut_from,
}


def mend(index: int) -> None:
    """Undo every kind of cut."""
    port = f"p{index}"
    batch([f"link set dev {port} learning on locked off state 3"], "bridge")
    _run(["tc", "qdisc", "del", "dev", port, "root"])


def _tc(arguments: list[str]) -> None:
    ended = _run(["tc", *arguments])
    if ended.returncode != 0:
        raise RigError(f"tc {' '.join(arguments)}: {ended.stderr.strip()}")
