"""One verdict out of several signals, the one that knows most first."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.collectives import Collective, Process
from dispatcher.core.events.monitor_events import NodeStacks, RankStack, RankText
from dispatcher.core.events.stack_frames import Group
from dispatcher.core.events.verdicts import Signal
from dispatcher.core.hang_monitor import HangMonitor
from dispatcher.core.hang_rule import hung, rank_of

from .test_hang_monitor import WAITS, S, asleep, gathered, watching

ODD = (Group((3,), "proc", "S", (), odd=True), Group((0, 1, 2), "proc", "S", ()))
LATE = Collective("group 0", 4, "all_reduce", (0, 2, 3), (1,))


@cases(
    ("groups", "collective", "ras", "gpus", "signals", "rank"),
    [
        (ODD, LATE, [1], [], [("flight recorder", (1,)), ("RAS", (1,)), ("stacks", (3,))], 1),
        (ODD, None, [2, 1], [3], [("RAS", (1, 2)), ("stacks", (3,)), ("GPUs", (3,))], None),
        (ODD, None, [], [], [("stacks", (3,))], 3),
        (ODD[1:], None, [], [2], [("GPUs", (2,))], 2),
        ((), Collective("group 0", 4, "all_reduce", (0, 1)), [], [], [], None),
    ],
)  # fmt: skip
def test_who_is_named_and_by_whom(
    groups: tuple[Group, ...], collective: Collective | None, ras: list[int], gpus: list[int],
    signals: list[tuple[str, tuple[int, ...]]], rank: int | None,
) -> None:  # fmt: skip
    found = hung(60.0, groups, collective, ras, gpus)
    assert found.signals == tuple(Signal(*one) for one in signals)
    assert (found.rank, found.collective, found.groups) == (rank, collective, groups)
    assert found.seconds == 60.0


@cases(
    ("process", "rank"),
    [
        (Process(11, "a"), 1), (Process(99, "a"), None), (Process(10, "c"), None),
        # in containers processes of two hosts may have one number
        (Process(10, "a"), 0), (Process(10, "b"), 2),
    ],
)  # fmt: skip
def test_a_process_is_the_rank_that_alone_can_be_meant(process: Process, rank: int | None) -> None:
    pids, addresses = {0: 10, 1: 11, 2: 10}, {0: ("127.0.0.1", "a"), 2: ("b",)}
    assert rank_of(process, pids, addresses) == rank


class TestEvidence:
    """What flight recorders and NCCL's RAS say, from the hosts to the verdict."""

    WAITS = b'{"rank": 0, "groups": [["0", "", 2, [[1, "all_reduce", false]]]]}'
    LATE = b'{"rank": 1, "groups": []}'
    DEAD = b"DEAD\n  1 job process is considered dead\n  Process 8 on node 10.0.0.2 managing\n"

    @cases(
        ("texts", "named"),
        [
            ({0: (8,), 1: (8,)}, (1,)),
            ({0: (8, 9), 1: (9, 10), 2: (8,)}, (2,)),  # host 2 was not to ask
            ({0: (8,)}, ()), ({1: (7,)}, ()), ({2: (7,)}, ()), ({}, ()),
            ({0: (7,), 1: (9,)}, (0,)),  # of its own rank each may say it
            ({0: (9, 10), 1: (8, 9, 10)}, (1, 2, 3)),
        ],
    )  # fmt: skip
    def test_no_host_s_word_of_ras_alone_blames_another_s_rank(
        self, texts: dict[int, tuple[int, ...]], named: tuple[int, ...]
    ) -> None:
        monitor = HangMonitor(S, shows_progress=False)
        for rank in range(4):
            monitor.handle(ev.RankSpawned(rank, rank, 7 + rank), 0.0)
        asleep(monitor, 0, 11, ranks=4)
        for host in range(4):
            lines = b"".join(b"  Process %d on node a\n" % pid for pid in texts.get(host, ()))
            monitor.handle(NodeStacks(host, 1, (), b"DEAD\n" + lines if lines else b""), 12.0)
        assert monitor.hung is not None
        assert monitor.hung.signals == ((Signal("RAS", named),) if named else ())

    def test_errors_and_states_that_nccl_knows_of_are_told(self) -> None:
        """The rank that is not ready holds the others back; an error of another is only seen."""
        ras = (
            b"#0-0 (1) ERROR\n  Asynchronous error on 1 rank\n"
            b"  Rank 0 reported Remote process error -- GPU 0 managed by process 7 on node a\n\n"
            b"#0-0 (1) MISMATCH\n  Communicator ranks have different status\n"
            b"  Rank 1 has status INIT -- GPU 0 managed by process 8 on node b\n"
        )
        hung = self.hung(ras=ras).hung
        assert hung is not None
        assert Signal("RAS", (1,)) in hung.signals
        assert hung.nccl == (Signal("Remote process error", (0,)), Signal("INIT", (1,)))

    def hung(self, *, ras: bytes = b"") -> HangMonitor:
        monitor = watching()
        asleep(monitor, 0, 10)
        for rank, said in ((0, self.WAITS), (1, self.LATE)):
            ranks = (RankStack(rank, 7 + rank, "S", "py-spy", WAITS),)
            texts = (RankText(rank, said), RankText(1 - rank, b""))  # a host speaks for its own
            native = (RankText(rank, b"#0  0x1 in ncclAllReduce (comm=...) from /n.so\n"),)
            answer = NodeStacks(rank, 1, ranks, ras, recorders=texts, natives=native)
            actions = monitor.handle(answer, 11.0)
        found = gathered(actions)
        assert monitor.hung is not None
        assert found.collective == monitor.hung.collective
        assert monitor.hung.groups[0].native == "ncclAllReduce"
        return monitor

    def test_the_collective_and_who_is_not_in_it(self) -> None:
        hung = self.hung().hung
        assert hung is not None
        assert hung.collective == Collective("group 0", 1, "all_reduce", (0,), (1,))
        assert (hung.rank, hung.signals) == (1, (Signal("flight recorder", (1,)),))

    def test_ras_knows_processes_by_their_stacks(self) -> None:
        hung = self.hung(ras=self.DEAD).hung
        assert hung is not None
        assert hung.signals[1] == Signal("RAS", (1,))

    def test_a_rank_that_has_ended_may_be_the_one_they_wait_for(self) -> None:
        monitor = watching(3)
        monitor.handle(ev.RankExited(2, 2, 0), 1.0)
        asleep(monitor, 0, 11)
        for rank in (0, 1):
            text = b'{"rank": %d, "groups": [["0", "", 9, [[1, "x", false]]]]}' % rank
            said = (RankText(rank, text),)
            monitor.handle(NodeStacks(rank, 1, (), b"", recorders=said), 12.0)
        assert monitor.hung is not None
        assert monitor.hung.collective == Collective("group 0", 1, "x", (0, 1), unknown=(2,))
        assert monitor.hung.rank == 2
