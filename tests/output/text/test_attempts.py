"""What is said of attempts: while the run goes on, in its verdict, in its report."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events import codec, verdicts
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.terminal.notes import Notes
from dispatcher.output.text.verdict_text import headline, history, outcome

HOSTS = ["n1", "n2", "n3", "n4"]
LOST = Failure(Kind.LOST, "no heartbeat for 15 s")

CAUSES: list[tuple[verdicts.Cause, str]] = [
    (verdicts.RankFailed(1, 3, -9), "rank 3 on n2: killed by SIGKILL (signal 9)"),
    (verdicts.MpiAborted(0, 1, 4), "rank 1 on n1: called MPI_Abort(4)"),
    (verdicts.RankNotStarted(2, 5, 11, "fork", "x"), "rank 5 on n3: could not be started (fork)"),
    (verdicts.NodeFailed(1, LOST), "n2: host lost: no heartbeat for 15 s"),
    (verdicts.Rejected({1: LOST, 2: LOST}), "n[2-3] cannot be used"),
    (verdicts.OutputLost(1, 3, 1, 2), "rank 3 on n2: output lost"),
    (verdicts.Impossible("8 ranks but only 4 slots"), "8 ranks but only 4 slots"),
    (verdicts.Interrupted(2), "interrupted"),
    (
        verdicts.LeftMpi(1, 3, True, (3,), (0, 1)),
        "rank 3 on n2: exited 0 without MPI_Init; ranks 0-1 wait in it",
    ),
]


@cases(("cause", "words"), CAUSES)
def test_a_cause_in_one_line(cause: verdicts.Cause, words: str) -> None:
    assert headline(cause, HOSTS) == words
    told = Entry(1, 0.5, ev.RunRestarting(cause, 1, 2, 0.0))
    assert codec.decode(codec.encode(told)) == told  # the journal takes it


def test_a_restart_says_why_how_far_it_was_and_where_it_goes_on() -> None:
    lines: list[str] = []
    notes = Notes(
        HOSTS, lines.append, verbose=False, reached=lambda: "step 54\x07",
        error_of=lambda cause: "ValueError: no (train.py:33)",
    )  # fmt: skip
    progress = [ev.RanksProgressed(0, 0, "step 0"), ev.RanksProgressed(0, 0, "step 40")]
    restart = ev.RunRestarting(verdicts.RankFailed(1, 3, 1), 1, 3, 2.0)
    for event in (progress[0], restart, progress[1]):
        notes.event(Entry(1, 0.0, event))
    assert lines == [
        "note: rank 3 on n2: exit code 1: ValueError: no (train.py:33); restart 1 of 3 in 2 s, "
        "after step 54\\x07",
        "note: restart 1 of 3 goes on at step 40",
    ]
    failed = verdicts.Attempt(0, ("n1", "n2"), 4, verdicts.RankFailed(1, 3, 1), True)
    before = verdicts.Attempt(0, ("n1", "n2"), 4, verdicts.RankFailed(1, 3, 1), False)
    verdict = verdicts.Verdict(None, 0, 4, attempts=(before, failed), starts=2)
    assert history(verdict, {0: "E: no"})[:2] == [
        "note: before a start: rank 3 on n2: exit code 1",
        "note: attempt 1 of 2: rank 3 on n2: exit code 1: E: no",
    ]


def test_the_verdict_lists_every_attempt() -> None:
    verdict = verdicts.Verdict(
        verdicts.RankFailed(0, 1, 3), 3, 4,
        attempts=(
            verdicts.Attempt(0, ("n1", "n2"), 4, verdicts.Rejected({1: LOST}), False),
            verdicts.Attempt(0, ("n1", "n3"), 4, verdicts.RankFailed(1, 2, 5), True),
        ),
        left_out={"n2": "host lost"},
        no_restart="1 restart was made, which is the most", may_run_on={"n3": 28.4, "n4": 12.0},
    )  # fmt: skip
    assert history(verdict) == [
        "note: before a start: n2 cannot be used",
        "note: attempt 1: rank 2 on n3: exit code 5",
    ]
    assert outcome(verdict) == [
        "note: n2 was left out from then on: host lost",
        "note: n[3-4]: their ranks may run on for up to 28 s more, until the lease ends (--lease)",
        "note: not started again: 1 restart was made, which is the most",
    ]


def test_a_plain_run_says_nothing() -> None:
    for cause in (None, verdicts.RankFailed(0, 1, 3)):
        assert (history(one := verdicts.Verdict(cause, 0, 4)), outcome(one)) == ([], [])
