"""The PMI-1 server at its bounds: what is just allowed, what just is not, and who is waited for."""

from __future__ import annotations

import math
import zlib
from typing import Any

import pytest
from cases import cases

from dispatcher.remote.pmi import pmi_server
from dispatcher.remote.pmi.pmi_server import KEY_LIMIT, LINE_LIMIT, NAME_LIMIT, VALUE_LIMIT, Server
from dispatcher.remote.protocol.packing import pack, unpack

from .test_pmi_server import INIT, NAME, get, packet, put, say, server

DONE = b"cmd=put_result rc=0\n"
INITIATE = INIT[0][0]


def refused(why: bytes) -> list[Any]:
    return [("reply", 0, b"cmd=put_result rc=1 msg=%s\n" % why)]


def reads(told: Server, key: bytes) -> bytes | None:
    """What rank 0 gets for ``key``."""
    ((_, _, line),) = say(told, 0, get(key))
    return line.partition(b"value=")[2].rstrip(b"\n") if b"rc=0" in line else None


@cases("size", [1, KEY_LIMIT])
def test_keys_of_every_allowed_length_are_kept(size: int) -> None:
    told = server()
    assert say(told, 0, put(b"k" * size, b"v")) == [("reply", 0, DONE)]
    assert reads(told, b"k" * size) == b"v"


@cases(
    ("line", "why"),
    [
        (b"cmd=put kvsname=%s value=v" % NAME, b"key_length"),
        (b"cmd=put kvsname=%s key=k" % NAME, b"value_length"),
        (b"cmd=put key=k value=v", b"wrong_kvsname"),
    ],
)
def test_a_put_without_a_part(line: bytes, why: bytes) -> None:
    assert say(server(), 0, line) == refused(why)


def test_the_longest_line_is_answered() -> None:
    told = server()
    line = b"cmd=get_maxes x=".ljust(LINE_LIMIT, b"x")
    assert say(told, 0, line)[0][2].startswith(b"cmd=maxes rc=0 kvsname_max=%d" % NAME_LIMIT)
    assert told.feed(0, line, 0.0) == []
    assert told.feed(0, b"x\n", 0.0)[0][:2] == ("break", 0)


def test_all_keys_of_a_host_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmi_server, "STORE_LIMIT", 20)
    told = server()
    for rank, key in ((0, b"12"), (1, b"34")):
        assert say(told, rank, put(key, b"12345678")) == [("reply", rank, DONE)]
    assert say(told, 0, put(b"k", b"v")) == refused(b"store_full")
    assert reads(told, b"k") is None
    told = server()
    assert say(told, 0, put(b"k", b"v" * 20)) == refused(b"store_full")


def test_a_fence_that_is_too_large_to_be_sent_breaks_all_who_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = server()
    say(told, 0, put(b"k", b"v" * 300))
    say(told, 1, b"cmd=barrier_in")
    size = len(zlib.compress(pack([b"k", b"v" * 300]), 6))
    monkeypatch.setattr(pmi_server, "PACKET_LIMIT", size - 1)
    actions = say(told, 0, b"cmd=barrier_in")
    assert [action[:2] for action in actions] == [("break", 0), ("break", 1)]
    assert f"take {size} bytes, at most {size - 1}" in actions[0][2]
    told = server(ranks=[0])
    say(told, 0, put(b"k", b"v" * 300))
    monkeypatch.setattr(pmi_server, "PACKET_LIMIT", size)
    assert say(told, 0, b"cmd=barrier_in")[0][1] == "pmi.committed"


def test_what_was_there_from_the_start() -> None:
    job = {"name": NAME, "size": 2, "mapping": b"m" * VALUE_LIMIT, "patience": 1.0}
    told = Server({**job, "preput": [[b"a", b"1"], [b"b", b"2"]]}, [0, 1])
    assert [reads(told, key) for key in (b"a", b"b", b"PMI_process_mapping")] == [
        b"1", b"2", b"m" * VALUE_LIMIT,
    ]  # fmt: skip
    assert reads(server(mapping=b""), b"PMI_process_mapping") is None
    assert say(told, 0, b"cmd=get kvsname=other key=a")[0][2].endswith(b"msg=wrong_kvsname\n")
    assert say(told, 0, b"cmd=get_universe_size")[0][2].endswith(b"size=2\n")
    ((*_, fields),) = say(server(ranks=[0]), 0, b"cmd=barrier_in")
    assert unpack(zlib.decompress(fields["keys"])) == []  # only what was put here goes up


