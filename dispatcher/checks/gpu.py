"""GPUs: enough of them, free, and well by ``nvidia-smi``; pure.

Any value may be ``[N/A]``, ``[Not Supported]`` (this GPU has no such thing) or ``[Unknown
Error]`` (the driver could not ask it). An unknown field makes the whole query fail, so a query
that an old driver refuses is asked again with fewer fields. A ``nvidia-smi`` that hangs waits for
a faulty GPU.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping

from dispatcher.checks.check import (
    NOT_FOUND,
    Finding,
    Level,
    Reading,
    Seen,
    Unread,
    a_few,
    critical,
    each,
    mode,
    ok,
    warn,
)
from dispatcher.checks.health import has_gpus
from dispatcher.model.names import plural

#: programs that watch GPUs, or keep them awake, and take next to nothing
WATCHERS = frozenset({
    "nvidia-persiste", "nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nvidia-smi",
    "dcgmproftester", "gpud", "nvtop", "Xorg", "nvidia-cuda-mps", "nvidia-cuda-mps-server",
    "nvidia-cuda-mps-control",
})  # fmt: skip


def count(seen: Seen) -> int:
    """NVIDIA GPUs that we may use: a container or a batch system may give us some of them."""
    return int(seen.value("gpus"))


def enough(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
    """As many GPUs as slots; as many as elsewhere. A cluster without any needs none."""
    found = each(lambda seen: ok(str(count(seen))))(hosts)
    good = {name: int(one.value) for name, one in found.items() if one.level == Level.OK}
    if not any(good.values()):
        none = ok("0", "no GPUs anywhere")
        return {name: none if name in good else one for name, one in found.items()}
    common = int(mode(str(number) for number in good.values()) or 0)
    remedy = "dmesg -T | grep -i -e NVRM -e nvidia; lspci -d 10de:; a reset or reboot may help"
    for name, number in good.items():
        slots, here = hosts[name].slots, plural(number, "GPU")
        if slots is not None and number < slots:
            found[name] = critical(f"{here} for {plural(slots, 'slot')}", remedy, str(number))
        elif number < common:
            found[name] = critical(f"{here} here, {common} elsewhere", remedy, str(number))
    return found


def users(seen: Seen) -> Finding:
    """Processes that use its GPUs although our job has not started."""
    if not has_gpus(seen):
        return ok(text="no GPU")
    there = {int(pid): str(name) for pid, _, name in seen.value("gpu users")}
    reading = seen.reading("gpu apps")
    if reading.hung:
        return HANG
    if refused := refusal(seen, reading):
        return refused
    if reading.status != NOT_FOUND:
        for row in rows(seen.output("gpu apps"), 3):
            there.setdefault(int(row[0]), row[1].rsplit("/", 1)[-1])
    foreign = {pid: name for pid, name in there.items() if name not in WATCHERS}
    if not foreign:
        return ok()
    shown = a_few([f"{name} ({pid})" for pid, name in sorted(foreign.items())], 4)
    remedy = "dispatch sweep -H hostfile, or kill them on the host"
    return critical(f"processes on its GPUs: {shown}", remedy)


#: queried on every driver
CORE_FIELDS = (
    "index", "uuid", "pci.bus_id", "name", "driver_version", "vbios_version", "memory.total",
    "memory.used", "temperature.gpu", "power.draw", "power.limit", "clocks.sm", "clocks.max.sm",
    "ecc.mode.current", "ecc.mode.pending", "ecc.errors.uncorrected.volatile.total",
    "pcie.link.width.current", "pcie.link.width.max", "persistence_mode", "mig.mode.current",
)  # fmt: skip
#: queried on newer drivers as well; a driver before 535 knows the first by its old name
MORE_FIELDS = ("clocks_event_reasons.active", "fabric.state", "fabric.status")
OLD_FIELDS = ("clocks_throttle_reasons.active",)
QUERIES = {
    "smi": (*CORE_FIELDS, *MORE_FIELDS), "smi old": (*CORE_FIELDS, *OLD_FIELDS),
    "smi core": CORE_FIELDS,
}  # fmt: skip
#: alone, since drivers before 565 refuse a query that has it
RECOVERY_FIELDS = ("index", "pci.bus_id", "gpu_recovery_action")
REMAP_FIELDS = (
    "gpu_uuid", "remapped_rows.correctable", "remapped_rows.uncorrectable",
    "remapped_rows.pending", "remapped_rows.failure",
)  # fmt: skip

#: bits of clocks_event_reasons.active that say that something holds the clocks down
HARD_SLOW = {0x8: "hardware slowdown", 0x40: "hardware thermal", 0x80: "power brake"}
SOFT_SLOW = {0x20: "software thermal"}
#: °C from which a GPU is about to slow down
HOT = 85.0
#: MiB that the driver itself may hold
OWN_MEMORY = 1024.0
#: a power limit this far below most GPUs' makes a straggler
LOW_POWER = 0.9

ABSENT = ("[n/a]", "n/a", "[not supported]", "", "[deprecated]")

HANG = critical(
    "nvidia-smi hangs: a GPU or its driver does not answer",
    "drain the host and reboot it; if nvidia-smi does answer there after a while: nvidia-smi -pm 1",
)


def rows(text: str, width: int) -> list[list[str]]:
    """The lines of ``--format=csv,noheader,nounits``, of ``width`` fields each. Raises: Unread."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if not row or row[0].startswith("No running") or row[0].startswith("No devices"):
            continue
        if len(row) != width:
            raise Unread(f"nvidia-smi: {len(row)} fields instead of {width}: {','.join(row)[:80]}")
        found.append([field.strip() for field in row])
    return found


