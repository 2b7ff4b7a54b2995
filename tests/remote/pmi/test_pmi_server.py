"""The PMI-1 server: transcripts of real libraries, any splitting, and ranks that misbehave."""

from __future__ import annotations

import math
import zlib
from typing import Any

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.pmi.pmi_server import LINE_LIMIT, VALUE_LIMIT, Server
from dispatcher.remote.protocol.packing import pack, unpack

NAME = b"kvs_1_ab"
MAPPING = b"(vector,(0,2,2))"

#: what MPICH 5.0.2 says as rank 0 of two nodes, and what it is answered, up to its barrier
INIT = [
    (b"cmd=init pmi_version=1 pmi_subversion=1",
     b"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2"),
    (b"cmd=get_maxes", b"cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=960"),
    (b"cmd=get_appnum", b"cmd=appnum rc=0 appnum=0"),
    (b"cmd=get_my_kvsname", b"cmd=my_kvsname rc=0 kvsname=kvs_1_ab"),
    (b"cmd=get kvsname=kvs_1_ab key=PMI_process_mapping",
     b"cmd=get_result rc=0 value=(vector,(0,2,2))"),
    (b"cmd=get kvsname=kvs_1_ab key=PMI_hwloc_xmlfile",
     b"cmd=get_result rc=1 msg=key_not_found"),
    (b"cmd=get_universe_size", b"cmd=universe_size rc=0 size=4"),
    (b"cmd=put kvsname=kvs_1_ab key=-allgather-1-0 value=0200AD970A630701[8]",
     b"cmd=put_result rc=0"),
    (b"cmd=get kvsname=kvs_1_ab key=-allgather-1-0",
     b"cmd=get_result rc=0 value=0200AD970A630701[8]"),
]  # fmt: skip


def server(size: int = 4, ranks: list[int] | None = None, mapping: bytes = MAPPING) -> Server:
    job = {"name": NAME, "size": size, "mapping": mapping, "patience": 30.0}
    return Server(job, [0, 1] if ranks is None else ranks)


def say(server: Server, rank: int, *lines: bytes, now: float = 0.0) -> list[Any]:
    return server.feed(rank, b"".join(line + b"\n" for line in lines), now)


def put(key: bytes, value: bytes, name: bytes = NAME) -> bytes:
    return b"cmd=put kvsname=%s key=%s value=%s" % (name, key, value)


def get(key: bytes) -> bytes:
    return b"cmd=get kvsname=%s key=%s" % (NAME, key)


def packet(*words: bytes) -> bytes:
    return zlib.compress(pack(list(words)))


def test_init_of_mpich() -> None:
    told = server()
    for question, answer in INIT:
        assert say(told, 0, question) == [("reply", 0, answer + b"\n")]


@given(st.data())
def test_any_splitting_gives_the_same_answers(data: st.DataObject) -> None:
    stream = b"".join(question + b"\n" for question, _ in INIT)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    told = server()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += told.feed(0, stream[start:end], 0.0)
    assert found == [("reply", 0, answer + b"\n") for _, answer in INIT]


@given(st.binary(max_size=300), st.integers(0, 1))
def test_garbage_ends_that_rank_at_most(noise: bytes, rank: int) -> None:
    told = server()
    for action in told.feed(rank, noise, 0.0):
        assert action[0] in ("reply", "break", "send")
        assert action[0] == "send" or action[1] == rank
    assert say(told, 1 - rank, b"cmd=get_appnum")[0][0] == "reply"


@cases(
    "line",
    [
        b"hello", b"cmd=", b"cmd=nonsense", b"cmd", b"", b"cmd=get_maxes stray",
        b"cmd=barrier_in group=0,1:x", b"cmd=barrier_in group=1:0", b"cmd=barrier_in group=0,9:0",
        b"cmd=barrier_in group=-1,0:0", b"cmd=barrier_in group=:0",
        b"cmd=publish_name port=1", b"cmd=lookup_name service=" + b"x" * 1000,
        b"\0\xff\xfe",
    ],
)  # fmt: skip
def test_what_is_not_the_protocol_breaks(line: bytes) -> None:
    told = server()
    actions = say(told, 0, line)
    assert [action[:2] for action in actions] == [("break", 0)]
    assert say(told, 0, b"cmd=get_maxes") == []
    assert say(told, 1, b"cmd=get_appnum")[0][0] == "reply"


