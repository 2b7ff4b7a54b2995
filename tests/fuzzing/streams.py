"""Targets: what comes over a link from somebody who may not be honest."""

from __future__ import annotations

import ctypes
import io
import os
import shutil
import struct
import sys
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from runner.test_reports import GOOD, RANKS
from transport.far_link import FarLink

from dispatcher.bootstrap import payload
from dispatcher.core.events import codec
from dispatcher.core.events.run_events import Entry
from dispatcher.core.run.fences import FenceError, Fences
from dispatcher.model.errors import CannotCopy
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.copy import arriving
from dispatcher.remote.copy.disk import NotGiven, NotTaken
from dispatcher.remote.copy.receiver import Receiver
from dispatcher.remote.pmi import libpmix, pmix_server
from dispatcher.remote.pmi import pmix_upcalls as upcalls
from dispatcher.remote.pmi.pmi_server import Server
from dispatcher.remote.pmi.pmix_bridge import PmixBridge
from dispatcher.remote.protocol import copy_frames, mux, packing
from dispatcher.remote.protocol.copy_frames import Entry as Listed
from dispatcher.remote.protocol.frames import (
    CONTROL,
    ENDED,
    OUTPUT,
    SYNC,
    Decoder,
    WireError,
    control,
    encode,
)
from dispatcher.runner import surveys
from dispatcher.runner.run import reports
from dispatcher.runner.run.host_intake import Credit
from dispatcher.transfer.dest_dir import BadArchive
from dispatcher.transfer.get_files import HostPaths, Receiving
from dispatcher.transfer.host_copy import Ended, HostCopy
from dispatcher.transfer.put_files import Sending
from dispatcher.transfer.tars import BLOCK, unpack
from dispatcher.transport.pool.daemon_socket import fields
from dispatcher.transport.pool.pool_transport import PoolLink
from dispatcher.transport.ssh.byte_stream import read_identification
from dispatcher.transport.ssh_auth.ssh_agent import AgentError, SshAgent
from dispatcher.transport.tree.branch import Branch

from .choices import Choices
from .confined import folder
from .texts import TARGETS, target

__all__ = ["TARGETS"]


def chunks(data: bytes) -> Iterator[bytes]:
    """``data`` in pieces; its first byte says how large."""
    size = 1 + (data[0] if data else 0) * 3
    for at in range(1, len(data), size):
        yield data[at : at + size]


# -- agents and the launcher ------------------------------------------------------------


@target(
    "packing", "packed values", packing.pack({"a": [1, 2.5, None, b"x", "y"]}),
    own=(packing.PackError,),
)  # fmt: skip
def packed(data: bytes) -> None:
    value = packing.unpack(data)
    assert packing.unpack(packing.pack(value)) == value


@target(
    "wire", "frames of an agent",
    b"\x10" + encode(CONTROL, b"de") + encode(OUTPUT, b"hello\n", 4, 1),
    b"\0" + encode(OUTPUT, b"hello\n" * 9, 4, 1) + encode(ENDED, bytes(8), 4, 1),
    own=(WireError, reports.ReportError),
)  # fmt: skip
def wire(data: bytes) -> None:
    decoder, credit = Decoder(), Credit(1 << 16)
    for chunk in chunks(data):
        for frame in decoder.feed(chunk):
            if frame.kind == OUTPUT:
                credit.given(len(frame.body))
    assert decoder.pending <= len(data)


REPORTS = tuple(packing.pack({"type": kind, **rest}) for kind, rest in GOOD.items())


def told(body: bytes) -> None:
    for event in reports.read(3, RANKS, body)[:9]:  # of four thousand alike the first will do
        codec.decode(codec.encode(Entry(1, 0.5, event)))


@target("report-bytes", "reports of an agent, as bytes", *REPORTS, own=(reports.ReportError,))
def report_bytes(data: bytes) -> None:
    told(data)


def changed_report(data: bytes) -> bytes:
    """A good report, changed as ``data`` chooses: ten bytes can make one of 1 MiB."""
    take = Choices(data)
    kind = take.one(sorted(GOOD))
    report = {"type": kind, **GOOD[kind]}
    for _ in range(1 + take.below(3)):
        report = take.changed(report)
    return packing.pack(report)