def gpus(seen: Seen) -> list[dict[str, str]]:
    """The GPUs, field -> text. Raises: Unread."""
    for name, fields in QUERIES.items():
        reading = seen.readings.get(name)
        if reading is not None and reading.status == 0 and not reading.cut:
            return [dict(zip(fields, row, strict=True)) for row in rows(reading.text, len(fields))]
    raise Unread(f"nvidia-smi: {seen.reading('smi core').why()}")


def number(text: str) -> float | None:
    """The value, None where there is no such thing. Raises: Unread for an unknown error."""
    if text.lower() in ABSENT:
        return None
    try:
        return float(int(text, 16) if text.startswith("0x") else float(text))
    except ValueError:
        raise Unread(f"nvidia-smi says {text[:40]!r}") from None


#: words of nvidia-smi instead of an answer, their meaning, and the remedy
_REFUSALS = (
    (re.compile(r"device handle for (?:GPU\d+: )?(?:GPU ?)?([0-9A-Fa-f:.]+): "  # newer: both
                r"(?:GPU is lost|Unknown Error|Not Found)"),
     "gpu {0}: lost: the driver cannot reach it",
     "dmesg -T | grep -i xid; reboot the host; again: power cables, riser, the card"),
    (re.compile(r"Driver/library version mismatch(?:\s+NVML library version: ([\d.]+))?"),
     "the driver that runs is {driver}, its library {0}",
     "an update of the driver took place: reboot, or unload and load its modules"),
    (re.compile(r"couldn't communicate with the NVIDIA driver"),
     "the driver is not loaded",
     "modprobe nvidia; after a new kernel: dkms autoinstall, and reboot"),
    (re.compile(r"Failed to initialize NVML: (Unknown Error)"),
     "the driver cannot be asked: {0}",
     "in a container: restart it; else dmesg -T | grep -i nvrm, and reboot"),
)  # fmt: skip
#: values of a field that say that the GPU itself does not answer
_GONE = ("gpu is lost", "requires reset", "is in an unrecoverable state")


def refusal(seen: Seen, reading: Reading) -> Finding | None:
    """The fault of the driver or a GPU when nvidia-smi refuses to answer; None if it does not.

    seen: its host, for the version of the driver.
    """
    if "No devices were found" in reading.text and count(seen):
        text = f"nvidia-smi finds none of {count(seen)} GPUs"
        remedy = "dmesg -T | grep -i -e NVRM -e RmInitAdapter; reset or reboot"
        return critical(text, f"{remedy}; container: --gpus all")
    for pattern, means, remedy in _REFUSALS:
        match = pattern.search(reading.text)
        if match and (reading.status != 0 or "handle for" in match[0]):
            driver = seen.files("kernel").get("/sys/module/nvidia/version", "").strip()[:32]
            words = (group or "another" for group in match.groups())
            return critical(means.format(*words, driver=driver or "another"), remedy)
    return None


def silent(seen: Seen, probe: str) -> Finding | None:
    """Why ``probe``, a call of nvidia-smi, gave no data on a GPU; None if it gave some."""
    reading = seen.reading(probe)
    if reading.hung:
        return HANG
    return ok(text="no GPU") if reading.status == NOT_FOUND else refusal(seen, reading)


