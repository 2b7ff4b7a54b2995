"""The process that serves PMIx: which library, fences and aborts, the ranks' connections.

The library is played; what goes over sockets is real.
"""

from __future__ import annotations

import ctypes
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cases import cases
from rig import wait_for

from dispatcher.remote.host import tcp_peer
from dispatcher.remote.pmi import pmix_server
from dispatcher.remote.pmi.libpmix import LoadError, job_of
from dispatcher.remote.pmi.pmix_server import (
    MOST_NEEDED,
    NOT_FOUND,
    OUT_OF_RESOURCE,
    Serving,
    have_put,
)
from dispatcher.remote.pmi.pmix_upcalls import UNPACK_FAILURE
from dispatcher.remote.protocol.frames import CONTROL, Decoder, WireError, control, encode
from dispatcher.remote.protocol.packing import PackError, pack, unpack

JOB = {
    "name": b"kvs_7", "node": 1, "hosts": [[b"a", [0, 1]], [b"b", [2, 3]]], "universe": 6,
}  # fmt: skip
LIBRARY = "/lib/libpmix.so.2"


class Ear(threading.Thread):
    """Listens as libpmix does: it hears nobody else until a connection has said its first byte.

    how: ``select``, as versions 3 and 4 wait, or ``epoll``, as 5 does; "" for never.
    """

    made: ClassVar[list[Ear]] = []

    def __init__(self, how: str) -> None:
        super().__init__(daemon=True)
        self.how = how
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.stop: tuple[int, ...] = os.pipe()
        self.reads = threading.Event()
        self.said: queue.SimpleQueue[tuple[bytes, socket.socket]] = queue.SimpleQueue()
        self.made.append(self)
        self.start()

    def run(self) -> None:
        fd, poll = self.listener.fileno(), select.epoll()
        for one in (fd, self.stop[0]):
            poll.register(one, select.EPOLLIN)
        while self.how:
            if self.how == "select":
                ready = select.select([fd, self.stop[0]], [], [])[0]
            else:
                ready = [one for one, _ in poll.poll()]
            if self.stop[0] in ready:
                break
            came = socket.socket(fileno=self.listener._accept()[0])  # type: ignore[attr-defined]
            self.reads.set()
            if data := came.recv(1):
                self.said.put((data, came))
            else:
                came.close()
        poll.close()

    def close(self) -> None:
        """Hear nobody any more."""
        os.write(self.stop[1], b"x")
        self.join(60)
        assert not self.is_alive()
        self.listener.close()
        for one in self.stop:
            os.close(one)


class Played:
    """In the place of ``Library``; the last one made is ``Played.made``."""

    made: Played
    how = "select"
    local: dict[bytes, list[int]]
    fetch: Callable[..., None]
    version = "OpenPMIx 5.0.1"

    def __init__(
        self, path: str, tell: Callable[..., None], asked: Callable[..., None], _: Any
    ) -> None:
        self.path, self.tell, self.asked = path, tell, asked
        self.calls: list[Any] = []
        Played.made = self

    def begin(self, *words: Any) -> None:
        self.calls.append(words)
        Ear(self.how)

    def add(self, *words: Any) -> None:
        self.calls.append(words)


class Heard:
    """In the place of ``Answer``: what the ranks of a fence are given."""

    def __init__(self) -> None:
        self.given: list[tuple[int, bytes, int]] = []
        self.came = threading.Event()

    def give(self, status: int, data: bytes, number: int) -> None:
        self.given.append((status, data, number))
        self.came.set()


def found(*candidates: str, mpi: str = "", **files: str) -> pmix_server.Found:
    """What the ranks have loaded; ``candidates`` are where a libpmix is looked for."""
    there = pmix_server.Found([])
    there.mpi, there.files = mpi, dict(files)
    there.candidates = lambda: list(candidates)  # type: ignore[method-assign]
    return there


