"""What a survey can ask of a host that is no file and no command; each call may hang."""

from __future__ import annotations

import os
from _socket import (
    AF_INET,
    SOCK_DGRAM,
    SOCK_STREAM,
    getaddrinfo,
    if_nameindex,
    inet_ntoa,
    socket,
)
from fcntl import ioctl
from time import monotonic

from . import vitals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SIOCGIFFLAGS, SIOCGIFADDR = 0x8913, 0x8915


def netdevs() -> str:
    """``netdev NAME flags= mtu= speed= type= addresses=``, a line each, in the kernel's order.

    flags are hexadecimal; the addresses are those that the interface itself has.
    """
    six: dict[str, list[str]] = {}
    try:
        with open("/proc/net/if_inet6") as file:
            for line in file:
                digits, *_, name = line.split()
                groups = [digits[at : at + 4] for at in range(0, 32, 4)]
                six.setdefault(name, []).append(":".join(groups))
    except OSError:
        pass
    lines = []
    probe = socket(AF_INET, SOCK_DGRAM)
    for _, name in if_nameindex()[:256]:
        request = name.encode().ljust(40, b"\0")
        flags, found = 0, []
        try:
            raw = ioctl(probe.fileno(), SIOCGIFFLAGS, request)
            flags = int.from_bytes(raw[16:18], "little")
            found.append(inet_ntoa(ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24]))
        except OSError:
            pass
        words = ["netdev", name, "flags=%x" % flags]
        for field in ("mtu", "speed", "type"):
            try:
                with open("/sys/class/net/%s/%s" % (name, field)) as file:
                    words.append("%s=%s" % (field, file.read(32).strip()))
            except OSError:
                pass
        words.append("addresses=" + ",".join(found + six.get(name, [])))
        lines.append(" ".join(words))
    probe.close()
    return "\n".join(lines)


def environment(prefixes: list[str]) -> str:
    """Lines NAME=VALUE of the variables that begin with one of ``prefixes``."""
    return "\n".join(
        "%s=%s" % (name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith(tuple(prefixes)) and "\n" not in value
    )


def resolve(names: list[str]) -> list[list[Any]]:
    """[name, addresses, seconds] of each of ``names``, and of our own first."""
    found = []
    for name in [os.uname().nodename, *names]:
        began = monotonic()
        try:
            entries = getaddrinfo(name, None, 0, SOCK_STREAM)
            addresses = sorted({entry[4][0] for entry in entries})
        except OSError:
            addresses = []
        found.append([name, addresses, monotonic() - began])
    return found


def gpu_users() -> list[list[Any]]:
    """[pid, user id, name] of processes that have an NVIDIA GPU open, as far as we may see."""
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            folder = "/proc/%s/fd/" % pid
            if any(_is_gpu(folder + fd) for fd in os.listdir(folder)):
                with open("/proc/%s/comm" % pid) as file:
                    name = file.read(64).strip()
                found.append([int(pid), os.stat("/proc/" + pid).st_uid, name])
        except OSError:
            continue  # not ours, or over
    return found[:64]


def _is_gpu(link: str) -> bool:
    try:
        target = os.readlink(link)
    except OSError:
        return False
    return target[:11] == "/dev/nvidia" and target[11:].isdigit()


#: what may be called by name
CALLS: dict[str, Callable[..., Any]] = {
    "vitals": vitals.vitals,
    "netdevs": netdevs,
    "environment": environment,
    "resolve": resolve,
    "gpu_users": gpu_users,
}
