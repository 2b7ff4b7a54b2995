"""Who takes the blame for hosts that were lost together."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events.verdicts import Interrupted, NodeFailed, Verdict
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.text.verdict_text import behind_lines, blamed

GONE = Failure(Kind.LOST, "gone")
#: 0 leads to 1 and 2, which leads to 3; 4 stands alone
ABOVE = {0: (), 1: (0,), 2: (0,), 3: (2, 0), 4: ()}


@cases(
    ("first", "also", "cause", "behind"),
    [
        (3, (0, 1, 2), 0, [1, 2, 3]),
        (0, (1, 2, 3), 0, [1, 2, 3]),
        (3, (2,), 2, [3]),
        (3, (1, 4), 3, []),
        (4, (0, 1), 4, []),
        (3, (0,), 0, [3]),
    ],
)
def test_the_highest_lost_host_above_the_first(
    first: int, also: tuple[int, ...], cause: int, behind: list[int]
) -> None:
    why = {node: Failure(Kind.LOST, f"gone {node}") for node in (first, *also)}
    verdict = Verdict(NodeFailed(first, why[first]), 125, 5, lost={n: why[n] for n in also})
    found, taken = blamed(verdict, ABOVE)
    assert found.cause == NodeFailed(cause, why[cause])
    assert taken == behind
    assert set(found.lost) == set(why) - set(behind)


def test_other_causes_stay() -> None:
    verdict = Verdict(Interrupted(2), 130, 5, lost={0: GONE, 1: GONE})
    assert blamed(verdict, ABOVE) == (verdict, [])


def test_in_words() -> None:
    verdict = Verdict(NodeFailed(0, GONE), 125, 4)
    names = ["n1", "n2", "n3", "n4"]
    assert behind_lines(verdict, names, [1, 2, 3]) == [
        "  then n[2-4]: lost with n1, which leads to them"
    ]
    assert behind_lines(verdict, names, []) == []
