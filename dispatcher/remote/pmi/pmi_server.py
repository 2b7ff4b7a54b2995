"""The process manager's side of PMI-1, which MPICH and its relatives use from MPI_Init on. Pure.

One ``Server`` serves the ranks of one world on this host. Its methods take a rank's number in the
job; PMI-1 messages hold its number in the world. ``docs/design/mpi.md`` shows how keys travel in
fences. A rank that breaks the protocol is ended; the others are served on. A rank that has ended
well counts as being in every later fence; one that ended without ``init`` does not.
Sources: MPICH's ``src/pmi/src/pmi_wire.c``, Flux's RFC 13.

Actions (tuples): ("reply", rank, bytes) · ("send", type, fields) · ("break", rank, why).
"""

from __future__ import annotations

import zlib

from dispatcher.remote.protocol.packing import PackError, pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

    from dispatcher.remote.pmi.pmi_spawn import SpawnRequest

    Action = Tuple[Any, ...]
    Fields = Dict[bytes, bytes]

#: sent to the ranks. Clients up to MPICH 4.1 read replies into 1024 bytes, so a value,
#: with the words around it, must stay below that
NAME_LIMIT, KEY_LIMIT, VALUE_LIMIT = 256, 64, 960
#: bytes of one line
LINE_LIMIT = 64 << 10
#: most bytes of all keys of this host, and of the packed keys of one fence
STORE_LIMIT, PACKET_LIMIT = 64 << 20, 960 << 10

WORLD = b"WORLD"


class Broken(Exception):
    """A rank broke the PMI-1 protocol; the text says how."""


class Peer:
    """The state of one rank's conversation."""

    def __init__(self) -> None:
        self.buffer = b""
        self.spawn: SpawnRequest | None = None  # being read
        self.n_inits = 0
        self.inside = False  # between init and finalize
        self.asked = False  # the launcher owes it an answer
        self.over = False  # nothing it says counts any more
        self.ended = False  # its process ended well, and had called MPI_Init


class Fence:
    """A barrier of one group on this host; it is used again for each epoch."""

    def __init__(self, members: set[int], is_local: bool) -> None:
        self.members = members
        self.is_local = is_local
        self.epoch = 0
        self.arrived: set[int] = set()
        self.committed = False
        self.sent = 0  # how many of this host's puts it has carried


