"""The process beside the agent in which libpmix serves the ranks; one a host, if they need it.

It is a fork of the agent and dies with it; why it is there, ``docs/design/mpi.md`` says::

    ranks --(the agent's port)--> gate --(libpmix's own)--> libpmix --(fences, aborts)--> agent

Frames to the agent: up (mpi, pmix, version), connected and finalized (rank), abort
(rank, code, text), trouble (why, mpi), notice (text); fence (id, members, data) and what
``pmix_upcalls`` has, each with its id if it is answered. From it: part (id, data), release (id,
status, number); world (name, first, hosts [[name, ranks]], nodes, node, apps) of a spawn.
"""

from __future__ import annotations

import _socket
import os
import re
import select
import time
from _socket import SOL_SOCKET, socket
from _struct import pack
from _thread import allocate_lock

from dispatcher.remote.host import shm, tcp_peer
from dispatcher.remote.pmi.libpmix import Library, LoadError, job_of
from dispatcher.remote.pmi.pmix_upcalls import UNPACK_FAILURE, functions
from dispatcher.remote.protocol.frames import Decoder, WireError, control
from dispatcher.remote.protocol.packing import PackError, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

READ_SIZE = 64 << 10
#: bytes that this host may contribute to a fence; a message holds that and a little more
FENCE_LIMIT, OUT_OF_RESOURCE, NOT_FOUND = 15 << 20, -29, -46
#: libraries that a libpmix may need from where the ranks found them
MOST_NEEDED = 16
#: bytes kept of what ranks of other hosts have put, and what each of them counts besides
KNOWN_LIMIT, KNOWN = 64 << 20, 512
#: libpmix tells ranks of this host by itself, and calls it a success
UNHEARD = "MPI: rank %d notifies others (PMIx_Notify_event); those on other hosts do not hear of it"
#: what hosts tell each other of each of their ranks that connect
PUT = {"type": str, "namespace": bytes, "rank": int, "status": int, "data": bytes}
#: SO_ATTACH_FILTER of socket(7), for which Python has no name
ATTACH_FILTER = 26
#: seconds, at most, for which strangers that came before the filter are awaited
CLEARING = 2.0
NAMES = ("libpmix.so.2", "libpmix.so")
#: where distributions, wheels and builds put it, seen from a prefix
FOLDERS = ("lib", "lib64", "lib/openmpi", "lib/pmix", "lib64/openmpi", "lib/pmix2/lib")
#: what may say where a rank's environment is
PREFIXES = (b"OPAL_PREFIX=", b"PMIX_PREFIX=", b"VIRTUAL_ENV=", b"CONDA_PREFIX=", b"MPI_HOME=")


def main(link: int, listener: socket, client: int, job: dict[str, Any], pids: list[int]) -> None:
    """Serve ``client`` and those that come to ``listener`` until the agent closes ``link``.

    job: name, node, hosts [[name, ranks]], apps, universe, and the folder for files. pids: of
    ranks.
    """
    Serving(link, listener, job, Found(pids)).run(client)