def test_what_other_hosts_put_takes_the_place_of_what_was_there() -> None:
    told = server(ranks=[0])
    say(told, 0, b"cmd=barrier_in")
    told.release(b"WORLD:0", 0, [packet(b"a", b"1", b"b", b"2"), packet(b"a", b"3")])
    assert (reads(told, b"a"), reads(told, b"b")) == (b"3", b"2")


@cases("value", [7, [b"a", 7], {"a": b"1"}, [b"a"], ["a", "b"]])
def test_keys_of_another_form_break_all_who_wait(value: Any) -> None:
    told = server()
    for rank in (1, 0):
        say(told, rank, b"cmd=barrier_in")
    actions = told.release(b"WORLD:0", 0, [zlib.compress(pack(value))])
    assert [action[:2] for action in actions] == [("break", 0), ("break", 1)]


def test_a_rank_of_another_host_is_not_heard() -> None:
    told = server()
    assert told.feed(2, b"cmd=get_maxes\n", 0.0) == []
    assert told.answer(2, b"x") == []


def test_an_answer_that_is_none_is_an_empty_one() -> None:
    told = server()
    say(told, 0, b"cmd=lookup_name service=s")
    assert told.answer(0, None) == [("reply", 0, b"")]


@cases("size", [1, VALUE_LIMIT])
@cases("verb", ["publish", "lookup", "unpublish"])
def test_names_of_every_allowed_length_are_asked_for(verb: str, size: int) -> None:
    told = server()
    service, port = b"s" * size, b"p" * size
    line = b"cmd=%s_name service=%s port=%s" % (verb.encode(), service, port)
    fields = {"rank": 0, "verb": verb, "service": service, "port": port}
    assert say(told, 0, line) == [("send", "pmi.asked", fields)]
    assert say(told, 0, b"cmd=get_maxes")[0][:2] == ("break", 0)  # before the answer
    assert told.answer(0, b"late") == []


@cases(
    "words", [b"service=s port=" + b"p" * (VALUE_LIMIT + 1), b"service=" + b"s" * (VALUE_LIMIT + 1)]
)
def test_longer_names_break(words: bytes) -> None:
    assert say(server(), 0, b"cmd=publish_name " + words)[0][:2] == ("break", 0)


@cases(
    ("words", "code", "text"),
    [
        (b"exitcode=2 message=abort", 2, ""),
        (b"exitcode=12345678901", 12345678901 & 255, ""),
        (b"exitcode=123456789012", 1, ""),
        (b"exitcode=1-2", 1, ""),
        (b"exitcode=3 message=" + b"x" * 1001, 3, "x" * 1000),
        (b"exitcode=3 message=\xff", 3, "\\xff"),
    ],
)
def test_what_an_abort_tells(words: bytes, code: int, text: str) -> None:
    ((_, _, fields),) = say(server(), 0, b"cmd=abort " + words)
    assert (fields["code"], fields["text"]) == (code, text)


class TestGroups:
    @cases(
        ("group", "fence"),
        [
            (b"0,2:7", "0,2:7"),
            (b"2,0,0,2:7", "0,2:7"),
            (b"000000000,3:99999999999", "0,3:99999999999"),
            (b"WORLD:3", "WORLD:3"),
        ],
    )
    def test_each_has_one_spelling(self, group: bytes, fence: str) -> None:
        ((_, _, fields),) = say(server(ranks=[0]), 0, b"cmd=barrier_in group=" + group)
        assert fields["fence"] == fence

    @cases("group", [b"0,0000000001:1", b"0,1:999999999999", b"0,4:1", b"0,1", b"0,x:1", b"2,3:1"])
    def test_what_is_none(self, group: bytes) -> None:
        assert say(server(), 0, b"cmd=barrier_in group=" + group)[0][:2] == ("break", 0)

    def test_only_who_is_in_it_may_enter(self) -> None:
        told = server(size=3, ranks=[0, 1, 2])
        assert say(told, 0, b"cmd=barrier_in group=0,2:1") == []
        assert say(told, 1, b"cmd=barrier_in group=0,2:1")[0][:2] == ("break", 1)
        line = b"cmd=barrier_out tag=1\n"
        assert say(told, 2, b"cmd=barrier_in group=0,2:1") == [
            ("reply", 0, line), ("reply", 2, line),
        ]  # fmt: skip


