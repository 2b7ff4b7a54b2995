"""Why a rank failed, as its host sees it: its error file, the OOM killer, the GPU driver.

Loaded at the first failure only. The launcher takes none of these texts on trust.
"""

from __future__ import annotations

import os
from _signal import SIGKILL  # type: ignore[import-not-found]

from dispatcher.remote.host.host_facts import oom_kills
from dispatcher.remote.host.poll import read_ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: bytes of an error file that are sent on
ERROR_LIMIT = 64 << 10
#: kernel messages looked at, and characters of one that are quoted
LOG_LIMIT, QUOTE_LIMIT = 20000, 200


def exit_fields(
    rank: int, pid: int, status: int, folder: str | None, kills: int, since: float
) -> dict[str, Any]:
    """Fields for the report of an exit: ``error`` (bytes) and ``hint`` (text), where there are any.

    kills: the OOM killer's count when the ranks were started; since: that moment, monotonic.
    """
    found = error_of(folder, rank)
    log = kernel_log(since) if status == -SIGKILL or os.path.exists("/proc/driver/nvidia") else []
    hint = gpu_trouble(log, pid)
    if status == -SIGKILL:
        hint = out_of_memory(log, pid, oom_kills() - kills) or hint
    if hint:
        found["hint"] = hint
    return found


def error_of(folder: str | None, rank: int) -> dict[str, Any]:
    """The field ``error`` if ``rank`` wrote an error file: its first ``ERROR_LIMIT`` bytes."""
    if folder is None:
        return {}
    try:
        # a pipe or a device in its place must not hold us, nor a link lead elsewhere
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open("%s/rank-%d.json" % (folder, rank), flags)
    except OSError:
        return {}
    error = read_ready(fd, ERROR_LIMIT)
    os.close(fd)
    return {"error": error} if error else {}


def kernel_log(since: float) -> list[str]:
    """The kernel's messages since ``since`` (monotonic seconds); [] where we may not read them."""
    lines: list[str] = []
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return lines
    try:
        for _ in range(LOG_LIMIT):
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:
                continue  # it was overwritten while we read; the next record is there
            # "priority,sequence,microseconds,flags;text\\n", see the kernel's dev-kmsg
            head, _, text = record.partition(b";")
            fields = head.split(b",")
            if len(fields) > 2 and fields[2].isdigit() and int(fields[2]) >= since * 1e6:
                lines.append(text.partition(b"\n")[0].decode("utf-8", "replace"))
    except OSError:
        pass  # the end of the log, or not a log at all
    finally:
        os.close(fd)
    return lines


def out_of_memory(log: list[str], pid: int, kills: int) -> str:
    """Evidence for the OOM killer, from the kernel's messages and its cgroup's count."""
    for line in log:
        if "ut of memory: Killed process %d " % pid in line:
            return "the kernel's OOM killer: " + line[:QUOTE_LIMIT]
    if kills > 0:
        return "the OOM killer struck in this host's cgroup (oom_kill rose by %d)" % kills
    for line in log:
        # in a container the kernel counts pids otherwise
        if "ut of memory: Killed process " in line:
            return "the OOM killer struck on this host: " + line[:QUOTE_LIMIT]
    return ""


def gpu_trouble(log: list[str], pid: int = 0) -> str:
    """The GPU driver's most useful message about ``pid``; its numbers are NVIDIA's Xid errors.

    The GPUs that ``pid`` is named with count first. Of theirs the cause counts before its echoes:
    43 and 45 clean up, 154 asks for a reset, and others say "caused by previous Xid".
    """
    lines = [line for line in log if "NVRM: Xid" in line]
    places = {_place(line) for line in lines if "pid=%d," % pid in line}

    def grave(line: str) -> tuple[bool, bool]:
        number = line.partition("): ")[2].partition(",")[0]
        echo = number in ("43", "45", "154") or "caused by previous Xid" in line
        return _place(line) in places, not echo

    best = max(reversed(lines), key=grave, default="")
    return "the GPU driver reported " + best[:QUOTE_LIMIT] if best else ""


def _place(line: str) -> str:
    """The PCI address of an Xid's GPU."""
    return line.partition("NVRM: Xid (")[2].partition(")")[0].partition(" ")[0]