@target(
    "reports", "reports of an agent, each changed a little; and the journal of them",
    *(bytes((number, 0)) for number in range(len(GOOD))), own=(reports.ReportError,), long=False,
    make=changed_report,
)  # fmt: skip
def changed_reports(body: bytes) -> None:
    told(body)


@target(
    "survey", "the readings of a check", packing.pack({"a": [0, b"x", False]}), own=(ValueError,)
)  # fmt: skip
def survey(data: bytes) -> None:
    for name, reading in surveys._checked(data).items():
        assert reading.why() != name + "\0"
        reading.value()


@target("noise", "what a host says before the agent does", b"Welcome\n" + SYNC + b"x")
def noise(data: bytes) -> None:
    scanner = payload.SyncScanner()
    for chunk in chunks(data):
        if scanner.feed(chunk) is not None:
            return
    payload.boot_failure("n1", scanner.finish(), data, 1)


# -- channels: trees and the pool of connections -----------------------------------------


def nothing(*_: Any) -> None: ...


@target(
    "tree-near", "what a relay passes on, as the launcher reads it",
    b"\xff" + SYNC + mux.frame(1, mux.OUTPUT, b"x") + mux.frame(1, mux.ENDED, bytes(4)),
    b"\xff" + SYNC + mux.frame(2, mux.OUTPUT, SYNC + b"y")
    + mux.frame(2, mux.MORE_INPUT, bytes(8)) + mux.frame(0, mux.OWN, mux.COUNT.pack(1)),
)  # fmt: skip
def tree_near(data: bytes) -> None:
    branch = Branch("n1", b"", lambda: Failure(Kind.LOST, "no thread of its own here"))
    branch._thread.join()
    branch.failure = None
    streams = [branch.stream(["sh"], "n1"), branch.stream(["ssh"], "n2", known="n2 key")]
    link = FarLink()
    link.ending = lambda timeout: Ending(None)  # type: ignore[method-assign]
    failure = None
    for chunk in chunks(data):
        link.say(chunk)
        while failure is None and link._said:
            failure = branch._read(link)
        for stream in streams:
            stream.read(1 << 16)
            stream.read_errors(1 << 16)
            stream.gone()
    for stream in streams:
        stream.ending(0.0)
        stream.lose(failure)


@target(
    "tree-far", "what an inner host is told, as its relay reads it",
    mux.frame(1, mux.OPEN, b"\0sh\0-c\0true") + mux.frame(1, mux.INPUT, b"x")
    + mux.frame(1, mux.CLOSE),
    5 * mux.frame(1, mux.OPEN, b"n2 key\0ssh\0" + tree_relay.KNOWN),
    # it has one root, whom it serves; what is no frame of it ends the relay, in any way
    own=(ValueError, KeyError, struct.error),
)  # fmt: skip
def tree_far(data: bytes) -> None:
    come, into = os.pipe()
    out, go = os.pipe()
    relay = tree_relay.TreeRelay(come, go)
    opened: list[int] = []
    real = tree_relay.in_memory

    def nobody(words: list[bytes]) -> tuple[int, tuple[int, ...]]:
        """A command that is none: it takes what a pipe takes, and says nothing."""
        pipes = [os.pipe() for _ in range(3)]
        opened.extend(fd for pipe in pipes for fd in pipe)
        for fd in opened[-6:]:
            os.set_blocking(fd, False)
        return -1, (pipes[0][1], pipes[1][0], pipes[2][0])

    def in_memory(lines: bytes) -> tuple[int, bytes]:
        known = real(lines)
        opened.append(known[0])
        return known

    with patch.multiple(tree_relay, start=nobody, in_memory=in_memory):
        try:
            for at in range(0, min(len(data), 1 << 15), 4096):
                os.write(into, data[at : at + 4096])
                relay._obey()
                for act in list(relay._poll.calls.values()):
                    act(0.0, 0)
                relay._going.clear()
        finally:
            relay._poll.epoll.close()
            for fd in (come, into, out, go, *opened):
                with suppress(OSError):  # the relay has closed some
                    os.close(fd)


