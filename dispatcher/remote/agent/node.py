"""Decides for the agent: a pure machine with no I/O, no clock and no descriptors.

``handle(event, now)`` takes what happened and returns what to do; ``agent_loop`` does it.

::

    fresh -- prepare --> prepared -- start --> running -- finish --> over
      |                     ^  |                  |
      |                     |  +---- prepare -----+
      |                     |                     |
      +---------------------+---------------------+-- lifeline lost --> dying --> over

* N-1  nothing is started after the lifeline is lost or the job is finished
* N-2  a lost lifeline (end of the link, silence beyond the lease, a signal to the agent) ends
  every rank: TERM and CONT, then KILL of all descendants after ``lifeline_grace`` seconds, or as
  soon as every rank has ended
* N-3  every rank that was spawned is reported ``rank.exited`` exactly once
* N-4  a rank's pipes are cut ``DRAIN`` seconds after its exit when another process still holds
  them and output is not being held back for credit
* N-5  a further attempt is prepared only when nothing of the last attempt is left
* N-6  from ``pause_ranks`` to ``resume_ranks`` the ranks are stopped and the lease does not run;
  the end of the link counts nevertheless
* N-7  after ``watch``: pings that are late, while the launcher's machine acknowledges nothing,
  are a lost lifeline long before the lease runs out

Events (tuples): ("order", message) · ("spawned", [[rank, pid]]) ·
("exited", rank, status, why) · ("drained", rank) · ("lifeline", why) ·
("swept", killed, left, mark, stuck). Actions (tuples) are the ``do_*`` of ``agent_loop``.
"""

from __future__ import annotations

from _signal import SIGCONT, SIGSTOP, SIGTERM  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Tuple, Union

    Action = Tuple[Any, ...]
    Key = Union[str, Tuple[str, int]]  # the subject of a deadline: a name, or ("drain", rank)

#: seconds a dead rank's pipes are read on while another process keeps them open
DRAIN = 2.0
#: heartbeats after which a ping of the launcher is late
LATE = 1.25
NEVER = float("inf")

EXIT_OK = 0
EXIT_LIFELINE = 3

FRESH, PREPARED, RUNNING, DYING, OVER = "fresh", "prepared", "running", "dying", "over"

#: orders that leave the state as it is, by the state in which they are carried out: order -> action
CARRIED_OUT: dict[str, dict[str, str]] = {
    FRESH: {},
    PREPARED: {"probe": "probe"},
    RUNNING: {
        "spawn_ranks": "spawn_ranks", "sample": "sample", "query_inside": "pmi",
        "serve_pmix": "pmi", "share_world": "pmi", "release_fence": "pmi", "answer_rank": "pmi",
        "ask_waiting": "pmi",
    },
}  # fmt: skip


