"""Hosts that are played: an agent as the launcher sees it, without a process or a network."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dispatcher.bootstrap import payload
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Event, Sink
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.request import Program, Request
from dispatcher.remote.protocol import frames
from dispatcher.remote.protocol.packing import unpack
from dispatcher.runner.run.run_loop import Runner
from dispatcher.transport.base import Link, LinkClosed, RecvBuffer, Target, Transport, Window

Order = Mapping[str, Any]
#: seconds between two beats: the launcher answers one with a ping at once
BEAT = 0.05
Answer = Callable[["Agent", Order], None]


class Agent(Link):
    """The agent of host ``number``; ``answers``: by the order's type, in the place of its own."""

    def __init__(self, number: int, **answers: Answer) -> None:
        self.number = number
        self.address = f"10.0.0.{number + 1}"
        self.orders: list[Order] = []
        self.input: list[bytes] = []
        self.facts: dict[str, Any] = {
            "hostname": f"host{number}", "pid": 7, "python": "3.8.0", "cores": 8, "gpus": 0,
            "addresses": [self.address], "machine": f"m{number}", "error_folder": None,
            "port": 4000 if number == 0 else None,
        }  # fmt: skip
        self.living: set[int] = set()
        self.closed = threading.Event()
        self._answers = {**ANSWERS, **answers}
        self._sent: dict[tuple[int, int], int] = {}
        self._begun = False
        self._next_beat = 0.0
        self._out = RecvBuffer()
        self._decoder = frames.Decoder()

    def types(self) -> list[str]:
        """The orders it got, less those that come by the clock."""
        return [o["type"] for o in self.orders if o["type"] not in ("ping", "credit")]

    def order(self, type: str) -> Order:
        """The last order of this type."""
        return [order for order in self.orders if order["type"] == type][-1]

    # -- what it says -------------------------------------------------------------------

    def report(self, type: str, **fields: Any) -> None:
        self._out.feed(frames.control(type, **fields))

    def beat(self) -> bool:
        """Show that it lives, if it is time to; whether it was."""
        now = time.monotonic()
        if now < self._next_beat:
            return False
        self._next_beat = now + BEAT
        self.report("node.heard")
        return True

    def ready(self, order: Order, *problems: list[str]) -> None:
        self.report(
            "node.ready", facts=self.facts, problems=list(problems), attempt=order["attempt"]
        )

    def spawned(self, order: Order) -> None:
        ranks = [one[0] for one in order["ranks"]]
        self.living.update(ranks)
        self.report("rank.spawned", pids=[[rank, 100 + rank] for rank in ranks])

    def writes(self, rank: int, data: bytes, stream: int = 1) -> None:
        self._sent[rank, stream] = self._sent.get((rank, stream), 0) + len(data)
        self._out.feed(frames.encode(frames.OUTPUT, data, rank, stream))

    def exits(self, rank: int, status: int = 0, **fields: Any) -> None:
        """The rank and its two streams end."""
        self.living.discard(rank)
        self.report("rank.exited", rank=rank, status=status, **fields)
        for stream in (1, 2):
            sent = self._sent.pop((rank, stream), 0)
            self._out.feed(frames.encode(frames.ENDED, frames.COUNT.pack(sent), rank, stream))

    def takes(self, nbytes: int) -> None:
        """The readers of its input have taken so much."""
        self._out.feed(frames.encode(frames.TAKEN, frames.COUNT.pack(nbytes)))

    def hangs_up(self) -> None:
        self._out.close()

    # -- what the launcher does with it -------------------------------------------------

    def write(self, data: bytes) -> None:
        if self.closed.is_set():
            raise LinkClosed
        if not self._begun:
            self._begun = True
            assert data.startswith(payload.payload())
            data = data[len(payload.payload()) :]
            self._out.feed(frames.SYNC)
        for frame in self._decoder.feed(data):
            if frame.kind == frames.INPUT:
                self.input.append(frame.body)
                self._answers["input"](self, {})
                continue
            order = unpack(frame.body)
            assert isinstance(order, dict)
            self.orders.append(order)
            answer = self._answers.get(order["type"])
            if answer is not None:
                answer(self, order)

    def watch(self, ready: Callable[[], None]) -> None:
        self._out.watch(ready)

    def read(self, limit: int) -> bytes | None:
        return self._out.take(limit)

    def read_errors(self, limit: int) -> bytes:
        return b""

    def end_input(self) -> None: ...

    def gone(self) -> bool:
        return self._out.spent

    def errors_ended(self) -> bool:
        return True

    def close(self) -> None:
        self.closed.set()

    def ending(self, timeout: float) -> Ending:
        return Ending(0)