def of_gpus(check: Callable[[list[dict[str, str]]], Finding]) -> Callable[[Seen], Finding]:
    """A check of one host out of one of its GPUs: absent without a driver, HANG if it hangs."""

    def one(seen: Seen) -> Finding:
        readings = [seen.reading(name) for name in ("smi", "smi core")]
        if all(reading.status == NOT_FOUND for reading in readings):
            if "/sys/module/nvidia/version" in seen.files("kernel"):
                raise Unread("nvidia-smi is not installed")
            return ok(text="no GPU")
        if any(reading.hung for reading in readings):
            return HANG
        return refusal(seen, readings[0]) or refusal(seen, readings[1]) or check(gpus(seen))

    return one


def each_gpu(check: Callable[[dict[str, str]], Finding | None]) -> Callable[[Seen], Finding]:
    """As ``of_gpus``, from a check of one GPU (None: no problem): the most severe finding."""

    @of_gpus
    def all_of_them(there: list[dict[str, str]]) -> Finding:
        found = [one for gpu in there if (one := check(gpu)) is not None]
        return max(found, key=lambda one: one.level, default=ok())

    return all_of_them


def listed(seen: Seen) -> Finding:
    """nvidia-smi lists every GPU that has a device, and each of them answers."""
    found = _listed(seen)
    expected = count(seen)
    if found.value and int(found.value) < expected:
        text = f"nvidia-smi lists {found.value} of {expected} GPUs"
        return critical(text, "dmesg -T | grep -i -e NVRM -e xid; reset or reboot", found.value)
    return found


@of_gpus
def _listed(there: list[dict[str, str]]) -> Finding:
    for gpu in there:
        words = next((v for v in gpu.values() if any(one in v.lower() for one in _GONE)), None)
        if words is not None:
            text = f"gpu {gpu['index']} ({gpu['pci.bus_id']}): {words.strip('[]')}"
            return critical(text, "drain the host; reset the GPU or reboot")
    return ok(str(len(there)))


def recovery(seen: Seen) -> Finding:
    """The action that a newer driver asks for a GPU (NVIDIA/DCGM#263)."""
    if trouble := silent(seen, "smi recovery"):
        return trouble
    reading = seen.reading("smi recovery")
    if "not a valid field" in reading.text:
        return ok(text="the driver is too old to say")
    wanted = [
        row
        for row in rows(seen.output("smi recovery"), len(RECOVERY_FIELDS))
        if row[2].lower() not in ("none", *ABSENT)
    ]
    if not wanted:
        return ok()
    texts = [f"gpu {index} ({bus}): {action[:40]}" for index, bus, action in wanted]
    remedy = "drain the host, and do that: nvidia-smi --gpu-reset -i INDEX, or reboot"
    return critical(f"the driver asks for it: {a_few(texts)}", remedy)