class Serving:
    """Joins the agent, the library and the ranks' connections."""

    def __init__(self, link: int, listener: socket, job: dict[str, Any], found: Found) -> None:
        self.link = link
        self.listener = listener
        self.job = job
        self.found = found
        self.lock = allocate_lock()  # the library's thread speaks to the agent too
        self.answers: dict[int, Any] = {}
        self.n_asked = 0
        self.library: Library | None = None
        self.upcalls = functions(self.asked, self.number)
        self.told = False  # that events do not cross hosts
        self.parts: dict[int, list[bytes]] = {}  # of what an answer brings
        self.connecting: set[int] = set()  # worlds that connect learn of each other then:
        self.known: dict[tuple[bytes, int], bytes] = {}  # what ranks of other hosts have put
        self.door = Door()
        self.poll = select.epoll()
        self.across: dict[int, int] = {}  # descriptor -> where its bytes go
        self.waiting: dict[int, bytes] = {}  # descriptor -> bytes it does not take yet

    def run(self, client: int) -> None:
        """Load the library and serve, ``client`` first, until the agent ends the link."""
        try:
            library, port = self.load()
        except LoadError as error:
            self.tell("trouble", why=str(error), mpi=self.found.mpi)
            if self.found.mpi:
                os.read(self.link, 1)  # the ranks wait for their end, and say nothing odd before
            return
        version, pmix = library.version, self.found.pmix
        self.tell("up", mpi=self.found.mpi, pmix=pmix, version=version)
        decoder = Decoder()
        self.let_in(client, port)
        self.listener.setblocking(False)
        self.poll.register(self.listener.fileno(), select.EPOLLIN)
        self.poll.register(self.link, select.EPOLLIN)
        while True:
            for fd, event in self.poll.poll():
                if fd == self.link:
                    data = os.read(fd, 1 << 20)
                    if not data:
                        return
                    for frame in decoder.feed(data):
                        self.take(library, unpack(frame.body))
                elif fd == self.listener.fileno():
                    self.admit(port)
                elif fd in self.across:
                    self.carry(fd, event)

    # -- the library ------------------------------------------------------------------

    def load(self) -> tuple[Library, int]:
        """The library, serving, and its port. Raises: LoadError, saying all that was tried."""
        # one way to keep what ranks put, which every version has; others make files
        os.environb[b"PMIX_MCA_gds"] = b"hash"
        tried = []
        for path in self.found.candidates():
            try:
                library = self.opened(path)
            except LoadError as error:
                tried.append(str(error) if path in str(error) else "%s: %s" % (path, error))
                continue
            self.library, self.found.pmix = library, path
            folder, name = os.fsencode(self.job["folder"]), self.job["name"]
            library.begin(name + b"_srv", folder)
            self.door.close()
            hosts, node = [(host, ranks) for host, ranks in self.job["hosts"]], self.job["node"]
            more = self.job.get("apps") or (), self.job.get("universe") or 0
            return library, library.register(name, hosts, node, folder, *more)
        raise LoadError("; ".join(tried))

    def opened(self, path: str) -> Library:
        """The library at ``path``; what it needs is taken from where the ranks have it."""
        import ctypes

        for _ in range(MOST_NEEDED):
            try:
                return Library(path, self.tell, self.asked, self.upcalls)
            except LoadError as error:
                missing = re.match(r"(lib[^/:]+): cannot open shared object", str(error))
                known = self.found.named(missing.group(1)) if missing else None
                if not known or known == path:
                    raise
                try:
                    ctypes.CDLL(known, ctypes.RTLD_GLOBAL)
                except OSError:
                    raise error from None
        raise LoadError("%s: it needs too many libraries" % path)

    def number(self, proc: Any) -> int:
        """The number in the job of the rank that ``proc`` points to."""
        assert self.library is not None
        return self.library.number(proc)

    def asked(self, kind: str, answer: Any, **fields: Any) -> None:
        """Ranks of this host want what ``kind`` says; ``answer`` is for them."""
        if kind == "event":
            if len(self.job["hosts"]) > 1 and not self.told:
                self.told = True
                self.tell("notice", text=UNHEARD % fields["rank"])
            return
        if kind == "modex":
            data = self.known.get((fields["namespace"], fields["rank"]))
            answer.give(0 if data is not None else NOT_FOUND, data or b"", 0)
            return
        if fields.get("verb") == "connect" and not fields["data"]:
            self.gather(answer, fields)
            return
        if len(fields.get("data", b"")) > FENCE_LIMIT:
            answer.give(OUT_OF_RESOURCE, b"", 0)
            return
        self.n_asked += 1
        if fields.get("verb") == "connect":
            self.connecting.add(self.n_asked)
        self.answers[self.n_asked] = answer
        self.tell(kind, id=self.n_asked, **fields)

    def gather(self, answer: Any, fields: dict[str, Any]) -> None:
        """Bring to a connection what its ranks of this host have put, for those that will ask."""
        assert self.library is not None
        here = [
            (namespace, rank)
            for namespace, ranks in fields["members"]
            for rank in self.library.local.get(namespace, ())
            if ranks is None or rank in ranks
        ]
        if not here:
            answer.give(NOT_FOUND, b"", 0)
        came: list[bytes] = []

        def fetch(namespace: bytes, rank: int) -> None:
            def take(status: int, data: bytes) -> None:
                fetched = {"namespace": namespace, "rank": rank, "status": status}
                came.append(control("put", data=data, **fetched))
                if len(came) == len(here):
                    self.asked("group", answer, **{**fields, "data": b"".join(came)})

            assert self.library is not None
            self.library.fetch(namespace, rank, take)

        for one in here:
            fetch(*one)

    def take(self, library: Library, message: dict[str, Any]) -> None:
        """Make a spawned world known, or answer what was asked."""
        if message["type"] != "world":
            self.release(message)
            return
        hosts, node = [(host, ranks) for host, ranks in message["hosts"]], message["node"]
        folder = os.fsencode(self.job["folder"])
        known = message["nodes"], message["apps"], self.job.get("universe") or 0
        job = job_of(hosts, node, folder, message["name"], *known)
        own = [] if node is None else hosts[node][1]
        library.add(message["name"], message["first"], job, own)

    def release(self, message: dict[str, Any]) -> None:
        """Answer what was asked, when all parts of what the ranks get have come."""
        id = message["id"]
        if message["type"] == "part":
            self.parts.setdefault(id, []).append(message["data"])
            return
        status, data = message["status"], b"".join(self.parts.pop(id, ()))
        if id in self.connecting:
            self.connecting.discard(id)
            try:
                self.learn(have_put(data))
            except (WireError, PackError) as error:
                text = "MPI: ranks cannot connect, for what a host sent is wrong: %s" % error
                self.tell("notice", text=text)
                status, data = UNPACK_FAILURE, b""
        self.answers.pop(id).give(status, data, message["number"])

    def learn(self, put: dict[tuple[bytes, int], bytes]) -> None:
        """Keep what ranks have ``put``; where that is too much, what was kept first is let go."""
        for one in put:
            self.known.pop(one, None)
        self.known.update(put)
        held = sum(len(data) + KNOWN for data in self.known.values())
        while held > KNOWN_LIMIT:
            held -= len(self.known.pop(next(iter(self.known)))) + KNOWN

    def tell(self, type: str, **fields: object) -> None:
        """Send a frame to the agent. Raises: OSError when that is gone."""
        data = control(type, **fields)
        with self.lock:
            while data:
                data = data[os.write(self.link, data) :]

    # -- the ranks' connections -----------------------------------------------------------

    def admit(self, port: int) -> None:
        """Let one connection in if its other end is our own user's."""
        fd = tcp_peer.accept(self.listener)
        if fd is not None:
            self.let_in(fd, port)

    def let_in(self, fd: int, port: int) -> None:
        """Join connection ``fd`` with one to the library's own port."""
        try:
            other = self.door.connect(port)
        except OSError:
            os.close(fd)
            return
        for one, two in ((fd, other), (other, fd)):
            os.set_blocking(one, False)
            self.across[one] = two
            self.waiting[one] = b""
            self.poll.register(one, select.EPOLLIN)

    def carry(self, fd: int, event: int) -> None:
        """Move bytes that ``fd`` has, or that wait for it; close both ends at the end of one."""
        other = self.across[fd]
        try:
            if event & select.EPOLLOUT:
                self.waiting[fd] = self.waiting[fd][os.write(fd, self.waiting[fd]) :]
            elif not self.waiting[other]:
                data = os.read(fd, READ_SIZE)
                if not data:
                    self.part(fd, other)
                    return
                self.waiting[other] = data
                self.waiting[other] = data[os.write(other, data) :]
        except BlockingIOError:
            pass
        except OSError:
            self.part(fd, other)
            return
        for one, two in ((fd, other), (other, fd)):  # who is not read until the other takes it
            wanted = 0 if self.waiting[two] else select.EPOLLIN
            self.poll.modify(one, wanted | (select.EPOLLOUT if self.waiting[one] else 0))

    def part(self, *fds: int) -> None:
        """Close both ends of what was carried."""
        for fd in fds:
            self.poll.unregister(fd)
            del self.across[fd], self.waiting[fd]
            os.close(fd)


