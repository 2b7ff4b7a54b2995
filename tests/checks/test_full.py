"""GPUs, kernel log, fabric, mounts, site checks: texts good, bad, cut off, missing, hung."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from checks.samples import HUNG, MISSING, host, kernel, said
from checks.test_network import HDR, NDR, rdma_of
from dispatcher.api.request import plan_job, request
from dispatcher.checks import gpu, report, xid
from dispatcher.checks.check import CheckHost, Level, Reading, Seen, checked
from dispatcher.checks.report import make_report
from dispatcher.cli.run.preflight import Decision
from dispatcher.model.errors import UsageError

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL

CORE = (
    "{i}, GPU-{i}, 00000000:0{i}:00.0, NVIDIA H100 80GB HBM3, 570.86.15, 96.00.A5.00.01, 81559, "
    "{used}, {heat}, 71.23, {watt}, 1980, 1980, {ecc}, {pending}, {errors}, {width}, 16, "
    "{ready}, Disabled"
)
MORE = ", {reasons}, {fabric}, {status}"
HEALTHY = {
    "used": "4", "heat": "31", "watt": "700.00", "ecc": "Enabled", "pending": "Enabled",
    "errors": "0", "width": "16", "reasons": "0x0000000000000001", "fabric": "Completed",
    "status": "Success", "ready": "Enabled",
}  # fmt: skip


def gpu_lines(form: str, last: dict[str, str], count: int = 8) -> bytes:
    lines = [form.format(i=i, **HEALTHY) for i in range(count - 1)]
    lines.append(form.format(i=count - 1, **{**HEALTHY, **last}))
    return ("\n".join(lines) + "\n").encode()


def smi_host(**last: str) -> Seen:
    """A host whose last GPU differs from the others."""
    return host(smi=said(gpu_lines(CORE + MORE, last)), smi_core=said(gpu_lines(CORE, last)))


def smi_ended(reading: Reading) -> Seen:
    return host(smi=reading, smi_core=reading)


def old_driver(**last: str) -> Seen:
    """A driver that does not know all fields refuses the whole query."""
    refusal = b'Field "fabric.state" is not a valid field to query.\n'
    core = said(gpu_lines(CORE, last))
    return host(
        smi=said(refusal, 2), smi_old=said(gpu_lines(CORE + ", {reasons}", last)), smi_core=core
    )


def mute_driver() -> Seen:
    """A driver that knows no name for why clocks are low."""
    return host(smi=MISSING, smi_old=MISSING, smi_core=said(gpu_lines(CORE, {})))


BARE = replace(smi_ended(MISSING), readings={
    **smi_ended(MISSING).readings, "kernel": kernel(version=None), "smi remap": MISSING,
    "smi nvlink": MISSING, "smi nvlink errors": MISSING, "smi recovery": MISSING,
})  # fmt: skip
UNKNOWN = "[Unknown Error]"


@cases(
    ("check", "seen", "level", "words"),
    [
        (gpu.inventory, smi_host(), OK, ""),
        (gpu.inventory, old_driver(), OK, ""),
        (gpu.inventory, BARE, OK, "no GPU"),
        (gpu.inventory, smi_ended(said(b"0, GPU-1, 0000")), INCOMPLETE, "3 fields instead of 2"),
        (gpu.ecc, smi_host(), OK, ""),
        (gpu.ecc, smi_host(errors="[N/A]", ecc="[N/A]", pending="[N/A]"), OK, ""),
        (gpu.ecc, smi_host(errors=UNKNOWN), INCOMPLETE, "Unknown Error"),
        (gpu.clocks, smi_host(), OK, ""),
        (gpu.clocks, smi_host(reasons="0x0000000000000004"), OK, ""),
        (gpu.clocks, smi_host(reasons="0x0000000000000048"), CRITICAL, "hardware slowdown, hardw"),
        (gpu.clocks, old_driver(), OK, ""),
        (gpu.clocks, old_driver(reasons="0x0000000000000008"), CRITICAL, "hardware slowdown"),
        (gpu.clocks, mute_driver(), INCOMPLETE, "does not say why clocks are low"),
        (gpu.fabric, old_driver(), OK, "too old to say"),
        (gpu.power, smi_host(watt="630.00"), OK, ""),  # nine tenths of the others'
        (gpu.power, smi_host(watt="629.00"), WARN, "gpu 7: limited to 629 W"),
        (gpu.clocks, smi_host(reasons="0xzz"), INCOMPLETE, "nvidia-smi says '0xzz'"),
        (gpu.used, smi_host(), OK, ""),
        (gpu.used, smi_host(used="[Not Supported]"), OK, ""),
        (gpu.fabric, smi_host(), OK, ""),
        (gpu.fabric, smi_host(fabric="In Progress", status="N/A"), CRITICAL, "In Progress"),
        (gpu.remapped, host(smi_remap=said(b"GPU-1, 0, 0, No, No\nGPU-2, 3, 0, No, No\n")), OK, ""),
        (gpu.remapped, host(smi_remap=said(b"GPU-1, 0, 0")), INCOMPLETE, "3 fields instead of 5"),
        (gpu.remapped, host(smi_remap=said(b"GPU-1, 0, 0, [Unknown Error], No")), INCOMPLETE, "U"),
        (gpu.remapped, host(smi_remap=HUNG), CRITICAL, "nvidia-smi hangs"),
        (gpu.remapped, BARE, OK, "no GPU"),
    ],
)  # fmt: skip
def test_nvidia_smi(check: CheckHost, seen: Seen, level: Level, words: str) -> None:
    found = checked(check, seen)
    assert (found.level, words in found.text) == (level, True), found


XID_94 = "[999166.98] NVRM: Xid (PCI:0000:0f:00): 94, pid=2503421, name=python3, Ch 00000008\n"
XID_64 = (
    "[999166.98] NVRM: Xid (PCI:0000:0f:00): 64, pid='<unknown>', name=<unknown>, Row Remapper "
    "Error: (0x2eebc4100) - All reserved rows for bank are remapped\n"
)
SXID = (
    "[999999.00] nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Non-fatal, Link 61 egress "
    "non-posted PRIV error (First)\n"
)
#: what a driver writes of one SXid, three lines each: a fatal one, and one of the many of a boot
FATAL_SXID = """\
[999453.740743] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
[999453.740754] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30 \
Sub-engine instance 00
[999453.740758] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030, \
0x00000000, 0x10100030, 0x00000000, 0x00000000, 0x00000000, 0x00000000}
"""
BOOT_SXID = """\
[999938.178720] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link \
DLREQ interrupt
[999938.180708] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 \
Sub-engine instance 00
[999938.183583] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002c, 0x0000002c, \
0x00000000, 0x0000002c, 0x80005302, 0x00000000, 0x00000000, 0x00000000, 0x00000000}
"""
FIRST, SEVERITY, DATA = FATAL_SXID.splitlines(keepends=True)
#: Blackwell: https://github.com/leptonai/gpud components/accelerator/nvidia/xid/kmsg_test.go
NVLINK5 = (
    "[999167.620236] NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 "
    "(0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)\n"
)
NONFATAL = (  # health_state_test.go there
    "[999167.7] NVRM: Xid (PCI:0008:06:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 0 (0x00000004 "
    "0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)\n"
)
DRAIN = (
    "[999167.621162] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) "
    "to 0x4 (Drain and Reset)\n"
)
RESET = (
    "[999167.897562] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x4 (Drain "
    "and Reset) to 0x1 (GPU Reset Required)\n"
)
#: https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1150
AFTER_149 = (
    "[999168.0] NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by "
    "previous Xid 149\n"
)
NARROW = (
    "[999167.00] mlx5_core 0000:9c:00.0: 252.056 Gb/s available PCIe bandwidth, limited by 32.0 "
    "GT/s PCIe x8 link at 0000:97:01.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)\n"
)
CLOSED = said(b"dmesg: read kernel buffer failed: Operation not permitted\n", 1)
HINT = "Hint: You are currently not seeing messages from other users and the system.\nbegin\n"


def log(text: str = "", journal: Reading = MISSING, **changed: Reading) -> Seen:
    readings = {"dmesg": said(("begin\n" + text).encode()), "journal": journal, **changed}
    return host("n2", **readings)


@cases(
    ("seen", "level", "words"),
    [
        (log(), OK, ""),
        (log(XID_94), WARN, "Xid 94 (contained ECC error) of 0000:0f:00"),
        (log(XID_94 + XID_64 + XID_64), CRITICAL, "Xid 64 (no spare rows left) of 0000:0f:00, 2 t"),
        (log(XID_64.replace("999166", "2166")), OK, ""),  # more than a day ago
        (log(XID_64.replace(": 64", ": 63")), OK, ""),
        (log(XID_64.replace(": 64", ": 9999")), WARN, "Xid 9999 of"),
        # with MIG the instance stands behind the address
        (log(XID_64.replace(":0f:00)", ":0f:00 GPU-I:05)")), CRITICAL, "0f:00 GPU-I:05"),
        (log(XID_64.replace(":0f:00)", ":0f:00 GPU-I:05 GPU-CI:00)")), CRITICAL, "GPU-CI:00"),
        (log(XID_94.replace(": 94", ": 172")), CRITICAL, "Xid 172 (uncorrected error of a cache)"),
        (log(XID_94.replace(": 94", ": 162")), OK, ""),
        (log(SXID), WARN, "SXid 12028 of 0000:85:00.0"),
        (log(SXID.replace("Non-fatal", "Fatal")), CRITICAL, "SXid 12028"),
        (log(FATAL_SXID), CRITICAL, "SXid 20034 of 0000:a9:00.0"),
        (log(FATAL_SXID + FIRST.replace("Fatal", "Non-fatal")), CRITICAL, "SXid 20034"),
        (log(FATAL_SXID * 2 + BOOT_SXID), CRITICAL, "SXid 20034 of 0000:a9:00.0, 2 times"),
        (log(SEVERITY + DATA), CRITICAL, "SXid 20034 of 0000:a9:00.0"),  # the rest was overwritten
        (log(BOOT_SXID * 30), OK, ""),
        (log(BOOT_SXID.replace("Non-fatal", "Fatal")), CRITICAL, "SXid 22013"),
        (log(NVLINK5), CRITICAL, "Xid 149 (NVLink error) of 0009:01:00"),
        (log(NONFATAL), WARN, "Xid 145 (NVLink error) of 0008:06:00"),
        (log(NONFATAL + NVLINK5), CRITICAL, "Xid 149"),
        (log(AFTER_149), OK, ""),
        (log(DRAIN), CRITICAL, "Xid 154 (Drain and Reset) of 0009:01:00"),
        (log(DRAIN + RESET), CRITICAL, "Xid 154 (GPU Reset Required) of 0009:01:00"),
        (log(DRAIN + RESET.replace("0x1 (GPU Reset Required)", "0x0 (None)")), OK, ""),
        (log(RESET.replace("0009", "0008") + DRAIN.replace("0x4 (Drain and Reset)", "0x0 (None)")),
         CRITICAL, "Xid 154 (GPU Reset Required) of 0008:01:00"),
        (log(DRAIN[:70]), CRITICAL, "Xid 154 (the driver wants something done)"),  # cut off
        (log(NARROW), WARN, "PCIe bandwidth limited by 32.0 GT/s PCIe x8 link of 0000:9c:00.0"),
        (log("[999999.0] NVRM: Xid (PCI:0000:0f:00): 7"[:37]), OK, ""),  # cut off in mid-line
        (host(dmesg=CLOSED, journal=said(("begin\n" + XID_64).encode())), CRITICAL, "Xid 64"),
        (host(dmesg=CLOSED, journal=MISSING), INCOMPLETE, "not permitted; journalctl: not inst"),
        (host(dmesg=CLOSED, journal=said(HINT.encode())), INCOMPLETE, "dmesg: exit code 1"),
        (host(dmesg=CLOSED, journal=MISSING, kernel=kernel(version=None)), OK, ""),  # nor a GPU
        (host(dmesg=said(("begin\n" + XID_64).encode()), kernel=kernel(version=None)), CRITICAL,
         "Xid 64"),
        (host(dmesg=HUNG, journal=HUNG), INCOMPLETE, "no answer in time"),
    ],
)  # fmt: skip
def test_xid(seen: Seen, level: Level, words: str) -> None:
    found = checked(xid.xid(xid.TABLE), seen)
    assert (found.level, words in found.text) == (level, True), found
    assert ("drain the host" in str(found.remedy)) == (level == CRITICAL)


@cases(
    ("lines", "remedy"),
    [
        (XID_94.replace(": 94", ": 31"), "the program's own fault"),
        (XID_94, "reset the GPU once its other jobs have ended"),
        (XID_94.replace(": 94", ": 171"), "look the numbers up"),
        (XID_94 + XID_94.replace(": 94", ": 31"), "look the numbers up"),
        (NARROW, "reseat the card"),
    ],
)  # fmt: skip
def test_the_remedy_of_a_warning(lines: str, remedy: str) -> None:
    found = checked(xid.xid(xid.TABLE), log(lines))
    assert found.level == WARN
    assert remedy in str(found.remedy)


def test_a_site_overrules_the_table() -> None:
    own = xid.parse_table("# ours\n94 critical  # drain\n64 ignore\n", "t")
    check = xid.xid({**xid.TABLE, **own})
    assert checked(check, log(XID_94)).level == CRITICAL
    assert checked(check, log(XID_64)).level == OK
    fatal = xid.xid({**xid.TABLE, **xid.parse_table("20034 warn\n22013 critical\n", "t")})
    assert checked(fatal, log(FATAL_SXID)).level == WARN
    assert checked(fatal, log(BOOT_SXID)).level == CRITICAL
    links = xid.xid({**xid.TABLE, **xid.parse_table("149 warn\n145 ignore\n154 ignore\n", "t")})
    assert checked(links, log(NVLINK5 + NONFATAL + DRAIN)).level == WARN


@given(st.permutations((FATAL_SXID + BOOT_SXID * 2 + SXID + XID_94).splitlines(keepends=True)))
def test_one_line_in_any_place_is_enough_for_the_worst(lines: list[str]) -> None:
    found = checked(xid.xid(xid.TABLE), log("".join(lines)))
    assert (found.level, found.text) == (CRITICAL, "SXid 20034 of 0000:a9:00.0")


@cases("line", ["79", "79 fatal", "x warn", "79 warn now", "\u0667\u0669 warn"])
def test_a_bad_table_names_its_line(line: str) -> None:
    with pytest.raises(UsageError, match="t:2: not a number and a level"):
        xid.parse_table(f"79 warn\n{line}\n", "t")


def test_a_slower_port_than_elsewhere_is_found() -> None:
    rates = {"a": NDR, "b": HDR, "c": NDR}
    ports = {name: ("m", "4: ACTIVE", "5: LinkUp", rates[name], "InfiniBand") for name in rates}
    hosts = {name: host(name, rdma=rdma_of(port)) for name, port in ports.items()}
    check = next(c for c in report.full({}, site_checks=False) if c.name == "rdma")
    found = check.find(hosts)
    assert found["b"].text == "1 x IB 200 Gb/s here, 1 x IB 400 Gb/s elsewhere"
    assert (found["a"].level, found["b"].level) == (OK, CRITICAL)
    # what NCCL says of its network is held against these
    plan = plan_job(request("a,b,c", ["true"], kind="command", nproc_per_node=1))
    made = make_report([check], hosts, [*hosts, "gone"], {"gone": "lost"}, {})
    seen = Decision(plan, report=made).rdma
    assert seen == {"a": "1 x IB 400 Gb/s", "b": "1 x IB 200 Gb/s", "c": "1 x IB 400 Gb/s"}


@cases("check", report.full({}, site_checks=True), ids=lambda check: check.name)
def test_what_was_not_read_is_never_ok(check: object) -> None:
    everything = [*report.first_readings(report.Want(host().asked, "p", {}, 1.0, full=True), [])]
    rubbish = {one[0]: Reading(0, b"\x00rubbish") for one in everything}
    for readings in ({}, rubbish):
        sick = replace(host(), readings=readings, later=readings, ahead=None)
        assert check.find({"n2": sick})["n2"].level in (INCOMPLETE, CRITICAL)  # type: ignore[attr-defined]
