"""Spawn requests as MPICH writes them, in any order of lines, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.pmi.pmi_server import Server
from dispatcher.remote.pmi.pmi_spawn import ITEM_LIMIT, REQUEST_LIMIT, SEGMENT_LIMIT, SpawnRequest

#: what MPICH 5.0.2 writes for Spawn_multiple with a host and a preput, first segment and second
FIRST = [
    b"nprocs=2", b"execname=/usr/bin/python3", b"totspawns=2", b"spawnssofar=1", b"argcnt=2",
    b"arg1=-c", b"arg2=print(1 == 2)", b"preput_num=1", b"preput_key_0=PARENT_ROOT_PORT_NAME",
    b"preput_val_0=tag#0$connentry#20DB$", b"info_num=1", b"info_key_0=host", b"info_val_0=n1,n2",
]  # fmt: skip
SECOND = [b"nprocs=1", b"execname=prog", b"totspawns=2", b"spawnssofar=2", b"argcnt=0"]

SEGMENTS = [
    [2, [b"/usr/bin/python3", b"-c", b"print(1 == 2)"], [[b"host", b"n1,n2"]]],
    [1, [b"prog"], []],
]
PREPUT = [[b"PARENT_ROOT_PORT_NAME", b"tag#0$connentry#20DB$"]]


def request(*lines: bytes) -> SpawnRequest:
    """The request after ``lines``, of which only the last may complete it."""
    found = SpawnRequest()
    assert [line for line in lines[:-1] if found.feed(line)] == []
    assert found.feed(lines[-1])
    return found


@given(st.permutations(FIRST), st.permutations(SECOND))
def test_lines_come_in_any_order(first: list[bytes], second: list[bytes]) -> None:
    found = request(*first, b"endcmd", b"mcmd=spawn", *second, b"endcmd")
    assert found.segments == SEGMENTS
    assert found.preput == PREPUT


@given(st.data())
def test_any_splitting_gives_the_same_request(data: st.DataObject) -> None:
    lines = [b"mcmd=spawn", *FIRST, b"endcmd", b"mcmd=spawn", *SECOND, b"endcmd", b"cmd=get_maxes"]
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    told = Server({"name": b"kvs", "size": 1, "mapping": b"", "patience": 30.0}, [0])
    found: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += told.feed(0, stream[start:end], 0.0)
    fields = {"rank": 0, "segments": SEGMENTS, "preput": PREPUT}
    assert found[0] == ("send", "pmi.spawn_asked", fields)
    # lock-step: what follows before the answer is a breach, told once
    assert [action[0] for action in found[1:]] == ["break"]


@given(st.lists(st.one_of(st.sampled_from([*FIRST, *SECOND, b"endcmd"]), st.binary(max_size=30))))
def test_whatever_comes_is_taken_or_refused_with_a_reason(lines: list[bytes]) -> None:
    found = SpawnRequest()
    try:
        for line in lines:
            if found.feed(line):
                break
    except ValueError as error:
        assert "spawn" in str(error)  # noqa: PT017 - most inputs raise nothing
    for count, argv, info in found.segments:
        assert count >= 0
        assert all(isinstance(word, bytes) for word in argv)
        assert all(len(pair) == 2 for pair in info)


def test_an_argument_of_several_lines() -> None:
    lines = (b"arg1=import os", b"", b"if os.sep == '/':", b"    print(1)")
    ends = (b"argcnt=1", b"nprocs=1", b"execname=p", b"totspawns=1", b"spawnssofar=1", b"endcmd")
    found = request(*lines, *ends)
    assert found.segments == [
        [1, [b"p", b"import os\n\nif os.sep == '/':\n    print(1)"], []],
    ]


ONE = [b"nprocs=1", b"execname=p", b"totspawns=1", b"spawnssofar=1"]


@cases(
    "lines",
    [
        [b"hello"], [b"cmd=get_maxes"], [b"nprocs=1", b"nprocs=1"], [b"arg1=x", b"arg1=y"],
        [b"argcnt=1", b"continued"], [b"nprocs=x", b"endcmd"], [b"nprocs=-1", b"endcmd"],
        [b"nprocs=99999999999", b"endcmd"], [b"endcmd"], [*ONE, b"argcnt=2", b"arg1=x", b"endcmd"],
        [*ONE, b"argcnt=%d" % (ITEM_LIMIT + 1), b"endcmd"], [*ONE, b"info_num=1", b"endcmd"],
        [*ONE, b"info_num=1", b"info_key_0=host", b"endcmd"],
        [*ONE, b"preput_num=1", b"preput_val_0=x", b"endcmd"],
        [b"nprocs=1", b"totspawns=1", b"spawnssofar=2", b"endcmd"],
        [b"nprocs=1", b"totspawns=%d" % (SEGMENT_LIMIT + 1), b"spawnssofar=1", b"endcmd"],
        [*SECOND[:3], b"spawnssofar=1", b"endcmd", b"cmd=get_maxes"],
        [*SECOND[:3], b"spawnssofar=1", b"endcmd", b"mcmd=spawn", *ONE, b"endcmd"],
        [b"arg1=a\0b"],
    ],
)  # fmt: skip
def test_what_is_no_request(lines: list[bytes]) -> None:
    found = SpawnRequest()
    with pytest.raises(ValueError, match="spawn"):
        list(map(found.feed, lines))


def test_a_request_is_bounded() -> None:
    found = SpawnRequest()
    lines = (b"arg%d=" % number + b"x" * 60000 for number in range(REQUEST_LIMIT))
    with pytest.raises(ValueError, match="more than"):
        list(map(found.feed, lines))
    assert found.size <= REQUEST_LIMIT + 61000


def test_what_is_just_allowed() -> None:
    args = [b"arg%d=x" % number for number in range(1, ITEM_LIMIT + 1)]
    found = request(*ONE, *args, b"argcnt=%d" % ITEM_LIMIT, b"endcmd")
    assert len(found.segments[0][1]) == ITEM_LIMIT + 1
    lines: list[bytes] = []
    for number in range(1, SEGMENT_LIMIT + 1):
        lines += [b"nprocs=%d" % (1 << 31), b"totspawns=%d" % SEGMENT_LIMIT]
        lines += [b"spawnssofar=%d" % number, b"endcmd", b"mcmd=spawn"]
    found = request(*lines[:-1])
    assert found.segments == [[1 << 31, [b""], []]] * SEGMENT_LIMIT
    line = b"arg1=".ljust(REQUEST_LIMIT - 1, b"x")
    assert not SpawnRequest().feed(line)  # with the end of its line it is just as long
    with pytest.raises(ValueError, match=f"more than {REQUEST_LIMIT} bytes"):
        SpawnRequest().feed(line + b"x")


def test_keys_of_the_first_segment_are_everybodys() -> None:
    put = [b"preput_num=1", b"preput_key_0=k", b"preput_val_0=v"]
    first = [b"nprocs=1", b"execname=p", b"totspawns=2", b"spawnssofar=1", *put, b"endcmd"]
    second = [*SECOND, b"preput_num=1", b"preput_key_0=k2", b"preput_val_0=v2", b"endcmd"]
    assert request(*first, b"mcmd=spawn", *second).preput == [[b"k", b"v"]]


def test_items_keep_their_numbers_order() -> None:
    info = [b"info_val_1=b", b"info_key_1=B", b"info_key_0=A", b"info_val_0=a", b"info_num=2"]
    found = request(*ONE, b"arg2=two", b"arg1=one", b"argcnt=2", *info, b"endcmd")
    assert found.segments == [[1, [b"p", b"one", b"two"], [[b"A", b"a"], [b"B", b"b"]]]]


@cases(
    ("lines", "why"),
    [
        ([b"arg1=a\0b"], "a NUL byte"),
        ([b"nprocs=1", b"nprocs=2"], "says b'nprocs' twice"),
        ([b"nprocs=%d" % ((1 << 31) + 1), b"totspawns=1", b"spawnssofar=1", b"endcmd"], "nprocs="),
        ([*ONE, b"argcnt=1", b"endcmd"], "without b'arg1'"),
        ([b"continues nothing"], "not a spawn request: b'continues nothing'"),
        ([*SECOND[:3], b"arg1=x", b"argcnt=1", b"spawnssofar=1", b"endcmd", b"mcmd=spawn", b"more"],
         "not a spawn request: b'more'"),
        ([*SECOND[:3], b"spawnssofar=1", b"endcmd", b"endcmd"], "not a spawn request: b'endcmd'"),
        ([b"nprocs=1", b"spawnssofar=1", b"endcmd"], "do not count up"),
        ([b"totspawns=1", b"spawnssofar=0", b"endcmd"], "do not count up"),
    ],
)  # fmt: skip
def test_why_it_is_none(lines: list[bytes], why: str) -> None:
    found = SpawnRequest()
    for line in lines[:-1]:
        assert not found.feed(line)
    with pytest.raises(ValueError, match=why):
        found.feed(lines[-1])