class Door:
    """Lets only us come to the library's own port, which any user of the host can reach.

    The library would wait for a stranger that says nothing. So a filter on its listener drops what
    comes from another port than ours. We hold ours at every address: no other user can have it.
    Each of our connections comes from there, at an address of 127.0.0.0/8 of its own.
    """

    def __init__(self) -> None:
        self.port = self.n_bound = 0
        self.before = {one.fileno() for one in _tcp_sockets()}
        guard = self._bound("")
        self.port = guard.getsockname()[1]
        self.guard = guard.detach()  # until the process ends

    def _bound(self, address: str) -> socket:
        one = socket(_socket.AF_INET, _socket.SOCK_STREAM)
        one.setsockopt(SOL_SOCKET, _socket.SO_REUSEPORT, 1)  # among sockets of one user
        one.bind((address, self.port))
        return one

    def connect(self, port: int) -> int:
        """A connection to the library's ``port``. Raises: OSError."""
        self.n_bound += 1
        n = self.n_bound
        one = self._bound("127.%d.%d.%d" % (n >> 16, n >> 8 & 255, n & 255))
        try:
            one.connect(("127.0.0.1", port))
        except OSError:
            one.close()
            raise
        return one.detach()

    def close(self) -> None:
        """Filter what the library listens to by now, and end what others have begun there."""
        import ctypes

        # load the source port; with ours keep all bytes, else none
        steps = (0x28, 0, 0, 0), (0x15, 0, 1, self.port), (0x06, 0, 0, 1 << 31), (0x06, 0, 0, 0)
        code = ctypes.create_string_buffer(b"".join(pack("=HBBI", *step) for step in steps))
        program = pack("HP", len(steps), ctypes.addressof(code))
        ports: set[int] = set()
        turns = 3  # a thread of the library may be about to take one in
        end = time.monotonic() + CLEARING
        while turns and time.monotonic() < end:
            turns -= 1
            for one in _tcp_sockets():
                try:
                    if one.fileno() in self.before:
                        pass
                    elif one.getsockopt(SOL_SOCKET, _socket.SO_ACCEPTCONN):
                        one.setsockopt(SOL_SOCKET, ATTACH_FILTER, program)
                        ports.add(one.getsockname()[1])
                        if one.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, 28)[24]:
                            turns = 3  # more have connected than were taken in
                    elif one.getsockname()[1] in ports:
                        one.shutdown(_socket.SHUT_RDWR)
                except OSError:
                    pass  # it has left
            time.sleep(0.002)


