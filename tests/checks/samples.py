"""Hosts as surveys show them: a healthy one, and ways to make it sick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dispatcher.checks.check import Asked, Check, Reading, Seen
from dispatcher.checks.report import CheckReport, make_report
from dispatcher.remote.protocol.packing import pack

HUNG = Reading(None, b"")
MISSING = Reading(127, b"")
GIB = 1 << 30

MEMINFO = b"""\
MemTotal:       1056778032 kB
MemFree:                 3 kB
MemAvailable:   900000000 kB
HugePages_Total:         0
"""
LIMITS = b"""\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             4126952              4126952              processes
Max open files            65536                1048576              files
Max locked memory         unlimited            unlimited            bytes
"""
MOUNTS = b"""\
overlay / overlay rw,relatime 0 0
nas:/home /home nfs4 rw,vers=4.2 0 0
ib0:/scratch /scratch lustre rw,flock 0 0
nas:/a\\040b /mnt/a\\040b nfs4 rw 0 0
"""
DEV = "\n".join(["null", "nvidia-uvm", "nvidiactl", *(f"nvidia{n}" for n in range(8))]).encode()
KERNEL = {
    "/proc/meminfo": MEMINFO,
    "/proc/self/limits": LIMITS,
    "/proc/uptime": b"1000000.00 77777.00\n",
    "/dev/": DEV,
    "/sys/module/nvidia/version": b"570.86.15\n",
    "/sys/class/infiniband/": b"mlx5_0\nmlx5_1",
}
VERSIONS = b"""\
dispatch-version python 3.11.2
dispatch-version torch 2.9.1
dispatch-version nvidia_nccl_cu12 2.27.5
"""


def files(contents: Mapping[str, bytes]) -> Reading:
    return Reading(0, pack([[path.encode(), content] for path, content in contents.items()]))


def call(value: Any) -> Reading:
    return Reading(0, pack(value))


def said(text: bytes, status: int = 0) -> Reading:
    return Reading(status, text)


READINGS = {
    "kernel": files(KERNEL),
    "mounts": said(MOUNTS),
    "space shm": call([500 * GIB, 499 * GIB, 10**6, 10**6]),
    "space tmp": call([100 * GIB, 60 * GIB, 10**6, 10**6]),
    "space cwd": call([100 * GIB, 60 * GIB, 0, 0]),
    "python": said(VERSIONS),
    "names": call([["n1", ["10.0.0.1"], 0.001]]),
    "gpus": call(8),
    "gpu users": call([]),
    "gpu apps": said(b""),
    "script": call([12, "ab" * 32]),
}
LATER = {"meet": call([["10.0.0.1", ""]])}


def host(name: str = "n2", **changed: Reading | None) -> Seen:
    """A healthy host, with some readings changed (``space_tmp=``), or gone (None)."""
    readings = dict(READINGS)
    for key, reading in changed.items():
        if reading is None:
            readings.pop(key.replace("_", " "))
        else:
            readings[key.replace("_", " ")] = reading
    asked = Asked("/home/me", "/home/me/train.py")
    return Seen(name, readings, LATER, 8, "n1", (-0.01, 0.02), asked)


def kernel(**changed: bytes | None) -> Reading:
    """The files of a healthy kernel with some changed, by the last part of their path."""
    contents = dict(KERNEL)
    for name, content in changed.items():
        path = next((p for p in contents if p.rstrip("/").rsplit("/", 1)[-1] == name), None)
        assert path is not None, name
        if content is None:
            contents.pop(path)
        else:
            contents[path] = content
    return files(contents)


def met(seen: Seen, value: Any) -> Seen:
    return replace(seen, later={"meet": call(value)})


def network_host(text: str) -> Seen:
    """A host as ``check --nccl`` reads it: parts ``== NAME`` or ``== /path`` and a text."""
    readings: dict[str, Reading] = {}
    contents: dict[str, dict[str, bytes]] = {"rdma": {}, "route": {}, "nccl_conf": {}}
    for part in text.split("== ")[1:]:
        name, _, body = part.partition("\n")
        if name.startswith("/"):
            kind = "rdma" if "infiniband" in name else "route" if "route" in name else "nccl_conf"
            contents[kind][name] = body.encode()
        else:
            readings[name] = said(body.encode()) if name == "libnccl" else call(body)
    return Seen("n1", {**readings, **{name: files(found) for name, found in contents.items()}})


def port_text(device: str, state: str, physical: str, rate: str, layer: str, net: str = "") -> str:
    """A port of ``network_host``."""
    place = f"== /sys/class/infiniband/{device}"
    words = {"state": state, "phys_state": physical, "rate": rate, "link_layer": layer}
    lines = [f"{place}/ports/1/{name}\n{word}\n" for name, word in words.items()]
    return "".join(lines) + (f"{place}/device/net/\n{net}\n" if net else "")


def report_of(checks: Sequence[str], found: Mapping[str, Any], *unseen: Any) -> CheckReport:
    """The report of ``found``, host -> check -> finding. unseen: as for ``make_report``."""
    made = [
        Check(name, "", lambda seen, name=name: {host: found[host][name] for host in seen})  # type: ignore[misc]
        for name in checks
    ]
    seen = {host: Seen(host) for host, own in found.items() if own}
    return make_report(made, seen, list(found), *unseen, *[{}] * (2 - len(unseen)))
