"""A whole run as one pure machine: one attempt after the other, on hosts that may change.

``RunMachine`` numbers the hosts as they were connected, spares last, and gives one to each node of
an attempt's plan; ``AttemptMachine`` numbers the nodes, and ``Assigned`` translates. Between
two attempts links and agents stay: ``Finish`` becomes ``Sweep``, ``OpenLink`` becomes ``Prepare``.
The machine is ``TABLE``; ``docs/design/restarts.md`` shows it. Longer than other modules, because
every transition changes the same few fields.

* R-1  the run ends with exactly one ``End``; no action follows it
* R-2  nothing starts after an interrupt
* R-3  attempt e+1 begins when every host that got the order to start ranks of an earlier one has
  swept them, or was given up so long ago that its lease has surely run out (``fence``), or
  was checked again for orphans (``restart.OrphanCheck``)
* R-4  an agent's events of an earlier attempt are ignored; a host that is left out and has had
  ranks loses its link before others get them
* R-5  a host that was given up is used again only over a new connection, made when its old ranks
  are surely dead, and from the next attempt on
* R-6  an attempt that started no rank costs no restart and no pause
* R-7  a restart that a person asks for does not count either, and needs no --max-restarts; only
  ranks that run, or that wait for a restart, are started again
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace

from dispatcher.core.events import actions as act
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.mpi_events import WorldPlaced
from dispatcher.core.interrupts import KEYS, Pause
from dispatcher.core.run import restart
from dispatcher.core.run.attempt import (
    CONNECTING,
    PASSED_SIGNALS,
    PROBING,
    RUNNING,
    STOPPING,
    AttemptMachine,
    sweep_limit,
)
from dispatcher.core.run.restart import Assignment, OrphanCheck, RestartBudget
from dispatcher.core.run.tables import Assigned, HostTable, for_hosts
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.hostset import fold
from dispatcher.plan.job.job_plan import Change, JobPlan

TRYING, PAUSED, CLOSING, OVER = "trying", "paused", "closing", "over"

FAILED = "the attempt failed, another may follow"
ENDED = "the attempt ended, none may follow"
READY = "every node has a host, all old ranks are dead"
VACANT = "a node can get no host"
INTERRUPTED = "interrupted"
ANSWERED = "every agent has answered, or time is up"

#: the purposes of deadlines
RESUME, CLOSE, WARN, LIMIT = "resume", "close", "warn", "limit"

#: (state, what happened) -> state
TABLE = {
    (TRYING, FAILED): PAUSED,
    (TRYING, ENDED): CLOSING,
    (PAUSED, READY): TRYING,
    (PAUSED, VACANT): CLOSING,
    (PAUSED, INTERRUPTED): CLOSING,
    (CLOSING, ANSWERED): OVER,
    (CLOSING, INTERRUPTED): OVER,
}


class RunMachine:
    """The state of one run of ``plan``. check, machine: see ``AttemptMachine``.

    attempt: how often the hosts were gathered before. restarts: how often ranks were started before
    this attempt. sync: the working folder is sent before a restart that a person asks for.
    """

    def __init__(
        self, plan: JobPlan, *, check: bool = True, sync: bool = False, machine: str = ""
    ) -> None:
        self.state = TRYING
        self.attempt = 0
        self.restarts = 0
        self.hosts = HostTable((*plan.nodes, *plan.spares), plan.limits)
        self._prove, self._machine = check, machine
        self._rules = plan.restarts
        self._budget = RestartBudget(plan.restarts)
        self._pause = Pause()
        self._orphans = OrphanCheck(plan.limits.connect_timeout)
        self._job = AttemptMachine(plan, check=check, machine=machine)
        self._assigned = Assigned(range(len(plan.nodes)))
        self._deadlines: dict[str, float] = {}
        self._kept: set[int] = set()  # hosts that only sweep where the job would finish them
        self._attempts: list[verdicts.Attempt] = []
        self._verdict: verdicts.Verdict | None = None  # of the latest attempt
        self._not_before = 0.0
        self._is_time_up = False
        self._sync = sync
        self._sends = False  # the working folder
        self._asked = 0  # restarts that persons asked for
        self._change: Change | None = None  # for the next attempt, where a person asked for it
        self._code: restart.Code = {}  # of the latest attempt
        self._changed: tuple[verdicts.CodeChange, ...] = ()

    @property
    def plan(self) -> JobPlan:
        """The plan of the latest attempt; its nodes are assigned."""
        return self._job.plan

    def host_at(self, node: int) -> int:
        """The number of the host that has ``node``."""
        return self._assigned.hosts[node]

    def home(self, rank: int) -> tuple[int, int]:
        """The host where ``rank`` runs or last ran, and its number there."""
        return self._assigned.homes[rank]

    @property
    def rank_hosts(self) -> dict[int, int]:
        """rank -> the host where it runs or last ran, of all on hosts that are not lost."""
        homes, linked = self._assigned.homes, self.hosts.linked
        return {rank: host for rank, (host, _) in homes.items() if host in linked}

    @property
    def has_running_ranks(self) -> bool:
        """Whether the ranks of an attempt were started and nothing ends them yet."""
        return self.state == TRYING and self._job.state == RUNNING

    @property
    def may_have_ranks(self) -> bool:
        """Whether ranks of an attempt were started, and some may not have ended yet."""
        return self.state == TRYING and self._job.state in (RUNNING, STOPPING)

    # -- entry points --------------------------------------------------------------

    def begin(self, now: float = 0.0) -> list[act.Action]:
        """The first actions, of a run that begins ``now``."""
        limits = self.plan.limits
        if limits.time_limit:
            self._deadlines[LIMIT] = now + limits.time_limit
            if limits.warn_signal:
                self._deadlines[WARN] = self._deadlines[LIMIT] - limits.warn_before
        spares = range(len(self._assigned.hosts), len(self.hosts.planned))
        self.hosts.linked.update(spares)
        return self._carry(self._job.begin(), 0.0) + [act.OpenLink(host) for host in spares]

    def handle(self, event: ev.Event, now: float) -> list[act.Action]:
        """The actions that ``event``, observed at ``now``, calls for."""
        if self.state == OVER or isinstance(event, ev.Remark):
            return []
        if isinstance(event, ev.SignalReceived):
            return self._on_signal(event, now)
        if isinstance(event, ev.NodesHeard):
            for one, ago in zip(event.nodes, event.ago, strict=True):
                if self.hosts.is_resting(one):  # it gave that beat before it said so
                    self._expect_heartbeat(one, now - ago)
                else:
                    self.handle(ev.NodeHeard(one), now - ago)  # which calls for nothing
            return []
        if isinstance(event, ev.NodePaused):
            if not self.hosts.rests(event.node):
                unasked = Failure(Kind.PROTOCOL, "it stopped its ranks without an order")
                return self.handle(ev.NodeLost(event.node, unasked), now)
            return self._pause.stopped(event.node)
        if isinstance(event, ev.FolderSent):
            return self._on_folder(event, now)
        host: int | None = getattr(event, "node", None)
        if host is None:  # the launcher's own news
            return self._carry(self._job.handle(event, now), now) if self.state == TRYING else []
        if isinstance(event, ev.NodeCleared):
            self.hosts.fenced.pop(host, None)
            return self._resume(now) if self.state == PAUSED else []
        if isinstance(event, ev.NodeHeard):
            self.hosts.resumed(host)
        node = self._assigned.nodes.get(host)
        if self.state != TRYING or node is None:
            return self._on_idle(event, host, now)
        if isinstance(event, ev.OfAttempt) and event.attempt != self.attempt:
            return []
        match event:
            case ev.RanksProgressed():
                self._budget.progressed = True
                return []
            case ev.NodeReady(_, facts, problems):
                if not problems:
                    self.hosts.facts[host] = facts
                if node == 0:
                    self._budget.start_from(facts.mark)
            case ev.NodeSwept():
                self.hosts.armed.discard(host)
                if node == 0:
                    self._budget.see(event.mark)
            case ev.NodeLost(_, _, ending, unheard):
                self.hosts.unlink(host, now, over=ending is not None, unheard=unheard)
        swept = host if isinstance(event, ev.NodeSwept) else None
        own = event if node == host else replace(event, node=node)  # type: ignore[call-arg]
        return self._carry(self._job.handle(own, now), now, swept)

    def tick(self, now: float) -> list[act.Action]:
        """The actions that are due at ``now``."""
        is_quiet = self.state == OVER or self._pause.is_quiet(now)
        actions = [] if is_quiet else self._stop_with_us(self._pause.tick, now)
        actions += self._carry(self._job.tick(now), now) if self.state == TRYING else []
        actions += self._orphans.tick(now) if self.state == PAUSED else []
        if self.state in (TRYING, PAUSED):
            actions += [act.OpenLink(host) for host in self.hosts.returning(now)]
        for host in self.hosts.overdue(now) if self.state != OVER else ():
            actions += self._lose(host, self.plan.limits.silence_text, now)
        if self._deadlines.get(WARN, now + 1) <= now:
            del self._deadlines[WARN]
            actions += self._warn()
        if self._deadlines.get(LIMIT, now + 1) <= now:
            actions += self._end_of_time(now)
        if self._deadlines.get(RESUME, now + 1) <= now:
            actions += self._resume(now)
        if self._deadlines.get(CLOSE, now + 1) <= now:
            actions += self._leave(ANSWERED)
        return actions

    def next_deadline(self) -> float | None:
        """When ``tick`` must be called next; None if nothing is due."""
        whens = [*self._deadlines.values()]
        whens += self.hosts.back.values() if self.state in (TRYING, PAUSED) else ()
        job = self._job.next_deadline() if self.state == TRYING else None
        silent = self.hosts.silent.earliest()
        others = (self._pause.deadline, job, self._orphans.deadline, silent)
        return min([*whens, *(when for when in others if when is not None)], default=None)

    def extend_deadlines(self, seconds: float) -> None:
        """Move all deadlines by ``seconds``, in which the launcher itself was stopped."""
        self._job.extend_deadlines(seconds)
        self._pause.extend_deadlines(seconds)
        for deadlines in (self._deadlines, self.hosts.silent):
            for key in deadlines:
                deadlines[key] += seconds  # type: ignore[index]

    def end_hung(self, hung: verdicts.Hung, now: float) -> list[act.Action]:
        """End the ranks, because the monitor found that they hang."""
        if hung.rank is not None:
            hung = replace(hung, node=self._job.node_of(hung.rank))
        return self._carry(self._job.stop(hung, now), now)

    def restart(self, change: Change, wanted: ev.RestartWanted, now: float) -> list[act.Action]:
        """Start the ranks again with ``change``, as a person asked for by ``wanted``."""
        if self.state == OVER:
            return []
        why = self._why_no_restart()
        if why is not None:
            return [act.Tell(ev.RestartRefused(why))]
        self._change = change
        asked = verdicts.RestartAsked(wanted.words, wanted.names)
        if self.state == TRYING:
            actions = self._carry(self._job.stop(asked, now), now)
            if self._job.cause == asked or self.state != TRYING:
                return actions
            self._change = None  # a failure that is not settled yet is the cause
            return [*actions, act.Tell(ev.RestartRefused("it is ending"))]
        self._not_before = now
        wait = max(0.0, self.hosts.dead_at() - now)
        number, most = self.restarts + 1, self._rules.most
        told = act.Tell(ev.RunRestarting(asked, number, most, wait, self._asked))
        return [told, *self._send(), *self._resume(now)]

    def _why_no_restart(self) -> str | None:
        """Why the ranks cannot be started again now for a person; None if they can (R-7)."""
        if self.plan.stdin != "none":
            return "it reads standard input (--stdin), which is read once"
        if self.has_running_ranks:
            return None
        if self.state not in (TRYING, PAUSED):
            return "it is ending"
        if self._change is not None:
            return "it is being restarted already"
        if self.state == PAUSED and self._budget.began is not None:
            return None
        awaited = self.state == PAUSED or self._job.state in (CONNECTING, PROBING)
        return "its ranks have not been started yet" if awaited else "it is ending"

    def _send(self) -> list[act.Action]:
        self._sends = self._sync
        return [act.SendFolder()] if self._sync else []

    def _on_folder(self, event: ev.FolderSent, now: float) -> list[act.Action]:
        if self.state != PAUSED or not self._sends:
            return []
        self._sends = False
        actions: list[act.Action] = []
        for host, failure in event.failures.items():
            if self.state == PAUSED and host in self.hosts.linked:
                actions += self._lose(host, f"{failure.kind.value}: {failure.why}", now)
        return actions + (self._resume(now) if self.state == PAUSED else [])

    # -- to and from the job ------------------------------------------------------

    def _carry(
        self, actions: list[act.Action], now: float, swept: int | None = None
    ) -> list[act.Action]:
        """The attempt's ``actions``, with the hosts of its nodes.

        swept: the host whose ``NodeSwept`` they answer; if it was kept, its link stays.
        """
        out: list[act.Action] = []
        for action in actions:
            match action:
                case act.End(verdict):
                    return out + self._ended(verdict, now)
                case act.Tell(ev.RanksPlaced() as event):
                    changes = self._code_changes()
                    out += [act.Tell(ev.HostsNoted((), one.text)) for one in changes]
                    out.append(act.Tell(replace(event, restart=self.restarts)))
                case act.Tell(event):
                    told = for_hosts(event, self._assigned.hosts)
                    if isinstance(told, WorldPlaced):
                        self._assigned.spawned(told)
                    out.append(act.Tell(told))
                case act.StartRanks(plan):
                    self._arm(plan, action.node, now)
                    out.append(replace(action, restart=self.restarts))
                case act.SpawnRanks() | act.ServePmix() | act.ShareWorld():
                    out.append(action)
                case act.OpenLink(node):
                    out.append(self._gather(self._assigned.hosts[node]))
                case act.Finish(node) if self._may_go_on():
                    self._kept.add(self._assigned.hosts[node])
                    out.append(act.Sweep(self._assigned.hosts[node]))
                case act.CloseLink(node):
                    host = self._assigned.hosts[node]
                    if host != swept or host not in self._kept:
                        self.hosts.unlink(host, now)
                        out.append(act.CloseLink(host))
                case _:
                    out.append(for_hosts(action, self._assigned.hosts))
        return out

    def _gather(self, host: int) -> act.Action:
        if host in self.hosts.linked:
            return act.Prepare(host, self.attempt)
        self.hosts.linked.add(host)
        self.hosts.facts.pop(host, None)  # of an agent that has ended
        return act.OpenLink(host, self.attempt)

    def _code_changes(self) -> tuple[verdicts.CodeChange, ...]:
        """How hosts' code has changed since the last attempt."""
        now = restart.own_code(self.plan, self._assigned.hosts, self.hosts.facts)
        new = restart.code_changes(self._code, now, self.restarts)
        self._code, self._changed = self._code | now, self._changed + new
        return new

    def _arm(self, plan: JobPlan, node: int, now: float) -> None:
        self.hosts.armed.add(self._assigned.hosts[node])
        self._budget.began = now
        self._assigned.started(plan, node)

    # -- hosts without a node, or between two attempts --------------------------------

    def _on_idle(self, event: ev.Event, host: int, now: float) -> list[act.Action]:
        if host not in self.hosts.linked:
            return []
        match event:
            case ev.NodeReady(_, facts, problems) if self.state != CLOSING:
                self.hosts.expect_heartbeat(host, now)
                if problems:
                    return self._drop(host, "; ".join(why for _, why in problems), now)
                self.hosts.facts[host] = facts
                back: list[act.Action] = [act.Tell(ev.HostReturned(host))]
                told = back if self.hosts.came_back(host) else []
                return told + (self._resume(now) if self.state == PAUSED else [])
            case ev.NodeHeard():
                self.hosts.expect_heartbeat(host, now)
            case ev.NodeLost(_, failure):
                return self._lose(host, f"{failure.kind.value}: {failure.why}", now)
            case ev.NodeDying(_, why):
                return self._lose(host, why, now)
            case ev.NodeSwept() if self.state == CLOSING:
                self.hosts.unlink(host, now)
                return [act.CloseLink(host), *self._conclude()]
        return []

    def _lose(self, host: int, why: str, now: float) -> list[act.Action]:
        self.hosts.unlink(host, now)
        self.hosts.facts.pop(host, None)
        if self.state == CLOSING:
            return [act.CloseLink(host), *self._conclude()]
        return [act.CloseLink(host), *self._drop(host, why, now)]

    def _drop(self, host: int, why: str, now: float) -> list[act.Action]:
        if self._rules.most:
            self.hosts.await_return(host, now)
        if host in self.hosts.out:
            return []  # it was left out before
        self.hosts.out.setdefault(host, why)
        actions: list[act.Action] = [act.Tell(ev.HostLeftOut(host, why))]
        return actions + (self._resume(now) if self.state == PAUSED else [])

    # -- after an attempt --------------------------------------------------------------

    def _may_go_on(self) -> bool:
        job = self._job
        over = job.interrupted or self._is_time_up
        if job.cause is None or over or job.cause.no_restart is not None:
            return False
        if isinstance(job.cause, verdicts.Rejected):
            more = len(self.hosts.planned) > len(self._assigned.hosts)
            return more or self._rules.min_nodes is not None
        if isinstance(job.cause, verdicts.RestartAsked):
            return True
        return self.restarts - self._asked < self._rules.most

    def _ended(self, verdict: verdicts.Verdict, now: float) -> list[act.Action]:
        """Note which hosts cannot be used after the attempt, and go on or close the run."""
        self._verdict = verdict
        cause = verdict.cause
        # release the hosts that an open plan did not need
        self._assigned.assign(self._assigned.hosts[: len(self.plan.nodes)])
        hosts = self._assigned.hosts
        for node in verdict.unkillable:
            self.hosts.out.setdefault(hosts[node], "has processes that survived SIGKILL")
        failures = cause.failures if isinstance(cause, verdicts.Rejected) else {}
        for node, failure in (*verdict.lost.items(), *failures.items()):
            if node in self._job.overslept:
                continue  # it is as good as before
            self.hosts.out.setdefault(hosts[node], f"{failure.kind.value}: {failure.why}")
            if self._rules.most:
                self.hosts.await_return(hosts[node], now)
        self.hosts.over |= {hosts[node] for node in self._job.overslept}
        actions = self._let_go((hosts[node] for node in verdict.lost), now)
        blamed = getattr(cause, "node", None)
        if blamed is not None and blamed not in self._job.overslept:
            self.hosts.faults[hosts[blamed]] += 1
        why_not = restart.why_not(self._job.cause, self._rules.most, self._job.interrupted)
        if self._is_time_up and why_not is not None:
            why_not = "its time is up"
        if not self._may_go_on() or cause is None:
            return actions + self._close(ENDED, why_not, now)
        asked = isinstance(cause, verdicts.RestartAsked)
        self._budget.ended(now, failed=not asked)
        if not asked and self._budget.verdict is not None:
            return actions + self._close(ENDED, self._budget.verdict, now)
        undead = self.hosts.undead()
        if undead:
            why = f"{', '.join(undead)}: lost while stopped, so its ranks may still run"
            self._give_up_restart()
            return actions + self._close(ENDED, why, now)
        self._go(FAILED)
        self._not_before = now if asked else now + self._budget.pause
        for host in self.hosts.facts:  # the limits of those that have yet to answer run elsewhere
            self.hosts.expect_heartbeat(host, now)
        announced = self._announce(cause, now) + ([] if self._change is None else self._send())
        following = self._resume(now)
        if self.state == PAUSED:
            following += self._orphans.plan(self.hosts.fences(), self.hosts.over, now)
        return actions + (announced if self.state in (PAUSED, TRYING) else []) + following

    def _let_go(self, hosts: Iterable[int], now: float) -> list[act.Action]:
        linked = [host for host in hosts if host in self.hosts.linked]
        for host in linked:
            self.hosts.unlink(host, now)
        return [act.CloseLink(host) for host in linked]

    def _announce(self, cause: verdicts.Cause, now: float) -> list[act.Action]:
        if self._budget.began is None:
            return []
        wait = max(self._not_before, self.hosts.dead_at()) - now
        known, number = for_hosts(cause, self._assigned.hosts), self.restarts + 1
        most, wait = self._rules.most, max(0.0, wait)
        return [act.Tell(ev.RunRestarting(known, number, most, wait, self._asked))]

    def _resume(self, now: float) -> list[act.Action]:
        """Begin the next attempt if nothing is missing; else wait (R-3)."""
        assignment = self._next_assignment()
        if assignment.vacant and not assignment.awaited:
            nodes = assignment.plan.nodes
            names = fold(nodes[node].host.name for node in assignment.vacant)
            why = f"no host can take the place of {names} (--spares N keeps some ready)"
            self._give_up_restart()
            return self._close(VACANT, why if self._rules.most else None, now)
        when = max(self._not_before, self.hosts.dead_at())
        self._deadlines.pop(RESUME, None)
        if assignment.awaited or self._sends:
            return []
        if now < when:
            self._deadlines[RESUME] = when
            return []
        return self._try_again(assignment, now)

    def _give_up_restart(self) -> None:
        """Make the lack of a host the cause, in place of the restart that a person asked for."""
        verdict = self._verdict
        assert verdict is not None
        if isinstance(verdict.cause, verdicts.RestartAsked):
            self._note_attempt()
            out = [node for node, host in enumerate(self._assigned.hosts) if host in self.hosts.out]
            node = next(iter([*verdict.lost, *out]), 0)
            why = self.hosts.out.get(self._assigned.hosts[node], "it cannot be used any more")
            known = verdict.lost.get(node, Failure(Kind.LOST, why))
            cause = verdicts.NodeFailed(node, known)
            code = cause.exit_code
            self._verdict = replace(
                verdict, cause=cause, exit_code=code, statuses={}, before=(), ended={}
            )

    def _next_assignment(self) -> Assignment:
        most, prove = self._rules.max_host_failures, self._prove
        return self._assigned.next(self.plan, self.hosts, most, distinct=prove)

    def _try_again(self, assignment: Assignment, now: float) -> list[act.Action]:
        self._orphans.forget()
        self._note_attempt()
        self._go(READY)
        changes = self._assigned.changes(assignment, self.hosts)
        # close hosts that answer but are out: others may get their ranks. Keep those that reconnect
        gone = self._let_go(sorted(self.hosts.answering & self.hosts.out.keys()), now)
        self._asked += isinstance(self._attempts[-1].cause, verdicts.RestartAsked)
        self.attempt += 1
        self.restarts += self._budget.began is not None
        self._budget.next()
        self._kept.clear()
        change = self._change or Change()
        self._assigned.follow(assignment, change)
        plan = change.of(assignment.plan)
        plan = restart.program_alone(plan) if self.restarts else plan
        self._job = AttemptMachine(plan, check=self._prove, machine=self._machine)
        self._change = None
        actions = self._carry(self._job.begin(), now)
        self.hosts.expect_nothing(self._assigned.hosts)
        for node in range(len(self._assigned.hosts)):
            self._job.handle(ev.NodeHeard(node), now)  # from now on the job listens
        return [*map(act.Tell, changes), *gone, *actions]

    def _note_attempt(self) -> None:
        assert self._verdict is not None
        assert self._verdict.cause is not None
        names = tuple(node.host.name for node in self.plan.nodes)
        size = self._verdict.world_size
        began = self._budget.began is not None
        self._attempts.append(
            verdicts.Attempt(self.restarts, names, size, self._verdict.cause, began)
        )

    # -- the end --------------------------------------------------------------------------

    def _on_signal(self, event: ev.SignalReceived, now: float) -> list[act.Action]:
        if event.first is not None:
            self._job.stop_signal = event.first or self._job.stop_signal or signal.SIGTERM
        if event.signum == signal.SIGTSTP:
            return self._stop_with_us(self._pause.begin, now)
        if event.signum == signal.SIGCONT:
            resumed = self._pause.end(self.hosts.answering)
            for action in resumed:  # their hosts gave no beat while they rested
                self._expect_heartbeat(action.node, now)  # type: ignore[attr-defined]
            return resumed
        if self.state == TRYING:
            actions = self._carry(self._job.handle(event, now), now)
            # the state may have changed: a job that ends by this very signal leaves at once
            left = self.state == CLOSING
            return actions + (self._leave(INTERRUPTED) if left else [])
        if event.signum in PASSED_SIGNALS:
            return []
        if self.state == CLOSING:
            return self._leave(INTERRUPTED) if event.signum in KEYS and not event.by else []
        return self._interrupt(verdicts.Interrupted(event.signum, event.by), now)

    def _expect_heartbeat(self, host: int, now: float) -> None:
        node = self._assigned.nodes.get(host)
        if self.state == TRYING and node is not None:
            self._job.handle(ev.NodeHeard(node), now)
        else:
            self.hosts.expect_heartbeat(host, now)

    def _interrupt(self, cause: verdicts.Cause, now: float) -> list[act.Action]:
        """End the run for ``cause`` between two attempts (R-2)."""
        self._note_attempt()
        size = len(self.plan.ranks)
        self._verdict = verdicts.Verdict(cause, cause.exit_code, size)
        return self._close(INTERRUPTED, None, now)

    def _warn(self) -> list[act.Action]:
        limits = self.plan.limits
        if not self.has_running_ranks:
            return []
        told = act.Tell(ev.TimeShort(limits.warn_signal, limits.warn_before))
        return [told, *self._carry(self._job.pass_on(limits.warn_signal), 0.0)]

    def _end_of_time(self, now: float) -> list[act.Action]:
        del self._deadlines[LIMIT]
        self._is_time_up = True
        cause = verdicts.TimeUp(self.plan.limits.time_limit)
        if self.state == TRYING:
            return self._carry(self._job.stop(cause, now), now)
        return self._interrupt(cause, now) if self.state == PAUSED else []

    def _stop_with_us(self, when: Callable[..., list[act.Action]], now: float) -> list[act.Action]:
        """The actions of ``when``, a method of ``Pause``."""
        # a run that is closing ends without dispatch, by the hosts' leases
        hosts = self.hosts.answering if self.state != CLOSING else set()
        reaching = self.state == TRYING and self._job.state in (CONNECTING, PROBING)
        actions = when(hosts, now, reaching=reaching)
        for action in actions:
            if isinstance(action, act.PauseRanks):
                self.hosts.rest(action.node)
        return actions

    def _close(self, what: str, no_restart: str | None, now: float) -> list[act.Action]:
        assert self._verdict is not None
        self._orphans.forget()
        self._go(what)
        self._code_changes()
        failures = {**self._verdict.lost, **getattr(self._verdict.cause, "failures", {})}
        blamed = {self._assigned.hosts[node] for node in failures}
        self._verdict = replace(
            self._verdict,
            attempts=tuple(self._attempts),
            left_out={
                self.hosts.name(host): why
                for host, why in sorted(self.hosts.out.items())
                if host not in blamed
            },
            no_restart=no_restart,
            may_run_on=self.hosts.may_run_on(now),
            starts=self.restarts + (self._budget.began is not None),
            changed=self._changed,
        )
        self._deadlines = {CLOSE: now + sweep_limit(self.plan)}
        self.hosts.silent.clear()
        answering = self.hosts.answering
        actions: list[act.Action] = [
            act.CloseLink(h) for h in sorted(self.hosts.linked - answering)
        ]
        self.hosts.linked = answering
        return [*actions, *(act.Finish(host) for host in sorted(answering)), *self._conclude()]

    def _conclude(self) -> list[act.Action]:
        return self._leave(ANSWERED) if not self.hosts.linked else []

    def _leave(self, what: str) -> list[act.Action]:
        """Give up the hosts that are still linked; their lifelines clean up."""
        assert self._verdict is not None
        self._go(what)
        self._deadlines.clear()
        self.hosts.silent.clear()
        return [
            *(act.CloseLink(host) for host in sorted(self.hosts.linked)),
            act.End(self._verdict),
        ]

    def _go(self, what: str) -> None:
        self.state = TABLE[self.state, what]