def _tcp_sockets() -> Iterator[socket]:
    """Each TCP socket of this process, to be looked at."""
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket(fileno=int(name))
        except OSError:
            continue
        if one.family in (_socket.AF_INET, _socket.AF_INET6) and one.type == _socket.SOCK_STREAM:
            yield one
        one.detach()


def have_put(data: bytes) -> dict[tuple[bytes, int], bytes]:
    """What each rank (namespace, number) has put. Raises: WireError, PackError."""
    decoder, known = Decoder(), {}
    for frame in decoder.feed(data):
        put = unpack(frame.body)
        for key, kind in PUT.items():
            if type(put) is not dict or type(put.get(key)) is not kind:
                raise WireError("a rank without %s (%s)" % (key, kind.__name__))
        if put["status"] == 0:
            known[put["namespace"], put["rank"]] = put["data"]
    if decoder.pending:
        raise WireError("a message that does not end")
    return known


class Found:
    """What the processes ``pids`` have loaded: ``files``, by name; ``mpi``; ``pmix``."""

    def __init__(self, pids: list[int]) -> None:
        self.files: dict[str, str] = {}
        self.prefixes: list[str] = []
        for pid in pids:
            for path in map(os.fsdecode, shm.files(pid)):
                if ".so" in path:
                    self.files.setdefault(os.path.basename(path), path)
            self.prefixes += _prefixes(pid)
        self.mpi = self.named("libmpi.so.40") or self.named("libmpi")
        self.pmix = self.named("libpmix.so") or self.named("libopen-pal.so.40")

    def candidates(self) -> list[str]:
        """Paths and names to load a libpmix from, the best first."""
        found = [self.pmix] if self.pmix else []
        prefixes = list(self.prefixes)
        if self.mpi:
            folder = os.path.dirname(self.mpi)
            found += [os.path.join(folder, name) for name in NAMES]
            prefixes.insert(0, os.path.dirname(folder))
        for prefix in prefixes:
            found += [os.path.join(prefix, folder, NAMES[0]) for folder in FOLDERS]
        found = [path for path in found if os.path.exists(path)]
        return list(dict.fromkeys([*found, *NAMES]))  # a bare name: where the system looks

    def named(self, start: str) -> str:
        """The file that a rank has loaded for a name, or its beginning; "" for none."""
        names = sorted(name for name in self.files if name.startswith(start))
        return self.files[names[0]] if names else ""


def _prefixes(pid: int) -> list[str]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            words = file.read().split(b"\0")
        found = [os.fsdecode(w.partition(b"=")[2]) for w in words if w.startswith(PREFIXES)]
        return [*found, os.path.dirname(os.path.dirname(os.readlink("/proc/%d/exe" % pid)))]
    except OSError:
        return []