class House:
    """A serving process as a thread; the agent's end of its socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.agent, self.link = socket.socketpair()
        self.agent.settimeout(60)
        self.decoder = Decoder()
        self.come: list[dict[str, Any]] = []
        self.open: list[socket.socket] = []
        self.thread: threading.Thread | None = None

    def serving(self, there: pmix_server.Found) -> Serving:
        return Serving(
            self.link.fileno(), self.listener, {**JOB, "folder": str(self.folder)}, there
        )

    def run(self, there: pmix_server.Found) -> socket.socket:
        """Serve; the first client, whose connection the agent has taken in."""
        ours, theirs = socket.socketpair()
        serving, client = self.serving(there), theirs.detach()

        def serve() -> None:
            serving.run(client)
            serving.poll.epoll.close()
            self.link.close()  # the process would end
            for fd in serving.across if there.pmix else [client]:
                os.close(fd)

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        return self.kept(ours)

    def kept(self, one: socket.socket) -> socket.socket:
        one.settimeout(60)
        self.open.append(one)
        return one

    def said(self) -> bytes:
        """The first byte of the next connection that libpmix has heard."""
        byte, one = Ear.made[0].said.get(timeout=60)
        self.kept(one)
        return byte

    def heard(self) -> dict[str, Any]:
        """The next message to the agent."""
        while not self.come:
            data = self.agent.recv(1 << 16)
            assert data, "it ended"
            self.come += [unpack(frame.body) for frame in self.decoder.feed(data)]
        return self.come.pop(0)

    def close(self) -> None:
        self.agent.close()
        if self.thread is not None:
            self.thread.join(60)
            assert not self.thread.is_alive()
        for one in (*self.open, self.listener, self.link):
            one.close()
        for ear in Ear.made:
            ear.close()


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[House]:
    monkeypatch.setattr(pmix_server, "Library", Played)
    monkeypatch.setattr(Ear, "made", [])
    monkeypatch.setenv("PMIX_MCA_gds", "")  # put back afterwards
    house = House(tmp_path)
    yield house
    house.close()


def test_a_stranger_is_not_let_in(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    client = house.run(found(LIBRARY))
    assert house.heard()["type"] == "up"
    with monkeypatch.context() as patch:
        patch.setattr(tcp_peer, "user_of", lambda fd: os.geteuid() + 1)
        stranger = house.kept(socket.create_connection(house.listener.getsockname(), timeout=60))
        assert stranger.recv(1) == b""
    client.sendall(b"x")  # who is in stays
    assert house.said() == b"x"


@pytest.mark.parametrize("how", ["select", "epoll"])
def test_silent_strangers_at_the_librarys_port_hold_up_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    strangers: list[socket.socket] = []

    def begin(*_: Any) -> None:
        ear = Ear(how)
        for __ in range(3):  # the library waits for the words of the first
            strangers.append(house.kept(socket.create_connection(ear.address)))
        assert ear.reads.wait(60)

    monkeypatch.setattr(Played, "begin", begin)
    client = house.run(found(LIBRARY))
    assert house.heard()["type"] == "up"
    client.sendall(b"rank")
    assert house.said() == b"r"
    for stranger in strangers:
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            pass  # the library had not taken it in
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(Ear.made[0].address)


@pytest.mark.parametrize(
    ("how", "folder", "why"),
    [
        ("", ".", "it takes no connection from another socket"),
        ("select", "gone", "No such file or directory"),
    ],
)
def test_a_port_that_stays_open_is_told_and_the_job_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch, how: str, folder: str, why: str
) -> None:
    monkeypatch.setattr(pmix_server, "CLEARING", 2)
    monkeypatch.setattr(Played, "how", how)
    house.folder /= folder
    client = house.run(found(LIBRARY))
    assert house.heard() == {"type": "notice", "text": pmix_server.OPEN % why}
    assert house.heard()["type"] == "up"
    client.sendall(b"rank")
    if how:
        assert house.said() == b"r"
        return
    for words in (b"", b"rank"):  # our own knock, and the rank
        assert house.kept(Ear.made[0].listener.accept()[0]).recv(4) == words


def test_a_library_that_listens_nowhere_is_of_no_use(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Played, "begin", lambda *_: None)
    house.run(found(LIBRARY))
    assert house.heard() == {"type": "trouble", "why": "it listens to 0 ports", "mpi": ""}


def test_without_the_library_a_connection_ends(house: House) -> None:
    serving = house.serving(found(LIBRARY))
    ours, theirs = socket.socketpair()
    closed = socket.create_server(("127.0.0.1", 0))
    serving.door.address = closed.getsockname()
    closed.close()
    serving.let_in(theirs.detach())
    assert house.kept(ours).recv(1) == b""
    assert serving.across == {}
    serving.poll.epoll.close()


def test_a_fence_is_told_and_its_parts_given_together(house: House) -> None:
    house.run(found(LIBRARY))
    assert house.heard()["type"] == "up"
    library, first, second = Played.made, Heard(), Heard()
    library.asked("fence", first, members=[[b"kvs_7", None]], data=b"mine")
    library.asked("group", second, name=b"g", data=b"")
    assert [house.heard(), house.heard()] == [
        {"type": "fence", "id": 1, "members": [[b"kvs_7", None]], "data": b"mine"},
        {"type": "group", "id": 2, "name": b"g", "data": b""},
    ]
    words = [
        control("part", id=1, data=b"one"), control("part", id=1, data=b"two"),
        control("release", id=2, status=-29, number=0),
        control("release", id=1, status=0, number=7),
    ]  # fmt: skip
    house.agent.sendall(b"".join(words))
    assert first.came.wait(60)
    assert (first.given, second.given) == ([(0, b"onetwo", 7)], [(-29, b"", 0)])
    library.tell("connected", rank=3)
    assert house.heard() == {"type": "connected", "rank": 3}


@cases("hosts", [1, 2])
def test_the_user_hears_once_that_events_do_not_cross_hosts(house: House, hosts: int) -> None:
    serving = house.serving(found())
    serving.job["hosts"] = serving.job["hosts"][:hosts]
    for rank in (3, 2):
        serving.asked("event", None, rank=rank)
    serving.tell("up")
    if hosts == 2:
        assert house.heard() == {"type": "notice", "text": pmix_server.UNHEARD % 3}
    assert house.heard() == {"type": "up"}
    serving.poll.epoll.close()


def test_what_a_host_brings_to_a_fence_is_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pmix_server, "FENCE_LIMIT", 4)
    serving, answer = house.serving(found()), Heard()
    serving.asked("fence", answer, data=b"12345")
    assert answer.given == [(OUT_OF_RESOURCE, b"", 0)]
    serving.asked("fence", answer, data=b"1234")
    assert house.heard()["data"] == b"1234"
    assert len(answer.given) == 1
    serving.poll.epoll.close()


def test_the_end_of_the_link_is_its_end(house: House) -> None:
    house.run(found(LIBRARY))
    assert house.heard()["type"] == "up"
    house.agent.shutdown(socket.SHUT_RDWR)
    assert house.thread is not None
    house.thread.join(60)
    assert not house.thread.is_alive()


@pytest.mark.parametrize("mpi", ["", "/lib/libmpi.so.40"])
def test_without_a_library_ranks_of_an_mpi_wait_for_their_end(house: House, mpi: str) -> None:
    client = house.run(found(mpi=mpi))
    assert house.heard() == {"type": "trouble", "why": "", "mpi": mpi}
    if mpi:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        assert house.thread is not None
        assert house.thread.is_alive()
    else:
        assert house.agent.recv(1) == b""


class TestLoad:
    def test_the_first_library_that_loads_serves(self, house: House) -> None:
        there = found("/a.so", "/b.so", LIBRARY, "/never.so")
        serving = house.serving(there)
        troubles = {"/a.so": "/a.so: not there", "/b.so": "invalid ELF header"}

        def opened(path: str) -> Any:
            if path in troubles:
                raise LoadError(troubles[path])
            return Played(path, serving.tell, serving.asked, {})

        serving.opened = opened  # type: ignore[method-assign]
        serving.load()
        assert there.pmix == LIBRARY
        assert os.environb[b"PMIX_MCA_gds"] == b"hash"
        folder, hosts = os.fsencode(house.folder), [(b"a", [0, 1]), (b"b", [2, 3])]
        assert Played.made.calls == [
            (b"kvs_7_srv", folder),
            (b"kvs_7", 0, job_of(hosts, 1, folder, b"kvs_7", (), (), 6), [2, 3]),
        ]
        there.candidates = lambda: list(troubles)  # type: ignore[method-assign]
        with pytest.raises(LoadError) as caught:
            serving.load()
        assert str(caught.value) == "/a.so: not there; /b.so: invalid ELF header"
        serving.poll.epoll.close()

    def needing(self, *needed: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """A libpmix that needs these, one after the other; what is loaded for it."""
        left, loaded = list(needed), list[str]()

        def library(path: str, tell: Any, asked: Any, upcalls: Any) -> Any:
            if left:
                raise LoadError(left.pop(0))
            return "loaded"

        def load(path: str, mode: int) -> None:
            assert mode == ctypes.RTLD_GLOBAL
            if path.startswith("/broken"):
                raise OSError(path)
            loaded.append(path)

        monkeypatch.setattr(pmix_server, "Library", library)
        monkeypatch.setattr(ctypes, "CDLL", load)
        return loaded

    def test_what_it_needs_is_taken_from_where_the_ranks_have_it(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        missing = "%s: cannot open shared object file: No such file"
        loaded = self.needing(
            missing % "libevent.so.2", missing % "libhwloc.so.15", monkeypatch=monkeypatch
        )
        files = {"libevent.so.2": "/ranks/libevent.so.2", "libhwloc.so.15": "/ranks/libhwloc.so.15"}
        serving = house.serving(found(**files))
        assert serving.opened(LIBRARY) == "loaded"  # type: ignore[comparison-overlap]
        assert loaded == list(files.values())
        serving.poll.epoll.close()

    @pytest.mark.parametrize(
        "why",
        [
            "libother.so.1: cannot open shared object file",  # the ranks do not have it either
            "libbroken.so.1: cannot open shared object file",
            "libpmix.so.2: cannot open shared object file",  # it itself
            "no such symbol",
        ],
    )
    def test_what_cannot_be_had_is_told_as_it_was(
        self, house: House, monkeypatch: pytest.MonkeyPatch, why: str
    ) -> None:
        loaded = self.needing(why, monkeypatch=monkeypatch)
        files = {"libbroken.so.1": "/broken.so", "libpmix.so.2": LIBRARY}
        serving = house.serving(found(**files))
        with pytest.raises(LoadError, match=why):
            serving.opened(LIBRARY)
        assert loaded == []
        serving.poll.epoll.close()

    def test_one_that_always_needs_more_is_given_up(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        why = "libevent.so.2: cannot open shared object file"
        loaded = self.needing(*[why] * 99, monkeypatch=monkeypatch)
        serving = house.serving(found(**{"libevent.so.2": "/ranks/libevent.so.2"}))
        with pytest.raises(LoadError, match=f"{LIBRARY}: it needs too many libraries"):
            serving.opened(LIBRARY)
        assert len(loaded) == MOST_NEEDED
        serving.poll.epoll.close()


def test_bytes_cross_both_ways_whole() -> None:
    """A reader that waits holds back who writes to it, and nobody else."""
    listener = socket.create_server(("127.0.0.1", 0))
    ours, theirs = socket.socketpair()
    serving = pmix_server.Serving(theirs.fileno(), listener, {"folder": ""}, pmix_server.Found([]))
    inner = socket.create_server(("127.0.0.1", 0))
    client, came = socket.socketpair()
    serving.door.address = inner.getsockname()
    serving.let_in(came.detach())
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
        serving.poll.turn(10)
    for thread in threads:
        thread.join(60)
    assert got == [size]
    assert client.recv(16) == b"first"
    for one in (listener, ours, theirs, inner, client, other):
        one.close()
    serving.poll.epoll.close()


def test_worlds_that_connect_learn_what_the_others_have_put(house: House) -> None:
    house.run(found(LIBRARY, mpi="/lib/libmpi.so.40"))
    house.heard()
    library, answer, other = Played.made, Heard(), Heard()
    library.local = {b"kvs_7": [2, 3]}
    put = {(b"kvs_7", 2): (0, b"two"), (b"kvs_7", 3): (-46, b"")}
    library.fetch = lambda namespace, rank, then: then(*put[namespace, rank])
    members = [[b"kvs_7", None], [b"kvs_7_1", [0]]]
    library.asked("group", answer, verb="connect", name=b"", members=members, data=b"")
    told = house.heard()
    assert [unpack(frame.body)["status"] for frame in Decoder().feed(told["data"])] == [0, -46]
    theirs = control("put", namespace=b"kvs_7_1", rank=0, status=0, data=b"theirs")
    house.agent.sendall(
        control("part", id=1, data=told["data"] + theirs)
        + control("release", id=1, status=0, number=1)
    )
    assert answer.came.wait(60)
    for rank, given in ((0, (0, b"theirs", 0)), (1, (NOT_FOUND, b"", 0))):
        other = Heard()
        library.asked("modex", other, namespace=b"kvs_7_1", rank=rank)
        assert other.given == [given]


def test_ranks_that_connect_none_of_which_are_here_are_answered(house: House) -> None:
    serving, answer = house.serving(found()), Heard()
    library: Any = Played("", serving.tell, serving.asked, None)
    library.local, serving.library = {b"kvs_7": [2, 3]}, library
    for members in ([], [[b"other", None]], [[b"kvs_7", [0, 1]]]):
        serving.asked("group", answer, verb="connect", name=b"", members=members, data=b"")
    assert answer.given == [(NOT_FOUND, b"", 0)] * 3
    serving.poll.epoll.close()


def test_what_ranks_of_other_hosts_put_is_kept_within_a_bound(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of it: a server to which worlds connect for ever goes on with the last ones."""
    monkeypatch.setattr(pmix_server, "KNOWN_LIMIT", 4 * (pmix_server.KNOWN + 100))
    serving = house.serving(found())
    for number in (0, 1, 2, 0, 3, 4):
        serving.learn({(b"kvs_7_1", number): bytes(100)})
    assert [rank for _, rank in serving.known] == [2, 0, 3, 4]
    serving.learn({(b"kvs_7_1", 5): bytes(pmix_server.KNOWN_LIMIT)})
    assert serving.known == {}
    serving.poll.epoll.close()


