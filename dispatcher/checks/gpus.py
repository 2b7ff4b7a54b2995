"""GPUs in short: are they as many as the ranks need, and is nobody on them; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dispatcher.checks.check import Seen, critical, each, mode, ok
from dispatcher.checks.finding import Finding, Level
from dispatcher.checks.gpu import HANG, rows
from dispatcher.checks.host import has_gpus

#: programs that watch GPUs, or keep them awake, and take next to nothing
WATCHERS = frozenset({
    "nvidia-persiste", "nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nvidia-smi",
    "dcgmproftester", "gpud", "nvtop", "Xorg",
})  # fmt: skip

_DEVICE = re.compile(r"nvidia\d+")


def count(seen: Seen) -> int:
    """NVIDIA GPUs; /dev decides where it has any, since /proc shows a container all of them."""
    files = seen.files("kernel")
    devices = sum(bool(_DEVICE.fullmatch(n)) for n in files.get("/dev/", "").split())
    return devices or len(files.get("/proc/driver/nvidia/gpus/", "").split())


def enough(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
    """As many GPUs as slots; as many as elsewhere. A cluster without any needs none."""
    found = each(lambda seen: ok(str(count(seen))))(hosts)
    good = {name: int(one.value) for name, one in found.items() if one.level == Level.OK}
    if not any(good.values()):
        return {
            name: ok("0", "no GPUs anywhere") if name in good else one
            for name, one in found.items()
        }
    usual = int(mode(str(number) for number in good.values()) or 0)
    remedy = "dmesg -T | grep -i -e NVRM -e nvidia; lspci -d 10de:; a reset or reboot may help"
    for name, number in good.items():
        slots = hosts[name].slots
        if slots is not None and number < slots:
            found[name] = critical(f"{number} GPUs for {slots} slots", remedy, str(number))
        elif number < usual:
            found[name] = critical(f"{number} GPUs here, {usual} elsewhere", remedy, str(number))
    return found


def users(seen: Seen) -> Finding:
    """Processes on its GPUs that no job of ours has put there yet."""
    if not has_gpus(seen):
        return ok(text="no GPU")
    there: dict[int, str] = {}
    for pid, _, name in seen.value("gpu users"):
        there[int(pid)] = str(name)
    reading = seen.reading("gpu apps")
    if reading.hung:
        return HANG
    if reading.status != 127:
        for row in rows(seen.output("gpu apps"), 3):
            there.setdefault(int(row[0]), row[1].rsplit("/", 1)[-1])
    strangers = {pid: name for pid, name in there.items() if name not in WATCHERS}
    if not strangers:
        return ok()
    shown = ", ".join(f"{name} ({pid})" for pid, name in sorted(strangers.items())[:4])
    more = f" and {len(strangers) - 4} more" if len(strangers) > 4 else ""
    return critical(f"on its GPUs: {shown}{more}", "dispatch sweep -H hostfile, or kill them there")
