"""Small worlds to be explored: a run on a few hosts, with all that may happen.

A fault is what no good world has; a world allows a few. What a host has said arrives in its
order, at any time; a rank ends at any time; time passes at any time, or (``slow=False``) only
while nothing is on its way. ``WORLDS`` lists these worlds and those of ``small_commands``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Self

from dispatcher.core.events import actions as act
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.verdicts import RestartAsked, Verdict
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.core.run.run_machine import TRYING, RunMachine
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.plan.job.job_plan import Change, JobPlan
from dispatcher.plan.job.request import Restarts

from .conftest import facts, make_plan
from .explorer import BEGIN, WAIT, Broken, Step, clone, freeze, need
from .small_commands import SmallCommand

GONE = Failure(Kind.UNREACHABLE, "no route to host")
#: signals that end no rank
HARMLESS = (10, 12, 18, 20)


@dataclass
class Agent:
    """What a host does and will say. words: not yet arrived, in order."""

    linked: bool = False
    mute: bool = False  # it is there, and nothing of it arrives any more
    dead: bool = False  # no new connection reaches it
    words: tuple[Step, ...] = ()
    living: dict[int, int] = field(default_factory=dict)  # rank -> the signal it was sent, or 0
    ordered: int = 0
    prepared: int = -1
    ready: bool = False  # for the attempt under way

    def key(self, settled: bool) -> Step:
        """settled: the job has its cause, and how a rank ends changes nothing any more."""
        words, living = self.words, self.living
        if settled:
            words = tuple([word[:2] if word[0] == "exited" else word for word in words])
            living = {rank: signum != 0 for rank, signum in living.items()}
        told = self.ordered, self.prepared, self.ready
        return self.linked, self.mute, self.dead, words, tuple(sorted(living.items())), told

    def copy(self) -> Agent:
        return Agent(
            self.linked, self.mute, self.dead, self.words, dict(self.living), self.ordered,
            self.prepared, self.ready,
        )  # fmt: skip


@dataclass(frozen=True)
class Small:
    """A small world. faults: how many happen at most; kinds: which (None: all)."""

    hosts: int = 2
    spares: int = 0
    slots: int = 2
    restarts: int = 0
    min_nodes: int | None = None
    faults: int = 2
    kinds: tuple[str, ...] | None = None
    slow: bool = True  # time passes also while words are on their way

    def world(self) -> Run:
        return Run(self)


class Run:
    """A run of ``RunMachine``; of each host what its agent would do. Rules: J-1 to 7, R-1 to 5."""

    def __init__(self, small: Small) -> None:
        self.small = small
        rules = Restarts(most=small.restarts, min_nodes=small.min_nodes, delay=0.5)
        plan = make_plan(
            small.hosts + small.spares,
            slots=small.slots,
            spares=small.spares or None,
            restarts=rules,
        )
        self.run = RunMachine(plan)
        self.agents = [Agent() for _ in range(small.hosts + small.spares)]
        self.now = BEGIN
        self.faults = small.faults
        self.looked: frozenset[int] = frozenset()  # hosts to be looked at for orphans
        self.failed: frozenset[int] = frozenset()  # ranks of the attempt that did not end with 0
        self.lost_output = False
        self.interrupted = False
        self.cause: Any = None  # of the attempt under way
        self.job: Any = None
        self.code: int | None = None
        self.bounded = False
        self.do(self.run.begin(self.now))

    def copy(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        memo: dict[int, Any] = {}
        other.run = clone(self.run, memo)
        other.job = memo.get(id(self.job))
        other.agents = [agent.copy() for agent in self.agents]
        return other

    def key(self) -> Step:
        """Equal for states from which the same can follow."""
        if self.code is not None:
            return "ended", self.code
        settled = self.run._job.cause is not None
        return (
            freeze(self.run, self.now, {}), tuple(agent.key(settled) for agent in self.agents),
            self.faults, self.looked, not settled and (self.failed, self.lost_output),
            self.interrupted,
        )  # fmt: skip

    # -- what can happen ------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """All that can happen next; faults last."""
        if self.code is not None:
            return
        spoken = False
        for host, agent in enumerate(self.agents):
            if agent.linked and not agent.mute and agent.words:
                yield ("hear", host)
                spoken = True
            if agent.linked and agent.mute and agent.prepared < 0:
                yield ("no answer", host)  # the edge's own limit, ``--boot-timeout``
            for rank, signum in sorted(agent.living.items()):
                if not signum or agent.linked:
                    yield ("exit", host, rank, -signum)
        for host in sorted(self.looked):
            yield ("clear", host)
        if (self.small.slow or not spoken) and self._can_wait():
            yield WAIT
        if self.faults:
            kinds = self.small.kinds
            yield from (step for step in self._faults() if kinds is None or step[0] in kinds)

    def _can_wait(self) -> bool:
        """Whether a deadline lies ahead that is more than another look at a host that is away."""
        looks, self.run.hosts.back = self.run.hosts.back, {}
        due = self.run.next_deadline()
        self.run.hosts.back = looks
        return due is not None

    def _faults(self) -> Iterator[Step]:
        for host, agent in enumerate(self.agents):
            if agent.linked:
                yield ("lose", host)
                if not agent.mute:
                    yield ("over", host)
                    yield ("mute", host)
                word = agent.words[0] if agent.words and not agent.mute else ("",)
                if word[0] == "ready":
                    yield ("refuse", host)
                elif word[0] == "spawned":
                    yield ("no start", host)
                elif word[0] == "ended":
                    yield ("missing", host)
            for rank, signum in sorted(agent.living.items()):
                if not signum:
                    yield ("crash", host, rank)
        if not self.interrupted:
            yield ("signal", 2)
            yield ("restart",)

    def take(self, step: Step) -> None:
        """Let ``step`` happen. Raises: Broken."""
        match step:
            case ("hear", int(host)):
                agent = self.agents[host]
                word, agent.words = agent.words[0], agent.words[1:]
                self._hear(host, word)
            case ("exit", int(host), int(rank), int(status)):
                self._exit(host, rank, status)
            case ("no answer", int(host)):
                self._lose(host, Failure(Kind.TIMEOUT, "no answer"))
            case ("clear", int(host)):
                self.looked -= {host}
                self.agents[host].living.clear()
                self.tell(ev.NodeCleared(host, 1))
            case ("wait",):
                self._wait()
            case _:
                self.faults -= 1
                self._fault(step)

    def _wait(self) -> None:
        due = self.run.next_deadline()
        assert due is not None
        self.now = max(self.now, due)
        for host, agent in enumerate(self.agents):
            if agent.linked and agent.prepared >= 0 and not agent.mute:
                self.tell(ev.NodeHeard(host))
        for host, when in self.run.hosts.fences().items():
            if when <= self.now and not self.agents[host].linked:
                self.agents[host].living.clear()  # its lease has run out: they were ended for that
        self.do(self.run.tick(self.now))

    def _exit(self, host: int, rank: int, status: int) -> None:
        agent = self.agents[host]
        del agent.living[rank]
        if agent.linked:
            agent.words += ("exited", rank, status), ("ended", rank)

    def _fault(self, step: Step) -> None:
        match step:
            case ("lose", int(host)):
                self._lose(host, GONE)
            case ("over", int(host)):
                self.agents[host].living.clear()
                self._lose(host, Failure(Kind.LOST, "the agent ended"), Ending(3))
            case ("mute", int(host)):
                self.agents[host].mute = True
            case ("refuse", int(host)):
                self._replace(host, ("refused", *self.agents[host].words[0][1:]))
            case ("no start", int(host)):
                rank = self.agents[host].words[0][1]
                self.agents[host].living.pop(rank, None)
                words = self.agents[host].words[1:]
                left = tuple(word for word in words if word[1:2] != (rank,))
                self.agents[host].words = ("absent", rank), *left
            case ("missing", int(host)):
                self._replace(host, ("missing", *self.agents[host].words[0][1:]))
            case ("crash", int(host), int(rank)):
                self._exit(host, rank, 1)
            case ("signal", int(signum)):
                self.interrupted = True
                self.tell(ev.SignalReceived(signum))
            case ("restart",):  # dispatch restart
                self.do(self.run.restart(Change(), ev.RestartWanted((), ()), self.now))

    def _replace(self, host: int, word: Step) -> None:
        self.agents[host].words = (word, *self.agents[host].words[1:])

    def _lose(self, host: int, failure: Failure, ending: Ending | None = None) -> None:
        agent = self.agents[host]
        agent.linked, agent.words = False, ()
        agent.dead = ending is None
        self.tell(ev.NodeLost(host, failure, ending))

    def _hear(self, host: int, word: Step) -> None:
        agent = self.agents[host]
        attempt = max(0, agent.prepared)
        match word:
            case ("ready", int(number)) | ("refused", int(number)):
                agent.prepared = number
                agent.ready = word[0] == "ready"
                port = 4000 if self.run.host_at(0) == host else None
                problems = () if agent.ready else (("workdir", "no such folder"),)
                known = facts(host, port=port)
                self.tell(ev.NodeReady(host, known, problems, attempt=number))
            case ("away",):
                self._lose(host, GONE)
            case ("probed",):
                self.tell(ev.NodeProbed(host, ("10.0.0.1",), attempt=attempt))
            case ("spawned", int(rank)):
                self.tell(ev.RankSpawned(host, rank, 100 + rank, attempt=attempt))
            case ("absent", int(rank)):
                self.failed |= {rank}
                event = ev.RankFailedToStart(host, rank, 2, "exec", "prog", attempt=attempt)
                self.tell(event)
            case ("exited", int(rank), int(status)):
                if status:
                    self.failed |= {rank}
                self.tell(ev.RankExited(host, rank, status, attempt=attempt))
            case ("ended", int(rank)) | ("missing", int(rank)):
                lost = word[0] == "missing"
                self.lost_output = self.lost_output or lost
                for stream in (1, 2):
                    sent = 3 + (lost and stream == 1)
                    self.tell(ev.OutputEnded(host, rank, stream, 3, sent, attempt=attempt))
            case ("swept",):
                self.tell(ev.NodeSwept(host, 0, (), attempt=attempt))

    # -- the edge -------------------------------------------------------------------------------

    def tell(self, event: ev.Event) -> None:
        self.do(self.run.handle(event, self.now))

    def do(self, actions: Sequence[act.Action]) -> None:
        for action in actions:
            need(self.code is None, f"J-5, R-1: {action} after the end")
            self._do(action)
        job = self.run._job
        if self.job is job and self.cause is not None:
            asked = isinstance(self.cause, RestartAsked)
            need(asked or job.cause is self.cause, "J-3: another cause")
        elif self.job is not job:
            self.failed, self.lost_output = frozenset(), False
        self.job, self.cause = job, job.cause
        self.run.hosts._tries.clear()  # each look at a lost host comes as soon as the first
        self._forget(job)

    def _forget(self, job: AttemptMachine) -> None:
        """What is only told to people, so that states which differ in no more are one state."""
        run = self.run
        job._before = ()
        job._sent.clear()
        job._ended.clear()
        if job.cause is not None:
            job._ranks.statuses.clear()
        for world in job._mpi._worlds.values() if job._mpi else ():
            world.fences._ended.clear()  # no rank of a small world comes to a fence
            world.fences._ended_nodes.clear()
        if run.state == TRYING:  # the verdict is of an attempt before
            run._verdict = None
        run._attempts.clear()
        same: list[tuple[dict[int, Any], Any]] = [
            (job._lost, GONE), (job._check._failures, GONE), (run.hosts.out, ""),
        ]  # fmt: skip
        for by_node, value in same:
            by_node.update(dict.fromkeys(by_node, value))

    def _do(self, action: act.Action) -> None:
        match action:
            case act.OpenLink(host, attempt):
                agent = self.agents[host]
                need(not agent.linked, f"a second link to {host}")
                self.looked -= {host}  # such a look has ended long before
                agent.linked, agent.mute = True, False
                agent.ordered, agent.prepared = attempt, -1
                agent.words = (("away",),) if agent.dead else (("ready", attempt),)
            case act.Prepare(host, attempt):
                agent = self._there(action, host)
                need(not agent.living, f"R-3: {host} is prepared while {agent.living} live there")
                agent.ordered = attempt
                agent.words += (("ready", attempt),)
                for one in self.agents:
                    one.ready = False
            case act.Probe(host):
                self._there(action, host).words += (("probed",),)
            case act.StartRanks(plan, node):
                self._start(action, plan, node)
            case act.SignalRanks(host, signum):
                agent = self._there(action, host)
                if signum not in HARMLESS:
                    agent.living = dict.fromkeys(agent.living, int(signum))
            case act.Sweep(host) | act.Finish(host):
                agent = self._there(action, host)
                for rank in sorted(agent.living):
                    self._exit(host, rank, -9)
                agent.words += (("swept",),)
            case act.CloseLink(host):
                self.agents[host].linked, self.agents[host].words = False, ()
            case act.CheckOrphans(host):
                self.looked |= set() if self.agents[host].dead else {host}
            case act.End(verdict):
                self._end(verdict)
            case act.Tell():
                pass
            case _:
                raise Broken(f"nobody asked for {action}")

    def _there(self, action: act.Action, host: int) -> Agent:
        need(self.agents[host].linked, f"R-5: {action} without a link")
        return self.agents[host]

    def _start(self, action: act.Action, plan: JobPlan, node: int) -> None:
        need(not self.interrupted, "J-2, R-2: a start after a signal")
        here = [self.run.host_at(place.index) for place in plan.nodes]
        for host in here:
            need(self.agents[host].ready, f"J-1: {host} was never ready")
        host = self.run.host_at(node)
        agent = self._there(action, host)
        began = {one for one in here if self.agents[one].living}
        for number, one in enumerate(self.agents):
            need(number in began or not one.living, f"R-3: {one.living} of before still live")
        agent.living = dict.fromkeys(plan.nodes[node].ranks, 0)
        agent.words += tuple(("spawned", rank) for rank in plan.nodes[node].ranks)

    def _end(self, verdict: Verdict) -> None:
        self.code = verdict.exit_code
        if verdict.exit_code == 0:
            need(self.run._job.cause is None, "J-6: exit code 0, and it has a cause")
            need(not self.failed, f"J-6: exit code 0, and {set(self.failed)} failed")
            need(not self.lost_output, "J-6: exit code 0, and output is missing")
            need(len(verdict.statuses) == verdict.world_size, "J-6: exit code 0 of a part")
        if self.faults == self.small.faults:
            slow = verdict.exit_code and self.small.slow
            need(slow or not verdict.exit_code, f"it failed without a fault: {verdict.cause}")


#: what ``scripts/explore`` explores
WORLDS: dict[str, Small | SmallCommand] = {
    "1x2": Small(hosts=1),
    "2x1": Small(slots=1),
    "2x2": Small(),
    "3x1": Small(hosts=3, slots=1, slow=False),
    "3x1 slow": Small(hosts=3, slots=1, faults=1),
    "restart": Small(restarts=1, slow=False),
    "restart slow": Small(slots=1, restarts=1),
    "spare": Small(slots=1, spares=1, restarts=1, slow=False),
    "shrink": Small(restarts=1, min_nodes=1, slow=False),
    "command": SmallCommand(limits=(("fanout", 2), ("command", 20.0), ("total", 60.0))),
    "command sudo": SmallCommand(sudo=True, limits=(("fanout", 2),)),
    "command serial": SmallCommand(limits=(("serial", "1,2"), ("max_fail", "1"), ("delay", 2.0))),
}