def test_a_line_of_ten_megabytes_breaks_early() -> None:
    told = server()
    actions: list[Any] = []
    n_fed = 0
    while not actions:
        actions = told.feed(0, b"x" * 65536, 0.0)
        n_fed += 1
    assert actions[0][:2] == ("break", 0)
    assert n_fed <= LINE_LIMIT // 65536 + 1
    assert told.feed(0, b"x" * (10 << 20), 0.0) == []
    assert told.peers[0].buffer == b""


@cases(
    ("line", "why"),
    [
        (put(b"k", b"v", b"other"), b"wrong_kvsname"),
        (put(b"", b"v"), b"key_length"),
        (put(b"k" * 65, b"v"), b"key_length"),
        (put(b"k", b""), b"value_length"),
        (put(b"k", b"v" * (VALUE_LIMIT + 1)), b"value_length"),
        (put(b"k", b"two words"), b"value_with_space"),
        (put(b"PMI_process_mapping", b"v"), b"reserved_key"),
    ],
)
def test_a_wrong_put_is_refused(line: bytes, why: bytes) -> None:
    assert say(server(), 0, line) == [("reply", 0, b"cmd=put_result rc=1 msg=" + why + b"\n")]


def test_no_answer_reaches_the_buffer_of_old_clients() -> None:
    told = server()
    value = b"v" * VALUE_LIMIT
    say(told, 0, put(b"k", value))
    (action,) = say(told, 1, get(b"k"))
    assert value in action[2]
    assert len(action[2]) < 1024


def test_pmi_2_is_declined() -> None:
    (action,) = say(server(), 0, b"cmd=init pmi_version=2 pmi_subversion=0")
    assert b"rc=-1" in action[2]


class TestFence:
    def test_one_report_when_all_on_this_host_are_in(self) -> None:
        told = server()
        say(told, 0, put(b"a", b"1"))
        say(told, 1, put(b"b", b"2"))
        assert say(told, 1, b"cmd=barrier_in") == []
        ((send, kind, fields),) = say(told, 0, b"cmd=barrier_in")
        assert (send, kind) == ("send", "pmi.committed")
        assert (fields["fence"], fields["epoch"]) == ("WORLD:0", 0)
        assert unpack(zlib.decompress(fields["keys"])) == [b"a", b"1", b"b", b"2"]
        actions = told.release(b"WORLD:0", 0, [packet(b"c", b"3"), packet()])
        line = b"cmd=barrier_out tag=0\n"
        assert actions == [("reply", 0, line), ("reply", 1, line)]
        assert say(told, 0, get(b"c")) == [("reply", 0, b"cmd=get_result rc=0 value=3\n")]

    def test_the_next_one_carries_only_what_is_new(self) -> None:
        told = server(ranks=[0])
        say(told, 0, put(b"a", b"1"), b"cmd=barrier_in")
        told.release(b"WORLD:0", 0, [])
        ((*_, fields),) = say(told, 0, b"cmd=barrier_in")
        assert fields["epoch"] == 1
        assert unpack(zlib.decompress(fields["keys"])) == []

    def test_within_the_host_nothing_is_sent(self) -> None:
        told = server(size=2)
        say(told, 0, b"cmd=barrier_in")
        assert [a[:2] for a in say(told, 1, b"cmd=barrier_in")] == [("reply", 0), ("reply", 1)]
        told = server()
        say(told, 0, b"cmd=barrier_in group=NODE:5")
        actions = say(told, 1, b"cmd=barrier_in group=NODE:5")
        assert actions[0] == ("reply", 0, b"cmd=barrier_out tag=5\n")
        say(told, 0, b"cmd=barrier_in group=1,0:6")
        assert len(say(told, 1, b"cmd=barrier_in group=0,1:6")) == 2

    def test_groups_are_apart_and_carry_keys_each(self) -> None:
        told = server()
        say(told, 0, put(b"a", b"1"))
        ((*_, fields),) = say(told, 0, b"cmd=barrier_in group=2,0:9")
        assert fields["fence"] == "0,2:9"
        assert unpack(zlib.decompress(fields["keys"])) == [b"a", b"1"]
        say(told, 1, b"cmd=barrier_in")
        assert told.release(b"0,2:9", 0, []) == [("reply", 0, b"cmd=barrier_out tag=9\n")]
        ((*_, fields),) = say(told, 0, b"cmd=barrier_in")
        assert unpack(zlib.decompress(fields["keys"])) == [b"a", b"1"]

    def test_a_release_before_all_are_here_is_nothing(self) -> None:
        told = server()
        assert say(told, 0, b"cmd=barrier_in") == []
        assert told.release(b"WORLD:0", 0, []) == []
        assert len(say(told, 1, b"cmd=barrier_in")) == 1

    @cases("epoch", [-1, 1, 7])
    def test_a_release_of_another_epoch_is_nothing(self, epoch: int) -> None:
        told = server(ranks=[0])
        assert told.release(b"WORLD:0", 0, []) == []
        say(told, 0, b"cmd=barrier_in")
        assert told.release(b"WORLD:0", epoch, []) == []
        assert len(told.release(b"WORLD:0", 0, [])) == 1

    @cases("bad", [b"", b"x", zlib.compress(b"zzz"), packet(b"odd")])
    def test_keys_that_cannot_be_read_break(self, bad: bytes) -> None:
        told = server(ranks=[0])
        say(told, 0, b"cmd=barrier_in")
        assert told.release(b"WORLD:0", 0, [bad])[0][:2] == ("break", 0)

    def test_one_that_ended_without_init_lets_nobody_go_on(self) -> None:
        told = server(size=2)
        say(told, 0, INIT[0][0])
        assert say(told, 0, b"cmd=barrier_in") == []
        assert told.ended(1) == []
        ((_, kind, fields),) = told.who(b"WORLD:0", 0, 3.0)
        assert (kind, fields["never"], fields["absent"]) == ("pmi.waiting", [1], [])