@target(
    "pool", "the process that holds connections, and who uses it",
    b"\xff" + mux.frame(1, mux.OWN + 1, b'{"address": "x"}') + mux.frame(1, mux.OUTPUT, b"x"),
    b"\xff" + mux.frame(1, mux.OWN + 2, b'{"kind": "lost", "why": "x", "retryable": true}'),
    own=(mux.Malformed,),
)  # fmt: skip
def pool(data: bytes) -> None:
    wire = SimpleNamespace(send=nothing, forget=nothing)
    link, frames = PoolLink(wire, 1), mux.Decoder()  # type: ignore[arg-type]
    for chunk in chunks(data):
        for _, kind, body in frames.feed(chunk):
            link.take(kind, body)
            if kind == mux.OPEN:
                fields(body)
    link.lose(None)


# -- MPI ---------------------------------------------------------------------------------

PMI = (
    b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_my_kvsname\n"
    b"cmd=put kvsname=kvs_1_ab key=k value=v\ncmd=get kvsname=kvs_1_ab key=k\ncmd=barrier_in\n"
    b"cmd=publish_name service=s port=p\ncmd=lookup_name service=s\ncmd=finalize\n"
)
SPAWN = (
    b"cmd=init pmi_version=1 pmi_subversion=1\nmcmd=spawn\nnprocs=2\nexecname=/bin/x\n"
    b"totspawns=1\nspawnssofar=1\narg1=-v\nargcnt=1\npreput_num=1\npreput_key_0=a\npreput_val_0=b\n"
    b"info_num=1\ninfo_key_0=host\ninfo_val_0=n1\nendcmd\ncmd=abort exitcode=3 message=x\n"
)


@target("pmi", "what a rank says by PMI-1, and keys of other hosts", b"\x40" + PMI, b"\x40" + SPAWN)
def pmi(data: bytes) -> None:
    job = {"name": b"kvs_1_ab", "size": 4, "mapping": b"(vector,(0,2,2))", "patience": 30.0}
    server = Server(job, [0, 1])
    for number, chunk in enumerate(chunks(data)):
        server.feed(number % 3 == 2, chunk, float(number))
        server.tick(float(number))
    for packet in (data, zlib.compress(data)):
        server.release(b"WORLD:0", 0, [packet])
    server.ended(0)
    server.ended(1)


@target(
    "fences", "barriers of ranks, as the launcher counts them",
    b"\0\0WORLD:0\n\1\0WORLD:0\n\0\1WORLD:0\n\0\0" + b"0,2:1\n",
    b"\0\0" + b"0-2:20000000007\n\1\0" + b"0-2:20000000007\n", own=(FenceError,),
)  # fmt: skip
def fences(data: bytes) -> None:
    found = Fences({0: (0, 1), 1: (2, 3)})
    for line in data.split(b"\n"):
        if len(line) > 2:
            name = line[2:].decode("utf-8", "surrogateescape")
            found.commit(line[0], name, line[1], line)
            found.missing(name, line[1])


def pmix_state() -> Any:
    return SimpleNamespace(
        connected=set(), finalized=set(), mpis={}, folder=folder(), worlds={},
        poll=SimpleNamespace(add=nothing, change=nothing, remove=nothing),
    )  # fmt: skip


