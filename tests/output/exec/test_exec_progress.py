"""How far a fan-out command is, as a terminal shows it."""

from __future__ import annotations

import re

from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.exec.exec_progress import SLOW, ExecProgress


def shown(progress: ExecProgress, columns: int = 100) -> str:
    found = progress.lines(columns)
    if not found:
        return ""
    ((line, width),) = found
    assert width <= columns
    return re.sub(r"\x1b\[[\d;]*m|[\u2500\u2501]", "", line.decode()).strip()


def test_hosts_on_their_way() -> None:
    now = 100.0
    names = [f"n{i}" for i in range(1, 7)]
    progress = ExecProgress(names, lambda: now)

    def tell(*events: ev.Event) -> None:
        for event in events:
            progress.event(Entry(1, 0.0, event))

    tell(*(ev.NodeConnecting(node, 1) for node in range(5)))
    assert shown(progress) == ""  # a passphrase may be asked for
    tell(ev.NodeConnected(0, None, "local"), *(ev.NodeBooted(node, 0) for node in range(4)))
    assert shown(progress) == "0 of 6 hosts  4 running 1 connecting 0:00:00"
    dropped = Failure(Kind.DROPPED, "busy", retryable=True)
    tell(
        exec_events.HostDone(0, exec_events.Exited(0)),
        exec_events.HostDone(1, exec_events.Exited(3)),
        ev.NodeLost(4, dropped),
    )
    assert shown(progress) == "2 of 6 hosts (1 failed)  2 running 0:00:00"
    now += SLOW
    assert shown(progress) == "2 of 6 hosts (1 failed)  2 running: n[3-4] 0:00:05"
    tell(exec_events.BatchStarted(2, 3, (2, 3)))
    assert shown(progress).endswith("2 running: n[3-4] batch 2 of 3 0:00:05")
    assert len(shown(progress, 30)) <= 30
    tell(*(exec_events.HostDone(node, exec_events.Exited(0)) for node in range(2, 5)))
    tell(exec_events.HostDone(5, exec_events.NotStarted("stopped")))
    assert shown(progress) == "6 of 6 hosts (1 failed)  batch 2 of 3 0:00:05"


def test_the_bars_of_commands_are_above_it() -> None:
    progress = ExecProgress(["n1", "n2"], lambda: 0.0)
    bars = [("n1:", b"\x1b[32m3\x1b[0m of 9 \x1b[2J"), ("n2:", b"word " * 99)]
    assert progress.lines(40, bars) == []
    progress.event(Entry(1, 0.0, ev.NodeConnected(0, None, "local")))
    first, second, last = (
        re.sub(r"\x1b\[[\d;]*m", "", line.decode()) for line, _ in progress.lines(40, bars)
    )
    assert (first, len(second)) == ("n1: 3 of 9 \\x1b[2J", 40)
    assert last.startswith("0 of 2 hosts")
