"""One attempt at a job as a pure machine: ``handle(event, now) -> [Action]``.

The checks before the start are in ``start_check``, which ranks live where in ``tables``, MPI's
fences and spawns in ``mpi_manager``. Longer than other modules, because every handler may end the
attempt. The *root cause* is the first failure that the launcher's loop observed; every later
failure is a consequence.

::

    connecting --all ready--> probing --all reach node 0--> running --all ranks done--+
        |                        |                             |                      |
        |                        |                    first failure or signal         |
        |                        |                             v                      v
        |                        |                          stopping --all done--> finishing
        |                        |                                                    |
        +------- a node failed, or a signal ------------------------------------------+--> over

* J-1  no rank starts unless every node is ready and every node reaches node 0
* J-2  no rank starts after the job has begun to stop
* J-3  the first failure is the cause; it never changes. A restart that a person asks for is not a
  failure: a later failure that the restart cannot have caused is the cause instead
* J-4  a rank is done when it exited and both its streams ended, or its node was lost
* J-5  the run ends with exactly one ``End``; no action follows it
* J-6  exit code 0 only if every planned rank exited 0 and every byte arrived
* J-7  the run ends in bounded time after it began to stop, whatever the hosts do, unless their
  output is still being read (its end, if a host withholds it, is ``runner.run.host_intake``'s)
* J-8  MPI barriers do not wait for a rank that called MPI_Init and exited with 0; MPI_Abort
  ends the job at once, and is a failure whatever its code
* J-9  a spawned rank counts like a planned one, unless its world could not be started: then
  the rank that asked gets an error, and a failure in that world does not end the job
* J-10 a rank that leaves MPI half-way ends the job, if others are left in it (``half_finalized``)
"""

from __future__ import annotations

import signal
from collections.abc import Hashable

from dispatcher.core.events import actions as act
from dispatcher.core.events import mpi_events, verdicts
from dispatcher.core.events import run_events as ev
from dispatcher.core.interrupts import KILL, READER, Interrupts
from dispatcher.core.run.fences import FenceError
from dispatcher.core.run.half_finalized import HalfFinalized
from dispatcher.core.run.mpi_manager import MpiManager
from dispatcher.core.run.start_check import Decision, ProbeNodes, Start, StartCheck, in_turn
from dispatcher.core.run.tables import Deadlines, RankTable
from dispatcher.model.errors import InternalError
from dispatcher.model.failure import AWAY, Failure, Kind
from dispatcher.plan.job.job_plan import JobPlan

CONNECTING, PROBING, RUNNING, STOPPING, FINISHING, OVER = (
    "connecting", "probing", "running", "stopping", "finishing", "over",
)  # fmt: skip

#: seconds that the answer to a probe may take longer than the probe itself
PROBE_SLACK = 10.0
#: seconds an agent may take from ``sweep`` or ``finish`` to its answer (its own limit is 5)
SWEEP_LIMIT = 8.0

#: seconds after which dispatch names the ranks that have not exited yet
AWAITED = 1.0
#: seconds that hosts have to report events from the time when the launcher slept
WOKEN = 3.0

#: causes that ranks cannot bring about by exiting at a signal
_INSTEAD = (
    verdicts.Interrupted, verdicts.TimeUp, verdicts.NodeFailed, verdicts.OutputLost,
)  # fmt: skip

#: causes that a lost host may bring about elsewhere
_CONSEQUENCES = (verdicts.NodeFailed, verdicts.RankFailed, verdicts.MpiAborted, verdicts.LeftMpi)

#: signals that are only passed on; the others end the run
PASSED_SIGNALS = frozenset({signal.SIGUSR1, signal.SIGUSR2})


