"""One verdict out of several signals, the one that knows most first."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events.collectives import Collective, Process, RasReply
from dispatcher.core.events.stack_frames import Group
from dispatcher.core.events.verdicts import Signal
from dispatcher.core.hang_rule import hung, ranks_of

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


def test_processes_are_ranks_where_one_rank_only_is_such_a_process() -> None:
    pids = {0: 10, 1: 11, 2: 10, 3: 12}
    reply = RasReply(silent=tuple(Process(pid, "a") for pid in (12, 10, 11, 99)))
    assert ranks_of(reply, pids) == (1, 3)
