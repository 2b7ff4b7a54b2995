"""Where ranks come for PMIx: who is let in, what becomes of fences; no libpmix is needed."""

from __future__ import annotations

import math
import os
import select
import socket
import threading
from typing import Any

import pytest

from dispatcher.remote.host import own_folder, tcp_peer
from dispatcher.remote.pmi import pmix_server
from dispatcher.remote.pmi.pmix_bridge import HESITATION, TAG
from dispatcher.remote.protocol.frames import HEADER, control

from .conftest import FENCE, JOB, ORDER, House, heard


def test_a_rank_is_told_where_to_come(house: House) -> None:
    place = b"kvs_7_srv.0;tcp4://127.0.0.1:%d" % house.port
    assert [known[b"PMIX_SERVER_URI4"] for _, known in house.known] == [place] * 2


def test_what_serves_is_asked_for_once(house: House) -> None:
    house.knock()
    assert house.turn() == [("send", "pmix.wanted", {})]
    house.knock()
    assert house.turn(0.05) == []


def test_a_stranger_is_sent_away_and_nothing_begins(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_peer, "user_of", lambda fd: os.geteuid() + 1)
    client = house.knock()
    assert house.turn() == []  # what serves is not asked for
    assert client.recv(1) == b""
    assert house.connections.spoken is False
    monkeypatch.undo()
    house.knock()
    assert house.turn() == [("send", "pmix.wanted", {})]  # it still listens


@pytest.mark.parametrize("mpi", ["/some/libmpi.so.40", ""])
def test_without_a_library_the_ranks_cannot_go_on(
    house: House, monkeypatch: pytest.MonkeyPatch, mpi: str
) -> None:
    monkeypatch.setattr(pmix_server.Found, "candidates", lambda found: ["/no/libpmix.so.2"])
    monkeypatch.setattr(pmix_server.Found, "named", lambda found, start: mpi)
    house.knock()
    house.turn()
    assert house.connections.replies().order(ORDER) == []
    ((_, kind, fields),) = house.turn()
    if mpi:  # the rank waits for its end
        assert (kind, fields["library"]) == ("pmix.failed", mpi)
        assert "/no/libpmix.so.2" in fields["tried"]
        bridge = house.connections.replies().bridge
        assert bridge is not None
        house.poll.remove(bridge.link)
        os.close(bridge.link)
        bridge.link = -1
    else:  # somebody who is no rank of MPI's
        assert kind == "node.noticed"
        assert house.turn() == []  # its end is no news


def test_who_never_came_is_named_when_patience_ends(house: House) -> None:
    there, end = house.serving()
    assert house.connections.next_deadline() == math.inf
    end.sendall(control("connected", rank=1))
    assert house.turn() == [("mpi", 1, "", "")]
    assert house.connections.next_deadline() == 31.0
    assert house.connections.tick(30.0) == []
    ((_, kind, fields),) = house.connections.tick(31.0)
    assert (kind, fields["never"], fields["absent"]) == ("pmi.waiting", [0], [])
    assert house.connections.next_deadline() == math.inf
    asked = {"type": "ask_waiting", **FENCE, "seconds": 3.0}
    ((_, _, fields),) = house.connections.replies().order(asked)
    assert (fields["never"], fields["seconds"]) == ([0], 3.0)
    there.epochs[0, "WORLD" + TAG] = 1
    assert house.connections.replies().order(asked) == []
    end.close()


def test_one_that_left_without_a_word_is_named_and_no_other(house: House) -> None:
    there, end = house.serving()
    end.sendall(control("connected", rank=1))
    house.turn()
    house.connections.ended(0, 0, 0.0)
    assert house.connections.way == "never"
    ((_, _, fields),) = there.who(3.0)
    assert (fields["never"], fields["absent"]) == ([0], [])
    ((_, _, fields),) = house.connections.tick(31.0)
    assert fields["never"] == [0]
    end.close()


def test_of_several_that_may_be_missing_none_is_blamed(house: House) -> None:
    there, end = house.serving()
    for rank in (0, 1):
        end.sendall(control("connected", rank=rank))
        house.turn()
    ((_, _, fields),) = there.who(3.0)
    assert (fields["absent"], fields["some"]) == ([0, 1], True)
    end.sendall(control("finalized", rank=1))
    house.turn()
    ((_, _, fields),) = there.who(3.0)
    assert (fields["absent"], fields["some"]) == ([0], False)
    end.close()


@pytest.mark.parametrize(
    ("world", "group", "never"),
    [
        (1, "WORLD", [4097, 4098]),
        (1, "0-1", [4097]),
        (0, "0-1,4098", [1, 4098]),  # of both worlds
        (0, "0,3", []),  # only one of them is here, and it has come
        (2, "WORLD", []),
    ],
)
def test_those_of_other_worlds_and_groups_are_not_blamed(
    house: House, world: int, group: str, never: list[int]
) -> None:
    _, end = house.serving()
    job = {**JOB, "world": 1, "first": 4096, "size": 3, "pmix": []}
    house.connections.add(job, [4097, 4098])
    end.sendall(control("connected", rank=0) + control("finalized", rank=0))
    house.turn()
    order = {
        "type": "ask_waiting",
        "world": world,
        "fence": group + TAG,
        "epoch": 0,
        "seconds": 3.0,
    }
    told = house.connections.replies().order(order)
    assert [fields["never"] for _, _, fields in told] == ([never] if never else [])
    end.close()


