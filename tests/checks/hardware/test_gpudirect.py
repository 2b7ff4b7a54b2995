"""Whether cards reach GPUs: modules and kernels, and what lspci says of switches."""

from __future__ import annotations

from cases import cases

from checks.samples import HUNG, KERNEL, MISSING, files, host, said
from dispatcher.checks.check import Level, Reading, Seen, checked
from dispatcher.checks.hardware import topology

OK, WARN, INCOMPLETE = Level.OK, Level.WARN, Level.INCOMPLETE

#: as /proc/driver/nvidia/version has it, of https://github.com/NVIDIA/open-gpu-kernel-modules and
#: of the closed driver
OPEN = (
    b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  555.42.02  Release Build  "
    b"(dvs-builder@U16-I3-A03-02-4)  Mon May 13 17:10:33 UTC 2024\n"
)
CLOSED = (
    b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
)
NO_GPU = {name: text for name, text in KERNEL.items() if "nvidia" not in name}
PEERMEM, NV_PEER_MEM, _ = topology.MODULES


def way(linux: bytes, driver: bytes, *modules: str) -> Reading:
    return files({
        topology.LINUX: linux, topology.DRIVER: driver, **dict.fromkeys(modules, b"1\n"),
    })  # fmt: skip


@cases(
    ("reading", "level", "value"),
    [
        (way(b"5.15.0-1060-azure\n", CLOSED, PEERMEM), OK, "peermem"),
        (way(b"4.18.0-553.el8\n", CLOSED, NV_PEER_MEM), OK, "peermem"),
        (way(b"6.8.0-45-generic\n", OPEN), OK, "dma-buf"),
        (way(b"5.12.0\n", OPEN), OK, "dma-buf"),
        (way(b"5.4.0-216-generic\n", OPEN), WARN, "none"),
        (way(b"6.8.0-45-generic\n", CLOSED), WARN, "none"),
        (way(b"6.1.0\n", CLOSED, topology.EFA), OK, "efa"),
        (way(b"?\n", OPEN), INCOMPLETE, ""),
        (files({topology.LINUX: b"6.8.0"}), INCOMPLETE, ""),
        (HUNG, INCOMPLETE, ""),
    ],
)
def test_the_way_into_the_gpus_memory(reading: Reading, level: Level, value: str) -> None:
    found = checked(topology.gpudirect, host(gpudirect=reading))
    assert (found.level, found.value) == (level, value)


def test_it_is_asked_only_where_there_are_gpus_and_cards() -> None:
    no_card = {**KERNEL, "/sys/class/infiniband/": b""}
    for kernel, text in ((no_card, "no RDMA device"), (NO_GPU, "no GPU")):
        found = checked(topology.gpudirect, host(kernel=files(kernel), gpudirect=HUNG))
        assert (found.level, found.text) == (OK, text)


#: a port of a switch that redirects: https://github.com/HeyMeco/Rockchip-pcie-devices/issues/6, its
#: lines that are read; a GPU of https://github.com/leptonai/gpud stands below
PORT = """\
0000:02:08.0 PCI bridge: PLX Technology, Inc. PEX 8725 24-Lane, 10-Port PCI Express Gen 3 (8.0 GT/s)
        Bus: primary=02, secondary=82, subordinate=83, sec-latency=0
        Capabilities: [68] Express (v2) Downstream Port (Slot+), MSI 00
                ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectT-
"""
ENDPOINT = "0000:82:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n"
#: https://github.com/linux-rdma/perftest/issues/241
OFF = PORT.replace("+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+", "- TransBlk- ReqRedir- "
                   "CmpltRedir- UpstreamFwd-")  # fmt: skip
NOT_ROOT = "0000:02:08.0 PCI bridge: PLX Technology\n        Capabilities: <access denied>\n"


def lspci(text: str, gpus: bytes = b"0000:82:00.0", status: int = 0) -> Seen:
    kernel = files({**KERNEL, "/proc/driver/nvidia/gpus/": gpus})
    return host(kernel=kernel, lspci=said(text.encode(), status))


@cases(
    ("seen", "level", "text"),
    [
        (lspci(PORT + ENDPOINT), WARN, "ACS redirects what GPUs and cards send: 0000:02:08.0"),
        (lspci(PORT.replace("0000:", "")), WARN, "ACS redirects what GPUs and cards send: 02:08.0"),
        (lspci(PORT, b"0000:83:00.0\n0000:17:00.0"), WARN,
         "ACS redirects what GPUs and cards send: 0000:02:08.0"),
        (lspci(PORT, b"0000:84:00.0"), OK, ""),  # a disk is below it
        (lspci(PORT, b"0001:82:00.0"), OK, ""),
        (lspci(PORT.replace("Downstream Port", "Root Port")), OK, ""),
        (lspci(OFF + ENDPOINT), OK, ""),
        (lspci(OFF + PORT.replace("02:08", "02:09")), WARN,
         "ACS redirects what GPUs and cards send: 0000:02:09.0"),
        (lspci(NOT_ROOT, status=0), OK, "only root may read it"),
        (lspci("", status=1), INCOMPLETE, "could not be read: lspci: exit code 1"),
        (host(lspci=MISSING), OK, "lspci is not installed"),
        (host(kernel=files(NO_GPU), lspci=HUNG), OK, "no GPU"),
        (host(lspci=HUNG), INCOMPLETE, "could not be read: lspci: no answer in time"),
    ],
)  # fmt: skip
def test_switches_that_redirect(seen: Seen, level: Level, text: str) -> None:
    found = checked(topology.acs, seen)
    assert (found.level, found.text) == (level, text)
    assert (found.remedy is not None) == (level == WARN)
