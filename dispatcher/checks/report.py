"""All checks, in the order of their columns, and what must be read for them; pure.

Cheap before dear: the quick ones take a fraction of a second a host, the full ones as long as
``nvidia-smi`` and the kernel's log take. A *reading* is described in ``remote.probe.survey``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.checks import fabric, gpu, gpus, host, mounts, site, software, xid
from dispatcher.checks.check import Asked, Check, alike, each
from dispatcher.checks.finding import Level

QUICK = (
    Check("python", "the ranks' Python starts, and is the same version", software.python),
    Check("script", "the script is there, with equal SHA-256", software.script),
    Check("torch", "the same torch, or none", software.torch),
    Check("nccl", "the same NCCL, or none", software.nccl),
    Check("driver", "the same NVIDIA driver", software.driver),
    Check("gpus", "as many GPUs as slots, and as on other hosts", gpus.enough),
    Check("users", "nobody is on the GPUs", each(gpus.users)),
    Check("memory", "free memory", each(host.memory)),
    Check("shm", "shared memory has room", each(host.shm)),
    Check("tmp", "the folder for temporary files has room", each(host.tmp)),
    Check("cwd", "the working directory is there, and has room", each(host.disk)),
    Check("files", "limit of open files", each(host.open_files)),
    Check("memlock", "limit of locked memory, where RDMA needs it", each(host.memlock)),
    Check("clock", "clock, against this machine's", each(host.clock)),
    Check("names", "it can resolve its own name and host 0's", each(host.names)),
    Check("reach", "it reaches host 0 where the ranks would meet", each(host.meeting)),
)  # fmt: skip


def full(xid_levels: Mapping[int, str], *, site_checks: bool) -> tuple[Check, ...]:
    """The checks that ``--full`` adds. xid_levels: what a site says of Xid numbers."""
    reset = "nvidia-smi -q, on both"
    found = [
        Check("model", "equal GPUs: name, memory, VBIOS", alike(gpu.inventory, Level.WARN, reset)),
        Check("used", "nobody holds GPU memory", each(gpu.used)),
        Check("ecc", "no uncorrected memory errors", each(gpu.ecc)),
        Check("rows", "no memory row waits to be remapped", each(gpu.remapped)),
        Check("clocks", "nothing slows the GPUs down", each(gpu.clocks)),
        Check("power", "equal power limits", alike(gpu.power, Level.WARN, "nvidia-smi -pl WATTS")),
        Check("pcie", "all PCIe lanes", each(gpu.pcie)),
        Check("nvlink", "all NVLinks", alike(gpu.nvlink, Level.CRITICAL, "nvidia-smi nvlink -s")),
        Check("nvswitch", "the GPUs have joined the fabric", each(gpu.fabric)),
        Check("manager", "the fabric manager runs", each(fabric.manager)),
        Check("xid", "no Xid in the kernel's log", each(xid.xid({**xid.TABLE, **xid_levels}))),
        Check("rdma", "equal RDMA ports, ACTIVE", alike(fabric.ports, Level.CRITICAL, "ibstatus")),
        Check("errors", "no new errors of RDMA ports", each(fabric.counters)),
        Check("mounts", "shared file systems are mounted", mounts.judge),
    ]
    if site_checks:
        found.append(Check("site", "the site's own checks", site.judge))
    return tuple(found)


@dataclass(frozen=True)
class Want:
    """What to read. python, own: the ranks' Python, and that of hosts with one of their own.

    seconds: a reading at most. site: folder of the site's checks on the hosts, "" for none.
    """

    asked: Asked
    python: str
    own: Mapping[str, str]
    seconds: float
    full: bool = False
    site: str = ""


def _path(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def first_readings(want: Want, names: Sequence[str]) -> list[list[Any]]:
    """What the first visit reads. names: to be resolved on every host."""
    limit = want.seconds
    script = want.asked.script
    found: list[list[Any]] = [
        ["kernel", "file", [
            b"/proc/meminfo", b"/proc/self/limits", b"/proc/self/mounts", b"/proc/uptime", b"/dev/",
            b"/proc/driver/nvidia/gpus/", b"/sys/module/nvidia/version", b"/sys/class/infiniband/",
        ], limit, 256 << 10],
        ["space shm", "call", ["space", b"/dev/shm"], limit, 4096],
        ["space tmp", "call", ["space", b""], limit, 4096],
        ["space cwd", "call", ["space", _path(want.asked.cwd)], limit, 4096],
        ["python", "run", {
            "": _python(want.python),
            **{name: _python(path) for name, path in want.own.items()},
        }, limit, 64 << 10],
        ["names", "call", ["resolve", list(names)], limit, 64 << 10],
        ["netdevs", "call", ["netdevs"], limit, 64 << 10],
        ["port", "call", ["free_port"], limit, 4096],
        ["gpu users", "call", ["gpu_users"], limit, 64 << 10],
        ["gpu apps", "run", _smi(
            "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"
        ), limit, 64 << 10],
    ]  # fmt: skip
    if script:
        found.append(["script", "call", ["summed", _path(script)], limit, 4096])
    if want.full:
        found += _full_readings(want)
    return found


def _full_readings(want: Want) -> list[list[Any]]:
    limit, most = want.seconds, 1 << 20
    query, csv = "--query-gpu=", "--format=csv,noheader,nounits"
    found: list[list[Any]] = [
        ["smi", "run", _smi(query + ",".join((*gpu.CORE_FIELDS, *gpu.MORE_FIELDS)), csv)],
        ["smi core", "run", _smi(query + ",".join(gpu.CORE_FIELDS), csv)],
        ["smi remap", "run", _smi("--query-remapped-rows=" + ",".join(gpu.REMAP_FIELDS), csv)],
        ["smi nvlink", "run", _smi("nvlink", "-s")],
        ["dmesg", "run", _log("dmesg")],
        ["journal", "run", _log("journalctl -k -b -o short-monotonic --no-pager")],
        ["fabric manager", "run", [b"systemctl", b"is-active", b"nvidia-fabricmanager"]],
        ["rdma", "file", [
            b"/sys/class/infiniband/*/ports/*/" + name
            for name in (b"state", b"phys_state", b"rate", b"link_layer")
        ]],
        counters(),
    ]  # fmt: skip
    found = [[*one, limit, most] for one in found]
    if want.site:
        found.append(["site", "site", _path(want.site), limit, 16 << 10])
    return found


def counters() -> list[Any]:
    """The reading of the RDMA ports' error counters, less its limits."""
    place = b"/sys/class/infiniband/*/ports/*/"
    return ["ib counters", "file", [place + b"counters/*", place + b"hw_counters/*"]]


def second_readings(want: Want, addresses: list[str], port: int) -> list[list[Any]]:
    """What the second visit reads: whether all reach host 0, and the counters once more."""
    limit = want.seconds
    found: list[list[Any]] = [
        ["meet", "call", ["meet", addresses, port, 0.8 * limit], limit, 16 << 10]
    ]
    if want.full:
        found.append([*counters(), limit, 1 << 20])
    return found


def _log(command: str) -> list[bytes]:
    """Lines of the kernel's log that somebody here reads, after a first one; fails as it does."""
    wanted = "grep -e NVRM: -e SXid -e 'available PCIe bandwidth' | tail -n 2000"
    text = f"t=$({command}) || exit 1; echo begin; printf '%s\\n' \"$t\" | {wanted}"
    return [b"/bin/sh", b"-c", text.encode()]


def _python(path: str) -> list[bytes]:
    return [_path(path), b"-c", software.PROBE.encode()]


def _smi(*words: str) -> list[bytes]:
    return [b"nvidia-smi", *(word.encode() for word in words)]
