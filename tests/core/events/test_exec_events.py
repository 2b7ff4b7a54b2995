"""What one host's outcome is worth, and what dispatch exits with for all of them."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events import exec_events
from dispatcher.model.failure import Failure, Kind

GONE = exec_events.Failed(Failure(Kind.LOST, "gone"))


@cases(
    ("outcome", "code"),
    [
        (exec_events.Exited(0), 0),
        (exec_events.Exited(7), 7),
        (exec_events.Killed("KILL"), 137),
        (exec_events.Killed("NOSUCH"), 128),
        (GONE, 125),
        (exec_events.TimedOut("command", 2.0), 124),
        (exec_events.Interrupted(15), 143),
        (exec_events.NotCopied("no"), 1),
        (exec_events.NotStarted("never"), 3),
        (exec_events.NotStarted("time was up", 124), 124),
        (exec_events.NotStarted("interrupted", 130), 130),
    ],
)
def test_one_host(outcome: exec_events.Outcome, code: int) -> None:
    assert exec_events.own_code(outcome) == code
    assert exec_events.is_good(outcome) == (code == 0)
    assert exec_events.exit_code([exec_events.Exited(0), outcome], largest=True) == code


@cases(
    ("outcomes", "code"),
    [
        ([], 0),
        ([exec_events.Exited(0)], 0),
        ([exec_events.Exited(200), exec_events.NotCopied("no")], 1),
        ([exec_events.TimedOut("total", 1.0), exec_events.Exited(1)], 124),
        ([exec_events.Exited(1), GONE, exec_events.TimedOut("total", 1.0)], 125),
        ([GONE, exec_events.Interrupted(2), exec_events.Interrupted(15)], 130),
        ([GONE, exec_events.NotStarted("stopped"), exec_events.TimedOut("command", 1.0)], 3),
        ([exec_events.Exited(0), exec_events.NotStarted("time was up", 124)], 124),
        ([GONE, exec_events.NotStarted("time was up", 124)], 125),
        ([exec_events.Exited(1), exec_events.NotStarted("interrupted", 130)], 130),
    ],
)
def test_the_gravest_kind_counts(outcomes: list[exec_events.Outcome], code: int) -> None:
    assert exec_events.exit_code(outcomes) == code
