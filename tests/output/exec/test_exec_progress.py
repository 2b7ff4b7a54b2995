"""How far a fan-out command is, as a terminal shows it, and notes meanwhile."""

from __future__ import annotations

import os
import re

from cases import cases

from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.exec.exec_progress import SLOW, ExecNotes, ExecProgress, Passthrough

NAMES = ["n1", "n2", "n3"]


def shown(progress: ExecProgress, columns: int = 100) -> str:
    found = progress.lines([], columns)
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
    assert progress.lines(bars, 40) == []
    progress.event(Entry(1, 0.0, ev.NodeConnected(0, None, "local")))
    first, second, last = (
        re.sub(r"\x1b\[[\d;]*m", "", line.decode()) for line, _ in progress.lines(bars, 40)
    )
    assert (first, len(second)) == ("n1: 3 of 9 \\x1b[2J", 40)
    assert last.startswith("0 of 2 hosts")


def said(*events: ev.Event, verbose: bool = False) -> list[str]:
    lines: list[str] = []
    notes = ExecNotes(NAMES, lines.append, verbose=verbose)
    for event in events:
        notes.event(Entry(1, 1.25, event))
    notes.close()
    return lines


@cases(
    ("event", "text"),
    [
        (ev.NodeConnecting(1, 2), "n2: connection was dropped, attempt 2"),
        (
            exec_events.StatusAsked((0,), (1, 2), ()),
            "stopping; n[2-3] running, n1 connecting; again to kill",
        ),
        (exec_events.StatusAsked((), (), (0, 1, 2)), "stopping; n[1-3] not started; again to kill"),
        (exec_events.StatusAsked((), (), ()), "stopping; all done; again to kill"),
    ],
)
def test_what_is_always_told(event: ev.Event, text: str) -> None:
    assert said(event) == said(event, verbose=True) == [f"note: {text}"]


@cases(
    ("event", "text"),
    [
        (ev.NodeConnecting(1, 1), None),
        (ev.NodeConnected(0, "10.0.0.1", "ssh"), "n1: connected to 10.0.0.1 by ssh"),
        (ev.NodeConnected(0, None, "local"), "n1: connected to it by local"),
        (ev.NodeBooted(0, 0), "n1: command started"),
        (ev.NodeBooted(0, 7), "n1: command started after 7 bytes of noise"),
        (exec_events.HostDone(2, exec_events.Exited(3)), "n3: exit code 3"),
    ],
)
def test_what_is_told_with_verbose(event: ev.Event, text: str | None) -> None:
    assert said(event) == []
    assert said(event, verbose=True) == ([] if text is None else [f"note: 1.250 s: {text}"])


def test_who_holds_an_output_open_is_named_at_the_end() -> None:
    held = [exec_events.CommandEnded(node, 0, None, held_open=node != 1) for node in range(3)]
    (line,) = said(*held)
    assert line.startswith("note: n[1,3]: the command ended, but a process it started holds")
    assert said(held[1]) == []


def test_a_terminal_s_output_passes_unchanged_until_nobody_reads() -> None:
    reading, writing = os.pipe()
    broken: list[None] = []
    shown = Passthrough(writing, lambda: broken.append(None))
    shown.output(0, 1, b"\x1b[2Jraw\r")
    assert os.read(reading, 99) == b"\x1b[2Jraw\r"
    os.close(reading)
    shown.output(0, 1, b"x")
    shown.output(0, 1, b"y")
    assert broken == [None]
    os.close(writing)
