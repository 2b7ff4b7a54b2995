"""Whether network cards reach the GPUs' memory: peermem or dma-buf, and PCIe's ACS; pure.

As NCCL decides it (``net_ib/gdr.cc``, and its guide's pages on troubleshooting): a card writes to a
GPU's memory if nvidia-peermem is loaded, or by dma-buf, which Linux has from 5.12 and the driver in
its open variant. Without either all data goes through the memory of the host.

ACS (access control services) has a PCIe switch send to the root complex what one device below it
sends to another, so that an IOMMU may look at it: slow, and with some cards a hang. It matters in
switches' ports that lead to a GPU. Only root may read it; where we may not, nothing is said, as it
could be no more than a warning.
"""

from __future__ import annotations

import re

from dispatcher.checks.check import NOT_FOUND, Finding, Seen, Unread, a_few, ok, warn
from dispatcher.checks.health import has_gpus

MODULES = (
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
)
#: Amazon's cards have a way of their own
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
    return warn(
        "neither nvidia-peermem nor dma-buf: RDMA goes through the host's memory",
        "modprobe nvidia-peermem; or the driver's open modules and Linux 5.12",
        "none",
    )


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
