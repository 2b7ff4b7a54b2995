"""All checks, a site's own too, over all hosts: findings, usable hosts, outliers; pure.

``remote.probe.survey`` describes a *reading*. A site's own checks are executables on the hosts:
each prints one JSON line with ``level``, ``text`` and ``remedy``. If it prints anything else, or
hangs, it is INCOMPLETE. Its exit code does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from dispatcher.checks import gpu, health, network, xid
from dispatcher.checks.check import Asked, Check, Finding, Level, Seen, Unread, checked, each, equal
from dispatcher.checks.hardware import dcgm, nvlink, speed, topology
from dispatcher.model.frozen import Document, Value, value

PREFIX = "site/"
#: characters of a text that are kept
MOST = 400


def site(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
    """The worst that a host's own checks say, named."""
    there = {
        name: sorted(n for n in seen.readings if n.startswith(PREFIX))
        for name, seen in hosts.items()
    }
    everywhere = sorted(set().union(*there.values()))
    found = {}
    for name, seen in hosts.items():
        worst = Finding(Level.OK, value=str(len(there[name])))
        for check in everywhere:
            one = checked(lambda host, check=check: _one(host, check), seen)  # type: ignore[misc]
            if one.level > worst.level:
                text = f"{check.removeprefix(PREFIX)}: {one.text}"
                worst = replace(one, text=text, value=worst.value)
        if not everywhere:
            worst = Finding(Level.INCOMPLETE, "no executable in the folder of site checks")
        found[name] = worst
    return found


def _one(seen: Seen, check: str) -> Finding:
    reading = seen.reading(check)
    if reading.hung:
        raise Unread("no answer in time")
    lines = [line for line in reading.text.splitlines() if line.startswith("{")]
    if not lines:
        raise Unread(f"no JSON line; {reading.why()}" if reading.status else "no JSON line")
    answer = json.loads(lines[-1])
    level = answer.get("level")
    if level not in ("OK", "WARN", "CRITICAL"):
        raise Unread(f"unknown level {level!r:.40}")
    text, remedy = answer.get("text", ""), answer.get("remedy")
    if not isinstance(text, str) or not isinstance(remedy, str | None):
        raise Unread("text or remedy is not a string")
    return Finding(Level[level], text[:MOST], remedy=remedy[:MOST] if remedy else None)


QUICK = (
    Check("python", "the ranks' Python starts, and is the same version", health.python),
    Check("script", "the script is there, with equal SHA-256", health.script),
    Check("torch", "the same torch, or none", health.torch),
    Check("nccl", "the same NCCL, or none", health.nccl),
    Check("driver", "the same NVIDIA driver", health.driver),
    Check("gpus", "as many GPUs as slots, and as on other hosts", gpu.enough),
    Check("users", "the GPUs are free", each(gpu.users)),
    Check("memory", "free memory", each(health.memory)),
    Check("shm", "shared memory has room", each(health.shm)),
    Check("tmp", "the folder for temporary files has room", each(health.tmp)),
    Check("cwd", "the working directory is there, and has room", each(health.disk)),
    Check("files", "limit of open files", each(health.open_files)),
    Check("memlock", "limit of locked memory, where RDMA needs it", each(health.memlock)),
    Check("clock", "clock, against this machine's", each(health.clock)),
    Check("names", "it can resolve its own name and host 0's", each(health.names)),
    Check("reach", "it reaches host 0 where the ranks would meet", each(health.meeting)),
)  # fmt: skip


#: what ``--speed`` adds to them
SPEED = (
    Check("products", "each GPU calculates as fast as its peers, and rightly", speed.products),
    Check("copies", "each GPU and its host's memory reach each other as fast", speed.copies),
    Check("allreduce", "the GPUs of a host reach each other", speed.all_reduce(0.5)),
)