@pytest.mark.parametrize(("words", "way"), [((), "inside"), (("finalized",), "")])
def test_where_a_rank_stood_when_it_ended(house: House, words: tuple[str, ...], way: str) -> None:
    there, end = house.serving()
    for word in ("connected", *words):
        end.sendall(control(word, rank=1))  # told, and not heard of before its end
    house.connections.ended(1, 0, 0.0)
    assert house.connections.way == way
    end.sendall(control("connected", rank=0) + control("finalized", rank=0))
    end.sendall(control("connected", rank=0))  # a session after the other
    assert there.catch_up(1.0)
    assert there.state.standing(0) == "inside"
    end.close()


def test_an_abort_waits_for_the_end_that_may_have_caused_it(house: House) -> None:
    _, end = house.serving()
    end.sendall(control("abort", rank=1, code=263, text="N/A"))
    assert house.turn() == []
    assert house.connections.tick(1.0 + HESITATION / 2) == []
    ((_, kind, fields),) = house.connections.tick(1.0 + HESITATION)
    assert (kind, fields["rank"], fields["code"], fields["text"]) == ("pmi.aborted", 1, 7, "")
    end.close()


@pytest.mark.parametrize("done", [True, False])
def test_an_end_is_told_if_ranks_still_needed_it(house: House, done: bool) -> None:
    _, end = house.serving()
    end.sendall(control("connected", rank=0) + (control("finalized", rank=0) if done else b""))
    house.turn()
    end.close()
    told = [] if done else [("send", "pmix.failed", {"library": "", "tried": ""})]
    assert house.turn() == told


class Played:
    """In the place of libpmix, in the process that serves; says back what it hears."""

    version = ""

    def __init__(self, path: str, tell: Any, asked: Any, upcalls: Any) -> None:
        assert path == "/some/libpmix.so.2"

    def begin(self, name: bytes, folder: bytes) -> None:
        self.version = f"{name!r} in {folder!r}"
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, args=(listener,), daemon=True).start()

    def serve(self, listener: socket.socket) -> None:
        while True:
            select.select([listener], [], [])
            came = socket.socket(fileno=listener._accept()[0])  # type: ignore[attr-defined]
            data = came.recv(9)
            came.sendall(data)
            if data:
                came.detach()  # it stays open
            came.close()

    def add(self, name: bytes, first: int, job: object, ranks: list[int]) -> None:
        self.version += f", {name!r}: {first}, {ranks}"


def test_a_process_serves_who_has_come_and_who_comes_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pmix_server.Found, "candidates", lambda found: ["/some/libpmix.so.2"])
    monkeypatch.setattr(pmix_server, "Library", Played)
    client = house.knock()
    house.turn()
    assert house.connections.replies().order({**ORDER, "node": 1}) == []
    bridge = house.connections.replies().bridge
    assert bridge is not None
    assert bridge.pid
    assert house.connections.serving() == bridge.pid
    house.turn()  # it is up
    folder = str(house.connections.folder)
    place = os.fsencode(folder) + b"/pmix"
    words = f"{b'kvs_7_srv'!r} in {place!r}, {b'kvs_7'!r}: 0, [2, 3]"
    assert bridge.served == f"{words} (/some/libpmix.so.2)"
    assert os.getsid(bridge.pid) == bridge.pid
    for made in (folder + "/pmix", own_folder.shm_link(folder)):
        assert os.stat(made).st_mode & 0o777 == 0o700
    for one, words in ((client, "hello"), (house.knock(), "later")):
        one.settimeout(60)
        one.sendall(words.encode())
        assert one.recv(9) == words.encode()


def test_without_a_folder_it_cannot_be_served(house: House) -> None:
    place, house.connections.folder = house.connections.folder, None
    house.knock()
    house.turn()
    ((_, kind, fields),) = house.connections.replies().order(ORDER)
    assert kind == "pmix.failed"
    assert "no folder can be made for its files" in fields["tried"]
    house.connections.folder = place


def test_a_rank_is_looked_at_when_it_first_connects(house: House) -> None:
    there, end = house.serving()
    end.sendall(control("up", mpi="/lib/libmpi.so.40", pmix="/lib/libpmix.so.2", version="5.0"))
    end.sendall(control("connected", rank=0))
    wanted = ("mpi", 0, "5.0 (/lib/libpmix.so.2)", "/lib/libmpi.so.40")
    assert house.turn() == [wanted]
    house.connections.mpis[0] = ("5.0", "/lib/libmpi.so.40", 7)
    end.sendall(control("connected", rank=0))
    assert house.turn() == []
    assert there.due == 31.0
    end.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.0\r\n\r\n", HEADER.pack(1, 0, 0, 0, 1) + b"?"])