@target(
    "pmix", "a fence of PMIx, as it comes back from the launcher",
    zlib.compress(b"x" * 99), zlib.compress(b"") + b"tail", long=False,
)  # fmt: skip
def pmix(data: bytes) -> None:
    job = {"patience": 30.0, "size": 4, "name": b"n"}
    world = SimpleNamespace(job=job, left={0}, never={1}, first=0)
    listener = SimpleNamespace(setblocking=nothing, fileno=lambda: 99)
    bridge = PmixBridge(pmix_state(), world, listener, {}, lambda actions: actions)  # type: ignore[arg-type]
    bridge.link = os.open("/dev/null", os.O_WRONLY)
    try:
        take = Choices(data)
        ranks = take.one((None, [0, 1], [0], [3, 2, 1, 0], []))
        members: Any = take.one(([[b"n", ranks]], [[b"n", ranks], [b"o", None]], []))
        if take.below(2):
            bridge._fence(0.0, 7, members, data)
        else:
            bridge._group(0.0, 7, "construct", data[:512], members, data)
        index, fence = next(iter(bridge.waiting), (0, "x"))
        bridge.spread({
            "name": data[:99], "world": take.below(3), "first": 1 << 20, "size": take.below(5),
            "hosts": [], "nodes": [], "node": None, "apps": [],
        })  # fmt: skip
        bridge._name(0.0, 8, take.below(4), "lookup", data[:99], data, wait=True, once=False)
        bridge._spawn(0.0, 9, take.below(4), [])
        for ask in (8, 9, take.below(12)):
            bridge.answer({"ask": ask, "line": b"cmd=x rc=0 port=" + data})
        bridge._connected(0.0, take.below(4))
        bridge._abort(0.0, take.below(4), take.number(), take.text())
        order = {
            "type": "release_fence", "world": index, "fence": fence, "epoch": take.below(2),
            "keys": [data] * 2, "number": 1,
        }  # fmt: skip
        bridge.order(order)
        bridge.order({**order, "type": "ask_waiting", "seconds": 1.0})
        bridge.tick(1e9)
    finally:
        os.close(bridge.link)


class Ranks:
    """Ranks of a host as libpmix asks on their behalf, and the library, which they are served by.

    Raises: AssertionError from ``call`` for what a function for the library raised, which C would
    not see; and for an answer that nobody waits for, or that the library could not read.
    """

    def __init__(self, take: Choices) -> None:
        self.take = take
        self.local = {b"n": [0, 1], b"n_1": [0]}
        self.firsts = {b"n": 0, b"n_1": 1 << 20}
        self.waiting: set[int] = set()
        self.told: list[dict[str, Any]] = []
        self.kept: list[Any] = []  # what C would have, while it is needed
        self.ways = [
            upcalls.Done(lambda status, arg: self.answered(arg)),
            upcalls.FoundName(self.found),
            upcalls.Spawned(lambda status, name, arg: self.answered(arg)),
            libpmix.Released(self.given),
            upcalls.Told(self.given),
        ]

    number = libpmix.Library.number

    def fetch(self, namespace: bytes, rank: int, then: Any) -> None:
        then(self.take.one((0, -46)), self.take.blob())

    def add(self, name: bytes, first: int, job: Any, own: Sequence[int]) -> None:
        libpmix.Infos(job)

    def answered(self, which: int) -> None:
        assert which in self.waiting, f"an answer that nobody waits for: {which}"
        self.waiting.discard(which)

    def given(self, status: int, data: int, size: int, which: int, free: int, memory: int) -> None:
        self.answered(which)
        upcalls.Freed(free)(memory)

    def found(self, status: int, data: int, count: int, which: int) -> None:
        self.answered(which)
        if count:
            there = ctypes.cast(data, ctypes.POINTER(libpmix.Published))[0]
            kind, content = there.value.type, there.value.content
            assert kind in (libpmix.STRING, libpmix.BYTE_OBJECT), f"a value of type {kind}"
            size = len(ctypes.string_at(content[0])) if kind == libpmix.STRING else content[1]
            ctypes.string_at(content[0], size)

    def procs(self) -> tuple[Any, int]:
        """Who takes part, as C has it."""
        count = self.take.below(4)
        made = (libpmix.Proc * max(1, count))()
        for one in made:
            one.namespace = self.take.one((b"n", b"n", b"n_1", b"", b"x" * 255))
            one.rank = self.take.one((0, 1, 2, 0xFFFFFFFE, 1 << 31))
        return made, count

    def infos(self) -> tuple[Any, int]:
        """What is said besides, as C has it."""
        names = (b"key", b"pmix.persist", b"pmix.wait", b"pmix.grp.lcl", b"pmix.grp.endpt",
                 b"pmix.host", b"pmix.wdir", b"pmix.log.stderr", b"")  # fmt: skip
        kinds = (libpmix.STRING, libpmix.BYTE_OBJECT, libpmix.SIZE)
        pairs = [(self.take.one(names), self.take.one(kinds)) for _ in range(self.take.below(4))]
        made = libpmix.Infos(
            [(name, kind, self.take.below(9) if kind == libpmix.SIZE else self.take.blob())
             for name, kind in pairs]
        )  # fmt: skip
        self.kept.append(made)
        return made.array, made.size

    def words(self) -> Any:
        words = [self.take.blob().replace(b"\0", b"") for _ in range(self.take.below(4))]
        made = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        return ctypes.cast(made, ctypes.POINTER(ctypes.c_char_p))

    def app(self) -> Any:
        infos, size = self.infos()
        count = self.take.one((0, 1, 2, -1, (1 << 31) - 1))
        return libpmix.App(
            self.take.one((b"sh", b"", None)), self.words(), self.words(), None, count, infos, size
        )

    def call(self, functions: dict[int, Any], number: int) -> None:
        """One of the library's calls, whose answer has this number."""
        place = self.take.one(sorted(functions))
        procs, count = self.procs()
        infos = self.infos()
        way = {upcalls.LOOKUP: 1, upcalls.SPAWN: 2, upcalls.MODEX: 3, upcalls.GROUP: 4}
        how = ctypes.cast(self.ways[way.get(place, 0)], ctypes.c_void_p).value, number
        keys = self.words()
        apps = (libpmix.App * 2)(self.app(), self.app())
        arguments: tuple[Any, ...] = {
            upcalls.GROUP: (self.take.below(2), self.take.blob()[:511], procs, count, *infos),
            upcalls.CONNECT: (procs, count, *infos), upcalls.DISCONNECT: (procs, count, *infos),
            upcalls.LOOKUP: (procs, keys, *infos), upcalls.UNPUBLISH: (procs, keys, *infos),
            upcalls.SPAWN: (procs, *infos, apps, self.take.below(3)),
            upcalls.NOTIFY: (-4001, procs, self.take.below(9), *infos),
            upcalls.LOG: (procs, *infos, None, 0),
        }.get(place, (procs, *infos))  # fmt: skip
        raised: list[Any] = []
        self.waiting.add(number)
        with patch.object(sys, "unraisablehook", raised.append):
            status = functions[place](*arguments, *how)
        if raised:
            raise raised[0].exc_value
        if status:
            self.answered(number)


