"""Agents that are scripted: they answer orders as the true ones do, when the model says.

Orders are read with the true decoder, and what is said goes through the true one at the other end.
What may go wrong there: ranks fail, a host is cut off, says nothing, lies, or floods the launcher.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from dispatcher.bootstrap import payload
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import (
    COUNT,
    ENDED,
    OUTPUT,
    SYNC,
    Decoder,
    control,
    encode,
)
from dispatcher.remote.protocol.packing import unpack
from dispatcher.transport.base import Link, LinkClosed, RecvBuffer
from simulation import model
from simulation.world import World

#: how a login's time is divided among the steps that a transport tells
_STEPS = (
    ("ssh configuration", 0.02), ("name lookup", 0.05), ("connection", 0.03), ("ssh banner", 0.25),
    ("key exchange", 0.25), ("authentication", 0.3), ("channel", 0.05), ("command start", 0.05),
)  # fmt: skip
#: signals after which ranks live on
_HARMLESS = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP}
#: notices at once, and seconds until the next, of a host that floods
_FLOOD, _AGAIN = 100, 0.1


class Wire(Link):
    """The link to a host: what is written arrives there, what it says arrives here."""

    def __init__(self, world: World, agent: Agent) -> None:
        self.address = agent.address
        self.by = world.way.name(agent.number)
        self.steps = tuple((name, agent.host.login * share) for name, share in _STEPS)
        self._world = world
        self._agent = agent
        self._out = RecvBuffer()
        self._unanswered: float | None = None  # seconds until silence of the kernel ends it
        self._why: Failure | None = None
        self._closed = False

    def say(self, data: bytes) -> None:
        """The host says ``data``, on which its thread wakes."""
        self._out.feed(data)

    def hang_up(self, why: Failure | None = None) -> None:
        """No more comes from there."""
        self._why = why
        self._out.close()

    def vanish(self) -> None:
        """The host's kernel answers no more."""
        if self._unanswered is not None:
            gone = Failure(Kind.LOST, f"no answer for {self._unanswered:.0f} s")
            self._world.after(self._unanswered, lambda: self.hang_up(gone))

    # -- what the launcher does with it ----------------------------------------------------

    def watch(self, ready: Callable[[], None]) -> None:
        self._out.watch(ready)

    def read(self, limit: int) -> bytes | None:
        return self._out.take(limit)

    def read_errors(self, limit: int) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        if self._closed or self._out.spent:
            raise LinkClosed
        world, agent = self._world, self._agent
        world.sent += len(data)
        agent.orders_size += len(data)
        gone = world.busy(len(data) * world.model.launcher_byte)
        half = world.way.half(agent.number)
        world.at(gone + half, lambda: agent.receive(self, data), theirs=True)

    def end_input(self) -> None: ...

    def gone(self) -> bool:
        return self._out.spent

    def errors_ended(self) -> bool:
        return True

    def close(self) -> None:
        self._closed = True
        self._agent.closed(self)

    def ending(self, timeout: float) -> Ending:
        return Ending(None) if self._why is not None else Ending(0)

    def failure(self, timeout: float) -> Failure | None:
        return self._why

    def expect_answers(self, seconds: float) -> bool:
        if self.by == "tree":
            return False
        self._unanswered = seconds
        return True


