"""The collective that a job stands still in, from flight recorders as ranks write them."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from cases import cases

from dispatcher.core.events.collectives import LONGEST, MOST_WORLDS, Collective, read, stuck

REDUCE, CAST = "nccl:all_reduce Float[8]", "nccl:broadcast Float[8]"


def told(rank: int, **groups: Any) -> bytes:
    """``p0=(members, [calls])``: a call is (number, name, done)."""
    rows = [[key[1:], "default_pg" if key == "p0" else "undefined", *each]
            for key, each in groups.items()]  # fmt: skip
    return json.dumps({"rank": rank, "groups": rows}).encode()


def calls(done: int, waits: int = 0, name: str = REDUCE) -> list[Any]:
    """The collectives up to ``done`` are done, those up to ``waits`` are not."""
    return [[n, name, n <= done] for n in range(1, max(done, waits) + 1)]


def world(*each: list[Any]) -> dict[int, bytes]:
    return {rank: told(rank, p0=(len(each), one)) for rank, one in enumerate(each)}


LABEL = "group 0 (default_pg)"


@cases(
    ("texts", "found"),
    [
        # one has not come to the fourth; that others are further ahead, as NCCL allows, is the same
        (world(calls(3, 4), calls(3), calls(3, 4)), Collective(LABEL, 4, REDUCE, (0, 2), (1,))),
        (world(calls(3, 9), calls(3), calls(3, 4)), Collective(LABEL, 4, REDUCE, (0, 2), (1,))),
        (world(calls(0, 1), []), Collective(LABEL, 1, REDUCE, (0,), (1,))),
        # all are in it
        (world(calls(3, 4), calls(3, 5)), Collective(LABEL, 4, REDUCE, (0, 1))),
        # one has called another
        (world(calls(3, 4), calls(3, 4), [*calls(3), [4, CAST, False]]),
         Collective(LABEL, 4, REDUCE, (0, 1, 2), differing=((CAST, (2,)),))),
        # one does not answer
        ({0: told(0, p0=(3, calls(3, 4))), 2: told(2, p0=(3, calls(3, 4)))},
         Collective(LABEL, 4, REDUCE, (0, 2), unknown=(1,))),
        ({0: told(0, p0=(2, calls(3, 4))), 1: b"\x80\x04pickle"},
         Collective(LABEL, 4, REDUCE, (0,), unknown=(1,))),
        # rank 0 waits for 1 in a pair of theirs, and so keeps 2 waiting in the world
        ({0: told(0, p0=(3, calls(2)), p7=([0, 1], calls(1, 2))),
          1: told(1, p0=(3, calls(2)), p7=([0, 1], calls(1))), 2: told(2, p0=(3, calls(2, 3)))},
         Collective("group 7", 2, REDUCE, (0,), (1,))),
        # the program numbers its ranks in another order than we do
        ({0: told(1, p0=([0, 1], calls(3, 4))), 1: told(0, p0=([0, 1], calls(3)))},
         Collective(LABEL, 4, REDUCE, (0,), (1,))),
        ({0: told(2, p0=(3, calls(1))), 1: told(1, p0=(3, calls(1)), p7=([0, 1], calls(0, 1))),
          2: told(0, p0=(3, calls(1)))}, Collective("group 7", 1, REDUCE, (1,), (2,))),
        # of two that have nothing to do with each other the greater
        ({0: told(0, p9=([0, 1, 2], calls(0, 1))), 1: told(1, p9=([0, 1, 2], calls(0, 1))),
          2: told(2, p9=([0, 1, 2], [])), 3: told(3, p1=([3, 4], calls(0, 1))),
          4: told(4, p1=([3, 4], []))}, Collective("group 9", 1, REDUCE, (0, 1), (2,))),
        # two groups of one name, as torch before 2.9 calls all groups of a split
        ({0: told(0, p1=([0, 1], calls(4, 5))), 1: told(1, p1=([0, 1], calls(4))),
          2: told(2, p1=([2, 3], calls(4))), 3: told(3, p1=([2, 3], calls(4)))},
         Collective("group 1", 5, REDUCE, (0,), (1,))),
        # a rank that has left the group knows its members no longer
        ({0: told(0, p1=([0, 1], calls(4, 5))), 1: told(1, p1=([], calls(5)))},
         Collective("group 1", 5, REDUCE, (0, 1))),
        # gloo and NCCL number the calls of one group by themselves
        ({rank: b'{"rank": %d, "groups": [["0", "default_pg", 2, [[9, "gloo:barrier", true]]],'
                b'["0", "default_pg", 2, [[%d, "nccl:all_reduce", false]]]]}' % (rank, 4 - rank)
          for rank in (0, 1)}, Collective(LABEL, 3, "nccl:all_reduce", (0, 1))),
        # nothing is under way
        (world(calls(3), calls(2)), None), ({}, None), ({0: b""}, None),
    ],
)  # fmt: skip
def test_what_is_waited_in_and_for_whom(texts: dict[int, bytes], found: Collective | None) -> None:
    assert stuck([texts], range(5)) == found
    by_host = [{rank: text} for rank, text in texts.items()]
    assert stuck(reversed(by_host), range(5)) == found


@cases(
    ("one", "blamed"),
    [
        (Collective("g", 1, "a", (0,), (1,), (2,)), (1,)),
        (Collective("g", 1, "a", (0, 1, 3), (), (2,), (("b", (3,)), ("c", (1,)))), (1, 3)),
        (Collective("g", 1, "a", (0,), (), (2,)), (2,)), (Collective("g", 1, "a", (0,)), ()),
    ],
)  # fmt: skip
def test_who_is_blamed(one: Collective, blamed: tuple[int, ...]) -> None:
    assert one.blamed == blamed


@cases(
    "text",
    [b"", b"[]", b"{}", b'{"rank": 0}', b'{"rank": -1, "groups": []}',
     b'{"rank": 0, "groups": [1]}', b'{"rank": true, "groups": []}',
     b'{"rank": 0, "groups": [["0", "", 2, [[1, "a"]]]]}',
     b'{"rank": 0, "groups": [["0", "", [-1], []]]}',
     b'{"rank": 0, "groups": [["0", "", "x", []]]}',
     b'{"rank": 0, "groups": {"0": 1}}', b"[" * 100000],
)  # fmt: skip
def test_what_is_no_recording(text: bytes) -> None:
    with pytest.raises(ValueError):
        read(text)


def test_what_a_rank_sends_is_bounded() -> None:
    many = [[n, "x" * 999, False] for n in range(1000)]
    _, groups = read(told(0, p0=(1 << 40, many)))
    (one,) = groups.values()
    assert len(one.calls) == 64
    assert {len(name) for name, _ in one.calls.values()} == {LONGEST}
    _, groups = read(told(0, **{f"p{n}": (1, []) for n in range(999)}))
    assert len(groups) == 256


@cases("claimed", [(1 << 61, []), ([0, 1, 2, 1 << 61], []), ([0, 1, 2, *range(9, 9999)], [])])
def test_only_ranks_of_the_job_are_members(claimed: tuple[Any, list[Any]]) -> None:
    """A few bytes claim any number of others, none of which is made or blamed."""
    waits = told(0, p0=(claimed[0], calls(0, 1)))
    assert stuck([{0: waits}], range(3)) == Collective(LABEL, 1, REDUCE, (0,), unknown=(1, 2))


@cases(("each", "unknown"), [(MOST_WORLDS // 3, (0,)), (MOST_WORLDS // 2, (0, 3))])
def test_a_host_tells_of_few_groups_that_all_may_be_in(each: int, unknown: tuple[int, ...]) -> None:
    """Whose members are looked up: who goes on counts as one who tells nothing."""
    texts = {
        rank: told(rank, **{f"p{rank}-{n}": (4, calls(0, 1)) for n in range(each)})
        for rank in (1, 2, 3)
    }
    found = stuck([texts], range(4))
    assert found is not None
    assert found.unknown == unknown
    again = stuck([{rank: text} for rank, text in texts.items()], range(4))
    assert again is not None
    assert again.unknown == (0,)


@cases(
    "groups",
    [
        [[str(n), "", 0, []] for n in range(256)],
        [[str(n), "", 0, [[1000 + i, 0, 0] for i in range(64)]] for n in range(90)],
    ],
)
def test_what_a_host_tells_takes_little_memory(groups: list[Any]) -> None:
    """A report has room for a million bytes, of which a dozen could take seven hundred."""
    text = json.dumps(groups, separators=(",", ":"))
    n = (1 << 20) // len(text)
    texts = {rank: f'{{"rank":{rank},"groups":{text}}}'.encode() for rank in range(n)}
    tracemalloc.start()
    try:
        stuck([texts], range(n))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 12 << 20