PUT = control("put", namespace=b"n_1", rank=0, status=0, data=b"x")


@target(
    "pmix-serving", "what the process that serves PMIx hears of its ranks, and of other hosts",
    *(bytes((8, kind, 0, 0, 0, 0)) for kind in range(10)), long=False,
)  # fmt: skip
def pmix_serving(data: bytes) -> None:
    take = Choices(data)
    ranks = Ranks(take)
    job = {"name": b"n", "node": 0, "hosts": [], "folder": "/f"}
    serving = pmix_server.Serving(-1, SimpleNamespace(), job, pmix_server.Found([]))  # type: ignore[arg-type]
    serving.poll.epoll.close()
    library: Any = ranks
    serving.library = library
    serving.tell = lambda type, **fields: ranks.told.append(  # type: ignore[method-assign]
        packing.unpack(packing.pack({"type": type, **fields}))
    )
    for number in range(1, 2 + take.below(8)):
        ranks.call(serving.upcalls, number)
    for asked in (one for one in ranks.told if "id" in one):
        for _ in range(take.below(3) if asked["type"] != "spawn_ranks" else 0):
            come = take.one((take.blob(), PUT, asked.get("data", b""), take.take(take.below(99))))
            serving.take(library, {"type": "part", "id": asked["id"], "data": come})
        status = take.one((0, 0, -29))
        release = {"id": asked["id"], "status": status, "number": take.below(3)}
        serving.take(library, {"type": "release", **release})
    assert not ranks.waiting, "ranks that wait for ever"


# -- copies ------------------------------------------------------------------------------

