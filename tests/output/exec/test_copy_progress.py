"""How far a copy is, as a terminal shows it."""

from __future__ import annotations

import re

from dispatcher.core.events import exec_events
from dispatcher.core.events.run_events import Entry
from dispatcher.output.exec.exec_progress import CopyProgress
from dispatcher.output.exec.host_results import HostResult, exec_summary
from dispatcher.transfer.host_copy import HostCopy

MIB = 1 << 20


def shown(progress: CopyProgress, columns: int = 100) -> str:
    ((line, width),) = progress.lines([], columns)
    assert width <= columns
    return re.sub(r"\x1b\[[\d;]*m", "", line.decode()).strip()


def test_hosts_bytes_rate_and_what_is_left() -> None:
    now = 100.0
    told = [HostCopy(wanted=30 * MIB), HostCopy(wanted=30 * MIB)]
    progress = CopyProgress(told, lambda: now)
    assert "0 of 2 hosts" in shown(progress)
    assert "0 B of 60 MiB" in shown(progress)
    assert "left" not in shown(progress)
    now = 102.0
    told[0].bytes = 30 * MIB
    progress.event(Entry(1, 0.0, exec_events.HostDone(0, exec_events.Exited(0))))
    progress.event(Entry(2, 0.0, exec_events.HostDone(1, exec_events.NotCopied("no space"))))
    text = shown(progress)
    assert "2 of 2 hosts (1 failed)" in text
    assert "30 MiB of 60 MiB" in text
    assert "15 MiB/s" in text
    assert "0:00:02 left" in text


def test_hosts_served_alike_are_one_line() -> None:
    good, bad = exec_events.Exited(0), exec_events.NotCopied("no space left on device")
    ended = [HostResult(f"n{i}", i, bad if i == 5 else good) for i in range(1, 6)]
    told = [
        HostCopy(True, 10, 10, 0, 1, 2), HostCopy(True, 10, 10, 0, 1, 2),
        HostCopy(True, 0, 0, 0, 0, 3), HostCopy(False, 10, 10), HostCopy(True, 5, 10),
    ]  # fmt: skip
    assert exec_summary(ended, told, 2.04, "sent") == [
        "n[1-2]: 1 file sent, 2 equal",
        "n3: 0 files sent, 3 equal",
        "n4: all sent, by tar; 35 B in all in 2.0 s",
    ]
    alike = exec_summary(ended[:3], told[:3], 0.3, "fetched")
    assert alike[-1].endswith("; 10 B from 2 hosts in 0.3 s")
    told[0].found = MIB
    assert exec_summary(ended[:1], told[:1], 1.0, "fetched") == [
        "n1: 1 file fetched, 2 equal, 1 MiB were there from an interrupted copy; 10 B in 1.0 s"
    ]
    assert exec_summary(ended[4:], told[:1], 1.0, "sent") == []