def test_one_that_says_what_is_no_message_counts_as_ended(house: House, said: bytes) -> None:
    _, end = house.serving()
    end.sendall(control("connected", rank=0))
    house.turn()
    end.sendall(said)
    assert house.turn() == [("send", "pmix.failed", {"library": "", "tried": ""})]
    assert house.turn(0.01) == []
    assert end.recv(1) == b""
    end.close()


WORLD = {
    "type": "share_world", "world": 1, "first": 1 << 20, "name": b"kvs_7_1", "size": 2,
    "hosts": [[b"b", [0, 1]]], "nodes": [1], "node": None, "apps": [2],
}  # fmt: skip


def test_a_world_waits_for_the_process_that_serves_and_is_nothing_to_one_that_ended(
    house: House,
) -> None:
    there = house.awaiting()
    replies = house.connections.replies()
    assert replies.order(WORLD) == []
    _, end = house.serving(there)
    assert replies.order({**WORLD, "world": 2, "name": b"kvs_7_2"}) == []
    assert [told["name"] for told in heard(end, 2)] == [b"kvs_7_1", b"kvs_7_2"]
    end.sendall(control("connected", rank=0) + control("finalized", rank=0))
    house.turn()
    end.close()
    assert house.turn() == []
    assert replies.order(WORLD) == []


def test_names_and_spawns_are_asked_and_answered(house: House) -> None:
    _, end = house.serving()
    name = {"verb": "lookup", "key": b"door", "value": b"", "wait": True, "once": False}
    end.sendall(control("name", id=5, rank=1, **name))
    ((_, kind, fields),) = house.turn()
    assert (kind, fields["rank"], fields["ask"], fields["wait"]) == ("pmi.asked", 1, 5, True)
    end.sendall(control("spawn", id=6, rank=0, segments=[[2, [b"prog"], []]]))
    ((_, kind, fields),) = house.turn()
    assert (kind, fields["ask"], fields["segments"]) == ("pmi.spawn_asked", 6, [[2, [b"prog"], []]])
    replies = house.connections.replies()
    assert replies.order(WORLD) == []
    for ask, line in ((5, b" rc=0 port=\3a port=b"), (6, b" rc=0 world=1"), (6, b" rc=0 world=1")):
        answer = {"type": "answer_rank", "rank": 1, "ask": ask, "line": b"cmd=x_result%s\n" % line}
        assert replies.order(answer) == []
    told, part, _, spawned, _ = heard(end, 5)
    assert (told["type"], told["name"], told["first"], told["node"]) == (
        "world", b"kvs_7_1", 1 << 20, None,
    )  # fmt: skip
    assert (part["id"], part["data"]) == (5, b"\3a port=b")
    assert (spawned["id"], spawned["data"]) == (6, b"kvs_7_1")
    end.sendall(control("group", id=7, verb="connect", name=b"", data=b"", members=[
        [b"kvs_7", [1, 0]], [b"kvs_7_1", None],
    ]))  # fmt: skip
    ((_, _, fields),) = house.turn()
    assert (fields["world"], fields["fence"].split(":")[0]) == (0, "0-1,1048576-1048577")
    end.sendall(control("fence", id=8, members=[[b"kvs_7_1", [0]]], data=b""))
    ((_, _, fields),) = house.turn()
    assert (fields["world"], fields["fence"]) == (1, "0" + TAG)
    end.close()


def test_what_pmix_is_to_log_is_shown_for_its_rank(house: House) -> None:
    _, end = house.serving()
    end.sendall(control("log", id=5, rank=1, texts=[[2, b"why"], [1, b"more"]]))
    assert house.turn() == [("output", 1, 2, b"why"), ("output", 1, 1, b"more")]
    end.sendall(control("log", id=6, rank=1, texts=[]))
    assert house.turn() == []
    assert [(told["id"], told["status"]) for told in heard(end, 2)] == [(5, 0), (6, -47)]
    end.close()


def test_what_is_refused_is_told_by_number(house: House) -> None:
    _, end = house.serving()
    for line, status in ((b"service_not_found", -46), (b"refused_by_dispatch", -29)):
        end.sendall(control("spawn", id=6, rank=0, segments=[]))
        house.turn()
        answer = {"type": "answer_rank", "rank": 0, "ask": 6, "line": b"cmd=x rc=1 msg=%s\n" % line}
        assert house.connections.replies().order(answer) == []
        (released,) = heard(end, 1)
        assert released["status"] == status
    end.close()


@pytest.mark.parametrize("members", [[], [[JOB["name"], []]]])
def test_a_meeting_of_nobody_is_refused_here(house: House, members: list[Any]) -> None:
    there, end = house.serving()
    end.sendall(control("group", id=5, verb="construct", name=b"g", members=members, data=b""))
    assert house.turn() == []  # the launcher would end the link
    assert [(told["id"], told["status"]) for told in heard(end, 1)] == [(5, -47)]
    assert there.waiting == {}
    end.close()