def full(xid_levels: Mapping[int, str], *, site_checks: bool) -> tuple[Check, ...]:
    """The checks that ``--full`` adds. xid_levels: a site's own levels of Xid numbers."""
    reset = "nvidia-smi -q, on both"
    found = [
        Check("listed", "nvidia-smi lists every GPU", each(gpu.listed)),
        Check("recovery", "the driver asks for no reset or reboot", each(gpu.recovery)),
        Check("model", "equal GPUs: name, memory, VBIOS", equal(gpu.inventory, Level.WARN, reset)),
        Check("used", "the GPUs' memory is free", each(gpu.used)),
        Check("ecc", "no uncorrected memory errors", each(gpu.ecc)),
        Check("rows", "no memory row waits to be remapped", each(gpu.remapped)),
        Check("clocks", "nothing slows the GPUs down", each(gpu.clocks)),
        Check("persistence", "the driver keeps its GPUs ready", each(gpu.persistence)),
        Check("power", "equal power limits", equal(gpu.power, Level.WARN, "nvidia-smi -pl WATTS")),
        Check("pcie", "all PCIe lanes", each(gpu.pcie)),
        Check("nvlink", "all NVLinks, at full speed",
              equal(nvlink.links, Level.CRITICAL, "nvidia-smi nvlink -s")),
        Check("affinity", "GPUs, CPUs and network cards near to each other as on other hosts",
              equal(topology.affinity, Level.WARN, "nvidia-smi topo -m, on both")),
        Check("linkerrors", "no errors of NVLinks", each(nvlink.errors)),
        Check("nvswitch", "the GPUs have joined the fabric", each(gpu.fabric)),
        Check("dcgm", "DCGM's short test, where it is installed", each(dcgm.dcgm)),
        Check("manager", "the fabric manager runs", each(network.manager)),
        Check("xid", "no Xid in the kernel's log", each(xid.xid({**xid.TABLE, **xid_levels}))),
        Check("rdma", "equal RDMA ports, ACTIVE", equal(network.ports, Level.CRITICAL, "ibstatus")),
        Check("errors", "no new errors of RDMA ports", each(network.counters)),
        Check("gpudirect", "RDMA reaches the GPUs' memory", each(topology.gpudirect)),
        Check("acs", "PCIe switches leave what GPUs send to cards alone", each(topology.acs)),
        Check("mounts", "shared file systems are mounted", health.mounts),
    ]  # fmt: skip
    if site_checks:
        found.append(Check("site", "the site's own checks", site))
    return tuple(found)


@dataclass(frozen=True)
class Want:
    """The parameters of readings. python, own: the ranks' Python, and single hosts' Pythons.

    seconds: a reading at most. site: folder of the site's checks on the hosts, "" for none. speed:
    the program that times GPUs, "" for none.
    """

    asked: Asked
    python: str
    own: Mapping[str, str]
    seconds: float
    full: bool = False
    site: str = ""
    speed: str = ""