def test_finalize_and_a_second_life() -> None:
    told = server(size=2)
    assert say(told, 0, b"cmd=finalize") == [("reply", 0, b"cmd=finalize_ack rc=0\n")]
    assert b"rc=0" in say(told, 0, INIT[0][0])[0][2]


@cases(
    ("words", "code", "text"),
    [(b"exitcode=7", 7, ""), (b"exitcode=-1 message=why", 255, "why"), (b"", 1, ""),
     (b"exitcode=zzz", 1, ""), (b"exitcode=263", 7, ""), (b"exitcode=--5", 1, ""),
     (b"exitcode=2 message=PMI_Init failed", 2, "PMI_Init failed")],
)  # fmt: skip
def test_abort(words: bytes, code: int, text: str) -> None:
    told = server()
    fields = {"rank": 1, "code": code, "text": text}
    assert say(told, 1, b"cmd=abort " + words) == [("send", "pmi.aborted", fields)]
    assert say(told, 1, b"cmd=get_maxes") == []


def test_names_are_asked_of_the_launcher() -> None:
    told = server()
    ((_, kind, fields),) = say(told, 0, b"cmd=publish_name service=s port=tag#0$port")
    assert kind == "pmi.asked"
    assert fields == {"rank": 0, "verb": "publish", "service": b"s", "port": b"tag#0$port"}
    assert told.answer(0, b"cmd=publish_result rc=0\n")[0][:2] == ("reply", 0)
    assert told.answer(0, b"again") == []


def test_a_name_of_several_words_is_one_name() -> None:
    told = server()
    ((_, _, fields),) = say(told, 0, b"cmd=lookup_name service=ocean  model of=1 port=p")
    assert (fields["service"], fields["port"]) == (b"ocean model", b"p")


def test_a_port_that_no_client_could_read_is_not_published() -> None:
    refused = b"cmd=publish_result rc=1 msg=port_with_space\n"
    told = server()
    line = b"cmd=publish_name service=s port=two words"
    assert say(told, 0, line) == say(told, 0, line) == [("reply", 0, refused)]


