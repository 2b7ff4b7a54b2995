"""Each part of a verdict alone: which words there are, and where there are none."""

from __future__ import annotations

from errno import EMFILE, ENOENT
from typing import Any

from cases import cases

from dispatcher.core.events import verdicts
from dispatcher.core.events.monitor_events import LastWords, placed
from dispatcher.core.events.stack_frames import Frame, Group
from dispatcher.core.events.verdicts import Cause, ErrorFile, MpiAborted, RankFailed, Verdict
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host, Hostlist
from dispatcher.output.text import verdict_text
from dispatcher.output.text.verdict_text import (
    BESIDE,
    LEAST_QUOTED,
    N_TRACEBACK,
    advice_on,
    describe,
    fit_window,
    headline,
    history,
    last_words,
    left_out,
    outcome,
)
from dispatcher.plan.job.job_plan import plan_job
from dispatcher.plan.job.reassignment import Exclusion
from dispatcher.plan.job.request import Program, Request

HOSTS = tuple(Host(f"n{index}", slots=2) for index in range(4))
NODES = placed(plan_job(Request(Hostlist(HOSTS), Program("command", ("prog",)), "/w"), "run-1"))
NAMES = [node.host for node in NODES]


def said(
    cause: Cause | None, last: Any = lambda rank: ("stderr", []), pids: Any = None, **fields: Any
) -> list[str]:
    verdict = Verdict(cause, 0 if cause is None else cause.exit_code, 8, **fields)
    return describe(verdict, NODES, pids or {}, last)


def test_a_stopped_rank_is_in_the_first_line() -> None:
    groups = [Group((3, 4), "proc", "T", ()), Group((0,), "proc", "S", ())]
    first = said(verdicts.Hung(9.0, tuple(groups)))[0]
    assert first == (
        "error: ranks 3-4 on n[1-2] are stopped (SIGSTOP or debugger); "
        "no activity on any rank for 9 s [job-hung]"
    )


OOM = "out of memory: Killed process 7 (python3) total-vm:9kB, anon-rss:600000kB, file-rss:2112kB"


@cases(
    ("hint", "line"),
    [
        (f"the kernel's OOM killer: Memory cgroup {OOM}", "(cgroup; 588 MiB resident)"),
        (f"the kernel's OOM killer: O{OOM[1:]}", "(host; 588 MiB resident)"),
        ("the OOM killer struck in this host's cgroup (oom_kill rose by 1)", "(cgroup)"),
        (f"the OOM killer struck on this host: Memory cgroup {OOM}", "(cgroup; 588 MiB resident)"),
    ],
)
def test_out_of_memory_is_the_reason(hint: str, line: str) -> None:
    cause = RankFailed(1, 3, -9, hint=hint)
    perhaps = "perhaps " * ("struck on" in hint)  # another pid than the rank's, as in a container
    told = f"killed by SIGKILL: {perhaps}out of memory {line}"
    lines = said(cause)
    assert lines[0] == f"error: rank 3 on n1: {told} [rank-killed]"
    assert lines[1].startswith("  hint: smaller batches")
    assert headline(cause, NAMES) == f"rank 3 on n1: {told}"


