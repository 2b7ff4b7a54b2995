"""What one host's outcome is worth, and what dispatch exits with for all of them."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events.exec_events import (
    CommandEnded,
    Exited,
    Failed,
    Interrupted,
    Killed,
    NotCopied,
    NotStarted,
    Outcome,
    TimedOut,
    exit_code,
    is_good,
    own_code,
)
from dispatcher.model.failure import Failure, Kind

GONE = Failed(Failure(Kind.LOST, "gone"))


@cases(
    ("outcome", "code"),
    [
        (Exited(0), 0),
        (Exited(7), 7),
        (Killed("KILL"), 137),
        (Killed("NOSUCH"), 128),
        (GONE, 125),
        (TimedOut("command", 2.0), 124),
        (Interrupted(15), 143),
        (NotCopied("no"), 1),
        (NotStarted("never"), 3),
        (NotStarted("time was up", 124), 124),
        (NotStarted("interrupted", 130), 130),
    ],
)
def test_one_host(outcome: Outcome, code: int) -> None:
    assert own_code(outcome) == code
    assert is_good(outcome) == (code == 0)
    assert exit_code([Exited(0), outcome], largest=True) == code


@cases(
    ("outcomes", "code"),
    [
        ([], 0),
        ([Exited(0)], 0),
        ([Exited(200), NotCopied("no")], 1),
        ([TimedOut("total", 1.0), Exited(1)], 124),
        ([Exited(1), GONE, TimedOut("total", 1.0)], 125),
        ([GONE, Interrupted(2), Interrupted(15)], 130),
        ([GONE, NotStarted("stopped"), TimedOut("command", 1.0)], 3),
        ([Exited(0), NotStarted("time was up", 124)], 124),
        ([GONE, NotStarted("time was up", 124)], 125),
        ([Exited(1), NotStarted("interrupted", 130)], 130),
    ],
)
def test_the_gravest_kind_counts(outcomes: list[Outcome], code: int) -> None:
    assert exit_code(outcomes) == code


def test_what_nobody_said_of_an_end() -> None:
    assert CommandEnded(0, 1) == CommandEnded(0, 1, None, False)
    assert TimedOut("total", 1.0).ended
    assert Interrupted(2).ended