class TestSpawn:
    SEGMENT = (
        b"mcmd=spawn", b"nprocs=2", b"execname=/bin/true", b"totspawns=2", b"argcnt=1",
        b"arg1=a b=c",
    )  # fmt: skip

    def test_the_launcher_gets_the_whole_request_and_answers(self) -> None:
        told = server()
        assert say(told, 0, *self.SEGMENT, b"spawnssofar=1", b"endcmd") == []
        ((_, kind, fields),) = say(told, 0, *self.SEGMENT, b"spawnssofar=2", b"endcmd")
        assert kind == "pmi.spawn_asked"
        segment = [2, [b"/bin/true", b"a b=c"], []]
        assert fields == {"rank": 0, "segments": [segment, segment], "preput": []}
        line = b"cmd=spawn_result rc=0\n"
        assert told.answer(0, line) == [("reply", 0, line)]
        assert told.answer(0, line) == []
        assert say(told, 0, b"cmd=get_appnum")[0][0] == "reply"

    def test_two_ranks_spawn_at_the_same_time(self) -> None:
        told = server()
        lines = [*self.SEGMENT, b"spawnssofar=1", b"endcmd", *self.SEGMENT, b"spawnssofar=2"]
        for line in lines:
            assert say(told, 0, line) == say(told, 1, line) == []
        for rank in (1, 0):
            assert say(told, rank, b"endcmd")[0][1:][1]["rank"] == rank

    def test_a_second_request_before_the_answer_breaks(self) -> None:
        told = server()
        for number in (1, 2):
            say(told, 0, *self.SEGMENT, b"spawnssofar=%d" % number, b"endcmd")
        assert say(told, 0, b"mcmd=spawn")[0][:2] == ("break", 0)

    def test_a_spawned_world_has_its_keys_and_programs_and_the_jobs_numbers(self) -> None:
        job = {"name": NAME, "size": 5, "mapping": b"", "patience": 30.0}
        more = {"universe": 8, "apps": [1, 3, 1], "preput": [[b"parent", b"port"]]}
        ranks = [50, 53, 54]
        told = Server({**job, **more, "world": 2, "first": 50}, ranks)
        assert say(told, 53, get(b"parent")) == [("reply", 53, b"cmd=get_result rc=0 value=port\n")]
        apps = [say(told, rank, b"cmd=get_appnum")[0][2] for rank in ranks]
        assert apps == [b"cmd=appnum rc=0 appnum=%d\n" % app for app in (0, 1, 2)]
        assert say(told, 50, b"cmd=get_universe_size")[0][2].endswith(b"size=8\n")
        assert say(told, 50, b"cmd=barrier_in group=4,0,1:7") == []
        ((_, _, fence),) = say(told, 54, b"cmd=barrier_in group=0,1,4:7")
        assert (fence["world"], fence["fence"]) == (2, "0,1,4:7")
        assert [rank for _, rank, _ in told.release(b"0,1,4:7", 0, [])] == [50, 54]
        assert told.who(b"1,3:8", 0, 30.0)[0][2]["never"] == [53]
        assert say(told, 53, b"cmd=barrier_in group=3,5:1")[0][:2] == ("break", 53)


class TestPatience:
    def test_a_rank_that_never_calls_init_is_named(self) -> None:
        told = server()
        say(told, 0, INIT[0][0], now=5.0)
        assert told.next_deadline() == 35.0
        fields = {"never": [1], "absent": [], "seconds": 30.0}
        assert told.tick(35.0) == [("send", "pmi.waiting", fields)]
        assert told.next_deadline() == math.inf

    def test_a_rank_missing_in_a_barrier_is_named(self) -> None:
        told = server()
        for rank in (0, 1):
            say(told, rank, INIT[0][0])
        say(told, 1, b"cmd=barrier_in", now=2.0)
        fields = {"never": [], "absent": [0], "seconds": 30.0}
        assert told.tick(32.0) == [("send", "pmi.waiting", fields)]

    def test_nothing_is_said_when_all_came(self) -> None:
        told = server(size=2)
        for rank in (0, 1):
            say(told, rank, INIT[0][0])
            say(told, rank, b"cmd=barrier_in")
        assert told.next_deadline() == math.inf

    def test_the_launcher_may_ask(self) -> None:
        told = server()
        assert told.who(b"WORLD:0", 0, 30.0)[0][2]["never"] == [0, 1]
        assert told.who(b"1,3:5", 0, 30.0)[0][2]["never"] == [1]  # a group
        for rank in (0, 1):
            say(told, rank, b"cmd=barrier_in")
        assert told.who(b"WORLD:0", 0, 30.0) == []


def test_a_mapping_too_long_for_a_value_is_not_there() -> None:
    told = server(mapping=b"x" * (VALUE_LIMIT + 1))
    assert say(told, 0, get(b"PMI_process_mapping"))[0][2].startswith(b"cmd=get_result rc=1")