class Node:
    """The state of this host's part of one run."""

    def __init__(self, now: float, lease: float = 30.0) -> None:
        self.state = FRESH
        self.lease = lease
        self.heartbeat = 5.0
        self.lifeline_grace = 1.0
        self.alive: set[int] = set()  # ranks spawned and not yet exited
        self.draining: set[int] = set()  # ranks exited, pipes not yet ended
        self.paused = False  # the user stopped the launcher (N-6)
        self.held_back = False  # output waits for credit (set by the loop)
        self.watches = False  # whether the launcher's machine answers (N-7; set by the loop)
        self.in_doubt = False  # about that
        self.deadlines: dict[Key, float] = {"lease": now + lease}

    def handle(self, event: tuple[Any, ...], now: float) -> list[Action]:
        """The actions that ``event`` calls for. Unknown orders answer with a notice."""
        handler = getattr(self, "_on_" + event[0])
        actions: list[Action] = handler(now, *event[1:])
        return actions

    def tick(self, now: float) -> list[Action]:
        """The actions that are due at ``now``."""
        actions: list[Action] = []
        for name, when in sorted(self.deadlines.items(), key=lambda pair: pair[1]):
            if when <= now and self.deadlines.get(name) == when:
                del self.deadlines[name]
                actions += self._due(name, now)
        return actions

    def next_deadline(self) -> float:
        """When ``tick`` wants to be called next, or ``NEVER``."""
        return min(self.deadlines.values(), default=NEVER)

    # -- events ---------------------------------------------------------------

    def _on_order(self, now: float, message: dict[str, Any]) -> list[Action]:
        if "lease" in self.deadlines:
            self.deadlines["lease"] = now + self.lease
        if self.state in (DYING, OVER):
            return []  # N-1
        self.in_doubt = False
        if self.watches and not self.paused:
            self.deadlines["peer"] = now + LATE * self.heartbeat
        kind = message.get("type")
        if kind == "watch" and self.state == FRESH:
            return [("watch",)]
        if kind == "ping":
            return []
        if kind == "prepare" and self.state == FRESH:
            self.state = PREPARED
            self.lease = message["lease"]
            self.lifeline_grace = message["lifeline_grace"]
            self.heartbeat = message["heartbeat"]
            self.deadlines["lease"] = now + self.lease
            self.deadlines["beat"] = now + self.heartbeat
            return [("credit", message["credit"]), ("prepare", message)]
        if kind == "prepare" and not self.alive and not self.draining:  # N-5
            self.state = PREPARED
            return [("prepare", message)]
        if kind == "start_ranks" and self.state == PREPARED:
            self.state = RUNNING
            return [("start_ranks", message)]
        if kind in CARRIED_OUT[self.state]:
            return [(CARRIED_OUT[self.state][kind], message)]
        if kind == "signal_ranks":
            ranks = message["ranks"]
            # a rank that is draining has ended, but what it left in its group has not
            known = self.alive | self.draining
            members = sorted(known if ranks is None else known.intersection(ranks))
            signal = "signal_ranks", members, message["signum"], message.get("to", "all")
            return [signal] if members else []
        if kind == "sweep":
            return [("sweep",)]
        if kind == "credit":
            return [("credit", message["count"])]
        if kind == "pause_ranks":
            self.paused = True
            self.deadlines.pop("lease", None)
            self.deadlines.pop("peer", None)
            watch: list[Action] = [("watch_peer", False)] if self.watches else []
            return [
                *watch,
                ("signal_ranks", sorted(self.alive), SIGSTOP),
                ("send", "node.paused", {}),
            ]
        if kind == "resume_ranks":
            self.paused = False
            self.deadlines["lease"] = now + self.lease
            watch = [("watch_peer", True)] if self.watches else []
            return [
                *watch,
                ("signal_ranks", sorted(self.alive), SIGCONT),
                ("send", "node.heard", {}),
            ]
        if kind == "finish":
            self.state = OVER
            self.deadlines.clear()
            return [("sweep",)]
        return [
            ("send", "node.noticed", {"text": "order %r ignored while %s" % (kind, self.state)})
        ]

    def _on_spawned(self, now: float, pairs: list[list[int]]) -> list[Action]:
        self.alive.update(rank for rank, _ in pairs)
        return [("send", "rank.spawned", {"pids": pairs})]

    def _on_exited(
        self, now: float, rank: int, status: int, why: dict[str, Any] | None = None
    ) -> list[Action]:
        if rank not in self.alive:
            return []  # N-3
        self.alive.discard(rank)
        self.draining.add(rank)
        self.deadlines["drain", rank] = now + DRAIN
        told = {"rank": rank, "status": status, **(why or {})}
        actions: list[Action] = [("send", "rank.exited", told)]
        if not self.alive and "kill" in self.deadlines:  # N-2: no rank is left to wait for
            del self.deadlines["kill"]
            actions.append(("sweep",))
        return actions

    def _on_drained(self, now: float, rank: int) -> list[Action]:
        self.draining.discard(rank)
        self.deadlines.pop(("drain", rank), None)
        return []

    def _on_lifeline(self, now: float, why: str) -> list[Action]:
        if self.state in (DYING, OVER):
            return []
        self.state = DYING
        self.deadlines.clear()
        # the launcher may still read, and must know that ranks which fail now are not to blame
        actions: list[Action] = [("send", "node.dying", {"why": why})]
        if not self.alive:
            return [*actions, ("sweep",)]
        self.deadlines["kill"] = now + self.lifeline_grace
        alive = sorted(self.alive)
        return [*actions, ("signal_ranks", alive, SIGTERM), ("signal_ranks", alive, SIGCONT)]

    def _on_swept(
        self, now: float, killed: int, left: list[int], mark: int | None, stuck: list[str]
    ) -> list[Action]:
        if self.state == DYING:
            return [("exit", EXIT_LIFELINE)]
        fields = {"killed": killed, "left": left, "mark": mark, "stuck": stuck}
        actions: list[Action] = [("send", "node.swept", fields)]
        return [*actions, ("exit", EXIT_OK)] if self.state == OVER else actions

    # -- deadlines ------------------------------------------------------------

    def _due(self, name: Key, now: float) -> list[Action]:
        if isinstance(name, tuple):
            if not self.held_back:
                return [("send", "rank.leaked", {"rank": name[1]}), ("cut", name[1])]
            self.deadlines[name] = now + DRAIN
            return []
        if name == "lease":
            why = "the agent heard nothing from the launcher for %.0f s" % self.lease
            return self._on_lifeline(now, why)
        if name == "kill":
            return [("sweep",)]
        if name == "peer":
            first, self.in_doubt = not self.in_doubt, True
            self.deadlines["peer"] = now + 1.0
            return [("ask_peer", first), ("send", "node.heard", {})]
        self.deadlines["beat"] = now + self.heartbeat
        if self.in_doubt:
            return []  # of this the guardian thinks for itself
        # a stopped launcher does not read, and beats would pile up
        return [("alive",)] if self.paused else [("send", "node.heard", {}), ("alive",)]
