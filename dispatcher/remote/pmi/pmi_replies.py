"""Answers ranks on their PMI connections, and carries out the launcher's orders for them.

Loaded when a rank speaks for the first time, or the launcher has something for one. Replies are
written here; the loop carries out the server's other actions.
"""

from __future__ import annotations

import os

from dispatcher.remote.host import proctree, shm
from dispatcher.remote.pmi.pmi_server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dispatcher.remote.pmi.pmi_server import Action
    from dispatcher.remote.pmi.pmi_state import PmiState, World
    from dispatcher.remote.pmi.pmix_bridge import PmixBridge

#: segments that are kept from MPI_Init to MPI_Finalize, by libraries that have them
MARK = shm.FOLDER + shm.PREFIXES[0]


class PmiReplies:
    """Answers the ranks of ``state``."""

    def __init__(self, state: PmiState) -> None:
        self.state = state
        self.bridge: PmixBridge | None = None  # to the PMIx server, once a rank wants PMIx

    def take(self, rank: int, data: bytes, now: float) -> list[Action]:
        """Handle ``data`` from ``rank``; returns the actions other than replies."""
        world = self.state.world_of[rank]
        first: list[Action] = [] if rank in self.state.mpis else [("mpi", rank, "PMI-1")]
        self.state.spoken = True
        return first + self.reply(serving(world).feed(rank, data, now))

    def welcome(self, rank: int, data: bytes, now: float) -> list[Action]:
        """Answer ``rank``, which came by the port, and the ``data`` that followed its name."""
        world = self.state.world_of[rank]
        words = b"cmd=initack rc=0\ncmd=set size=%d\ncmd=set rank=%d\ncmd=set debug=0\n"
        answer = words % (world.job["size"], rank - world.first)
        return self.reply([("reply", rank, answer)]) + self.take(rank, data, now)

    def ended(self, world: World, rank: int) -> list[Action]:
        """Count the world's ``rank``, which ended well, as done: no rank waits for it any more."""
        return self.reply(serving(world).ended(rank))

    def order(self, message: dict[str, Any]) -> list[Action]:
        """Carry out an order for MPI: ``release_fence``, ``serve_pmix``, ...."""
        state, kind = self.state, message["type"]
        if kind == "serve_pmix":
            from dispatcher.remote.pmi.pmix_bridge import PmixBridge

            client, state.caller = state.caller, None
            if state.listener is None or client is None or 0 not in state.worlds:
                return []
            self.bridge = PmixBridge(state, state.worlds[0], state.listener, message, self.reply)
            return self.bridge.begin(client, 0.0)
        if kind == "query_inside":
            return [("send", "mpi.inside", find_inside(state, message))]
        if kind == "share_world" or message.get("ask"):
            if self.bridge is None:
                return []
            return (self.bridge.spread if kind == "share_world" else self.bridge.answer)(message)
        if self.bridge is not None and kind != "answer_rank":
            answered = self.bridge.order(message)
            if answered is not None:
                return answered
        if kind == "answer_rank":
            world = state.world_of.get(message["rank"])
        else:
            world = state.worlds.get(message["world"])
        if world is None:
            return []  # its ranks ended before this came
        server = serving(world)
        if kind == "answer_rank":
            return self.reply(server.answer(message["rank"], message["line"]))
        fence, epoch = message["fence"].encode(), message["epoch"]
        if kind == "ask_waiting":
            return self.reply(server.who(fence, epoch, message["seconds"]))
        return self.reply(server.release(fence, epoch, message["keys"]))

    def catch_up(self, now: float) -> list[Action]:
        """Take the messages of PMIx about a rank that has ended, before its end counts."""
        return [] if self.bridge is None else self.bridge.catch_up(now)

    def tick(self, now: float) -> list[Action]:
        """The actions that are due at ``now``."""
        actions = []
        for world in self.state.worlds.values():
            if world.server is not None:
                actions += self.reply(world.server.tick(now))
        return actions if self.bridge is None else actions + self.bridge.tick(now)

    def next_deadline(self) -> float:
        """When ``tick`` has something to do, or infinity."""
        servers = [world.server for world in self.state.worlds.values()]
        whens = [server.next_deadline() for server in servers if server is not None]
        return min([*whens, float("inf") if self.bridge is None else self.bridge.due])

    def name(self, rank: int) -> str:
        """The name of ``rank`` in messages: ``3``, or ``1.0`` if it was spawned."""
        world = self.state.world_of.get(rank)
        if world is None or not world.index:
            return "%d" % rank
        return "%d.%d" % (world.index, rank - world.first)

    def reply(self, actions: list[Action]) -> list[Action]:
        """Write the replies among ``actions``; the others are returned, for the loop.

        A rank that leaves its socket full has broken the protocol: it awaits each answer.
        """
        ends = self.state.ends
        others: list[Action] = []
        for action in actions:
            if action[0] != "reply":
                others.append(action)
                if action[1] == "pmi.aborted":
                    from dispatcher.remote.host.failure_info import error_of

                    action[2].update(error_of(self.state.folder, action[2]["rank"]))
                continue
            _, rank, line = action
            try:
                if rank in ends and os.write(ends[rank], line) != len(line):
                    others.append(("break", rank, "it does not read its answers"))
            except BlockingIOError:
                others.append(("break", rank, "it does not read its answers"))
            except OSError:
                self.state.close(rank)  # it is dying; its exit says how
        return others


def serving(world: World) -> Server:
    """The server of ``world``, made on the first use."""
    if world.server is None:
        world.server = Server(world.job, world.ranks)
    return world.server


def find_inside(state: PmiState, message: dict[str, Any]) -> dict[str, Any]:
    """The contents of ``mpi.inside``. message: the order, see ``protocol.frames``."""
    inside, over = [], []
    for rank, (_, path, pid) in sorted(state.mpis.items()):
        if state.standing(rank) == "inside":
            inside.append(rank)
            if message["over"] and _is_over(path, pid):
                over.append(rank)
    return {"ranks": inside, "over": over}


def _is_over(path: str, pid: int) -> bool:
    """Whether process ``pid`` is past MPI_Finalize, though PMI got no message."""
    if not path or not shm.keeps(path):
        return False
    segments = shm.mapped([pid, *proctree.descendants(pid)])
    return not any(segment.startswith(MARK) for segment in segments)