ENTRIES = [
    Listed("0/a", "f", 0o644, 5, 10**9), Listed("0/b", "d", 0o755, 0, 10**9),
    Listed("0/b/l", "l", 0o777, 0, 10**9, "../a"),
]  # fmt: skip


def sent(data: bytes) -> bytes:
    known = copy_frames.sha256()
    known.update(data)
    return mux.frame(0, copy_frames.DATA, data) + mux.frame(0, copy_frames.END, known.digest())


TWO, FIVE, HELLO = (2).to_bytes(8, "big"), (5).to_bytes(8, "big"), sent(b"hello")[-32:]
LATER = [Listed("0/a", "f", 0o600, 5, 2 * 10**9, HELLO.hex()), *ENTRIES[1:]]


def place(name: str) -> str:
    """A folder with nothing in it, inside one that must stay as it is."""
    path = os.path.join(folder(), "copy", name)
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    os.makedirs(path)
    return path


def put_hello(inside: str) -> None:
    """A file is there already, of the time that lists tell."""
    with open(os.path.join(inside, "a"), "wb") as file:
        file.write(b"hello")
    os.utime(file.name, ns=(10**9, 10**9))


def only(name: str) -> None:
    """Nothing was made beside the folder. Raises: AssertionError."""
    assert os.listdir(os.path.join(folder(), "copy")) == [name]


@target(
    "get-near", "the files that a host sends",
    copy_frames.message({"list": copy_frames.entry_columns(ENTRIES)}) + sent(b"hello"),
    copy_frames.message({"list": copy_frames.entry_columns(ENTRIES[1:]), "more": True})
    + copy_frames.message({"list": copy_frames.entry_columns(ENTRIES[:1])}) + sent(b"hello"),
    own=(mux.Malformed, BadArchive, CannotCopy, OSError), long=False,
)  # fmt: skip
def get_near(data: bytes) -> None:
    frames = copy_frames.frames(1 << 20).feed(data)
    if frames:
        receive(place("in"), copy_frames.value_of(*frames[0][1:]), frames[1:])


@target(
    "get-lists", "lists of files, each changed a little, and their bytes", b"\0" * 9, b"\1\4\4",
    own=(mux.Malformed, BadArchive, CannotCopy, OSError), long=False,
)  # fmt: skip
def get_lists(data: bytes) -> None:
    take = Choices(data)
    names = ("0/a", "0/A", "0/b", "0/b/c", "0/b/../a", "0/../x", "0//a", "1/a", "0/a/" + "x/" * 70)
    entries = [
        Listed(take.one(names) if take.chance(240) else take.text(), take.one("fdlo?"),
               take.number(), take.one((0, 5, 5, 1 << 40, -1)), take.number(),
               take.one(("", "a", "../a", "../../x", "b/..", "/etc", "b", take.text())))
        for _ in range(1 + take.below(6))
    ]  # fmt: skip
    listed = copy_frames.entry_columns(entries)
    if take.chance(60):
        listed = take.changed(listed)
    inside, how = place("in"), take.below(8)
    if take.chance(64):
        put_hello(inside)
    with patch.object(arriving, "WORTH", 4):  # what was cut off is gone on with
        for _ in range(1 + (how & 1)):
            body = b"".join(coming(take) for _ in entries)
            frames = mux.Decoder(1 << 20).feed(body)
            try:
                receive(inside, {"list": listed}, frames, checksum=how & 2 > 0, resume=how < 4)
            except (mux.Malformed, BadArchive, CannotCopy, OSError):
                pass


def coming(take: Choices) -> bytes:
    """Frames for one file of five bytes, or what a liar sends in their place."""
    if take.chance(160):
        return sent(b"hello")
    known, pieces = copy_frames.sha256(), []
    for _ in range(take.below(5)):
        kind = take.one((copy_frames.DATA, copy_frames.START, copy_frames.HOLE, copy_frames.BROKEN))
        body = take.one((b"hello", b"he", b"llo", b"", take.take(take.below(7))))
        if kind in (copy_frames.START, copy_frames.HOLE):
            body = take.one((2, 0, 5, 3, 1 << 62)).to_bytes(8, "big")
        elif kind == copy_frames.DATA:
            known.update(body)
        pieces.append(mux.frame(0, kind, body))
    if take.chance(128):
        pieces.append(mux.frame(0, copy_frames.END, known.digest()))
    return b"".join(pieces)