class Server:
    """PMI-1 for ``ranks`` (list of int): the ranks on this host of the world in ``job``.

    job: world (its index) and first (the number of its rank 0), both 0 where they are missing; name
    (of the world's keys, unique on every host), size (ranks of the world), mapping (the value of
    ``PMI_process_mapping``), patience (seconds after which a rank that others wait for is
    reported); perhaps universe (how many ranks the hosts have room for), apps (ranks of each
    program in turn), preput (pairs of key and value that are there from the start).
    """

    def __init__(self, job: dict[str, Any], ranks: list[int]) -> None:
        self.world: int = job.get("world", 0)
        self.first: int = job.get("first", 0)
        self.name: bytes = job["name"]
        self.size: int = job["size"]
        self.apps: list[int] = job.get("apps") or [self.size]
        self.stall_after: float = job["patience"]
        self.peers = {rank: Peer() for rank in ranks}
        limits = (NAME_LIMIT, KEY_LIMIT, VALUE_LIMIT)
        universe = job.get("universe") or self.size
        self.answers = {
            b"get_maxes": b"maxes rc=0 kvsname_max=%d keylen_max=%d vallen_max=%d" % limits,
            b"get_my_kvsname": b"my_kvsname rc=0 kvsname=" + self.name,
            b"get_universe_size": b"universe_size rc=0 size=%d" % universe,
        }
        self.store: dict[bytes, bytes] = dict(job.get("preput") or ())
        if 0 < len(job["mapping"]) <= VALUE_LIMIT:
            self.store[b"PMI_process_mapping"] = job["mapping"]
        self.store_size = 0
        self.puts: list[bytes] = []  # key, value, key, value ...: put on this host, in order
        self.fences: dict[bytes, Fence] = {}
        self.deadlines: dict[bytes, float] = {}  # fence, or b"init" -> when to report missing ranks

    # -- what ranks do ----------------------------------------------------------

    def feed(self, rank: int, data: bytes, now: float) -> list[Action]:
        """The actions that follow from ``data``, read from ``rank``'s connection."""
        peer = self.peers.get(rank)
        if peer is None or peer.over:
            return []
        peer.buffer += data
        actions: list[Action] = []
        try:
            while True:
                line, newline, rest = peer.buffer.partition(b"\n")
                if len(line) > LINE_LIMIT:
                    raise Broken("a line of more than %d bytes" % LINE_LIMIT)  # noqa: TRY301
                if not newline:
                    return actions
                peer.buffer = rest
                actions += self._line(rank, peer, line, now)
        except Broken as error:
            peer.over = True
            peer.buffer = b""
            return [*actions, ("break", rank, str(error))]

    def ended(self, rank: int) -> list[Action]:
        """Count ``rank``, which ended with exit code 0, as done: no rank waits for it any more."""
        peer = self.peers[rank]
        peer.over = True
        peer.ended = peer.n_inits > 0
        actions = []
        for key, fence in list(self.fences.items()):
            if rank in fence.members and fence.arrived:
                actions += self._complete(key, fence)
        self._settle_init()
        return actions

    # -- what the launcher says ---------------------------------------------------

    def release(self, key: bytes, epoch: int, packets: list[bytes]) -> list[Action]:
        """Open a fence that all hosts have reached: store their keys, release the members."""
        fence = self.fences.get(key)
        if fence is None or not fence.committed or fence.epoch != epoch:
            return []
        try:
            for packet in packets:
                pairs = _unpacked(packet)
                self.store.update(zip(pairs[::2], pairs[1::2]))
        except Broken as error:
            return [("break", rank, str(error)) for rank in sorted(fence.arrived)]
        return self._open(key, fence)

    def answer(self, rank: int, value: bytes | None) -> list[Action]:
        """Pass on the launcher's answer to ``rank``'s publish, lookup, unpublish or spawn."""
        peer = self.peers.get(rank)
        if peer is None or peer.over or not peer.asked:
            return []
        peer.asked = False
        return [("reply", rank, value or b"")]

    def who(self, key: bytes, epoch: int, seconds: float) -> list[Action]:
        """Report which ranks the fence ``epoch`` of ``key``, or ``MPI_Init``, waits for."""
        fence = self.fences.get(key)
        if fence is not None and (fence.epoch > epoch or fence.committed):
            return []
        words = key.rpartition(b":")[0].split(b",")
        group = {self.first + int(word) for word in words} if words[0].isdigit() else self.peers
        members = self.peers.keys() & group if fence is None else fence.members
        arrived = set() if fence is None else fence.arrived
        missing = sorted(r for r in members - arrived if not self.peers[r].ended)
        never = [rank for rank in missing if not self.peers[rank].n_inits]
        absent = [] if key == b"init" else [rank for rank in missing if rank not in never]
        if not never and not absent:
            return []
        return [("send", "pmi.waiting", {"never": never, "absent": absent, "seconds": seconds})]

    # -- time ---------------------------------------------------------------------

    def next_deadline(self) -> float:
        """When ``tick`` wants to be called, or infinity."""
        return min(self.deadlines.values(), default=float("inf"))

    def tick(self, now: float) -> list[Action]:
        """Reports about ranks that others on this host have waited for too long."""
        actions = []
        for key, when in list(self.deadlines.items()):
            if when <= now:
                del self.deadlines[key]
                epoch = self.fences[key].epoch if key in self.fences else 0
                actions += self.who(key, epoch, self.stall_after)
        return actions

    # -- lines ----------------------------------------------------------------------

    def _line(self, rank: int, peer: Peer, line: bytes, now: float) -> list[Action]:
        if peer.spawn is not None:
            return self._spawn_line(rank, peer, line)
        if line == b"mcmd=spawn" and not peer.asked:
            from dispatcher.remote.pmi.pmi_spawn import SpawnRequest

            peer.spawn = SpawnRequest()
            return []
        values: dict[bytes, list[bytes]] = {}
        words: list[bytes] = []
        for word in line.split():
            name, equals, value = word.partition(b"=")
            if equals:
                words = values[name] = [value]
            elif words:
                words.append(word)
            else:
                raise Broken("not a PMI-1 request: %r" % line[:60])
        fields = {name: b" ".join(words) for name, words in values.items()}
        command = fields.get(b"cmd", b"")
        if command not in _COMMANDS and command not in self.answers:
            raise Broken("not a PMI-1 request: %r" % line[:60])
        if peer.asked:
            raise Broken("a request before the answer to the last request")
        if command in self.answers:
            return _reply(rank, self.answers[command])
        return _COMMANDS[command](self, rank, peer, fields, now)

    def _init(self, rank: int, peer: Peer, fields: Fields, now: float) -> list[Action]:
        if fields.get(b"pmi_version") != b"1":
            return _reply(rank, b"response_to_init rc=-1 pmi_version=1 pmi_subversion=2")
        if not peer.n_inits and b"init" not in self.deadlines:
            self.deadlines[b"init"] = now + self.stall_after
        peer.n_inits += 1
        peer.inside = True
        self._settle_init()
        return _reply(rank, b"response_to_init rc=0 pmi_version=1 pmi_subversion=2")

    def _settle_init(self) -> None:
        if all(peer.n_inits or peer.ended for peer in self.peers.values()):
            self.deadlines.pop(b"init", None)

    def _appnum(self, rank: int, peer: Peer, fields: Fields, now: float) -> list[Action]:
        app = next(i for i in range(len(self.apps)) if rank - self.first < sum(self.apps[: i + 1]))
        return _reply(rank, b"appnum rc=0 appnum=%d" % app)

    def _put(self, rank: int, peer: Peer, fields: Fields, now: float) -> list[Action]:
        key, value = fields.get(b"key", b""), fields.get(b"value", b"")
        why = b""
        if fields.get(b"kvsname") != self.name:
            why = b"wrong_kvsname"
        elif not 0 < len(key) <= KEY_LIMIT:
            why = b"key_length"
        elif key.startswith(b"PMI_"):
            why = b"reserved_key"
        elif not 0 < len(value) <= VALUE_LIMIT:
            why = b"value_length"
        elif b" " in value:
            why = b"value_with_space"
        elif self.store_size + len(key) + len(value) > STORE_LIMIT:
            why = b"store_full"
        if why:
            return _reply(rank, b"put_result rc=1 msg=" + why)
        self.store_size += len(key) + len(value)
        self.store[key] = value
        self.puts += (key, value)
        return _reply(rank, b"put_result rc=0")

    def _get(self, rank: int, peer: Peer, fields: Fields, now: float) -> list[Action]:
        if fields.get(b"kvsname") != self.name:
            return _reply(rank, b"get_result rc=1 msg=wrong_kvsname")
        value = self.store.get(fields.get(b"key", b""))
        if value is None:
            return _reply(rank, b"get_result rc=1 msg=key_not_found")
        return _reply(rank, b"get_result rc=0 value=" + value)

    def _finalize(self, rank: int, peer: Peer, fields: Fields, now: float) -> list[Action]:
        peer.inside = False
        return _reply(rank, b"finalize_ack rc=0")

    def _abort(self, rank: int, peer: Peer, fields: Fields, now: float) -> list[Action]:
        peer.over = True
        code = fields.get(b"exitcode", b"")
        try:
            number = int(code) & 0xFF if len(code) < 12 else 1
        except ValueError:
            number = 1
        text = fields.get(b"message", b"").decode("utf-8", "backslashreplace")[:1000]
        text = "" if text == "abort" else text  # MPICH sends this word if it has no text
        return [("send", "pmi.aborted", {"rank": rank, "code": number, "text": text})]

    # -- names (the launcher keeps them) ----------------------------------------------

    def _ask(self, rank: int, peer: Peer, fields: Fields, now: float) -> list[Action]:
        service, port = fields.get(b"service", b""), fields.get(b"port", b"")
        if not 0 < len(service) <= VALUE_LIMIT or len(port) > VALUE_LIMIT:
            raise Broken("a service name or port of a wrong length")
        if b" " in port:
            return _reply(rank, b"publish_result rc=1 msg=port_with_space")
        peer.asked = True
        verb = fields[b"cmd"].split(b"_")[0].decode()
        name = {"rank": rank, "verb": verb, "service": service, "port": port}
        return [("send", "pmi.asked", name)]

    # -- spawn ----------------------------------------------------------------------

    def _spawn_line(self, rank: int, peer: Peer, line: bytes) -> list[Action]:
        """Read on; the launcher gets the request when it is complete."""
        assert peer.spawn is not None
        try:
            if not peer.spawn.feed(line):
                return []
        except ValueError as error:
            raise Broken(str(error)) from None
        request, peer.spawn = peer.spawn, None
        peer.asked = True
        fields = {"rank": rank, "segments": request.segments, "preput": request.preput}
        return [("send", "pmi.spawn_asked", fields)]

    # -- fences -----------------------------------------------------------------------

    def _barrier(self, rank: int, peer: Peer, fields: Fields, now: float) -> list[Action]:
        group, _, tag = fields.get(b"group", WORLD + b":0").rpartition(b":")
        if not (tag.isdigit() and len(tag) < 12):
            raise Broken("a barrier without a number as its tag")
        key, fence = self._fence(rank, group, tag)
        if rank not in fence.members or rank in fence.arrived:
            raise Broken("a barrier that is not its own, or twice")
        fence.arrived.add(rank)
        self.deadlines.setdefault(key, now + self.stall_after)
        return self._complete(key, fence)

    def _fence(self, rank: int, group: bytes, tag: bytes) -> tuple[bytes, Fence]:
        """The barrier of a group; one spelling for each: ``WORLD:0``, ``NODE:0``, ``0,2,5:7``."""
        members, size = set(self.peers), self.size
        if group == b"NODE":
            size = len(members)
        elif group != WORLD:
            words = group.split(b",")
            if not all(word.isdigit() and len(word) < 10 for word in words):
                raise Broken("not a group: %r" % group[:60])
            ranks = sorted({self.first + int(word) for word in words})
            if ranks[-1] >= self.first + self.size or rank not in ranks:
                raise Broken("a group it is not in, or of ranks that do not exist")
            group = b",".join(b"%d" % (member - self.first) for member in ranks)
            members, size = members.intersection(ranks), len(ranks)
        key = group + b":" + tag
        if key not in self.fences:
            self.fences[key] = Fence(members, len(members) == size)
        return key, self.fences[key]

    def _complete(self, key: bytes, fence: Fence) -> list[Action]:
        """Go on when all members on this host are in."""
        missing = fence.members - fence.arrived
        if fence.committed or not all(self.peers[rank].ended for rank in missing):
            return []
        self.deadlines.pop(key, None)
        if fence.is_local:
            return self._open(key, fence)
        news = self.puts[fence.sent :]
        packet = zlib.compress(pack(news), 6)
        if len(packet) > PACKET_LIMIT:
            why = "its keys take %d bytes, at most %d can be sent" % (len(packet), PACKET_LIMIT)
            return [("break", rank, why) for rank in sorted(fence.arrived)]
        fence.sent = len(self.puts)
        fence.committed = True
        fields = {"world": self.world, "fence": key.decode(), "epoch": fence.epoch, "keys": packet}
        return [("send", "pmi.committed", fields)]

    def _open(self, key: bytes, fence: Fence) -> list[Action]:
        line = b"cmd=barrier_out tag=%s\n" % key.rpartition(b":")[2]
        actions = [("reply", rank, line) for rank in sorted(fence.arrived)]
        fence.arrived.clear()
        fence.committed = False
        fence.epoch += 1
        return [action for action in actions if not self.peers[action[1]].over]


def _reply(rank: int, words: bytes) -> list[Action]:
    return [("reply", rank, b"cmd=" + words + b"\n")]


def _unpacked(packet: bytes) -> list[bytes]:
    """Keys and values in turn. Raises: Broken for anything else."""
    try:
        inflater = zlib.decompressobj()
        value = unpack(inflater.decompress(packet, STORE_LIMIT))
    except (zlib.error, PackError) as error:
        raise Broken("keys of another host that cannot be read: %s" % error) from None
    if (
        not isinstance(value, list)
        or len(value) % 2
        or not all(isinstance(item, bytes) for item in value)
    ):
        raise Broken("keys of another host that are not valid")
    return value


_COMMANDS = {
    b"init": Server._init,
    b"get_appnum": Server._appnum,
    b"put": Server._put,
    b"get": Server._get,
    b"barrier_in": Server._barrier,
    b"finalize": Server._finalize,
    b"abort": Server._abort,
    b"publish_name": Server._ask,
    b"lookup_name": Server._ask,
    b"unpublish_name": Server._ask,
}