def kill_steps(cause: verdicts.Cause, grace: float, first: int = 0) -> list[tuple[int, float]]:
    """(signal, seconds until the next) of each kill step that ends a job for ``cause``.

    After the last one dispatch kills everything. Ctrl-C is passed on as INT first, because programs
    save their work on it; ranks that do not react had their grace then. first: the signal that
    the user named instead.
    """
    if first:
        last = [(signal.SIGTERM, min(grace, 2.0))] if first != signal.SIGTERM else []
        return [(first, grace), *last]
    match cause:
        case verdicts.Interrupted(signum=signal.SIGINT):
            return [(signal.SIGINT, grace), (signal.SIGTERM, min(grace, 2.0))]
        case verdicts.Interrupted(signum=signal.SIGQUIT):
            return [(signal.SIGQUIT, grace)]
    return [(signal.SIGTERM, grace)]


def sweep_limit(plan: JobPlan) -> float:
    """Seconds to wait for a node's answer to the order to end its part of ``plan``."""
    return SWEEP_LIMIT + in_turn(plan)


class AttemptMachine:
    """The state of one attempt to run ``plan``.

    check: prove before a start that hosts are different machines and reach node 0. machine: the
    launcher's own, as in ``Facts``.
    """

    def __init__(self, plan: JobPlan, *, check: bool = True, machine: str = "") -> None:
        self.plan = plan
        self.state = CONNECTING
        self.cause: verdicts.Cause | None = None
        self.deadlines: Deadlines[Hashable] = Deadlines()
        self.interrupts = Interrupts()
        self.stop_signal = plan.limits.stop_signal
        self._check = StartCheck(plan, prove=check, machine=machine)
        self._live = {node.index for node in plan.nodes}  # a link is open or being opened
        self._waiting: set[int] = set()  # nodes whose last answer must still come
        self._lost: dict[int, Failure] = {}
        self.overslept: set[int] = set()  # nodes that ended only because the launcher slept
        self._slept: Failure | None = None  # that reason, until the nodes have reported
        self._held: list[verdicts.Cause] | None = None  # causes to decide on then
        self._ranks = RankTable()
        self._sweeps: dict[int, ev.NodeSwept] = {}  # the last that found something
        self._kill_steps: list[tuple[int, float]] = []
        self._mpi: MpiManager | None = None  # once the ranks are placed
        self._half_finalized = HalfFinalized(self._ranks)
        self._before: tuple[int, ...] = ()  # ranks that had exited 0 when the cause was seen
        self._sent: list[tuple[int, float]] = []  # signals that end all ranks, and when
        self._ended: dict[int, int] = {}  # rank -> the last of these when it exited

    # -- entry points --------------------------------------------------------------

    def begin(self) -> list[act.Action]:
        """The first actions."""
        return [act.OpenLink(node.index) for node in self.plan.nodes]

    def handle(self, event: ev.Event, now: float) -> list[act.Action]:
        """The actions that ``event``, observed at ``now``, calls for."""
        if self.state == OVER:
            return []  # J-5
        if isinstance(event, _PASSED_OVER):
            return []
        # NodeReady is node.ready, for ``_on_node_ready``
        handler = getattr(self, f"_on_{event.name.replace('.', '_')}", None)
        if handler is None:
            raise InternalError(f"job: no rule for {event!r}")
        try:
            actions: list[act.Action] = handler(event, now)
        except FenceError as error:  # an impossible request, so its link cannot be trusted
            failure = Failure(Kind.PROTOCOL, f"MPI: {error}")
            node: int = event.node  # type: ignore[attr-defined]
            return self._on_node_lost(ev.NodeLost(node, failure), now)
        return actions

    def tick(self, now: float) -> list[act.Action]:
        """The actions that are due at ``now``."""
        actions: list[act.Action] = []
        for when, key in self.deadlines.due(now):
            if self.deadlines.get(key) == when:  # an earlier one may have undone it, or all
                del self.deadlines[key]
                actions += self._due(key, now)
        return actions

    def next_deadline(self) -> float | None:
        """When ``tick`` must be called next; None if nothing is due."""
        return self.deadlines.earliest()

    def extend_deadlines(self, seconds: float) -> None:
        """Move all deadlines by ``seconds``, in which the launcher itself was stopped."""
        for key in self.deadlines:
            self.deadlines[key] += seconds

    @property
    def interrupted(self) -> bool:
        """Whether a signal or a command ends the job, or its output lost its reader."""
        return bool(self.interrupts.level or self.interrupts.came)

    def node_of(self, rank: int) -> int:
        """The node where ``rank``, planned or spawned, was started."""
        return self._ranks.nodes[rank]

    # -- before the start: ``start_check`` judges, this carries on ------------------------

    def _on_node_ready(self, event: ev.NodeReady, now: float) -> list[act.Action]:
        self._expect_heartbeat(event.node, now)
        return self._go_on(self._check.ready(event), now) if self.state == CONNECTING else []

    def _on_node_probed(self, event: ev.NodeProbed, now: float) -> list[act.Action]:
        self.deadlines.pop(("silent", event.node), None)  # that may be of the probe, and far off
        self._expect_heartbeat(event.node, now)
        return self._go_on(self._check.probed(event), now) if self.state == PROBING else []

    def _go_on(self, answer: Decision, now: float) -> list[act.Action]:
        """Do what the check's answer means (J-1)."""
        match answer:
            case None:
                return []
            case ProbeNodes(nodes, addresses, port, seconds):
                self.state = PROBING
                self.deadlines["probe"] = now + seconds + PROBE_SLACK + in_turn(self.plan)
                for node in nodes:  # an agent sends no heartbeat while it tries addresses
                    self._expect_heartbeat(node, now + seconds)
                return [act.Probe(node, addresses, port, seconds) for node in nodes]
            case Start(plan, address, port):
                warnings = [
                    act.Tell(ev.NodeNoticed(node, what)) for node, what in self._check.warnings
                ]
                found = self._check.differences
                warnings += [act.Tell(ev.HostsNoted(one.nodes(plan), one.text)) for one in found]
                return warnings + self._start(plan, address, port)
        return self.stop(answer, now)

    def _start(self, plan: JobPlan, address: str, port: int) -> list[act.Action]:
        self.state = RUNNING
        self.deadlines.pop("probe", None)
        surplus = range(len(plan.nodes), len(self.plan.nodes))  # an open plan may need fewer
        for node in surplus:
            self._live.discard(node)
            self.deadlines.pop(("silent", node), None)
        self.plan = plan
        for rank in plan.ranks:
            self._ranks.call(rank.rank, rank.node)
        check = self._check
        self._mpi = MpiManager(plan, self._ranks, check.hostnames, check.here)
        parts = tuple((part.name, part.size) for part in plan.parts)
        return [
            *(act.CloseLink(node) for node in surplus),
            act.Tell(
                ev.RanksPlaced(len(plan.ranks), address, port, parts=parts, per_node=plan.per_node)
            ),
            *(act.StartRanks(plan, node.index, address, port) for node in plan.nodes),
        ]

    # -- while ranks run -----------------------------------------------------------

    def _on_rank_spawned(self, event: ev.RankSpawned, now: float) -> list[act.Action]:
        return [] if self._mpi is None else self._mpi.started(event.rank)

    def _on_rank_failed_to_start(self, event: ev.RankFailedToStart, now: float) -> list[act.Action]:
        if not self._ranks.absent(event.rank, event.node):
            return []
        assert self._mpi is not None, "ranks are awaited once they are placed"
        refused = self._mpi.not_started(event)
        if refused is not None:  # J-9
            return refused + self._conclude(now)
        cause = verdicts.RankNotStarted(event.node, event.rank, event.errno, event.step, event.what)
        return self.stop(cause, now)

    def _on_rank_exited(self, event: ev.RankExited, now: float) -> list[act.Action]:
        if not self._ranks.exited(event.rank, event.node, event.status):
            return []
        if self._sent:
            self._ended[event.rank] = self._sent[-1][0]
        assert self._mpi is not None, "ranks are awaited once they are placed"
        freed = self._mpi.ended(event.rank, event.status, event.mpi)
        if event.status != 0 and freed is not None:  # J-9
            return self._failed(
                verdicts.RankFailed(event.node, event.rank, event.status, event.error, event.hint),
                event.mpi,
                now,
            )
        if self.state == RUNNING:
            self._half_finalized.exited(event.rank, event.mpi, now)
            self._set_query()
        return (freed or []) + self._conclude(now)

    def _on_output_ended(self, event: ev.OutputEnded, now: float) -> list[act.Action]:
        if not self._ranks.stream_ended(event.rank):
            return []
        if event.received != event.sent:
            return self.stop(
                verdicts.OutputLost(event.node, event.rank, event.received, event.sent), now
            )
        return self._conclude(now)

    def _on_node_lost(self, event: ev.NodeLost, now: float) -> list[act.Action]:
        node = event.node
        if node not in self._live:
            return []
        self._live.discard(node)
        self.deadlines.pop(("silent", node), None)
        if self.state == CONNECTING:
            return self._go_on(self._check.lost(node, event.failure), now)
        if node in self._waiting:
            # its ranks had all ended; without its answer it may still have leftovers
            if not self._ended_well(node):
                self._lost.setdefault(node, event.failure)
            self._waiting.discard(node)
            return [act.CloseLink(node), *self._conclude(now)]
        if self._ended_well(node):
            return [act.CloseLink(node), *self._conclude(now)]
        failure = self._slept or event.failure
        self._lost.setdefault(node, failure)
        self._ranks.lose(node)
        return [act.CloseLink(node), *self.stop(verdicts.NodeFailed(node, failure), now)]

    def _on_node_dying(self, event: ev.NodeDying, now: float) -> list[act.Action]:
        failure = self._slept or Failure(Kind.LOST, event.why)
        if self.state not in (RUNNING, STOPPING):
            return self._on_node_lost(ev.NodeLost(event.node, failure), now)
        if event.node not in self._live or self._ended_well(event.node):
            return []
        self._lost.setdefault(event.node, failure)  # the link's end will say less
        return self.stop(verdicts.NodeFailed(event.node, failure), now)

    def _on_launcher_slept(self, event: ev.LauncherSlept, now: float) -> list[act.Action]:
        limits = self.plan.limits
        if event.seconds + 2 * limits.heartbeat >= limits.lease:
            slept = f"this machine slept or was stopped for {event.seconds:.0f} s"
            why = f"{slept}; hosts end ranks after {limits.lease:g} s of silence (--lease)"
            self._slept, self._held = Failure(Kind.LOST, why, AWAY), []
            self.deadlines["woken"] = now + WOKEN
        return []

    def _ended_well(self, node: int) -> bool:
        """Whether nothing is lost with ``node``, whose lease ended while dispatch slept (N-2)."""
        if self._slept is not None:
            self.overslept.add(node)
        return node in self.overslept and not self._ranks.awaits(node)

    def _judge(self, now: float) -> list[act.Action]:
        """Note the cause among the events from the time when dispatch slept, if there is one."""
        held, self._held = self._held or [], None
        held.sort(key=lambda cause: not isinstance(cause, verdicts.NodeFailed))
        return self.stop(held[0], now) if held else []

    def _on_signal_received(self, event: ev.SignalReceived, now: float) -> list[act.Action]:
        if event.signum in PASSED_SIGNALS:
            return self.pass_on(event.signum)
        if event.signum == signal.SIGPIPE:
            self.interrupts.came.append(event.signum)
            if self.state != RUNNING:
                return self.stop(verdicts.Interrupted(event.signum), now)
            self.deadlines["reader"] = now + READER  # Ctrl-C, which ends readers, may come yet
            return []
        level = self.interrupts.hear(event.signum, now, event.by)
        if level == 1:
            return self.stop(verdicts.Interrupted(event.signum, event.by), now)
        if level == KILL and self.state == STOPPING:
            self._kill_steps = []
            return self._escalate(now)
        if level < KILL or event.signum == signal.SIGKILL:
            return []  # a command waits for the end, also after an earlier Ctrl-C
        return self._over()  # the third signal: leave at once, lifelines clean up

    def _on_node_heard(self, event: ev.NodeHeard, now: float) -> list[act.Action]:
        self._expect_heartbeat(event.node, now)
        return []

    def _expect_heartbeat(self, node: int, now: float) -> None:
        if node in self._live:
            until, key = now + self.plan.limits.silence, ("silent", node)
            # reports of heartbeats may come late
            self.deadlines[key] = max(until, self.deadlines.get(key, until))

    # -- MPI ---------------------------------------------------------------------------

    def _on_pmi_committed(self, event: mpi_events.PmiCommitted, now: float) -> list[act.Action]:
        if self.state != RUNNING:
            return []
        assert self._mpi is not None, "ranks that run were placed"
        actions = self._mpi.commit(event)
        key = ("fence", event.world, event.fence, event.epoch)
        if actions:
            self.deadlines.pop(key, None)
        elif actions is not None and key not in self.deadlines:
            self.deadlines[key] = now + self.plan.limits.mpi_stall_warning
        return actions or []

    def _on_pmi_aborted(self, event: mpi_events.PmiAborted, now: float) -> list[act.Action]:
        if not self._ranks.is_alive(event.rank, event.node):
            return []
        cause = verdicts.MpiAborted(event.node, event.rank, event.code, event.text, event.error)
        return self._failed(cause, "inside", now)

    def _on_pmi_request(self, event: mpi_events.Request, now: float) -> list[act.Action]:
        if self.state != RUNNING:
            return []  # J-2
        assert self._mpi is not None, "ranks that run were placed"
        return self._mpi.request(event, now)

    _on_pmi_asked = _on_pmi_spawn_asked = _on_pmix_wanted = _on_pmi_request

    def _on_mpi_found(self, event: mpi_events.MpiFound, now: float) -> list[act.Action]:
        if self._mpi is not None:
            self._mpi.uses(event.node)
        if self.state == RUNNING:
            self._half_finalized.found(now)
            self._set_query()
        return []

    def _on_mpi_inside(self, event: mpi_events.MpiInside, now: float) -> list[act.Action]:
        if self.state != RUNNING:
            return []
        cause = self._half_finalized.answer(event)
        self._set_query()
        return [] if cause is None else self.stop(cause, now)

    def _set_query(self) -> None:
        self.deadlines.pop("query", None)
        if self._half_finalized.due is not None:
            self.deadlines["query"] = self._half_finalized.due

    def _failed(self, cause: verdicts.Cause, mpi: str, now: float) -> list[act.Action]:
        """Stop for a rank that failed in state ``mpi``, perhaps because of another rank (J-10)."""
        return self.stop(self._half_finalized.instead(cause, mpi), now)

    def _on_pmix_failed(self, event: mpi_events.PmixFailed, now: float) -> list[act.Action]:
        if self.state != RUNNING:
            return []
        failure = mpi_events.failure(event, alone=len(self.plan.ranks) == 1)
        return self.stop(verdicts.NodeFailed(event.node, failure), now)

    # -- the end ---------------------------------------------------------------------

    def stop(self, cause: verdicts.Cause, now: float) -> list[act.Action]:
        """Note the cause (J-3) and begin to end the job, unless it is ending already."""
        actions: list[act.Action] = []
        held = self._held
        if held is not None and self.state == RUNNING and isinstance(cause, _CONSEQUENCES):
            held.append(cause)
            return self._conclude(now)
        if isinstance(self.cause, verdicts.RestartAsked) and isinstance(cause, _INSTEAD):
            self.cause = cause
        if self.state == FINISHING and isinstance(cause, verdicts.TimeUp):
            return []  # all ranks are done in time, and the last sweep has its own limit
        if self.cause is None:
            self.deadlines.pop("query", None)
            self.cause = cause
            done = (rank for rank, status in self._ranks.statuses.items() if status == 0)
            self._before = tuple(sorted(done))
            actions.append(act.Tell(ev.JobStopping(type(cause).__name__)))
        if self.state in (CONNECTING, PROBING):  # J-1, J-2: no rank has been started
            self.state = STOPPING
            return actions + self._conclude(now)
        if self.state == RUNNING:
            self.state = STOPPING
            self._kill_steps = kill_steps(self.cause, self.plan.limits.grace, self.stop_signal)
            if self._ranks.unfinished():
                self.deadlines["awaited"] = now + AWAITED
                actions += self._escalate(now)
        return actions + self._conclude(now)

    def _escalate(self, now: float) -> list[act.Action]:
        """Do the next kill step; after the last one, kill everything."""
        if self._kill_steps:
            signum, grace = self._kill_steps.pop(0)
            actions = self._signal_all(signum, whole=bool(self._sent))
            self._sent.append((signum, now))
            self.deadlines["kill"] = now + grace
            # a stopped rank acts on no signal but KILL until it is continued
            return actions + self._signal_all(signal.SIGCONT)
        self.deadlines.pop("kill", None)
        self.deadlines["sweep"] = now + sweep_limit(self.plan)
        self._sent.append((signal.SIGKILL, now))
        return [act.Sweep(node) for node in self._ranks.living()]

    def pass_on(self, signum: int) -> list[act.Action]:
        """Send ``signum`` to all ranks, if they run."""
        return self._signal_all(signum) if self.state in (RUNNING, STOPPING) else []

    def _await(self, now: float) -> list[act.Action]:
        ranks = tuple(sorted(self._ranks.alive()))  # none: only their children hold the output
        if self.state != STOPPING or "kill" not in self.deadlines or not ranks:
            return []
        left = self.deadlines["kill"] - now + sum(grace for _, grace in self._kill_steps)
        if left < AWAITED:
            return []
        sooner = ""
        if isinstance(self.cause, verdicts.Interrupted):
            pressed = "again" if self.cause.signum == signal.SIGINT else "twice"
            sooner = f"{self.cause.by} --now" if self.cause.by else f"Ctrl-C {pressed}"
        return [act.Tell(ev.RanksAwaited(ranks, left, sooner))]

    def _signal_all(self, signum: int, *, whole: bool = False) -> list[act.Action]:
        to = "all" if whole else self.plan.signal_to
        return [act.SignalRanks(node, signum, to=to) for node in self._ranks.unfinished()]

    def _conclude(self, now: float) -> list[act.Action]:
        """Go on to the end when every rank is done (J-4)."""
        if self.state in (RUNNING, STOPPING):
            if not self._ranks.is_done:
                return []
            if self.deadlines.pop("reader", None) is not None:
                return self.stop(verdicts.Interrupted(signal.SIGPIPE), now)
            if self._held:
                return self._judge(now)
            if self.cause is None:
                cause = self._half_finalized.at_the_end()
                if cause is not None:
                    return self.stop(cause, now)
            self.state = FINISHING
            for key in ("query", "kill", "awaited", "sweep"):
                self.deadlines.pop(key, None)
            self._waiting = self._live & self._check.ready_nodes
            self.deadlines["finish"] = now + sweep_limit(self.plan)
            actions: list[act.Action] = [act.Finish(node) for node in sorted(self._waiting)]
            actions += [act.CloseLink(node) for node in sorted(self._live - self._waiting)]
            self._live = set(self._waiting)
            return actions + self._conclude(now)
        if self.state == FINISHING and not self._waiting:
            return self._over()
        return []

    def _on_node_swept(self, event: ev.NodeSwept, now: float) -> list[act.Action]:
        if event.left or event.killed:
            self._sweeps[event.node] = event
        if self.state == STOPPING and event.left:  # J-7: these ranks cannot be waited for
            self._ranks.give_up(event.node)
            return self._conclude(now)
        if self.state != FINISHING:
            return []
        self._waiting.discard(event.node)
        self._live.discard(event.node)
        self.deadlines.pop(("silent", event.node), None)
        return [act.CloseLink(event.node), *self._conclude(now)]

    def _over(self) -> list[act.Action]:
        cause = self.cause
        if cause is None and self._lost:
            node, failure = next(iter(self._lost.items()))
            cause = verdicts.NodeFailed(node, failure)
        if cause is None and any(
            r.rank not in self._ranks.statuses for r in self.plan.ranks
        ):  # J-6
            raise InternalError("job: ended without a cause and without all ranks' statuses")
        self.state = OVER
        self.deadlines.clear()
        verdict = verdicts.Verdict(
            cause=cause,
            exit_code=0 if cause is None else cause.exit_code,
            world_size=len(self.plan.ranks),
            statuses=dict(self._ranks.statuses),
            lost=dict(self._lost),
            unkillable={n: sweep.left for n, sweep in self._sweeps.items() if sweep.left},
            stuck={n: sweep.stuck for n, sweep in self._sweeps.items() if sweep.stuck},
            swept={n: sweep.killed for n, sweep in self._sweeps.items() if sweep.killed},
            before=self._before,
            ended=dict(self._ended),
            came=tuple(self.interrupts.came),
            sent=tuple((signum, when - self._sent[0][1]) for signum, when in self._sent),
        )
        return [*(act.CloseLink(node) for node in sorted(self._live)), act.End(verdict)]

    def _due(self, key: Hashable, now: float) -> list[act.Action]:
        if key == "kill":
            return self._escalate(now)
        if key == "awaited":
            return self._await(now)
        if key == "reader":
            return self.stop(verdicts.Interrupted(signal.SIGPIPE), now)
        if key == "woken":
            self._slept = None
            return self._judge(now)
        if key == "query":
            actions = self._half_finalized.query(now)
            self._set_query()
            return actions
        if key == "probe":
            return self._give_up(self._check.waiting, "no answer to the check in time", now)
        if key in ("sweep", "finish"):  # J-7: give up the nodes that have not answered
            late = self._waiting if key == "finish" else set(self._ranks.living())
            why = f"no answer for {sweep_limit(self.plan):.0f} s while ending"
            return self._give_up(late, why, now)
        match key:
            case ("fence", int(world), str(fence), int(epoch)):
                if self.state != RUNNING:
                    return []
                assert self._mpi is not None, "ranks that run were placed"
                asked = self._mpi.late(world, fence, epoch, now)
                if asked is None:
                    self.deadlines[key] = now + self.plan.limits.mpi_stall_warning
                return asked or []
            case ("silent", int(node)):
                silent = Failure(Kind.LOST, self.plan.limits.silence_text, AWAY)
                return self._on_node_lost(ev.NodeLost(node, silent), now)
        raise InternalError(f"job: no rule for deadline {key!r}")

    def _give_up(self, nodes: set[int], why: str, now: float) -> list[act.Action]:
        actions: list[act.Action] = []
        for node in sorted(nodes):
            actions += self._on_node_lost(ev.NodeLost(node, Failure(Kind.LOST, why)), now)
        return actions


#: events that the job ignores
_PASSED_OVER = (
    ev.NodeConnecting, ev.NodeConnected, ev.NodeBooted, ev.NodeNoticed, ev.RankLeaked,
    ev.InputClosed, ev.InputBroken, mpi_events.PmiWaiting,
)  # fmt: skip