def receive(
    inside: str,
    answer: dict[str, Any],
    frames: list[tuple[int, int, bytes]],
    *,
    checksum: bool = False,
    resume: bool = True,
) -> None:
    group = HostPaths(inside, (("/x/a", "a"), ("/x/b", "b"), ("/y/*/[cd]*", "[cd]*")))
    receiving = Receiving([group], limit=1 << 20, checksum=checksum, resume=resume)
    try:
        come = iter(frames)
        while receiving.offer(answer):
            answer = copy_frames.value_of(*next(come, (0, 0, b""))[1:])
        receiving.needs()
        for _, kind, body in come:
            if not receiving.done:
                receiving.take(kind, body)
        if receiving.done:
            receiving.settle()
    finally:
        receiving.close()
        only("in")
        for at, folders, files in os.walk(inside):
            for name in (*folders, *files):
                path = os.path.realpath(os.path.join(at, name)) + "/"
                assert path.startswith(os.path.realpath(inside) + "/"), f"leads outside: {path}"


def tarred(how: int, *members: tuple[str, bytes, str], mtime: float = 1) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=how) as archive:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, 5 * (kind == b"0")
            member.mtime = mtime
            archive.addfile(member, io.BytesIO(b"hello"))
    return held.getvalue().rstrip(b"\0") + bytes(BLOCK)


A, B = ("a", b"0", ""), ("b", b"5", "")
TARS = (
    tarred(tarfile.USTAR_FORMAT, A, B, ("b/l", b"2", "../a"), ("b/h", b"1", "a")),
    tarred(tarfile.PAX_FORMAT, ("b", b"5", ""), ("a", b"2", "é"), mtime=1.5),
    tarred(tarfile.GNU_FORMAT, B, ("b/" + "x" * 120, b"0", "")),
    tarred(tarfile.GNU_FORMAT, A, ("b/s", b"S", "")),
)


def summed(data: bytes) -> bytes:
    """``data`` behind its first byte, which says whether each block is to have the right sum.

    A header without is refused before it is read.
    """
    if data[:1] < b"\x40":
        return data[1:]
    blocks = []
    for at in range(1, len(data), BLOCK):
        block = data[at : at + BLOCK]
        if block.strip(b"\0") and len(block) == BLOCK:
            count = sum(block) - sum(block[148:156]) + 8 * 32
            block = block[:148] + b"%06o\0 " % count + block[156:]
        blocks.append(block)
    return b"".join(blocks)


@target(
    "tar", "the tar of a host without Python", *(b"\xff" + one for one in TARS), b"\0" + TARS[0],
    own=(BadArchive, CannotCopy, OSError), long=False, make=summed,
)  # fmt: skip
def tar(data: bytes) -> None:
    inside = place("in")
    try:
        unpack(io.BytesIO(data), inside, ("a", "b"), 1 << 20)
    finally:
        only("in")


@target(
    "put-near", "what a host that takes files says",
    copy_frames.message({"need": b"\1\0\0", "start": "", "seen": ""})
    + copy_frames.message({"sent": 1, "equal": 0, "bytes": 5, "found": 0}),
    copy_frames.message({"need": bytes(3), "start": "", "seen": ""})
    + copy_frames.message({"of": [4], "failed": "x"}), own=(mux.Malformed,),
)  # fmt: skip
def put_near(data: bytes) -> None:
    sources: Any = SimpleNamespace(
        entries=ENTRIES, files=len(ENTRIES), size=sum(entry.size for entry in ENTRIES),
        order=lambda *_, **__: b"", pieces=lambda needed, starts: [b"x"],
    )  # fmt: skip
    below = {0: ({"x": 1}, {4: HostCopy(), 5: HostCopy()})}
    sending = Sending(
        [(sources, ())], checksum=False, resume=True, copies=[HostCopy()], below=below
    )
    reader = sending._readers[0]
    reader._rest = data
    reader._chunks.put(b"")
    try:
        sending._by_python(0, FarLink())
    except Ended:
        pass