class TestEnds:
    def test_who_ended_well_is_in_all_fences_to_come(self) -> None:
        told = server(size=3, ranks=[0, 1, 2])
        for rank in (0, 1, 2):
            say(told, rank, INITIATE)
        say(told, 0, b"cmd=barrier_in")
        assert told.ended(2) == []  # rank 1 is still awaited
        assert len(say(told, 1, b"cmd=barrier_in")) == 2
        assert told.feed(2, b"cmd=get_maxes\n", 0.0) == []

    def test_a_fence_that_nobody_has_entered_stays_closed(self) -> None:
        told = server()
        for rank in (0, 1):
            say(told, rank, INITIATE, b"cmd=barrier_in")
        told.release(b"WORLD:0", 0, [])
        assert told.ended(1) == []
        ((_, _, fields),) = say(told, 0, b"cmd=barrier_in")
        assert fields["epoch"] == 1

    def test_a_host_whose_ranks_have_all_ended_enters_no_fence(self) -> None:
        told = server()
        for rank in (0, 1):
            say(told, rank, INITIATE, b"cmd=barrier_in")
        told.release(b"WORLD:0", 0, [])
        assert [told.ended(rank) for rank in (0, 1)] == [[], []]

    def test_one_that_is_under_way_is_not_sent_again(self) -> None:
        told = server()
        for rank in (0, 1):
            say(told, rank, INITIATE, b"cmd=barrier_in")
        assert told.ended(1) == []
        # who has ended gets no reply
        assert told.release(b"WORLD:0", 0, []) == [("reply", 0, b"cmd=barrier_out tag=0\n")]

    def test_the_others_init_is_all_that_is_waited_for(self) -> None:
        told = server()
        say(told, 0, INITIATE, now=1.0)
        say(told, 1, b"cmd=init pmi_version=2", now=2.0)
        assert told.next_deadline() == 31.0
        say(told, 1, INITIATE, now=3.0)
        assert told.next_deadline() == math.inf
        told = server()
        say(told, 0, INITIATE)
        say(told, 0, INITIATE, now=9.0)  # a second session begins no second wait
        assert told.next_deadline() == 30.0
        told.ended(0)
        assert told.next_deadline() == 30.0
        say(told, 1, INITIATE)
        assert told.next_deadline() == math.inf


class TestPatience:
    def test_each_fence_is_told_of_at_its_time(self) -> None:
        told = server(size=3, ranks=[0, 1, 2])
        for rank in (0, 1, 2):
            say(told, rank, INITIATE)
        say(told, 0, b"cmd=barrier_in group=0,2:1", now=1.0)
        say(told, 1, b"cmd=barrier_in group=1,2:1", now=2.0)
        assert told.next_deadline() == 31.0
        ((_, _, fields),) = told.tick(31.0)
        assert fields == {"never": [], "absent": [2], "seconds": 30.0}
        assert told.next_deadline() == 32.0
        assert told.tick(31.9) == []
        assert len(told.tick(33.0)) == 1
        assert told.next_deadline() == math.inf

    def test_both_kinds_are_told_apart(self) -> None:
        told = server(size=3, ranks=[0, 1, 2])
        for rank in (0, 2):
            say(told, rank, INITIATE)
        say(told, 0, b"cmd=barrier_in")
        ((_, _, fields),) = told.who(b"WORLD:0", 0, 2.0)
        assert fields == {"never": [1], "absent": [2], "seconds": 2.0}
        told.ended(2)
        ((_, _, fields),) = told.who(b"WORLD:0", 0, 2.0)
        assert (fields["never"], fields["absent"]) == ([1], [])

    def test_a_fence_that_is_over_is_not_told_of(self) -> None:
        told = server(ranks=[0])
        say(told, 0, INITIATE, b"cmd=barrier_in")
        told.release(b"WORLD:0", 0, [])
        assert told.who(b"WORLD:0", 0, 1.0) == []
        assert len(told.who(b"WORLD:0", 1, 1.0)) == 1