def test_the_cause_is_on_the_first_screen() -> None:
    lines = said(RankFailed(1, 3, 1), lambda rank: ("stderr", [f"{n:<100}" for n in range(20)]))
    for columns, rows, shown in ((80, 24, 8), (200, 24, 17), (200, 50, 20), (80, 5, LEAST_QUOTED)):
        fit = fit_window(lines, columns, rows)
        quoted = [line for line in fit if line.startswith("    ") and "left out" not in line]
        assert quoted == lines[2:][-shown:]
        assert fit[:2] == lines[:2]
        gone = 20 - shown
        assert (f"    ({gone} lines left out for this window)" in fit) == bool(gone)
        height = sum(-(-len(line) // columns) for line in fit)
        assert height + BESIDE <= rows or shown == LEAST_QUOTED
    assert fit_window(["error: a", "    no quote"], 80, 3) == ["error: a", "    no quote"]


@cases(
    ("cause", "lines"),
    [
        (RankFailed(1, 3, 2), ["error: rank 3 on n1: exit code 2", "  rank 3 wrote nothing"]),
        (MpiAborted(1, 3, 2, ""),
         ["error: rank 3 on n1: called MPI_Abort(2)", "  rank 3 wrote nothing"]),
        (MpiAborted(1, 3, 2, "why\x07"),
         ["error: rank 3 on n1: called MPI_Abort(2): why\\x07", "  rank 3 wrote nothing"]),
        (verdicts.RankNotStarted(2, 5, ENOENT, "exec", "pro\x07g"),
         ["error: rank 5 on n2: exec pro\\x07g: no such file or directory"]),
        (verdicts.RankNotStarted(2, 5, EMFILE, "fork", "x"),
         ["error: rank 5 on n2: fork x: too many open files",
          "  hint: logins may open too few files on that host; allow its sshd 30 or more "
          "(LimitNOFILE=), or start fewer ranks on it"]),
        (verdicts.NodeFailed(1, Failure(Kind.LOST, "a", "b\x07")),
         ["error: n1 (ranks 2-3): host lost: a", "  hint: b\\x07"]),
        (verdicts.NodeFailed(1, Failure(Kind.LOST, "a")), ["error: n1 (ranks 2-3): host lost: a"]),
        (verdicts.Impossible("no room", "less"), ["error: no room", "  hint: less"]),
        (verdicts.LeftMpi(1, (1 << 20), False, ((1 << 20),)),
         ["error: rank 1.0 on n1 exited 0 without MPI_Finalize"]),
        (verdicts.OutputLost(1, 2, 3, 4),
         ["error: rank 2 on n1: output lost: 3 of 4 bytes arrived"]),
        (verdicts.Interrupted(13),
         ["error: standard output was closed; with --log-dir a run continues"]),
        (verdicts.Interrupted(2), ["error: interrupted"]),
        (verdicts.Interrupted(15), ["error: interrupted by SIGTERM"]),
        (verdicts.Interrupted(2, "dispatch stop"), ["note: stopped by dispatch stop"]),
        (verdicts.LeftMpi(0, 1, False, (1,), ()),
         ["error: rank 1 on n0 exited 0 without MPI_Finalize"]),
        (verdicts.LeftMpi(0, 1, True, (1, 2), (3,)),
         ["error: ranks 1-2 on n[0-1] exited 0 without MPI_Init; rank 3 waits in it",
          "  hint: --mpi none, if ranks use MPI each by itself or not at all"]),
        (verdicts.LeftMpi(0, 1, False, (1,), (2, 3)),
         ["error: rank 1 on n0 exited 0 without MPI_Finalize; ranks 2-3 are still in MPI"]),
        (verdicts.Hung(61.4, (Group((3,), "proc", "S", (Frame("f", "a.py", 1),)),
                              Group((1 << 20,), "proc", "S", (Frame("g", "a.py", 2),)))),
         ["error: no activity on any rank for 61 s", "  rank 3 on n1 is in f at a.py:1",
          "  rank 1.0 on another host is in g at a.py:2"]),
        (verdicts.Hung(61.4, writing=True),
         ["error: ranks write, but nothing else happened for 61 s"]),
        (verdicts.Hung(61.4, nccl=(verdicts.Signal("Remote process error", (0, 2)),)),
         ["error: no activity on any rank for 61 s",
          "  NCCL: ranks 0,2: Remote process error"]),
    ],
)  # fmt: skip
def test_a_cause_in_all_its_words(cause: Cause, lines: list[str]) -> None:
    first, *others = lines
    assert said(cause) == [f"{first} [{cause.message_code}]", *others]


def test_the_last_words_of_who_left_mpi_are_told_where_there_are_any() -> None:
    lines = said(verdicts.LeftMpi(0, 1, False, (1,), ()), lambda rank: ("stdout", ["bye"]))
    assert lines[1:] == ["  last lines of its stdout:", "    bye"]


@cases(
    ("error", "last", "lines"),
    [
        (None, [], ["  rank 3 wrote nothing"]),
        (ErrorFile("E: m", "a\nb\x07\nE: m"), ["x"],
         ["  its traceback:", "    a", "    b\\x07", "    E: m", "  last lines of its stderr:",
          "    x"]),
        (ErrorFile("E: m", "a\nE: m"), ["E: m", "x"],
         ["  last lines of its stderr:", "    E: m", "    x"]),
        (ErrorFile("E: m", ""), [], ["  rank 3 wrote nothing"]),
        (ErrorFile("E", "\n".join(map(str, range(99)))), ["x"],
         ["  its traceback:", *(f"    {n}" for n in range(99 - N_TRACEBACK, 99)),
          "  last lines of its stderr:", "    x"]),
    ],
)  # fmt: skip
def test_what_a_failed_rank_said(
    error: ErrorFile | None, last: list[str], lines: list[str]
) -> None:
    for cause in (RankFailed(1, 3, 2, error), MpiAborted(1, 3, 2, "", error)):
        assert said(cause, lambda rank: ("stderr", last))[1:] == lines


def test_ranks_are_alike_by_status_and_words() -> None:
    words = {3: ["at 0x1f: 12"], 4: ["at 0x2e: 7"], 5: ["at 0x2e: x"], 6: ["at 0x2e: 7"], 7: []}
    statuses = {3: 1, 4: 1, 5: 1, 6: 2, 7: 1, 0: 0}

    def last(rank: int) -> tuple[str, list[str]]:
        return "stderr", words.get(rank, [])

    cause = RankFailed(1, 3, 1)
    assert verdict_text.alike(cause, Verdict(cause, 1, 8, statuses=statuses), last) == [4]
    lines = said(cause, last, statuses=statuses)
    assert lines[-3:] == [
        "  1 rank the same: rank 4", "  then ranks 5,7: exit code 1", "  then rank 6: exit code 2",
    ]  # fmt: skip
    # of ranks that said nothing nobody knows whether they are alike
    silent = RankFailed(3, 7, 1)
    assert verdict_text.alike(silent, Verdict(silent, 1, 8, statuses={7: 1, 8: 1}), last) == []


def test_what_follows_from_an_abort_and_from_others() -> None:
    statuses = {3: 9, 4: -15}
    assert said(MpiAborted(1, 3, 9), statuses=statuses)[-1] == (
        "  then rank 4: killed by SIGTERM (signal 15)"
    )
    assert said(verdicts.Interrupted(2), statuses=statuses)[1] == "  then rank 3: exit code 9"


def test_hosts_that_were_lost_besides() -> None:
    gone = Failure(Kind.LOST, "gone", "ping it")
    lost = {0: gone, 1: gone, 2: Failure(Kind.LOST, "other")}
    assert said(verdicts.NodeFailed(1, gone), lost=lost)[1:] == [
        "  hint: ping it", "  then n0 (ranks 0-1) was lost, too: gone",
        "  then n2 (ranks 4-5) was lost, too: other",
    ]  # fmt: skip
    other = {0: Failure(Kind.LOST, "gone", "mend it")}
    assert said(verdicts.NodeFailed(1, gone), lost=other)[1:] == [
        "  hint: ping it", "  then n0 (ranks 0-1) was lost, too: gone", "  hint: mend it",
    ]  # fmt: skip


def test_who_cannot_be_used_is_a_table_of_columns() -> None:
    failures = {
        0: Failure(Kind.CHECK, "no prog", "hint A"), 3: Failure(Kind.LOST, "x"),
        1: Failure(Kind.CHECK, "no folder", "hint B"),
    }  # fmt: skip
    problems = {0: frozenset({"missing"}), 1: frozenset({"missing", "cwd"})}
    cause = verdicts.Rejected(failures, 127, problems)
    asked: list[str] = []

    def advise(trouble: str) -> str | None:
        asked.append(trouble)
        return "sync it" if trouble == "cwd" else None

    verdict = Verdict(cause, 127, 8)
    assert describe(verdict, NODES, {}, lambda rank: ("", []), advise) == [
        "error: 3 hosts of 4 cannot be used; nothing was started [hosts-rejected]",
        f"  n0  {Kind.CHECK.value}  no prog",
        f"  n1  {Kind.CHECK.value}  no folder",
        f"  n3  {Kind.LOST.value:<{len(Kind.CHECK.value)}}  x",
        "  hint: hint A", "  hint: sync it",
    ]  # fmt: skip
    assert asked == ["missing", "cwd", "host lost"]
    assert advice_on(verdict, advise) == {"cwd": "sync it"}
    assert advice_on(Verdict(verdicts.Interrupted(2), 130, 8), advise) == {}
    attempts = (verdicts.Attempt(0, ("n0",), 2, RankFailed(0, 0, 1), True),)
    again = describe(Verdict(cause, 127, 8, attempts=attempts), NODES, {}, lambda rank: ("", []))
    assert again[0].endswith("; the ranks were not started again [hosts-rejected]")
    not_begun = (verdicts.Attempt(0, ("n0",), 2, RankFailed(0, 0, 1), False),)
    again = describe(Verdict(cause, 127, 8, attempts=not_begun), NODES, {}, lambda rank: ("", []))
    assert again[0].endswith("; nothing was started [hosts-rejected]")


def test_what_was_swept_and_what_would_not_die() -> None:
    assert said(None, swept={2: 1}) == ["note: n2: killed 1 process left behind"]
    assert said(None, swept={2: 0}) == []
    stuck = {1: ("state D\x07", "state Z")}
    (line,) = said(None, unkillable={1: (51, 52, 53)}, stuck=stuck)
    assert line.endswith("survived SIGKILL: 51 (state D\\x07), 52 (state Z), 53")
    lines = said(None, pids={2: 50, 3: 51, 0: 52}, unkillable={1: (51, 52)})
    assert lines == ["error: n1: processes survived SIGKILL: 51 (rank 3), 52"]


def test_the_words_that_are_kept_for_the_report() -> None:
    def last(rank: int) -> tuple[str, list[str]]:
        return "stdout", ["same"]

    failed = Verdict(RankFailed(1, 3, 2), 2, 8, statuses={3: 2, 5: 2, 6: 0})
    assert last_words(failed, last) == LastWords((3, 5), "stdout", ("same",))
    left = Verdict(verdicts.LeftMpi(0, 1, False, (1,), ()), 1, 8, statuses={1: 0, 2: 0})
    assert last_words(left, last) == LastWords((1,), "stdout", ("same",))
    assert last_words(Verdict(MpiAborted(0, 1, 2), 2, 8), last) == LastWords(
        (1,), "stdout", ("same",)
    )
    assert last_words(Verdict(None, 0, 8), last) is None
    assert last_words(Verdict(verdicts.Interrupted(2), 130, 8), last) is None


def test_a_cause_with_its_message_in_one_line() -> None:
    error = ErrorFile("ValueError: \x07", "")
    assert headline(RankFailed(1, 3, 2, error), NAMES) == (
        "rank 3 on n1: exit code 2: ValueError: \\x07"
    )
    assert headline(verdicts.Hung(61.4, ()), NAMES) == "no activity for 61 s"


def test_hosts_that_were_left_out() -> None:
    assert left_out([Exclusion("n", "\x07", None), Exclusion("m", "b", "n9")]) == [
        "note: n: left out, unhealthy: \\x07", "note: m: left out, unhealthy: b; n9 takes its place"
    ]  # fmt: skip


def test_a_job_that_came_through_in_the_end() -> None:
    failed = verdicts.Attempt(0, ("n0",), 2, RankFailed(0, 0, 1), True)
    again = verdicts.Attempt(1, ("n0",), 2, RankFailed(0, 0, 1), True)
    assert outcome(Verdict(None, 0, 2, attempts=(failed,))) == [
        "note: the job succeeded after 1 restart"
    ]
    verdict = Verdict(None, 0, 2, attempts=(failed, again))
    assert history(verdict) + outcome(verdict) == [
        "note: attempt 1: rank 0 on n0: exit code 1", "note: attempt 2: rank 0 on n0: exit code 1",
        "note: the job succeeded after 2 restarts",
    ]  # fmt: skip
    never = verdicts.Attempt(0, ("n0",), 2, RankFailed(0, 0, 1), False)
    assert outcome(Verdict(None, 0, 2, attempts=(never,))) == []