@target(
    "put-far", "an order to take files, and the files, as a host reads them",
    copy_frames.message({
        "do": "put", "list": copy_frames.entry_columns(ENTRIES), "groups": [["in/", ["a", "b"]]],
        "checksum": False, "resume": True,
    }) + sent(b"hello"),
    copy_frames.message({
        "list": copy_frames.entry_columns(ENTRIES), "again": True, "there": False, "resume": True,
    }) + mux.frame(0, copy_frames.DATA, b"he") + mux.frame(0, copy_frames.START, TWO)
    + mux.frame(0, copy_frames.DATA, b"llo") + mux.frame(0, copy_frames.END, HELLO),
    copy_frames.message({"list": copy_frames.entry_columns(LATER), "there": True, "checksum": True})
    + mux.frame(0, copy_frames.START, FIVE) + mux.frame(0, copy_frames.END, HELLO),
    own=(mux.Malformed, NotTaken, NotGiven, OSError), long=False,
)  # fmt: skip
def put_far(data: bytes) -> None:
    frames = copy_frames.frames(1 << 20).feed(data)
    if not frames:
        return
    order = copy_frames.value_of(*frames[0][1:])
    entries = copy_frames.rows(order.get("list") or {})
    inside, keeps = place("in"), bool(order.get("again"))
    if order.get("there"):
        put_hello(inside)
    with patch.object(arriving, "WORTH", 4):  # what was cut off is gone on with
        if keeps:
            with suppress(mux.Malformed, NotTaken, NotGiven, OSError):
                take_files(inside, order, entries, frames[1 : 1 + len(frames) // 2], keep=True)
        take_files(inside, order, entries, frames[1:], keep=keeps)


def take_files(
    inside: str,
    order: dict[str, Any],
    entries: list[Listed],
    frames: list[tuple[int, int, bytes]],
    *,
    keep: bool,
) -> None:
    groups = [[f"{inside}/", ["a", "b"]]]
    receiver = Receiver(entries, groups, bool(order.get("checksum")), bool(order.get("resume")))
    try:
        receiver.needs()
        for _, kind, body in frames:
            if not receiver.done:
                receiver.take(kind, body)
        if receiver.done:
            receiver.commit()
    finally:
        receiver.close(keep)
        only("in")


@target(
    "get-far", "an order to give files, as a host reads it",
    packing.pack({"need": b"\1\0\1", "start": "", "seen": ""}), own=(ValueError, IndexError),
)  # fmt: skip
def get_far(data: bytes) -> None:
    answer = copy_frames.value_of(copy_frames.VALUE, data)
    copy_frames.starts_of(answer)
    [ENTRIES[index] for index in copy_frames.needed_of(answer)]


# -- SSH ---------------------------------------------------------------------------------


@target(
    "banner", "what a server says before it speaks SSH", b"hi\r\nSSH-2.0-x\r\n",
    own=(EOFError, ValueError),
)  # fmt: skip
def banner(data: bytes) -> None:
    held = io.BytesIO(data)
    stream: Any = SimpleNamespace(recv=held.read, give_back=nothing)
    read_identification(stream)


@target(
    "ssh-agent", "an ssh-agent's answers",
    b"\0\0\0\x19\x0c\0\0\0\1\0\0\0\x0b" + b"ssh-ed25519" + b"\0\0\0\1c",
    own=(AgentError, OSError, ValueError),
)  # fmt: skip
def ssh_agent(data: bytes) -> None:
    held = io.BytesIO(data)
    agent = SshAgent("/nowhere")
    link: Any = SimpleNamespace(sendall=nothing, recv=held.read, close=nothing)
    agent._socket = link
    held_keys = agent.keys()
    for key in held_keys:
        try:
            key.get_name()
        except ValueError:
            pass
    agent.sign(b"", b"", "rsa-sha2-512")
