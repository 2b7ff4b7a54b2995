"""Where ranks come for PMIx: who is let in, what becomes of fences; no libpmix is needed."""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.remote.host import workdir
from dispatcher.remote.pmi import mpi_library, pmix_bridge, pmix_server
from dispatcher.remote.pmi.libpmix import INFO, RANK, STRING, DataArray, Infos
from dispatcher.remote.pmi.pmi_connections import PmiConnections
from dispatcher.remote.pmi.pmix_bridge import HESITATION, OUT_OF_RESOURCE, TAG, PmixBridge
from dispatcher.remote.protocol.frames import Decoder, control
from dispatcher.remote.protocol.packing import unpack

JOB = {
    "name": b"kvs_7", "size": 4, "mapping": b"(vector,(0,2,2))", "patience": 30.0,
    "pmix": [b"PMIX_SERVER_URI4"],
}  # fmt: skip
ORDER = {"type": "pmix", "parts": {}, "node": 0, "hosts": [[b"a", [0, 1]], [b"b", [2, 3]]]}
FENCE = {"world": 0, "fence": "WORLD" + TAG, "epoch": 0}


class House:
    """An agent's connections with two of four ranks, and who comes to its port."""

    def __init__(self, place: Path) -> None:
        self.poll = select.epoll()
        self.connections = PmiConnections(self.poll)
        self.connections.folder = str(place)
        self.connections.add(dict(JOB), [0, 1])
        self.known = [self.connections.open(rank) for rank in (0, 1)]
        assert self.connections.listener is not None
        self.port = self.connections.listener.getsockname()[1]
        self.clients: list[socket.socket] = []

    def knock(self) -> socket.socket:
        self.clients.append(socket.create_connection(("127.0.0.1", self.port), timeout=10))
        return self.clients[-1]

    def turn(self, until: float = 10.0) -> list[Any]:
        """What the next thing that happens at the port, or behind it, calls for."""
        for fd, _ in self.poll.poll(until):
            if fd in self.connections.others:
                return self.connections.others[fd](fd, 1.0)
        return []

    def serving(self) -> tuple[PmixBridge, socket.socket]:
        """The agent's side, as if a process served, and that process's end of their socket."""
        assert self.connections.listener is not None
        self.connections.knocked(self.connections.listener.fileno(), 0.0)
        self.connections.replies().order(ORDER)  # whoever knocked has left again
        there = self.connections.replies().bridge
        assert there is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        there.link = ours.detach()
        self.poll.register(there.link, select.EPOLLIN)
        self.connections.others[there.link] = there.ready
        theirs.settimeout(10)
        return there, theirs

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for fd in (*self.connections.fds, *(end for end, _ in self.known)):
            os.close(fd)
        there = self.connections.replies().bridge
        if there is not None:
            if there.link in self.connections.others:
                os.close(there.link)
            if there.pid is not None:
                os.waitpid(there.pid, 0)
        if self.connections.listener is not None:
            self.connections.listener.close()
        self.poll.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    place = tmp_path / f"dispatch-test-{os.getpid()}"
    place.mkdir()
    house = House(place)
    yield house
    house.close()
    workdir.remove(str(place))
    assert not place.exists()
    assert not os.path.exists(workdir.shared(str(place)))


def heard(end: socket.socket, count: int) -> list[Any]:
    """The next ``count`` messages to the serving process, whose ``end`` of the socket it is."""
    decoder = Decoder()
    messages: list[Any] = []
    while len(messages) < count:
        messages += [unpack(frame.body) for frame in decoder.feed(end.recv(1 << 16))]
    return messages


def test_a_rank_is_told_where_to_come(house: House) -> None:
    place = b"kvs_7_srv.0;tcp4://127.0.0.1:%d" % house.port
    assert [known[b"PMIX_SERVER_URI4"] for _, known in house.known] == [place] * 2


def test_what_serves_is_asked_for_once(house: House) -> None:
    house.knock()
    assert house.turn() == [("send", "pmix_wanted", {})]
    house.knock()
    assert house.turn(0.05) == []


def test_a_stranger_is_sent_away_and_nothing_begins(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pmix_bridge, "owner", lambda peer, place: os.geteuid() + 1)
    client = house.knock()
    house.turn()
    assert house.connections.replies().order(ORDER) == []
    assert client.recv(1) == b""
    bridge = house.connections.replies().bridge
    assert bridge is not None
    assert bridge.pid is None
    house.knock()
    assert house.turn() == []  # it still listens
    assert bridge.pid is None


@pytest.mark.parametrize("mpi", ["/some/libmpi.so.40", ""])
def test_without_a_library_the_ranks_cannot_go_on(
    house: House, monkeypatch: pytest.MonkeyPatch, mpi: str
) -> None:
    monkeypatch.setattr(mpi_library.Found, "candidates", lambda found: ["/no/libpmix.so.2"])
    monkeypatch.setattr(mpi_library.Found, "named", lambda found, start: mpi)
    house.knock()
    house.turn()
    assert house.connections.replies().order(ORDER) == []
    ((_, kind, fields),) = house.turn()
    if mpi:  # the rank waits for its end
        assert (kind, fields["library"]) == ("pmix_failed", mpi)
        assert "/no/libpmix.so.2" in fields["tried"]
        bridge = house.connections.replies().bridge
        assert bridge is not None
        os.close(bridge.link)
        del house.connections.others[bridge.link]
    else:  # somebody who is no rank of MPI's
        assert kind == "notice"
        assert house.turn() == []  # its end is no news


