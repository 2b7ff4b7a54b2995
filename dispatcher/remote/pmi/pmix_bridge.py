"""The agent's side of PMIx: starts the process that serves, takes its fences to the launcher.

Loaded when a rank has come to the port in its environment for the first time. What libpmix
contributes to a fence crosses hosts as PMI-1's keys do; the tag marks it as PMIx.
"""

from __future__ import annotations

import os
import select
import zlib
from _socket import socket, socketpair
from errno import ENOENT

from dispatcher.remote.host import child, proctree
from dispatcher.remote.host.own_folder import make_shared
from dispatcher.remote.protocol.frames import Decoder, WireError, control
from dispatcher.remote.protocol.packing import PackError, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from dispatcher.remote.pmi.libpmix import Members
    from dispatcher.remote.pmi.pmi_server import Action
    from dispatcher.remote.pmi.pmi_state import PmiState, World

#: no tag of PMI-1's has eleven digits; of what meets once, the tag has a number of its name's
TAG, ONCE = ":10000000000", 20000000000
#: bytes of a packet that a report can hold, of all that one fence may bring, and of a message
PACKET_LIMIT, FENCE_LIMIT, PORTION = 960 << 10, 64 << 20, 1 << 20
OUT_OF_RESOURCE, NOT_FOUND, NOT_SUPPORTED = -29, -46, -47
#: bytes of a fence's name that a report can hold
NAME_LIMIT = 4096
#: seconds that an abort waits: Open MPI's ranks abort when one that they talk to has died, and
#: then its end is the cause, which its own agent reports. Until then the rank waits in MPI_Abort
HESITATION = 0.5
NEVER = float("inf")


