"""The one loop of a run: events from the inbox, decisions from the core, actions to the edges.

docs/design/threads.md names the other threads; all are started and joined here. The loop must run
in the main thread to get signals.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from dispatcher.bootstrap import payload
from dispatcher.core.events import actions as act
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import CheckOrphans
from dispatcher.core.events.monitor_events import SamplesWanted, VersionsWanted
from dispatcher.core.events.run_events import Sink
from dispatcher.core.events.verdicts import Verdict
from dispatcher.core.hang_monitor import MonitoredRun
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.model.host import Host
from dispatcher.plan.job.job_plan import Change, JobPlan
from dispatcher.plan.variables import redacted_words
from dispatcher.remote.host import host_facts
from dispatcher.remote.protocol.frames import control
from dispatcher.runner.loop import JOIN_LIMIT, ConnectGate, EventLoop, HostExecutor, signals_to
from dispatcher.runner.run.agent_link import AgentLink
from dispatcher.runner.run.liveness import Heartbeats, Sampling, Silences
from dispatcher.runner.run.orders import prepare_order, ranks_bound, start_order
from dispatcher.runner.run.stdin_reader import StdinReader
from dispatcher.transport.base import Target, Transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.runner.run.liveness import Flow

#: takes (node, rank, stream, data)
Output = Callable[[int, int, int, bytes], None]

#: seconds that sinks may take to show what they have when the loop itself has failed
FAILED_LIMIT = 3.0

#: a wake-up this late (s) means that dispatch itself was stopped (^Z, a frozen machine)
OVERSLEPT = 1.0
#: seconds after which the user gets a note: of a host's silence, and of our own sleep
SILENT = 5.0

HANDLED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGTSTP,
)  # fmt: skip


class Runner(EventLoop):
    """Carries out one run of ``plan``.

    transport_for: host -> the way to reach it. sinks: get events. check: see ``AttemptMachine``.
    check_orphans: carries out a ``CheckOrphans``. resend: sends the working folder again, and
    reports. Both return at once. agent_python: the interpreter to try first for the agent.
    sample_every: seconds between two samples of the ranks. ``reached`` gets rank, text and (done,
    total) of a find of ``--progress-line``, from the threads of hosts. looks: hosts report
    ``GpusUsed``.
    """

    def __init__(
        self,
        plan: JobPlan,
        transport_for: Callable[[Host], Transport],
        sinks: Sequence[Sink],
        *,
        check_orphans: Callable[[CheckOrphans], None] = lambda look: None,
        check: bool = True,
        resend: Callable[[], None] | None = None,
        agent_python: str | None = None,
        sample_every: float | None = None,
        looks: bool = False,
        sink_failed: Callable[[Sink, Exception], None] = lambda sink, error: None,
        reached: Callable[[int, str, tuple[float, float] | None], None] = lambda *found: None,
    ) -> None:
        self._run = RunMachine(
            plan, check=check, sync=resend is not None, machine=host_facts.identity()
        )
        n_hosts = len(self._run.hosts.planned)
        super().__init__(sinks, sink_failed, n_hosts)
        self._plan = plan
        self._machine = MonitoredRun(self._run)
        self._transport_for = transport_for
        self._look_again = check_orphans
        self._resend = resend
        self._changes: deque[Change] = deque()
        self._output: Output = self._feed.output
        if plan.restarts.progress_line is not None:
            from dispatcher.runner.run.liveness import ProgressLine

            self._progress = ProgressLine(plan.restarts.progress_line, self._progressed)
            self._output = self._watched
        self._flow: Flow | None = None
        if plan.limits.hang_timeout:
            from dispatcher.core.hang_rule import every
            from dispatcher.runner.run.liveness import Flow

            self._flow = Flow()
            self._output = self._counted(self._output)
            often = every(plan.limits.hang_timeout)
            sample_every = often if sample_every is None else min(sample_every, often)
        self._agent_python = agent_python
        self._sampling, self._looks = Sampling(sample_every), looks
        self._beats = Heartbeats()
        lost = plan.limits.kernel_silence
        self._silences = Silences(min(SILENT, lost / 3), lost)
        self._hosts: dict[int, AgentLink] = {}
        self._executor = HostExecutor()
        self._facts: dict[int, ev.Facts] = {}
        self._gate = ConnectGate(plan.limits.fanout, plan.limits.connect_timeout)
        self._token = os.urandom(16)
        self._kvs_name = f"kvs_{os.urandom(8).hex()}"
        self._stdin = (
            None
            if plan.stdin == "none"
            else StdinReader(lambda node, frame: self._hosts[node].send_input(frame), self.tell)
        )
        self._master_addr = ""
        self._reached, self._seen_in = reached, -1  # the attempt in which progress was last seen
        self._verdict: Verdict | None = None

    @property
    def plan(self) -> JobPlan:
        """The present plan: closed once the hosts' GPUs were counted."""
        return self._run.plan

    def home(self, rank: int) -> tuple[int, int]:
        """Number of the host where ``rank``, spawned or not, runs or ran, and its number on it."""
        return self._run.home(rank)

    def host_of(self, rank: int) -> str:
        """The name of that host."""
        return self._run.hosts.name(self._run.home(rank)[0])

    def run(
        self,
        verdict: Verdict | None = None,
        handled: Sequence[signal.Signals] = HANDLED,
        known: Sequence[ev.Event] = (),
    ) -> Verdict:
        """Run to the end; the verdict. With a verdict given nothing is run; the sinks get it.

        handled: the signals that are the run's; () outside the main thread. known: earlier events,
        for the sinks. At the return every thread has ended, except threads that hang.
        """
        self._began = time.monotonic()
        self._feed.start()
        with signals_to(lambda signum: self.tell(ev.SignalReceived(signum)), handled):
            try:
                for event in known:
                    self._record(event)
                self._verdict = verdict
                if verdict is None:
                    self._do(self._run.begin(self._began))
                else:
                    self._asks_to_leave()  # a client that asked before gets the verdict
                while self._verdict is None:
                    self._step()
                for event in self._stdin.close() if self._stdin else ():
                    self._record(event)
                cause = self._verdict.cause
                outcome = "ok" if cause is None else type(cause).__name__
                self._record(ev.RunFinished(self._verdict.exit_code, outcome))
            finally:
                if self._stdin is not None:
                    self._stdin.close()
                self._executor.close(JOIN_LIMIT)
                # after an exception in dispatch nothing may end the wait, or ask us to leave
                late = time.monotonic() + FAILED_LIMIT if self._verdict is None else math.inf
                self._feed.finish(lambda: self._asks_to_leave() or time.monotonic() > late)
        return self._verdict

    def restart(self, change: Change) -> None:
        """Have the ranks started again, with ``change``; from any thread. The journal gets no
        secret.
        """
        words = () if change.program is None else tuple(redacted_words(change.program.argv))
        self._changes.append(change)
        self.tell(ev.RestartWanted(words, tuple(name for name, _ in change.exports)))

    def _step(self) -> None:
        arrived = self._wait(self._machine.next_deadline())
        if self._overslept > OVERSLEPT:  # our other threads must first take what came in that time
            self._tell_beats()  # older beats, after which others were due in their time
            self._machine.extend_deadlines(self._overslept)
        if self._slept > SILENT:
            self._observe(ev.LauncherSlept(round(self._slept, 1)))
        self._tell_flow()  # a sample that arrived is judged by the output that came before it
        # arrived events go before due ones, so that our own delay makes no host late
        for event in arrived:
            if self._verdict is None:
                self._observe(event)
        if self._verdict is None:
            self._tell_flow()
            now = time.monotonic()
            for event in self._silences.news(now):
                self._observe(event)
            due = self._machine.next_deadline()
            if due is not None and due <= now:
                self._tell_beats()
            self._do(self._machine.tick(now))

    def _tell_beats(self) -> None:
        """Pass on heartbeats, which are not events, before the core would miss them."""
        beats = self._beats.news(time.monotonic())
        if beats is not None:
            self._observe(beats)

    def _tell_flow(self) -> None:
        """Pass on output, which is not an event, before the core would find that there is none."""
        now = time.monotonic()
        if self._flow is not None and self._machine.is_quiet(now):
            from dispatcher.core.events.monitor_events import OutputSeen

            for ago, progress in self._flow.news(now):
                self._observe(OutputSeen(ago, progress))

    def _suspend(self) -> None:
        """Stop here until SIGCONT; the whole process stops, its threads too."""
        stopped = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._machine.extend_deadlines(time.monotonic() - stopped)
        self.tell(ev.SignalReceived(signal.SIGCONT))

    def _observe(self, event: ev.Event) -> None:
        self._record(event)
        if isinstance(event, SamplesWanted):
            self._sampling.ask(event.seconds)
            return
        if isinstance(event, VersionsWanted):
            self._sampling.ask_versions()
            return
        if isinstance(event, ev.RestartWanted):
            self._do(self._run.restart(self._changes.popleft(), event, time.monotonic()))
            return
        if isinstance(event, ev.NodeReady):
            self._facts[event.node] = event.facts
        if self._stdin is not None:
            self._stdin.observe(event, self.plan, self._run.host_at)
        self._do(self._machine.handle(event, time.monotonic()))

    def _taken(self, node: int, nbytes: int) -> None:
        self._hosts[node].taken(nbytes)
        if self._flow is not None:
            self._flow.taken(nbytes)

    def _told(self, event: ev.Event) -> None:
        host = self._hosts.get(getattr(event, "node", -1))
        if host is not None:
            host.done(event)

    def _counted(self, output: Output) -> Output:
        flow = self._flow
        assert flow is not None

        def counted(node: int, rank: int, stream: int, data: bytes) -> None:
            flow.given(node, len(data))
            output(node, rank, stream, data)

        return counted

    def _watched(self, node: int, rank: int, stream: int, data: bytes) -> None:
        self._progress.feed(node, rank, stream, data)
        self._feed.output(node, rank, stream, data)

    def _progressed(
        self, node: int, rank: int, first: str, last: str, part: tuple[float, float] | None
    ) -> None:
        self._reached(rank, last, part)
        if self._flow is not None:
            self._flow.progressed()
        attempt = self._hosts[node].intake.attempt
        if attempt > self._seen_in:
            self._seen_in = attempt
            self.tell(ev.RanksProgressed(node, rank, first, attempt=attempt))

    # -- actions ------------------------------------------------------------------------

    def _do(self, actions: Sequence[act.Action]) -> None:
        for action in actions:
            match action:
                case act.OpenLink(node, attempt):
                    self._open(node, attempt)
                case act.Prepare(node, attempt):
                    self._hosts[node].again(self._prepare(node, attempt), attempt)
                case act.StartRanks():
                    self._start(action)
                case act.SpawnRanks():
                    self._spawn(action)
                case act.Suspend():
                    self._suspend()
                case act.Order(node):
                    self._send(action, node)
                case act.ReleaseFence(nodes):
                    self._send(action, *nodes)
                case act.ShareWorld(node, world):
                    from dispatcher.runner.run.orders import world_order

                    known = world_order(self.plan, world, node, self._kvs())
                    self._hosts[self._run.host_at(node)].send(known)
                case act.ServePmix(node):
                    from dispatcher.runner.run.orders import pmix_order

                    number = self._run.host_at(node)
                    self._hosts[number].send(pmix_order(self.plan, node))
                case act.GatherStacks(node):
                    self._sampling.gather(self._hosts[node], action)
                case CheckOrphans():
                    self._look_again(action)
                case act.SendFolder():
                    assert self._resend is not None
                    self._resend()
                case act.Finish(node):
                    self._hosts[node].finish()
                case act.CloseLink(node):
                    self._hosts[node].close()
                    self._silences.forget(node)
                case act.Tell(event):
                    self._record(event)
                case act.End(verdict):
                    self._verdict = verdict

    def _send(self, action: act.Action, *nodes: int) -> None:
        frame = control(action.order, **action.fields())
        for node in nodes:
            self._hosts[node].send(frame)

    def _open(self, node: int, attempt: int) -> None:
        plan, place = self._plan, self._run.hosts.planned[node]
        limits = plan.limits
        transport = self._transport_for(place.host)
        first = [self._agent_python] if self._agent_python else []
        if not first and transport.name == "local" and payload.is_plain(sys.executable):
            first = [sys.executable]  # known to be there and good; a python3 shim costs 0.1 s
        host = AgentLink(
            node=node,
            target=Target(place.host.name, place.host.user, place.host.port),
            transport=transport,
            command=payload.command(
                first=first, last=[place.host.python or plan.python], run_id=plan.run_id
            ),
            prepare=self._prepare(node, attempt),
            gate=self._gate,
            boot_timeout=limits.boot_timeout,
            heartbeat=limits.heartbeat,
            unreachable=limits.kernel_silence,
            self_fencing=bool(plan.restarts.most),
            attempt=attempt,
            credit=self._credit,
            tell=self.tell,
            output=self._output,
            on_heartbeat=self._beats.note,
            on_silence=self._silences.note,
            **({} if self._stdin is None else {"input_taken": self._stdin.taken}),
        )
        self._gate.anew(node)
        self._hosts[node] = host
        self._executor.serve(host)

    def _prepare(self, node: int, attempt: int) -> bytes:
        head = self._run.host_at(0) == node
        place = self._run.hosts.planned[node]
        return prepare_order(self.plan, place, self._token, self._credit, attempt, head=head)

    def _start(self, action: act.StartRanks) -> None:
        plan, number = action.plan, self._run.host_at(action.node)
        host, facts = self._hosts[number], self._facts[number]
        if action.node == 0 and plan.restarts.progress_line is not None:
            self._progress.begin()  # all hosts are ready: nothing of another attempt comes any more
        host.intake.ranks = frozenset(plan.nodes[action.node].ranks)
        order = start_order(
            plan, action.node, facts, action.master_addr, action.master_port, self._kvs(),
            action.restart,
        )  # fmt: skip
        if (told := ranks_bound(plan, action.node, facts)) is not None:
            self._record(told)
        host.send(order)
        first = self._looks and not action.restart
        looks = first and bool(facts.gpus or plan.nodes[action.node].named)
        self._sampling.started(host, looks=looks)
        self._master_addr = action.master_addr

    def _spawn(self, action: act.SpawnRanks) -> None:
        from dispatcher.runner.run.orders import spawn_order  # most jobs never spawn

        node, world = action.node, action.world
        number = self._run.host_at(node)
        host, facts = self._hosts[number], self._facts[number]
        host.intake.ranks |= {
            world.number(r) for r, place in enumerate(world.nodes) if place == node
        }
        host.send(spawn_order(self.plan, world, node, facts, self._master_addr, self._kvs()))

    def _kvs(self) -> str:
        """The name of the ranks' key space: MPICH names shared memory after it."""
        restarts = self._run.restarts
        return f"{self._kvs_name}_r{restarts}" if restarts else self._kvs_name