THEIRS = {"namespace": b"kvs_7_1", "rank": 0, "status": 0, "data": b"theirs"}


@cases(
    "data, why",
    [
        *(
            (control("put", **{key: given for key, given in THEIRS.items() if key != name}),
             f"a rank without {name}")
            for name in THEIRS
        ),
        (control("put", **{**THEIRS, "rank": "0"}), r"a rank without rank \(int\)"),
        (control("put", **{**THEIRS, "status": False}), r"a rank without status \(int\)"),
        (control("put", **{**THEIRS, "namespace": [b"kvs"]}), r"without namespace \(bytes\)"),
        (encode(CONTROL, pack([1])), "a rank without type"),
        (encode(CONTROL, b"x"), "tag"),
        (control("put", **THEIRS)[:-1], "a message that does not end"),
        (b"x" * 12, "bad frame"),
    ],
)  # fmt: skip
def test_what_hosts_tell_of_their_ranks_is_looked_at(data: bytes, why: str) -> None:
    good = control("put", **THEIRS)
    assert have_put(good) == {(b"kvs_7_1", 0): b"theirs"}
    with pytest.raises((WireError, PackError), match=why):
        have_put(good + data)


def test_ranks_that_connect_to_what_is_wrong_get_an_error_and_others_are_served(
    house: House,
) -> None:
    house.run(found(LIBRARY, mpi="/lib/libmpi.so.40"))
    house.heard()
    wrong, right = Heard(), Heard()
    for answer in (wrong, right):
        Played.made.asked("group", answer, verb="connect", name=b"", members=[], data=b"x")
        house.heard()
    house.agent.sendall(
        control("part", id=1, data=control("put", rank=0))
        + control("release", id=1, status=0, number=1)
        + control("part", id=2, data=control("put", **THEIRS))
        + control("release", id=2, status=0, number=2)
    )
    assert right.came.wait(60)
    assert wrong.given == [(UNPACK_FAILURE, b"", 1)]
    why = "because a host sent wrong data: a rank without namespace (bytes)"
    assert house.heard() == {"type": "notice", "text": f"MPI: ranks cannot connect, {why}"}
    other = Heard()
    Played.made.asked("modex", other, namespace=b"kvs_7_1", rank=0)
    assert other.given == [(0, b"theirs", 0)]