def test_a_fence_goes_up_and_comes_down(house: House) -> None:
    there, end = house.serving()
    end.sendall(control("fence", id=5, ranks=None, data=b"mine"))
    ((_, kind, fields),) = house.turn()
    packet = fields.pop("keys")
    assert (kind, fields, zlib.decompress(packet)) == ("pmi_fence", FENCE, b"mine")
    order = {"type": "pmi_release", **FENCE, "keys": [packet, zlib.compress(b"theirs")]}
    assert house.connections.replies().order({**order, "epoch": 1}) == []  # out of turn
    assert house.connections.replies().order(order) == []
    part, release = heard(end, 2)
    assert part == {"type": "part", "id": 5, "data": b"minetheirs"}
    assert release == {"type": "release", "id": 5, "status": 0}
    end.sendall(control("fence", id=6, ranks=[2, 0], data=b""))
    ((_, _, fields),) = house.turn()
    assert (fields["fence"], fields["epoch"]) == ("0,2" + TAG, 0)
    assert there.epochs["WORLD" + TAG] == 1
    end.close()


def test_a_process_that_does_not_read_holds_nobody_back(house: House) -> None:
    there, end = house.serving()
    end.sendall(control("fence", id=5, ranks=None, data=b""))
    house.turn()
    size = 5 << 20
    house.connections.replies().order(
        {"type": "pmi_release", **FENCE, "keys": [zlib.compress(bytes(size))]}
    )
    assert there.outgoing
    end.sendall(control("connected", rank=0))
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(heard(end, 6)))
    reader.start()
    while there.outgoing:
        house.turn()
    reader.join(10)
    assert sum(len(message.get("data", b"")) for message in got) == size
    assert got[-1]["type"] == "release"
    end.close()


@pytest.mark.parametrize("size", [0, 65 << 20])
def test_what_other_hosts_send_is_bounded(house: House, size: int) -> None:
    keys = [zlib.compress(bytes(size)) if size else b"no zlib"]
    _, end = house.serving()
    end.sendall(control("fence", id=5, ranks=None, data=b"mine"))
    house.turn()
    house.connections.replies().order({"type": "pmi_release", **FENCE, "keys": keys})
    assert heard(end, 1) == [{"type": "release", "id": 5, "status": OUT_OF_RESOURCE}]
    end.close()


def test_who_never_came_is_named_when_patience_ends(house: House) -> None:
    there, end = house.serving()
    assert house.connections.next_deadline() == math.inf
    end.sendall(control("connected", rank=1))
    assert house.turn() == [("mpi", 1, "", "")]
    assert house.connections.next_deadline() == 31.0
    assert house.connections.tick(30.0) == []
    ((_, kind, fields),) = house.connections.tick(31.0)
    assert (kind, fields["never"], fields["absent"]) == ("pmi_waiting", [0], [])
    assert house.connections.next_deadline() == math.inf
    asked = {"type": "pmi_who", **FENCE, "seconds": 3.0}
    ((_, _, fields),) = house.connections.replies().order(asked)
    assert (fields["never"], fields["seconds"]) == ([0], 3.0)
    there.epochs["WORLD" + TAG] = 1
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
    assert (kind, fields["rank"], fields["code"], fields["text"]) == ("pmi_abort", 1, 7, "")
    end.close()


@pytest.mark.parametrize("done", [True, False])
def test_an_end_is_told_if_ranks_still_needed_it(house: House, done: bool) -> None:
    _, end = house.serving()
    end.sendall(control("connected", rank=0) + (control("finalized", rank=0) if done else b""))
    house.turn()
    end.close()
    told = [] if done else [("send", "pmix_failed", {"library": "", "tried": ""})]
    assert house.turn() == told


def test_bytes_cross_both_ways_whole() -> None:
    """A reader that waits holds back who writes to it, and nobody else."""
    listener = socket.create_server(("127.0.0.1", 0))
    ours, theirs = socket.socketpair()
    serving = pmix_server.Serving(theirs.fileno(), listener, {}, mpi_library.Found([]))
    inner = socket.create_server(("127.0.0.1", 0))
    client, came = socket.socketpair()
    serving.let_in(came.detach(), inner.getsockname()[1])
    other, _ = inner.accept()
    size = 8 << 20
    got: list[int] = []

    def read(end: socket.socket) -> None:
        count = 0
        while data := end.recv(1 << 16):
            count += len(data)
        got.append(count)

    def write(end: socket.socket) -> None:
        end.sendall(bytes(size))
        end.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=read, args=(other,)), threading.Thread(
        target=write, args=(client,))]  # fmt: skip
    other.sendall(b"first")
    for thread in threads:
        thread.start()
    while serving.across:
        for fd, event in serving.poll.poll(10):
            if fd in serving.across:
                serving.carry(fd, event)
    for thread in threads:
        thread.join(10)
    assert got == [size]
    assert client.recv(16) == b"first"
    for one in (listener, ours, theirs, inner, client, other):
        one.close()
    serving.poll.close()


def test_where_a_library_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "lib" / "openmpi").mkdir(parents=True)
    beside = tmp_path / "lib" / "openmpi" / "libpmix.so.2"
    beside.touch()
    found = mpi_library.Found([os.getpid(), 1 << 30])
    assert found.named("libc.so")  # of a process that runs
    found.prefixes, found.mpi, found.pmix = [], str(tmp_path / "lib" / "libmpi.so.40"), ""
    assert found.candidates() == [str(beside), "libpmix.so.2", "libpmix.so"]
    found.pmix = str(tmp_path)
    assert found.candidates()[0] == str(tmp_path)  # what the rank itself has loaded


def test_values_stand_where_the_library_looks_for_them() -> None:
    infos = Infos([(b"name", STRING, b"text"), (b"all", 39, [(b"rank", RANK, 3)])])
    assert infos.array[0].value.type == STRING
    assert infos.size == 2
    inner = DataArray.from_address(infos.array[1].value.content[0])
    assert (inner.type, inner.size) == (INFO, 1)