class PmixBridge:
    """The PMIx side of ``world``, the ranks that were planned.

    listener: where they come; message: the order ``pmix``; reply: as ``PmiReplies`` has it.
    """

    def __init__(
        self,
        state: PmiState,
        world: World,
        listener: socket,
        message: dict[str, Any],
        reply: Callable[[list[Action]], list[Action]],
    ) -> None:
        self.state = state
        self.reply = reply
        self.world = world
        self.listener = listener
        self.message = message
        self.pid: int | None = None  # of the serving process, once there is one
        self.link = -1  # and our end of the socket to it, while that is open
        self.outgoing = bytearray()  # what it has not taken yet
        self.decoder = Decoder()
        self.stall_after: float = world.job["patience"]
        self.due = NEVER  # when there is something to send though no message came
        self.stalls_at = NEVER  # when to report missing ranks
        self.aborts: list[tuple[float, Action]] = []  # when to report each
        self.served = self.mpi = ""  # the PMIx that serves, and the MPI it was chosen for
        self.epochs: dict[tuple[int, str], int] = {}  # of fences of a world, by their names
        self.waiting: dict[tuple[int, str], int] = {}  # fence -> its number in the serving process
        self.asked: dict[int, int] = {}  # request for the launcher -> the rank that asked
        self.names: dict[int, bytes] = {}  # world that was spawned -> its namespace
        #: namespace -> its world: index, number of its first rank, and size
        self.spaces = {world.job["name"]: (0, 0, world.job["size"])}

    def begin(self, client: int, now: float) -> list[Action]:
        """Serve the rank that has come by connection ``client``, and those that come later."""
        try:
            self._start(client)
        except OSError as error:
            return self._trouble(now, str(error), "its MPI")
        finally:
            os.close(client)
            self.listener.close()
        return []

    def _start(self, client: int) -> None:
        """Start the process that serves; it takes over ``client`` first. Raises: OSError."""
        folder = self.state.folder
        if folder is None:
            raise OSError(ENOENT, "no folder can be made for its files")
        os.mkdir(folder + "/pmix", 0o700)
        make_shared(folder)
        job = {
            "name": self.world.job["name"],
            "node": self.message["node"],
            "hosts": self.message["hosts"],
            "apps": self.message.get("apps"),
            "universe": self.world.job.get("universe"),
            "folder": folder + "/pmix",
        }
        ours, theirs = socketpair()
        agent = os.getpid()
        pids = proctree.descendants(agent)
        self.pid = os.fork()
        if self.pid == 0:
            link, listener = theirs.fileno(), self.listener

            def serve() -> None:
                os.setsid()  # so that no signal to the agent's group ends it before the ranks
                from dispatcher.remote.pmi import pmix_server

                pmix_server.main(link, listener, client, job, pids)

            child.become(agent, {link, listener.fileno(), client}, serve, "pmix")
        theirs.close()
        self.link = ours.detach()
        os.set_blocking(self.link, False)
        self.state.poll.add(self.link, lambda now, _: self.ready(now))
        self._write()

    def ready(self, now: float) -> list[Action]:
        """Act on an event of the serving process: it takes bytes, has sent some, or ended."""
        self._write()
        try:
            data = os.read(self.link, 1 << 20)
            messages = [unpack(frame.body) for frame in self.decoder.feed(data)]
        except BlockingIOError:
            return []
        except (OSError, WireError, PackError):
            data, messages = b"", []
        actions: list[Action] = []
        for message in messages:
            actions += getattr(self, "_" + message.pop("type"))(now, **message)
        return actions if data else actions + self._ended()

    def catch_up(self, now: float) -> list[Action]:
        """Take the serving process's last messages about a rank, before its end counts."""
        return self.ready(now) if self.link >= 0 else []

    def order(self, message: dict[str, Any]) -> list[Action] | None:
        """Carry out ``release_fence`` or ``ask_waiting`` of a fence; None if it is PMI-1's."""
        epoch = message["epoch"]
        fence = message["world"], message["fence"]
        tag = message["fence"].rpartition(":")[2]
        if len(tag) < len(TAG) - 1:
            return None
        if message["type"] == "ask_waiting":
            passed = fence in self.waiting or self.epochs.get(fence, 0) > epoch
            return [] if passed else self.who(message["seconds"], *fence)
        if fence not in self.waiting or self.epochs.get(fence, 0) != epoch:
            return []
        if int(tag) < ONCE:
            self.epochs[fence] = epoch + 1
        parts, left = [], FENCE_LIMIT
        try:
            for packet in message["keys"]:
                parts.append(zlib.decompressobj().decompress(packet, left))
                left -= len(parts[-1])
                if left <= 0:  # 0 would mean no limit for the next
                    break
        except zlib.error:
            left = 0
        id = self.waiting.pop(fence)
        if left <= 0:
            return self._answer(id, OUT_OF_RESOURCE)
        return self._answer(id, 0, b"".join(parts), message["number"])

    def answer(self, message: dict[str, Any]) -> list[Action]:
        """Pass on the launcher's answer to a name or a spawn, in the form of PMI-1."""
        id, line = message["ask"], message["line"]
        if self.asked.pop(id, None) is None:
            return []
        words, _, value = line.partition(b" port=")
        if b" rc=0" not in words:
            return self._answer(id, NOT_FOUND if b"not_found" in words else OUT_OF_RESOURCE)
        _, spawned, index = words.partition(b" world=")
        return self._answer(id, 0, self.names[int(index)] if spawned else value[:-1])

    def spread(self, message: dict[str, Any]) -> list[Action]:
        """Carry out the order ``share_world``: ranks of this host may meet a spawned world's."""
        name, first = message["name"], message["first"]
        self.names[message["world"]] = name
        self.spaces[name] = message["world"], first, message["size"]
        fields = {key: message[key] for key in ("hosts", "nodes", "node", "apps")}
        self.outgoing += control("world", name=name, first=first, **fields)
        self._write()
        return []

    def who(self, seconds: float, index: int = 0, fence: str = "WORLD" + TAG) -> list[Action]:
        """Report ranks here that others wait for in ``fence``; libpmix does not show them."""
        worlds = {0: self.world, **self.state.worlds}
        if index not in worlds:
            return []  # its ranks have all ended
        group = fence.rpartition(":")[0]
        here = worlds[index].left.union(worlds[index].never)
        if group != "WORLD":  # of world 0 where it is one of several worlds
            first = worlds[index].first
            spans = [[first + int(end) for end in one.split("-")] for one in group.split(",")]
            here = here.union(*(world.left for world in worlds.values()))
            here = {rank for rank in here if any(one[0] <= rank <= one[-1] for one in spans)}
        never = sorted(here - self.state.connected)
        absent = [] if never else sorted(here - self.state.finalized)
        if not never and not absent:
            return []
        fields = {"never": never, "absent": absent, "seconds": seconds, "some": len(absent) > 1}
        return [("send", "pmi.waiting", fields)]

    def tick(self, now: float) -> list[Action]:
        """Reports that are due: of ranks that have never come, and of aborts."""
        actions: list[Action] = []
        if self.stalls_at <= now:
            self.stalls_at = NEVER
            if self.world.left.union(self.world.never) - self.state.connected:
                actions += self.who(self.stall_after)
        while self.aborts and self.aborts[0][0] <= now:
            actions += self.reply([self.aborts.pop(0)[1]])
        self._set_due()
        return actions

    def _set_due(self) -> None:
        self.due = min([self.stalls_at, *(when for when, _ in self.aborts)])

    # -- what the serving process says ----------------------------------------------------

    def _up(self, now: float, mpi: str, pmix: str, version: str) -> list[Action]:
        self.served, self.mpi = "%s (%s)" % (version, pmix), mpi
        return []

    def _connected(self, now: float, rank: int) -> list[Action]:
        if not self.state.connected:
            self.stalls_at = now + self.stall_after
            self._set_due()
        self.state.connected.add(rank)
        self.state.finalized.discard(rank)  # it begins again
        return [] if rank in self.state.mpis else [("mpi", rank, self.served, self.mpi)]

    def _finalized(self, now: float, rank: int) -> list[Action]:
        self.state.finalized.add(rank)
        return []

    def _abort(self, now: float, rank: int, code: int, text: str) -> list[Action]:
        text = "" if text == "N/A" else text  # Open MPI 4 sends this word if it has no text
        fields = {"rank": rank, "code": code & 0xFF, "text": text}
        self.aborts.append((now + HESITATION, ("send", "pmi.aborted", fields)))
        self._set_due()
        return []

    def _fence(self, now: float, id: int, members: Members, data: bytes) -> list[Action]:
        return self._meet(id, members, TAG, data)

    def _name(
        self, now: float, id: int, rank: int, verb: str, key: bytes, value: bytes, **how: bool
    ) -> list[Action]:
        self.asked[id] = rank
        fields = {"rank": rank, "ask": id, "verb": verb, "service": key, "port": value}
        return [("send", "pmi.asked", {**fields, **how})]

    def _spawn(self, now: float, id: int, rank: int, segments: list[Any]) -> list[Action]:
        self.asked[id] = rank
        fields = {"rank": rank, "ask": id, "segments": segments, "preput": []}
        return [("send", "pmi.spawn_asked", fields)]

    def _group(
        self, now: float, id: int, verb: str, name: bytes, members: Members, data: bytes
    ) -> list[Action]:
        tag = zlib.crc32(b"%s %s" % (verb.encode(), name))
        return self._meet(id, members, ":%d" % (ONCE + tag), data)

    def _meet(self, id: int, members: Members, tag: str, data: bytes) -> list[Action]:
        """Report that all of this host's ``members`` are in a fence, with their ``data``."""
        try:
            world, group = self._who_meet(members)
        except KeyError:
            return self._answer(id, NOT_FOUND)
        if not group:  # of PMIx 6: a rank that joins a group which others assemble names no members
            return self._answer(id, NOT_SUPPORTED)
        packet = zlib.compress(data, 1)
        fence = world, group + tag
        if fence in self.waiting or max(len(packet) - PACKET_LIMIT, len(fence[1]) - NAME_LIMIT) > 0:
            text = "MPI: a fence of %d bytes cannot be sent" % (len(packet) + len(fence[1]))
            return [("send", "node.noticed", {"text": text}), *self._answer(id, OUT_OF_RESOURCE)]
        self.waiting[fence] = id
        epoch = self.epochs.get(fence, 0)
        fields = {"world": world, "fence": fence[1], "epoch": epoch, "keys": packet}
        return [("send", "pmi.committed", fields)]

    def _who_meet(self, members: Members) -> tuple[int, str]:
        """World and ranks that meet; 0 and the job's numbers if of several. Raises: KeyError."""
        if len(members) == 1:
            index, first, size = self.spaces[members[0][0]]
            ranks = members[0][1]
            if ranks is None or len(set(ranks)) == size:
                return index, "WORLD"
            return index, _spans(ranks)
        numbers: list[int] = []
        for namespace, ranks in members:
            _, first, size = self.spaces[namespace]
            numbers += [first + rank for rank in (range(size) if ranks is None else ranks)]
        return 0, _spans(numbers)

    def _trouble(self, now: float, why: str, mpi: str) -> list[Action]:
        self.state.finalized |= self.state.connected or {-1}  # their end need not be reported
        if not mpi:  # no rank needs the process that connected
            text = "MPI: PMIx was asked for and cannot be served: %s" % why
            return [("send", "node.noticed", {"text": text})]
        return [("send", "pmix.failed", {"library": mpi, "tried": why})]

    def _log(self, now: float, id: int, rank: int, texts: list[Any]) -> list[Action]:
        self._answer(id, 0 if texts else NOT_SUPPORTED)
        return [("output", rank, stream, text) for stream, text in texts]

    def _notice(self, now: float, text: str) -> list[Action]:
        return [("send", "node.noticed", {"text": text})]

    def _answer(self, id: int, status: int, data: bytes = b"", number: int = 0) -> list[Action]:
        """Answer request ``id`` of the serving process, with ``data`` if ``status`` is 0."""
        for at in range(0, len(data), PORTION):
            self.outgoing += control("part", id=id, data=data[at : at + PORTION])
        self.outgoing += control("release", id=id, status=status, number=number)
        self._write()
        return []

    def _write(self) -> None:
        """Write as much as the serving process takes now; the poll waits for the rest."""
        if self.link < 0:
            return
        try:
            while self.outgoing:
                del self.outgoing[: os.write(self.link, self.outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # it has ended, which is read from the same socket
            self.outgoing.clear()
        wanted = select.EPOLLOUT if self.outgoing else 0
        self.state.poll.change(self.link, select.EPOLLIN | wanted)

    def _ended(self) -> list[Action]:
        """Clean up after the serving process, which ended; its ranks would wait for ever."""
        self.state.poll.remove(self.link)
        os.close(self.link)
        self.link = -1
        if self.state.finalized >= self.state.connected and self.state.finalized:
            return []
        return [("send", "pmix.failed", {"library": "", "tried": ""})]


def _spans(ranks: Iterable[int]) -> str:
    """``ranks`` as ranges: ``0-7,12``."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join("%d-%d" % (a, b) if a < b else "%d" % a for a, b in spans)