def _start(agent: Agent, order: Order) -> None:
    agent.spawned(order)
    for rank, *_ in order["ranks"]:
        agent.writes(rank, b"hello from %d\n" % rank)
        agent.exits(rank)


def _ping(agent: Agent, order: Order) -> None:
    agent.beat()


def _signal(agent: Agent, order: Order) -> None:
    if order["signum"] not in (10, 12, 18):
        for rank in sorted(agent.living):
            agent.exits(rank, -order["signum"])


def _swept(agent: Agent, order: Order) -> None:
    for rank in sorted(agent.living):
        agent.exits(rank, -9)
    agent.report("node.swept", killed=0, left=[])
    if order["type"] == "finish":
        agent.hangs_up()


#: an agent whose ranks say hello and exit with 0
ANSWERS: dict[str, Answer] = {
    "prepare": Agent.ready,
    "probe": lambda agent, order: agent.report("node.probed", reached=order["addresses"]),
    "start_ranks": _start,
    "signal_ranks": _signal,
    "sweep": _swept,
    "finish": _swept,
    "ping": _ping,
    "pause_ranks": lambda agent, order: agent.report("node.paused"),
    "input": lambda agent, order: None,
}


class Hosts(Transport):
    """The way to ``agents``: the target's name ends with the agent's number."""

    name = "played"

    def __init__(self, *agents: Agent) -> None:
        self.agents = agents
        self.opened: list[tuple[Target, str]] = []

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        self.opened.append((target, command))
        number = int(target.host[1:])
        if number >= len(self.agents):
            return Failure(Kind.REFUSED, "nobody plays this host")
        return self.agents[number]


class Command(Link):
    """A host's command that is sent whole: ``answer`` makes of it what it says and its code.

    None: it says nothing, and ends when it is told to.
    """

    tells_end = True

    def __init__(self, answer: Callable[[bytes], tuple[bytes, bytes, int] | None]) -> None:
        self.address = "10.0.0.9"
        self._answer = answer
        self._opened = False
        self._out, self._errors = RecvBuffer(), b""
        self._ending = Ending(None)

    def write(self, data: bytes) -> None:
        if self._opened:
            self._end(Ending(None, data.decode().strip()))
            return
        self._opened = True
        self._out.feed(frames.SYNC)
        said = self._answer(data)
        if said is not None:
            out, self._errors, code = said
            self._out.feed(out)
            self._end(Ending(code))

    def _end(self, ending: Ending) -> None:
        self._ending = ending
        self._out.close()

    def watch(self, ready: Callable[[], None]) -> None:
        self._out.watch(ready)

    def read(self, limit: int) -> bytes | None:
        return self._out.take(limit)

    def read_errors(self, limit: int) -> bytes:
        said, self._errors = self._errors, b""
        return said

    def end_input(self) -> None: ...

    def gone(self) -> bool:
        return self._ending != Ending(None)

    def errors_ended(self) -> bool:
        return self.gone()

    def close(self) -> None: ...

    def ending(self, timeout: float) -> Ending:
        return self._ending


class Heard(Sink):
    """What the sinks are told."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.text: dict[tuple[int, int], bytes] = {}
        self.closed = False

    def event(self, entry: Entry) -> None:
        self.entries.append(entry)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.text[rank, stream] = self.text.get((rank, stream), b"") + data

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type[Event]) -> list[Any]:
        return [entry.event for entry in self.entries if isinstance(entry.event, kind)]


INT = ev.SignalReceived(signal.SIGINT)


def plan_of(count: int = 2, slots: int = 2, **fields: Any) -> JobPlan:
    hosts = tuple(Host(f"n{number}", slots=slots) for number in range(count))
    program = fields.pop("program", Program("command", ("prog", "-v")))
    return plan_job(Request(Hostlist(hosts), program, "/w", **fields), "20260131-142501-k3f9x2")


class Played:
    """A run of ``plan`` on agents with ``answers``; what became of it."""

    def __init__(
        self, plan: JobPlan, *agents: Agent, sinks: Sequence[Sink] = (), **how: Any
    ) -> None:
        self.agents = agents or tuple(Agent(node.index) for node in plan.nodes)
        self.hosts = Hosts(*self.agents)
        self.heard = Heard()
        self.runner = Runner(plan, lambda host: self.hosts, [*sinks, self.heard], **how)

    def run(self, **how: Any) -> Verdict:
        """To the end, which does not wait for ever for what never comes."""
        late = threading.Timer(60, self._leave)
        late.start()
        try:
            return self.runner.run(handled=(), **how)
        finally:
            late.cancel()
            late.join()

    def _leave(self) -> None:
        for _ in range(3):
            self.runner.tell(INT)


def agents_with(count: int, **answers: Answer) -> list[Agent]:
    return [Agent(number, **answers) for number in range(count)]