@of_gpus
def inventory(there: list[dict[str, str]]) -> Finding:
    """Equal hosts have equal GPUs: name, memory, VBIOS, modes."""
    kinds: dict[str, int] = {}
    for gpu in there:
        words = [gpu["name"], f"{gpu['memory.total']} MiB", f"vbios {gpu['vbios_version']}"]
        words += [f"mig {gpu['mig.mode.current']}"] if gpu["mig.mode.current"] == "Enabled" else []
        kinds[", ".join(words)] = kinds.get(", ".join(words), 0) + 1
    return ok("; ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())))


@each_gpu
def ecc(gpu: dict[str, str]) -> Finding | None:
    """Memory errors that could not be corrected; ECC switched on."""
    bad = number(gpu["ecc.errors.uncorrected.volatile.total"])
    now, then = gpu["ecc.mode.current"], gpu["ecc.mode.pending"]
    if bad:
        text = f"gpu {gpu['index']}: {bad:.0f} uncorrected memory errors since the last reset"
        return critical(text, "drain the host; nvidia-smi --gpu-reset -i INDEX")
    if now == "Disabled":
        return warn(f"gpu {gpu['index']}: ECC is off", "nvidia-smi -e 1, and reboot")
    return None if now == then else warn(f"gpu {gpu['index']}: ECC will be {then} after a reset")


@each_gpu
def clocks(gpu: dict[str, str]) -> Finding | None:
    """Reasons of low clocks: heat, power supply, hardware."""
    told = [gpu[name] for name in (MORE_FIELDS[0], *OLD_FIELDS) if name in gpu]
    if not told:
        return Finding(Level.INCOMPLETE, "nvidia-smi does not say why clocks are low")
    mask = int(number(told[0]) or 0)
    hard = [why for bit, why in HARD_SLOW.items() if mask & bit]
    soft = [why for bit, why in SOFT_SLOW.items() if mask & bit]
    heat = number(gpu["temperature.gpu"])
    who = f"gpu {gpu['index']}: "
    if hard:
        return critical(who + f"slowed down: {', '.join(hard)}", "cooling, power supply")
    if soft:
        return warn(who + f"slowed down: {', '.join(soft)}", "look at its cooling")
    if heat is not None and heat >= HOT:
        return warn(who + f"{heat:.0f} °C", "look at its cooling")
    return None


@each_gpu
def persistence(gpu: dict[str, str]) -> Finding | None:
    """Without persistence mode the driver initializes a GPU again at each start, for seconds."""
    if gpu["persistence_mode"] != "Disabled":
        return None
    remedy = "systemctl enable --now nvidia-persistenced"
    return warn(f"gpu {gpu['index']}: persistence mode is off", remedy)


@of_gpus
def power(there: list[dict[str, str]]) -> Finding:
    """The power limit: equal for GPUs of one host, and so, by value, of all."""
    limits = {gpu["index"]: number(gpu["power.limit"]) for gpu in there}
    known = {index: limit for index, limit in limits.items() if limit is not None}
    most = max(known.values(), default=0.0)
    low = [index for index, limit in known.items() if limit < LOW_POWER * most]
    if low:
        text = f"gpu {','.join(low)}: limited to {known[low[0]]:.0f} W, others to {most:.0f} W"
        return warn(text, f"nvidia-smi -i INDEX -pl {most:.0f}")
    return ok(f"{most:.0f} W" if known else "")


@each_gpu
def pcie(gpu: dict[str, str]) -> Finding | None:
    """PCIe lanes: fewer than the card has are a bad slot, riser or card."""
    now, most = number(gpu["pcie.link.width.current"]), number(gpu["pcie.link.width.max"])
    if now is None or most is None or now >= most:
        return None
    text = f"gpu {gpu['index']}: PCIe x{now:.0f} of x{most:.0f}"
    return critical(text, "reseat the card; look at dmesg for AER")


@each_gpu
def used(gpu: dict[str, str]) -> Finding | None:
    """Memory in use, also by processes that we may not see."""
    held = number(gpu["memory.used"])
    if held is None or held <= OWN_MEMORY or gpu["mig.mode.current"] == "Enabled":
        return None
    text = f"gpu {gpu['index']}: {held:.0f} MiB in use"
    return critical(text, "dispatch sweep -H hostfile; nvidia-smi shows who")


@each_gpu
def fabric(gpu: dict[str, str]) -> Finding | None:
    """NVSwitch systems: each GPU must have joined the fabric.

    Of a GB200 drivers 570 and 580 write ``state  Completed`` and ``status Success``. Its fabric
    manager runs in the switches' trays.
    """
    if "fabric.state" not in gpu:
        return ok(text="the driver is too old to say")
    state, status = (
        gpu[name].removeprefix(word).strip()
        for name, word in (("fabric.state", "state "), ("fabric.status", "status "))
    )
    joined = state == "Completed" and status.lower() in ("success", *ABSENT)
    if joined or state.lower() in ABSENT:
        return None
    text = f"gpu {gpu['index']}: fabric {state}, {status}"
    if re.search(r"\bGB\d", gpu["name"]):
        return critical(text, "look at nvidia-imex, and the fabric manager of its NVLink switches")
    return critical(text, "systemctl restart nvidia-fabricmanager, then reset")


def remapped(seen: Seen) -> Finding:
    """Memory rows that were replaced by spare rows: pending needs a reset, failure a new GPU."""
    if trouble := silent(seen, "smi remap"):
        return trouble
    reading = seen.reading("smi remap")
    if "not supported" in reading.text.lower():
        return ok(text="this GPU has none")
    found = [ok()]
    for row in rows(seen.output("smi remap"), len(REMAP_FIELDS)):
        uuid, _, _, pending, failure = row
        if failure.lower() in ("yes", "1"):
            found.append(critical(f"{uuid}: no spare rows left", "the GPU has to be replaced"))
        elif pending.lower() in ("yes", "1"):
            text = f"{uuid}: a row waits to be remapped"
            found.append(critical(text, "nvidia-smi --gpu-reset"))
        elif pending.lower() not in ("no", "0", *ABSENT):
            raise Unread(f"nvidia-smi says {pending[:40]!r}")
    return max(found, key=lambda one: one.level)
