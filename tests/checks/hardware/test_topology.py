"""How GPUs, CPUs and cards reach each other: nvidia-smi topo, modules and kernels, lspci."""

from __future__ import annotations

from dataclasses import replace

from cases import cases

from checks.samples import HUNG, KERNEL, MISSING, files, host, said
from dispatcher.checks.check import Level, Reading, Seen, checked
from dispatcher.checks.hardware import topology
from dispatcher.checks.report import full

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL

LEGEND = """
Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

"""
#: NVIDIA/nccl-tests, issue 320; the underlining is nvidia-smi's own, also into a pipe
THREE = f"""\
\x1b[4m\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tNODE\tNODE\tNODE\t64-71\t1\t\tN/A
GPU1\tNV4\t X \tNODE\tNODE\tNODE\t64-71\t1\t\tN/A
GPU2\tNODE\tNODE\t X \tPHB\tPHB\t64-71\t1\t\tN/A
NIC0\tNODE\tNODE\tPHB\t X \tPIX
NIC1\tNODE\tNODE\tPHB\tPIX\t X
{LEGEND}  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def _rows(nics: str) -> str:
    """GPUs of NVIDIA/nccl, issue 1453: for each, the way to nine cards, and where it is."""
    out = []
    for gpu, row in enumerate(nics.splitlines()):
        links = ["NV18"] * 8
        links[gpu] = "X"
        out.append("\t".join([f"GPU{gpu}", *links, *row.split()]) + "\t\tN/A\n")
    return "".join(out)


EIGHT = (
    "\t" + "\t".join([f"GPU{n}" for n in range(8)] + [f"NIC{n}" for n in range(9)])
    + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    + _rows("""\
SYS SYS SYS SYS SYS NODE NODE NODE PIX 0-79 0
SYS SYS SYS SYS SYS NODE NODE PIX NODE 0-79 0
SYS SYS SYS SYS SYS NODE PIX NODE NODE 0-79 0
SYS SYS SYS SYS SYS PIX NODE NODE NODE 0-79 0
SYS NODE NODE NODE PIX SYS SYS SYS SYS 80-159 1
SYS NODE NODE PIX NODE SYS SYS SYS SYS 80-159 1
SYS NODE PIX NODE NODE SYS SYS SYS SYS 80-159 1
SYS PIX NODE NODE NODE SYS SYS SYS SYS 80-159 1
""")
    + "NIC0\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\t X \tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\n"
    + LEGEND + "".join(f"  NIC{n}: mlx5_{n}\n" for n in range(9))
)  # fmt: skip
#: lattice/quda, issue 669: names at the head, no NUMA node; two of its eight GPUs
OLD = f"""\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity
GPU0\t X \tPIX\tSYS\t0-13
GPU1\tPIX\t X \tPHB\t14-27
mlx5_0\tSYS\tPHB\t X \t
{LEGEND}"""
#: noonghunna/club-3090, issue 1229: no card at all
BARE = f"""\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-63\t0\t\tN/A
GPU1\tPHB\t X \t0-63\t0\t\tN/A
{LEGEND}"""
NOWHERE = BARE.replace("\t0-63\t0\t", "\t\tN/A\t")


def topo(text: str, status: int = 0) -> Seen:
    return host(smi_topo=said(text.encode(), status))


@cases(
    ("seen", "level", "value", "text"),
    [
        (topo(THREE), OK, "1/NODE 1/NODE 1/PHB",
         "gpu[0-1]: NUMA node 1, mlx5_0 mlx5_1 (NODE); gpu2: NUMA node 1, mlx5_0 mlx5_1 (PHB)"),
        (topo(EIGHT), OK, "0/PIX 0/PIX 0/PIX 0/PIX 1/PIX 1/PIX 1/PIX 1/PIX",
         "gpu0: NUMA node 0, mlx5_8 (PIX); gpu1: NUMA node 0, mlx5_7 (PIX); "
         "gpu2: NUMA node 0, mlx5_6 (PIX); gpu3: NUMA node 0, mlx5_5 (PIX); "
         "gpu4: NUMA node 1, mlx5_4 (PIX); gpu5: NUMA node 1, mlx5_3 (PIX); "
         "gpu6: NUMA node 1, mlx5_2 (PIX); gpu7: NUMA node 1, mlx5_1 (PIX)"),
        (topo(OLD), OK, "0-13/SYS 14-27/PHB",
         "gpu0: CPUs 0-13, mlx5_0 (SYS); gpu1: CPUs 14-27, mlx5_0 (PHB)"),
        (topo(BARE), OK, "0/ 0/", "gpu[0-1]: NUMA node 0"),
        (topo(NOWHERE), OK, "/ /", "gpu[0-1]: NUMA node unknown"),
        (topo("Failed to run topology matrix", 255), INCOMPLETE, "",
         "could not be read: exit code 255: Failed to run topology matrix"),
        (topo("Legend:\n"), INCOMPLETE, "",
         "could not be read: nvidia-smi topo -m listed no GPU"),
        (host(smi_topo=MISSING), OK, "", "no GPU"),
        (host(smi_topo=HUNG), CRITICAL, "", "nvidia-smi hangs: a GPU or its driver does not "
         "answer"),
    ],
)  # fmt: skip
def test_where_gpus_sit(seen: Seen, level: Level, value: str, text: str) -> None:
    found = checked(topology.affinity, seen)
    assert (found.level, found.value, found.text) == (level, value, text)


def test_a_host_that_is_built_otherwise_is_named() -> None:
    (check,) = [one for one in full({}, site_checks=False) if one.name == "affinity"]
    odd = EIGHT.replace("NODE\tPIX\t0-79", "PIX\tPIX\t0-79").replace("PIX\tPIX", "NODE\tNODE")
    found = check.find({"a": topo(EIGHT), "b": topo(EIGHT), "c": replace(topo(odd), name="c")})
    assert [one.level for one in found.values()] == [OK, OK, WARN]
    assert found["c"].text == (
        "0/NODE 0/PIX 0/PIX 0/PIX 1/PIX 1/PIX 1/PIX 1/PIX here, "
        "0/PIX 0/PIX 0/PIX 0/PIX 1/PIX 1/PIX 1/PIX 1/PIX elsewhere"
    )


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
