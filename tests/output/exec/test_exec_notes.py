"""A fan-out command in words: what is told meanwhile, and what became of which hosts."""

from __future__ import annotations

import os

from cases import cases

from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.exec_events import (
    CommandEnded,
    Exited,
    Failed,
    HostDone,
    Interrupted,
    Killed,
    NotCopied,
    NotStarted,
    StatusAsked,
    TimedOut,
)
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.exec.exec_notes import ExecNotes, Passthrough, describe, outcome_text

NAMES = ["n1", "n2", "n3"]
REFUSED = Failure(Kind.REFUSED, "no\x1b[2J", "is it up?")


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
        (StatusAsked((0,), (1, 2), ()), "stopping; n[2-3] running, n1 connecting; again to kill"),
        (StatusAsked((), (), (0, 1, 2)), "stopping; n[1-3] not started; again to kill"),
        (StatusAsked((), (), ()), "stopping; all done; again to kill"),
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
        (HostDone(2, Exited(3)), "n3: exit code 3"),
    ],
)
def test_what_is_told_with_verbose(event: ev.Event, text: str | None) -> None:
    assert said(event) == []
    assert said(event, verbose=True) == ([] if text is None else [f"note: 1.250 s: {text}"])


def test_who_holds_an_output_open_is_named_at_the_end() -> None:
    held = [CommandEnded(node, 0, None, held_open=node != 1) for node in range(3)]
    (line,) = said(*held)
    assert line.startswith("note: n[1,3]: the command ended, but a process it started holds")
    assert said(held[1]) == []


@cases(
    ("outcome", "text"),
    [
        (Exited(3), "exit code 3"),
        (Killed("KILL"), "killed by SIGKILL"),
        (Killed("\x1b"), "killed by SIG\\x1b"),
        (Failed(REFUSED), "connection refused: no\\x1b[2J"),
        (TimedOut("command", 2.5), "timeout: longer than the 2.5 s of the command"),
        (TimedOut("total", 60.0), "timeout: longer than the 60 s for all hosts"),
        (TimedOut("total", 60.0, ended=False),
         "timeout: longer than the 60 s for all hosts; it was not seen to end"),
        (Interrupted(2), "interrupted by SIGINT"),
        (Interrupted(15, ended=False), "interrupted by SIGTERM; it was not seen to end"),
        (NotCopied("no room\x07"), "no room\\x07"),
        (NotStarted("stopped"), "not started: stopped"),
    ],
)  # fmt: skip
def test_outcomes_in_words(outcome: exec_events.Outcome, text: str) -> None:
    assert outcome_text(outcome) == text


def test_who_failed_and_what_to_do() -> None:
    outcomes: list[exec_events.Outcome] = [
        Exited(0), Exited(127), Failed(REFUSED), NotCopied("x" * 400), Exited(127),
    ]  # fmt: skip
    names = ["n1", "n2", "n3", "n4", "n5"]
    asked: list[str] = []

    def advise(trouble: str) -> str | None:
        asked.append(trouble)
        return {"exit code 127": "install it"}.get(trouble)

    assert describe(outcomes, names, advise) == [
        "error: 4 of 5 hosts failed [hosts-failed]",
        "  n[2,5]  exit code 127",
        "  n3      connection refused: no\\x1b[2J",
        "  n4      " + "x" * 300,
        "  hint: install it",
        "  hint: is it up?",
    ]
    assert asked == ["exit code 127", "connection refused", ""]
    assert describe([Exited(0)], ["n1"]) == []
    assert describe([Exited(1)], ["n1"])[0] == "error: 1 of 1 host failed [hosts-failed]"


@cases(
    ("outcomes", "head", "hint"),
    [
        ([Exited(0), Exited(1), NotStarted("x")],
         "1 of 3 hosts failed, 1 not started", "-w 'n[2-3]'"),
        ([NotStarted("x")], "1 of 1 host not started", "-w n1"),
        ([Exited(1), *[NotStarted("x")] * 200], "1 of 201 hosts failed, 200 not started", None),
    ],
)  # fmt: skip
def test_who_was_not_started_is_counted_apart(
    outcomes: list[exec_events.Outcome], head: str, hint: str | None
) -> None:
    """And with what the rest goes on: the hosts, where they are few words, or a file of them."""
    names = [f"n{n}{'x' * (n % 2) * (hint is None)}" for n in range(1, len(outcomes) + 1)]
    first, *lines = describe(outcomes, names)
    assert first == f"error: {head} [hosts-failed]"
    found = [line for line in lines if "hint: " in line]
    assert found == ([f"  hint: {hint}  # goes on with all of these"] if hint else [])
    if hint is not None:
        again = [f"me@{name}" for name in names]
        typed = f"-w {','.join(again[-2:])}"
        assert describe(outcomes, names, again=again)[-1] == lines[-1].replace(hint, typed)
        assert describe(outcomes, names, again=[*again[1:], None])[1:] == lines[:-1]
    told = describe(outcomes, names, {"not started": "by a file"}.get)
    assert told[-1] == "  hint: by a file"


def test_names_of_hosts_take_no_more_than_so_many_columns() -> None:
    names = [f"{letter}{'x' * 30}" for letter in "abc"]
    lines = describe([Exited(1), Exited(1), Exited(2)], names)
    assert lines[1].index("exit") > 60
    assert lines[2].index("exit") == 2 + 40 + 2


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
