"""The verdict in words: who, what, why; hosts folded; nothing a host says is obeyed."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases

from dispatcher.core.events import verdicts
from dispatcher.core.events.monitor_events import placed
from dispatcher.core.events.verdicts import Cause, ErrorFile, Verdict
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host, Hostlist
from dispatcher.output.text.fold import fold_ranks
from dispatcher.output.text.story import status_words
from dispatcher.output.text.verdict_text import describe
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.request import Program, Request


@pytest.fixture
def plan() -> JobPlan:
    hosts = tuple(Host(f"n{index:02d}", slots=2) for index in range(4))
    return plan_job(Request(Hostlist(hosts), Program("command", ("prog",)), "/w"), "run-1")


def told(cause: Cause | None, plan: JobPlan, **fields: object) -> str:
    verdict = Verdict(cause, 0 if cause is None else cause.exit_code, 8, **fields)  # type: ignore[arg-type]
    return "\n".join(describe(verdict, placed(plan), {3: 77}, lambda rank: ("stderr", ["boom"])))


def test_success_says_nothing(plan: JobPlan) -> None:
    assert told(None, plan, statuses=dict.fromkeys(range(8), 0)) == ""


def test_failed_rank_and_consequences(plan: JobPlan) -> None:
    statuses = {0: -15, 1: -15, 2: -15, 3: 42, 4: 1, 5: 1, 6: -15, 7: 0}
    assert told(verdicts.RankFailed(1, 3, 42), plan, statuses=statuses) == (
        "error: rank 3 on n01, pid 77: exit code 42 [rank-failed]\n"
        "  last lines of its stderr:\n"
        "    boom\n"
        "  then ranks 0-2,6: killed by SIGTERM (signal 15)\n"
        "  then ranks 4-5: exit code 1"
    )


@cases(
    ("cause", "fields", "lines"),
    [
        (verdicts.RankFailed(1, 3, 1), {"statuses": {0: 0, 1: 0, 3: 1}, "before": (0, 1)},
         ["  ranks 0-1 on n00 had exited 0 before", "  last lines of its stderr:", "    boom"]),
        # who ended by the signal that dispatch had sent, or by one before that, did not fail
        (verdicts.RankFailed(1, 3, 1),
         {"statuses": {0: -15, 1: 143, 2: -9, 3: 1, 4: 0, 5: 1, 6: -11, 7: -15},
          "ended": {0: 15, 1: 15, 2: 9, 4: 15, 5: 15, 6: 15, 7: 9}},
         ["  last lines of its stderr:", "    boom", "  1 rank the same: rank 5",
          "  then rank 6: killed by SIGSEGV (signal 11)",
          "  rank 4 exited 0 after SIGTERM",
          "  dispatch then ended ranks 0-1,7 (SIGTERM)",
          "  then rank 2: killed by dispatch"]),
        (verdicts.Interrupted(15),
         {"statuses": {0: -9, 1: 0}, "ended": {0: 9, 1: 15}, "came": (15, 13, 1, 15, 15),
          "sent": ((15, 0.0), (9, 10.02))},
         ["  then came SIGHUP, SIGTERM", "  rank 1 exited 0 after SIGTERM",
          "  then rank 0: killed by dispatch 10 s after SIGTERM"]),
        (verdicts.RankFailed(1, 3, 1), {"statuses": {3: 1}, "came": (2,)},
         ["  last lines of its stderr:", "    boom", "  then came SIGINT"]),
        # one that the kernel killed meanwhile did
        (verdicts.Interrupted(2), {"statuses": {0: -2, 1: -9}, "ended": {0: 2, 1: 15}},
         ["  then rank 1: killed by SIGKILL (signal 9)", "  dispatch then ended rank 0 (SIGINT)"]),
        # that it exited 0 is the cause itself there
        (verdicts.LeftMpi(0, 1, False, (1,)), {"statuses": {1: 0}, "before": (1,)},
         ["  last lines of its stderr:", "    boom"]),
    ],
)  # fmt: skip
def test_what_was_before_and_what_dispatch_did_itself(
    plan: JobPlan, cause: Cause, fields: dict[str, Any], lines: list[str]
) -> None:
    assert told(cause, plan, **fields).splitlines()[1:] == lines


def test_what_the_host_knows_and_the_error_file(plan: JobPlan) -> None:
    error = ErrorFile("ValueError: \x1b[2J", "Traceback\n  x\nValueError: \x1b[2J")
    cause = verdicts.RankFailed(1, 3, -9, error, "the OOM killer: \x1b]0;")
    said = told(cause, plan, statuses={3: -9})
    assert "\x1b" not in said
    assert said.splitlines()[0].startswith("error: rank 3 on n01, pid 77: killed by SIGKILL")
    assert said.splitlines()[0].endswith("(signal 9): ValueError: \\x1b[2J [rank-killed]")
    assert said.splitlines()[1] == "  the OOM killer: \\x1b]0;"
    assert said.splitlines()[2:5] == ["  its traceback:", "    Traceback", "      x"]


def test_texts_of_hosts_are_harmless(plan: JobPlan) -> None:
    failure = Failure(Kind.BOOT, "said \x1b]0;owned\x07", "\x1b[2J")
    for cause in (verdicts.NodeFailed(0, failure), verdicts.Rejected({0: failure})):
        assert "\x1b" not in told(cause, plan)


def test_leftovers_and_unkillable(plan: JobPlan) -> None:
    text = told(None, plan, swept={0: 1, 1: 2}, unkillable={3: (7, 8, 9)})
    assert "error: n03: processes survived SIGKILL: 7, 8, 9" in text
    assert "survived SIGKILL: 76, 77 (rank 3)" in told(None, plan, unkillable={1: (76, 77)})
    stuck = {1: ("state D in x, system call fsync", "")}
    more = told(None, plan, unkillable={1: (76, 77)}, stuck=stuck)
    assert "survived SIGKILL: 76 (state D in x, system call fsync), 77 (rank 3)" in more
    more = told(None, plan, unkillable={1: (77, 78)}, stuck={1: ("state D",)})
    assert more.endswith("survived SIGKILL: 77 (rank 3: state D), 78")
    assert "note: n[00-01]: killed 3 processes left behind" in text


def test_words() -> None:
    assert fold_ranks([0]) == "rank 0"
    assert fold_ranks([3, 1, 2, 7]) == "ranks 1-3,7"
    assert status_words(0) == "exit code 0"
    assert status_words(-9) == "killed by SIGKILL (signal 9)"
    assert status_words(-63) == "killed by signal 63"
