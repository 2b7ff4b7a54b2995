"""How GPUs, CPUs and network cards of a host reach each other; pure.

* ``gpudirect``: a card writes to a GPU's memory if nvidia-peermem is loaded, or by dma-buf, as NCCL
  decides it (``net_ib/gdr.cc``).
* ``acs``: access control services of a PCIe switch send to the root complex what one device below
  it sends to another: slow, and with some cards a hang.
* ``affinity``: which CPUs and cards are near to which GPU; it judges only whether hosts are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dispatcher.checks.check import NOT_FOUND, Finding, Seen, Unread, a_few, ok, warn
from dispatcher.checks.gpu import silent
from dispatcher.checks.health import has_gpus
from dispatcher.model.hostset import fold

MODULES = (
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
)
#: Amazon's cards use their own driver
EFA = "/sys/module/efa/version"
DRIVER, LINUX = "/proc/driver/nvidia/version", "/proc/sys/kernel/osrelease"
#: Linux that has dma-buf for RDMA
DMABUF = (5, 12)

#: what of ``lspci -D -vvv`` is read
LSPCI = (
    "command -v lspci >/dev/null || exit 127; lspci -D -vvv 2>/dev/null | "
    "grep -e '^[0-9a-f]' -e 'Bus: primary' -e 'Express .*Port' -e ACSCtl -e 'access denied'"
)

_PORT = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2}\.[0-7]) (.*)")
_BUSES = re.compile(r"secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_REDIRECTS = re.compile(r"(?:ReqRedir|CmpltRedir)\+")
_GPU = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):[0-9a-f]{2}\.[0-7]", re.I)


def gpudirect(seen: Seen) -> Finding:
    """Whether RDMA devices can reach the memory of GPUs."""
    if not has_gpus(seen):
        return ok(text="no GPU")
    if not seen.files("kernel").get("/sys/class/infiniband/", "").strip():
        return ok(text="no RDMA device")
    files = seen.files("gpudirect")
    if any(path in files for path in MODULES):
        return ok("peermem")
    if EFA in files:
        return ok("efa")
    release = re.match(r"(\d+)\.(\d+)", files.get(LINUX, ""))
    if release is None or DRIVER not in files:
        raise Unread(f"{DRIVER if release else LINUX}: cannot be read")
    is_open = "Open Kernel Module" in files[DRIVER]
    if is_open and (int(release[1]), int(release[2])) >= DMABUF:
        return ok("dma-buf")
    text = "neither nvidia-peermem nor dma-buf: RDMA goes through the host's memory"
    remedy = "modprobe nvidia-peermem; or the driver's open modules and Linux 5.12"
    return warn(text, remedy, "none")


def acs(seen: Seen) -> Finding:
    """Whether PCIe switches above GPUs redirect what goes from device to device."""
    gpus = _GPU.findall(seen.files("kernel").get("/proc/driver/nvidia/gpus/", ""))
    reading = seen.reading("lspci")
    if reading.status == NOT_FOUND:
        return ok(text="lspci is not installed")
    if not has_gpus(seen):
        return ok(text="no GPU")
    text = reading.text
    if "access denied" in text and "ACSCtl" not in text:
        return ok(text="only root may read it")
    if reading.hung or reading.cut or not any(_PORT.match(line) for line in text.splitlines()):
        raise Unread(f"lspci: {reading.why()}")
    above = {(int(domain, 16), int(bus, 16)) for domain, bus in gpus}
    found = _redirecting(text, above)
    if not found:
        return ok()
    remedy = (
        "as root: setpci -s PORT ECAP_ACS+0x6.w=0000 after each start, or IOMMU off in the BIOS"
    )
    return warn(f"ACS redirects what GPUs and cards send: {a_few(found)}", remedy)


def _redirecting(text: str, gpus: set[tuple[int, int]]) -> list[str]:
    """Ports of switches that redirect, and have one of ``gpus`` (domain, bus) below."""
    found = []
    name, below, in_switch = "", set[tuple[int, int]](), False
    domain = 0
    for line in text.splitlines():
        if port := _PORT.match(line):
            domain = int(port[1] or "0", 16)
            name, below, in_switch = line.split()[0], set(), False
        elif buses := _BUSES.search(line):
            first, last = (int(bus, 16) for bus in buses.groups())
            below = {(domain, bus) for bus in range(first, last + 1)}
        elif "Express" in line:
            in_switch = "Downstream Port" in line
        elif in_switch and below & gpus and _REDIRECTS.search(line.partition("ACSCtl:")[2]):
            found.append(name)
    return found


#: ways between two devices of ``nvidia-smi topo -m``: one PCIe bridge at most, several, the host
#: bridge of a CPU, several of a NUMA node, another NUMA node
NEAREST = ("PIX", "PXB", "PHB", "NODE", "SYS")

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_LEGEND = re.compile(r"\s*(NIC\d+): (\S{1,64})\s*")
_NAME = re.compile(r"GPU\d{1,3}")


def parse(text: str) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """GPU number -> its NUMA node or else CPUs, the way to the nearest cards, their names.

    "" and () for missing values; {} for another text.
    """
    lines = _STYLE.sub("", text).splitlines()
    names = {match[1]: match[2] for line in lines if (match := _LEGEND.fullmatch(line))}
    head: list[str] = []
    found: dict[str, tuple[str, str, tuple[str, ...]]] = {}
    for line in lines:
        words = line.split()
        if not head:
            if words[:1] == ["GPU0"]:
                head = line.partition("CPU Affinity")[0].split()
        elif words and words[0] in head and _NAME.fullmatch(words[0]):
            ways = dict(zip(head, words[1:], strict=False))
            cards = {name: way for name, way in ways.items() if not _NAME.fullmatch(name)}
            way = next((way for way in NEAREST if way in cards.values()), "")
            near = tuple(names.get(name, name) for name, there in cards.items() if there == way)
            found[words[0][3:]] = _home(words[1 + len(head) :]), way, near if way else ()
    return found


def _home(words: list[str]) -> str:
    """``NUMA node 0``, or ``CPUs 0-23``, of the columns behind the matrix."""
    if len(words) > 1 and words[1].isdigit():
        return f"NUMA node {words[1]}"
    return f"CPUs {words[0]}" if words and words[0][:1].isdigit() else ""


def affinity(seen: Seen) -> Finding:
    """Where the GPUs sit; value: NUMA node and way to the nearest cards of each."""
    if trouble := silent(seen, "smi topo"):
        return trouble
    there = parse(seen.output("smi topo"))
    if not there:
        raise Unread("nvidia-smi topo -m listed no GPU")
    short = [f"{home.rpartition(' ')[2]}/{way}" for home, way, _ in there.values()]
    return ok(" ".join(short), "; ".join(_lines(there)))


def _lines(there: Mapping[str, tuple[str, str, tuple[str, ...]]]) -> list[str]:
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for gpu, about in there.items():
        groups.setdefault(about, []).append(f"gpu{gpu}")
    lines = []
    for (home, way, near), gpus in groups.items():
        cards = [f"{' '.join(near)} ({way})"] if near else []
        lines.append(f"{fold(gpus)}: {', '.join([home or 'NUMA node unknown', *cards])}")
    return lines
