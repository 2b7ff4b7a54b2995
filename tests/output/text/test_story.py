"""What was before the cause and after it: who lost whom, who was behind it, who said the same."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events.monitor_events import PlacedNode, RankError
from dispatcher.core.events.verdicts import (
    ErrorFile,
    Hung,
    Interrupted,
    MpiAborted,
    RankFailed,
    Verdict,
)
from dispatcher.output.text.last_error import LastError
from dispatcher.output.text.story import errors_of, peers
from dispatcher.output.text.verdict_text import describe

NODES = [PlacedNode("n1", (0, 1)), PlacedNode("n2", (2,)), PlacedNode("n3", (3,))]
ADDRESSES = {"n1": ("10.0.0.1", "fd00::1"), "n2": {"10.0.0.2"}, "n3": ["10.0.0.3"]}


@cases(
    ("text", "lines"),
    [
        ("Connection closed by peer [10.0.0.2]:4242", ["  10.0.0.2 is n2 (rank 2)"]),
        ("Connect to 10.0.0.1<4242> failed", ["  10.0.0.1 is n1 (ranks 0-1)"]),
        ("refused by [fd00::1]:29500", ["  fd00::1 is n1 (ranks 0-1)"]),
        ("10.0.0.2, then 10.0.0.2 and 10.0.0.1",
         ["  10.0.0.2 is n2 (rank 2)", "  10.0.0.1 is n1 (ranks 0-1)"]),
        # nobody's, its own, and what is no address
        ("10.0.0.9, 10.0.0.3, 110.0.0.2, 10.0.0.25, version 10.0.0.2.1", []),
        ("Rank 2 failed to pass monitoredBarrier", ["  rank 2 is on n2"]),
        ("retrieving ncclUniqueId from [0] via", ["  rank 0 is on n1"]),
        ("[Rank 3] Watchdog caught it; rank 7 of 4", []),
        ("[PG ID 2 PG GUID 5 Rank 1] ranks of a group count otherwise", []),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 1] those of the first do not", ["  rank 1 is on n1"]),
    ],
)  # fmt: skip
def test_addresses_and_ranks_in_a_message_are_translated(text: str, lines: list[str]) -> None:
    assert peers(RankError((3,), text), NODES, ADDRESSES) == lines
    # of a launcher's own ranks nothing is known here, but addresses are
    own = [line for line in lines if "rank " not in line[:8]]
    assert peers(RankError((3,), text), NODES, ADDRESSES, per_node=True) == own


def test_equal_errors_are_one_and_those_of_the_cause_come_first() -> None:
    said = {
        0: LastError("E: at 0x7f", "a.py:1", hint="do"),
        2: LastError("E: at 0x3e", "a.py:1", hint="do"),
        3: LastError("lost 3", "", True, "do that"),
    }
    verdict = Verdict(RankFailed(1, 2, 1), 1, 4, statuses={3: 1, 0: 1, 1: 0, 2: 1})
    assert errors_of(verdict, lambda rank, status: said[rank]) == (
        RankError((2, 0), "E: at 0x3e", "a.py:1", False, "do"),
        RankError((3,), "lost 3", "", True),
    )

    hung = Verdict(Hung(9.0, rank=2), 124, 4, statuses={2: -9}, ended={2: 9})
    assert errors_of(hung, lambda rank, status: LastError("", hint="memory")) == (
        RankError((2,), ""),  # dispatch killed it
    )


def test_the_signal_by_which_dispatch_ended_a_rank_says_nothing_of_why() -> None:
    asked: list[tuple[int, int]] = []
    cause, statuses = Hung(9.0, (), rank=1), {0: -9, 1: -9, 2: -15}
    for ended in ({1: 9, 2: 15}, {}):
        verdict = Verdict(cause, 124, 3, statuses=statuses, ended=ended)
        errors_of(verdict, lambda *one: asked.append(one))
    assert asked == [(1, -15), (0, -9), (2, -15), (1, -9), (0, -9), (2, -15)]


TRACEBACK = [
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/job/a.py", line 3, in f',
    "[rank3]:     raise E",
    "[rank3]: E: no",
]


def told(verdict: Verdict, words: dict[int, list[str]], *errors: RankError) -> list[str]:
    def last(rank: int) -> tuple[str, list[str]]:
        return "stderr", words.get(rank, [])

    return describe(verdict, NODES, {}, last, errors=errors, addresses=ADDRESSES)


def test_who_was_ended_while_it_wrote_the_same_belongs_to_the_same() -> None:
    words = {3: TRACEBACK, 2: TRACEBACK[:3], 1: TRACEBACK, 0: ["a warning"]}
    statuses = {3: 1, 2: -15, 1: -15, 0: -15}
    verdict = Verdict(
        RankFailed(2, 3, 1), 1, 4, statuses=statuses, ended=dict.fromkeys((0, 1, 2), 15)
    )
    same = RankError((3, 1), "E: no", "a.py:3", hint="do")
    assert told(verdict, words, same)[-3:] == [
        "  2 ranks the same: ranks 1-2", "  hint: do", "  dispatch then ended rank 0 (SIGTERM)",
    ]  # fmt: skip
    # equal warnings of those that were ended are not why the cause failed
    quiet = {rank: ["a warning"] for rank in range(4)}
    assert told(verdict, quiet)[-1] == "  dispatch then ended ranks 0-2 (SIGTERM)"


def test_of_spawned_ranks_that_were_over_no_host_is_told() -> None:
    verdict = Verdict(RankFailed(2, 3, 1), 1, 4, statuses={3: 1}, before=(1 << 20, (1 << 20) + 1))
    assert told(verdict, {})[1] == "  ranks 1.0-1.1 had exited 0 before"


def test_who_only_lost_a_peer_is_told_with_whom_had_a_reason() -> None:
    echo = RankError((3,), "Connection closed by peer [10.0.0.2]:1", is_echo=True)
    own = RankError((2,), "KeyError: 'x'", "a.py:6")
    verdict = Verdict(RankFailed(2, 3, 1), 1, 4, statuses={3: 1, 2: 1, 1: 1, 0: 0}, before=(0,))
    assert told(verdict, {}, echo, own) == [
        "error: rank 3 on n3: exit code 1: Connection closed by peer [10.0.0.2]:1 [rank-failed]",
        "  rank 0 on n1 had exited 0 before",
        "  10.0.0.2 is n2 (rank 2)",
        "  likely behind it: rank 2 on n2: KeyError: 'x' (a.py:6)",
        "  rank 3 wrote nothing",
        "  then rank 1: exit code 1",
        "  then rank 2: exit code 1: KeyError: 'x' (a.py:6)",
    ]
    other = RankError((3,), "ValueError: own", "")
    assert not any("likely" in line for line in told(verdict, {}, other, own))


def test_what_the_host_or_an_error_file_knows_comes_first() -> None:
    filed = ErrorFile("ValueError: no", "Traceback\nE: no")
    verdict = Verdict(RankFailed(2, 3, 1, filed, "Xid 79"), 1, 4, statuses={3: 1})
    lines = told(verdict, {3: TRACEBACK}, RankError((3,), "ValueError: no", "a.py:3", hint="do"))
    assert lines[0].endswith(": exit code 1: ValueError: no (a.py:3) [rank-failed]")
    assert (lines[1], "  hint: do" in lines, "  its traceback:" in lines) == (
        "  Xid 79",
        False,
        False,
    )
    lines = told(verdict, {3: TRACEBACK}, RankError((3,), "a warning"))
    assert lines[0].endswith(": exit code 1: ValueError: no [rank-failed]")


@cases(
    ("text", "headline"),
    [
        # no more than is told already
        ("Abort(7) on node 0: application called MPI_Abort(MPI_COMM_WORLD, 7) - process 0",
         "error: rank 3 on n3: called MPI_Abort(7) [mpi-aborted]"),
        ("Fatal error in PMPI_Recv: Message truncated",
         "error: rank 3 on n3: called MPI_Abort(7): Fatal error in PMPI_Recv: Message truncated "
         "[mpi-aborted]"),
    ],
)  # fmt: skip
def test_why_mpi_was_aborted(text: str, headline: str) -> None:
    statuses, ended = {3: 0, 2: 0, 1: -15}, dict.fromkeys((3, 2, 1), 15)
    verdict = Verdict(MpiAborted(2, 3, 7), 7, 4, statuses=statuses, ended=ended)
    assert told(verdict, {}, RankError((3,), text)) == [
        headline,
        "  rank 3 wrote nothing",
        "  rank 2 exited 0 after SIGTERM",
        "  dispatch then ended rank 1 (SIGTERM)",
    ]


def test_ranks_that_crash_in_silence_are_alike() -> None:
    statuses = {3: -11, 2: -11, 1: -7, 0: -11}
    verdict = Verdict(RankFailed(2, 3, -11), 139, 4, statuses=statuses)
    assert told(verdict, {0: ["a word"]})[-3:] == [
        "  1 rank the same: rank 2",
        "  then rank 0: killed by SIGSEGV (signal 11)",
        "  then rank 1: killed by SIGBUS (signal 7)",
    ]


def test_of_many_kinds_of_errors_the_first_are_told() -> None:
    nodes = [PlacedNode("n1", tuple(range(20)))]
    verdict = Verdict(RankFailed(0, 0, 1), 1, 20, statuses={rank: 1 + rank for rank in range(20)})
    lines = describe(verdict, nodes, {}, lambda rank: ("stderr", []))
    assert lines[-2:] == ["  then rank 5: exit code 6", "  then ranks 6-19, each in another way"]


@cases(
    ("status", "sent", "line"),
    [
        (-10, 10, "  dispatch then ended rank 0 (SIGUSR1)"),
        (138, 10, "  dispatch then ended rank 0 (SIGUSR1)"),
        (-1, 1, "  dispatch then ended rank 0 (SIGHUP)"),
        # what dispatch had not sent by then: of the program's own doing, or of its host's
        (143, 10, "  then rank 0: exit code 143"),
        (-9, 10, "  then rank 0: killed by SIGKILL (signal 9)"),
        (-10, 15, "  then rank 0: killed by SIGUSR1 (signal 10)"),
        (-15, 9, "  dispatch then ended rank 0 (SIGTERM)"),
    ],
)
def test_any_signal_may_be_the_first_that_ends_a_job(status: int, sent: int, line: str) -> None:
    verdict = Verdict(Interrupted(15), 143, 4, statuses={0: status}, ended={0: sent})
    assert told(verdict, {})[1:] == [line]


def test_signals_are_told_in_the_order_in_which_they_were_sent() -> None:
    statuses, ended = {0: -9, 1: -15, 2: -10}, {0: 9, 1: 15, 2: 10}
    verdict = Verdict(Interrupted(15), 143, 4, statuses=statuses, ended=ended)
    assert [line.split()[-1] for line in told(verdict, {})[1:3]] == ["(SIGUSR1)", "(SIGTERM)"]