class Agent:
    """The agent of host ``number``. released: called when a barrier opens there."""

    def __init__(
        self, world: World, number: int, host: model.Host, released: Callable[[], None]
    ) -> None:
        self.number = number
        self.host = host
        self.address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.orders_size = 0  # bytes of all orders
        self.is_mute = False  # it never says a word
        self._world = world
        self._released = released
        self._wire: Wire | None = None
        self._is_cut = False
        self._begin()

    def _begin(self) -> None:
        self.living: list[int] = []
        self._is_up = False
        self._waiting: list[bytes] = []  # came before it was up
        self._decoder = Decoder()
        self._written: dict[int, int] = {}
        self._heartbeat = 0.0
        self._size = 0  # of the world

    @property
    def _is_away(self) -> bool:
        """Whether nothing gets through to it, or from it."""
        behind = self._wire is not None and self._wire.by is not None
        return self._is_cut or (behind and not self._world.way.reaches(self.number))

    def link(self) -> Wire:
        """A new link: the agent is started over it."""
        self._begin()
        self._wire = Wire(self._world, self)
        return self._wire

    def closed(self, wire: Wire) -> None:
        """The launcher has closed the link."""
        if wire is self._wire:
            self._wire = None

    # -- what it says ----------------------------------------------------------------------

    def _say(self, data: bytes) -> None:
        """``data`` arrives at the launcher, if this is still the link that it was meant for."""
        wire = self._wire
        if wire is None or self._is_away:
            return

        def arrive() -> None:
            if not self._is_away:
                wire.say(data)

        self._world.after(self._world.way.half(self.number), arrive)

    def _report(self, type: str, **fields: Any) -> None:
        self._say(control(type, **fields))

    def _later(self, seconds: float, do: Callable[[], None], *, works: bool = True) -> None:
        """``do`` when the host has worked for so long, or waited, on the link of now."""
        wire = self._wire

        def act() -> None:
            if self._wire is wire and not self._is_away:
                do()

        world = self._world
        when = world.host_busy(seconds) if works else world.clock.now + seconds
        world.at(when, act, theirs=True)

    def _ends(self, statuses: Mapping[int, int]) -> None:
        """Ranks exit; each tells its status and the ends of its streams."""
        frames = []
        for rank, status in statuses.items():
            self.living.remove(rank)
            frames.append(control("rank.exited", rank=rank, status=status, error=None))
            for stream in (1, 2):
                count = self._written.pop(rank, 0) if stream == 1 else 0
                frames.append(encode(ENDED, COUNT.pack(count), rank, stream))
        self._say(b"".join(frames))

    # -- orders ----------------------------------------------------------------------------

    def receive(self, wire: Wire, data: bytes) -> None:
        """Bytes of the launcher arrive."""
        if wire is not self._wire or self._is_away or self.is_mute:
            return
        if not self._is_up:
            if not self._waiting:
                self._later(self.host.boot, self._boot)
            self._waiting.append(data)
            return
        if b"release_fence" in data[-64:]:  # too large to be read by each
            self._world.after(0, self._released)
            return
        for frame in self._decoder.feed(data):
            order = unpack(frame.body)
            assert isinstance(order, dict)
            answer = _ANSWERS.get(order["type"])
            if answer is not None:
                answer(self, order)

    def _boot(self) -> None:
        self._is_up = True
        self._say(SYNC)
        first, *others = self._waiting
        self._waiting = []
        for data in (first[len(payload.payload()) :], *others):
            assert self._wire is not None
            self.receive(self._wire, data)

    def _prepare(self, order: Mapping[str, Any]) -> None:
        if not self._heartbeat:
            self._later(order["heartbeat"], self._beat, works=False)
        self._heartbeat = order["heartbeat"]
        reserve = order["reserve"]
        facts = {
            "hostname": f"host{self.number}", "pid": 7, "python": "3.12.3", "cores": 96, "gpus": 8,
            "addresses": [self.address], "machine": f"machine-{self.number}", "code": [],
            "error_folder": f"/tmp/dispatch-{self.number}", "room": [1 << 33, 1 << 33],
            "port": None if reserve is None else 29500, "mark": None, "self_fencing": True,
            "visible": None, "script": 1,
        }  # fmt: skip
        answer = {"facts": facts, "problems": [], "attempt": order["attempt"]}
        self._later(self.host.check, lambda: self._report("node.ready", **answer))

    def _beat(self) -> None:
        self._report("node.heard")
        self._later(self._heartbeat, self._beat, works=False)

    def _probe(self, order: Mapping[str, Any]) -> None:
        self._later(
            self.host.probe, lambda: self._report("node.probed", reached=order["addresses"])
        )

    def _start(self, order: Mapping[str, Any]) -> None:
        ranks = [one[0] for one in order["ranks"]]
        self._later(self.host.spawn * len(ranks), lambda: self._spawned(ranks))

    def _spawned(self, ranks: list[int]) -> None:
        self.living = list(ranks)
        self._report("rank.spawned", pids=[[rank, 1000 + rank] for rank in ranks])
        self._later(self.host.start, lambda: self.write(b"rank %d of the job is up\n"))

    def write(self, line: bytes) -> None:
        """Each rank writes ``line``, with its number in it."""
        frames = []
        for rank in self.living:
            text = line % rank
            self._written[rank] = self._written.get(rank, 0) + len(text)
            frames.append(encode(OUTPUT, text, rank, 1))
        self._say(b"".join(frames))

    def _signal(self, order: Mapping[str, Any]) -> None:
        number = order["signum"]
        if number not in _HARMLESS and self.living:
            self._later(self.host.react, lambda: self.end(-number))

    def _sweep(self, order: Mapping[str, Any]) -> None:
        def swept() -> None:
            self.end(-signal.SIGKILL)
            self._report("node.swept", killed=0, left=[])
            if order["type"] == "finish" and (wire := self._wire) is not None:
                self._world.after(self._world.way.half(self.number), wire.hang_up)

        self._later(self.host.sweep, swept)

    # -- what its script says --------------------------------------------------------------

    @property
    def works(self) -> bool:
        """Whether its ranks live, and are reached."""
        return bool(self.living) and not self._is_away

    def end(self, status: int = 0) -> None:
        """All ranks that live exit with ``status``."""
        self._ends(dict.fromkeys(self.living, status))

    def fail(self, status: int = 3) -> None:
        """The first of its ranks does."""
        self._ends({self.living[0]: status})

    def commit(self, keys: bytes) -> None:
        """All its ranks have come to the first barrier of MPI."""
        self._report("pmi.committed", world=0, fence="WORLD:0", epoch=0, keys=keys)

    def cut(self) -> None:
        """Nothing gets through any more, either way; nobody is told."""
        self._is_cut = True
        self._world.way.cut(self.number)
        if self._wire is not None:
            self._wire.vanish()

    def stop(self) -> None:
        """The agent gets no processor any more; the host's kernel goes on answering."""
        self._is_cut = True

    def lie(self) -> None:
        """It speaks of a rank that is another's."""
        self._report("rank.exited", rank=max(self.living) + 1, status=0, error=None)

    def flood(self) -> None:
        """It says more than any agent has to say, and does not cease."""
        self._say(control("node.noticed", text="x" * 2000) * _FLOOD)
        self._later(_AGAIN, self.flood, works=False)


_ANSWERS: dict[str, Callable[[Agent, Mapping[str, Any]], None]] = {
    "prepare": Agent._prepare,
    "probe": Agent._probe,
    "start_ranks": Agent._start,
    "signal_ranks": Agent._signal,
    "sweep": Agent._sweep,
    "finish": Agent._sweep,
    "release_fence": lambda agent, order: agent._released(),
}