def test_a_world_that_was_spawned_is_made_known(house: House) -> None:
    house.run(found(LIBRARY))
    house.heard()
    world = {"name": b"kvs_7_1", "first": 1 << 20, "nodes": [1, 2], "apps": [1, 2]}
    hosts = [[b"b", [0, 2]], [b"c", [1]]]
    house.agent.sendall(
        control("world", hosts=hosts, node=0, **world)
        + control("world", hosts=hosts, node=None, **world)
    )
    wait_for(lambda: len(Played.made.calls) == 4, 30, "both to be made known")
    for (name, first, job, local), own in zip(Played.made.calls[2:], ([0, 2], []), strict=True):
        assert (name, first, local) == (b"kvs_7_1", 1 << 20, own)
        assert (b"pmix.nmap", 3, b"raw:b,c") in job
        assert (b"pmix.univ.size", 14, 6) in job
        assert ((b"pmix.nodeid", 14, 1) in job) == bool(own)
        ranks = [{key: value for key, _, value in pairs} for _, type, pairs in job if type == 39]
        for one, place in zip(ranks, ((0, 0, 1), (1, 0, 2), (1, 1, 1)), strict=True):
            assert (one[b"pmix.appnum"], one[b"pmix.apprank"], one[b"pmix.nodeid"]) == place