def _path(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def first_readings(want: Want, names: Sequence[str]) -> list[list[Any]]:
    """The readings of the first visit. names: to be resolved on every host."""
    limit = want.seconds
    script = want.asked.script
    found: list[list[Any]] = [
        ["kernel", "file", [
            b"/proc/meminfo", b"/proc/self/limits", b"/proc/uptime", b"/dev/",
            b"/proc/driver/nvidia/gpus/", b"/sys/module/nvidia/version", b"/sys/class/infiniband/",
        ], limit, 256 << 10],
        ["space shm", "call", ["space", b"/dev/shm"], limit, 4096],
        ["space tmp", "call", ["space", b""], limit, 4096],
        ["space cwd", "call", ["space", _path(want.asked.cwd)], limit, 4096],
        ["python", "run", _python(want, health.PROBE), limit, 64 << 10],
        ["names", "call", ["resolve", list(names)], limit, 64 << 10],
        ["netdevs", "call", ["netdevs"], limit, 64 << 10],
        ["port", "call", ["free_port"], limit, 4096],
        ["gpus", "call", ["count_gpus"], limit, 4096],
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
        *([name, "run", _smi(query + ",".join(fields), csv)]
          for name, fields in gpu.QUERIES.items()),
        ["smi remap", "run", _smi("--query-remapped-rows=" + ",".join(gpu.REMAP_FIELDS), csv)],
        ["smi recovery", "run", _smi(query + ",".join(gpu.RECOVERY_FIELDS), csv)],
        ["smi nvlink", "run", _smi("nvlink", "-s")],
        nvlink_errors(),
        ["smi topo", "run", _smi("topo", "-m")],
        ["dcgm", "run", [word.encode() for word in dcgm.COMMAND]],
        ["gpudirect", "file", [
            path.encode() for path in
            (*topology.MODULES, topology.EFA, topology.DRIVER, topology.LINUX)
        ]],
        ["lspci", "run", [b"/bin/sh", b"-c", topology.LSPCI.encode()]],
        ["dmesg", "run", _log("dmesg")],
        ["journal", "run", _log("journalctl -k -b -o short-monotonic --no-pager")],
        ["fabric manager", "run", [b"systemctl", b"is-active", b"nvidia-fabricmanager"]],
        ["mounts", "run", [b"cat", b"/proc/self/mounts"]],  # longer than a file that is read
        ["rdma", "file", network.PORT_FILES],
        counters(),
    ]  # fmt: skip
    found = [[*one, limit, most] for one in found]
    if want.site:
        found.append(["site", "site", _path(want.site), limit, 16 << 10])
    if want.speed:
        found.append(["speed", "run", _python(want, want.speed), limit, 64 << 10])
    return found


def counters() -> list[Any]:
    """The reading of the RDMA ports' error counters, less its limits."""
    names = [name.encode() for name in (*network.BROKEN, *network.POOR)]  # of fifty that a port has
    return ["ib counters", "file", [
        b"/sys/class/infiniband/*/ports/*/" + folder + name
        for folder in (b"counters/", b"hw_counters/") for name in names
    ]]  # fmt: skip


def nvlink_errors() -> list[Any]:
    """The reading of the NVLinks' error counters, less its limits."""
    return ["smi nvlink errors", "run", _smi("nvlink", "-e")]


def second_readings(want: Want, addresses: list[str], port: int) -> list[list[Any]]:
    """The readings of the second visit: does the host reach host 0, and the counters again."""
    limit = want.seconds
    meet = ["meet", addresses, port, 0.8 * limit]
    found: list[list[Any]] = [["meet", "call", meet, limit, 16 << 10]]
    if want.full:
        found += [[*one, limit, 1 << 20] for one in (counters(), nvlink_errors())]
    return found


def _log(command: str) -> list[bytes]:
    """A command for the lines of the kernel's log that checks need; fails as ``command`` does."""
    wanted = "grep -e NVRM: -e SXid -e 'available PCIe bandwidth' | tail -n 2000"
    text = f"t=$({command}) || exit 1; echo begin; printf '%s\\n' \"$t\" | {wanted}"
    return [b"/bin/sh", b"-c", text.encode()]


def _python(want: Want, program: str) -> dict[str, list[bytes]]:
    """``program`` in the ranks' Python of each host, by its name; "" for all others."""
    paths = {"": want.python, **want.own}
    return {name: [_path(path), b"-c", program.encode()] for name, path in paths.items()}


def _smi(*words: str) -> list[bytes]:
    return [b"nvidia-smi", *(word.encode() for word in words)]


@value
class CheckedHost(Value):
    """One host.

    level: the most severe of its findings. problem: why it could not be read. lost: whether it was
    not reached.
    """

    unwritten = ("remedy",)
    level: Level
    problem: str | None
    lost: bool
    checks: Mapping[str, Finding]
    remedy: str | None = None  # for its problem

    @property
    def why(self) -> str:
        """Its problem, or its most severe finding, in one line; "" if there is none."""
        if self.problem:
            return self.problem
        name, worst = max(self.checks.items(), key=lambda item: item[1].level)
        return f"{name}: {worst.text}" if worst.level > Level.OK else ""


@value
class CheckReport(Document):
    """``dispatch check --json``. fit: whether all hosts are. format: the version, as in schema."""

    schema = "check/1"
    format: Literal[1]
    fit: bool
    seconds: float
    checks: tuple[str, ...]
    hosts: Mapping[str, CheckedHost]

    @property
    def sections(self) -> list[tuple[Level, str, Finding, list[str]]]:
        """(level, checks, finding, hosts) of all that is not OK, the most severe first.

        Hosts with equal findings come together, and so do checks with equal findings on the same
        hosts (``ecc, rows``); rare findings before common ones.
        """
        groups: dict[tuple[str, Finding], list[str]] = {}
        for host, found in self.hosts.items():
            for check, one in found.checks.items():
                if one.level > Level.OK:
                    groups.setdefault((check, one), []).append(host)
        order = {check: at for at, check in enumerate(self.checks)}
        alike: dict[tuple[Finding, tuple[str, ...]], list[str]] = {}
        for (check, one), hosts in sorted(groups.items(), key=lambda item: order[item[0][0]]):
            alike.setdefault((one, tuple(hosts)), []).append(check)
        found_all = [
            (one.level, ", ".join(checks), one, list(hosts))
            for (one, hosts), checks in alike.items()
        ]
        return sorted(found_all, key=lambda row: (-row[0], len(row[3])))


def make_report(
    checks: Sequence[Check],
    seen: Mapping[str, Seen],
    hosts: Sequence[str],
    lost: Mapping[str, str],
    unread: Mapping[str, str],
    remedies: Mapping[str, str | None] = MappingProxyType({}),
) -> CheckReport:
    """The report on ``hosts``, of which ``seen`` could be looked at."""
    columns = {check.name: check.find(seen) for check in checks}
    found = {}
    for host in hosts:
        own = {name: column[host] for name, column in columns.items()} if host in seen else {}
        level = max((one.level for one in own.values()), default=Level.OK)
        if host in lost or host in unread:
            level = Level.CRITICAL if host in lost else Level.INCOMPLETE
        problem = lost.get(host) or unread.get(host)
        found[host] = CheckedHost(level, problem, host in lost, own, remedies.get(host))
    fit = all(one.level.fit for one in found.values())
    return CheckReport(format=1, fit=fit, seconds=0.0, checks=tuple(columns), hosts=found)
