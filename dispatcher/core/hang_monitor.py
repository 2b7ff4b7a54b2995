"""Watches running ranks: detects a hang, asks all hosts where the ranks are, reports. Pure.

::

    watching -- ranks hang, or a user asks ----> gathering -- all answered, or time is up --+
        ^                                                                                   |
        +---- the answer is reported; if a hang lasts, also a cause to end the job ---------+

* V-1  a user that asks during a gathering gets its answer
* V-2  every host is asked before a hang is reported, which waits ``GATHER`` seconds at most
* V-3  activity during the gathering cancels the hang, not the answer
* V-4  a hang is reported once an attempt
* V-5  any host's sample has all ranks checked, so at most once in ``LEAST`` seconds
* V-6  where ranks write but do nothing else, the hosts are asked every ``hang_timeout`` seconds,
       and a hang is reported once their answers show it (H-5)

The watch begins when a limit for silence is given, or a user asks where the ranks are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dispatcher.core import hang_rule
from dispatcher.core.events import collectives, stack_frames
from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, GatherStacks, Tell
from dispatcher.core.events.verdicts import Hung
from dispatcher.core.hang_rule import LEAST, HangRule, every
from dispatcher.core.run.run_machine import OVER, TRYING, RunMachine

#: seconds for all hosts to report where the ranks are, and of these for one host to find it out
GATHER, LOOK = 10.0, 6.0
#: hosts that ask NCCL's RAS; RAS on one host asks all ranks of the job
ASKERS = 2


class HangMonitor:
    """Detects hangs and gathers stacks; ``hung`` is the cause to end the attempt with, if any.

    hang_timeout: seconds, 0 for a job that may hang. shows_progress: see ``HangRule``. attempt,
    living (rank -> host): known already. The caller takes ``hung`` away.
    """

    #: events that only the monitor handles
    OWN = (
        mon.NodeSampled, mon.NodeStacks, mon.NodeVersions, mon.OutputSeen, mon.StacksWanted,
    )  # fmt: skip

    def __init__(
        self,
        hang_timeout: float,
        *,
        shows_progress: bool,
        attempt: int = -1,
        living: Mapping[int, int] | None = None,
    ) -> None:
        self.hung: Hung | None = None
        self._reported = False  # a hang of this attempt
        self._was_stopped = False
        self._doubted: float | None = None  # the due time of the latest ``RanksWait``
        #: the due time of a hang that the samples so far do not show
        self._judged: float | None = None
        self._again = 0.0  # the next check for a hang, at the earliest (V-5)
        self._timeout = hang_timeout
        self._shows_progress = shows_progress
        self._attempt = attempt
        self._hang: HangRule | None = None
        self._living = dict(living or {})  # rank -> host
        self._ranks = set(self._living)  # all that were started in this attempt
        self._number = 0
        self._awaited: set[int] = set()  # hosts that have not answered yet
        self._askers: list[int] = []  # hosts that also ask RAS
        self._until: float | None = None  # when the gathering ends at the latest
        self._stacks: dict[int, mon.RankStack] = {}
        self._answers: list[mon.NodeStacks] = []
        self._pids: dict[int, int] = {}  # rank -> process, as it was started
        self._addresses: dict[int, tuple[str, ...]] = {}  # of each host
        self._hung_since: float | None = None  # the gathering is about a hang that began then
        self._is_secret = False  # this gathering is reported only if it shows a hang (V-6)
        self._doubt_again = 0.0  # the next such gathering, at the earliest
        #: since when, and in what, ranks that write have waited
        self._stood: tuple[float, object] | None = None
        self._silence = 0.0  # seconds without activity when the hang was found

    def handle(self, event: ev.Event, now: float) -> list[Action]:
        """The actions that ``event`` calls for; events of an old attempt are ignored."""
        self._wake(now)
        if isinstance(event, ev.NodeReady):
            self._addresses[event.node] = event.facts.addresses
        if isinstance(event, ev.OfAttempt) and event.attempt != self._attempt:
            if event.attempt < self._attempt or not isinstance(event, ev.RankSpawned):
                return []
            self._begin(event.attempt, now)
        match event:
            case ev.RankSpawned(node, rank, pid):
                self._living[rank], self._pids[rank] = node, pid
                self._ranks.add(rank)
                if self._hang is not None:
                    self._hang.began(rank, node, now)
            case ev.RankExited(_, rank):
                self._end([rank], now)
            case ev.NodeLost(node):
                self._end([rank for rank, host in self._living.items() if host == node], now)
                return self._answered(node, now)
            case mon.OutputSeen(ago, progress) if self._hang is not None:
                self._hang.wrote(now - ago, progress=progress)
            case mon.NodeSampled() if self._hang is not None:
                self._hang.sampled(event, now)
                self._judged = None
                return self._look(self._hang, now)
            case ev.NodePaused() if self._hang is not None:
                self._hang.anew(now)
            case mon.StacksWanted():
                self._is_secret = False
                return self._gather(now)
            case mon.NodeStacks(node, number, ranks) if number == self._number and self._awaited:
                known = {s.rank: s for s in ranks if self._living.get(s.rank) == node}
                self._stacks.update(known)
                self._answers.append(event)
                return self._answered(node, now)
        return []

    def tick(self, now: float) -> list[Action]:
        """The actions that are due at ``now``."""
        self._wake(now)
        if self._until is not None and self._until <= now:
            return self._conclude(now)
        return self._check(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` must be called next; None if nothing is due."""
        if self._until is not None:
            return self._until
        due = self._due
        return None if due is None or due == self._judged else max(due, self._again)

    def is_quiet(self, now: float) -> bool:
        """Whether a hang is due or found, so that the monitor must hear about any output."""
        return self._hung_since is not None or (self._due is not None and self._due <= now)

    def extend_deadlines(self, seconds: float) -> None:
        """Move the deadline by ``seconds``, in which the launcher itself was stopped."""
        self._was_stopped = True
        if self._until is not None:
            self._until += seconds

    def rest(self) -> None:
        """Note that no rank lives until the next attempt."""
        if not self._awaited:
            self._living.clear()

    def _wake(self, now: float) -> None:
        if self._was_stopped and self._hang is not None:
            self._hang.anew(now)
        self._was_stopped = False

    # -- a hang ---------------------------------------------------------------------------

    def _begin(self, attempt: int, now: float) -> None:
        self._attempt = attempt
        self._living.clear()
        self._ranks.clear()
        self._pids.clear()
        self._forget()
        self.hung, self._reported = None, False
        self._stood, self._doubt_again = None, now + self._timeout
        if self._timeout:
            self._hang = HangRule(self._timeout, now, shows_progress=self._shows_progress)

    def _end(self, ranks: list[int], now: float) -> None:
        for rank in ranks:
            self._living.pop(rank, None)
            if self._hang is not None:
                self._hang.ended(rank, now)

    @property
    def _due(self) -> float | None:
        """When a hang may be reported at the earliest, while it can be."""
        return None if self._hang is None or self._reported else self._hang.due

    def _check(self, now: float) -> list[Action]:
        due = self._due
        if due is None or self._hung_since is not None or now < max(due, self._again):
            return []
        if due == self._judged:
            return []  # the next sample may show it
        self._again = now + LEAST
        assert self._hang is not None, "else nothing would be due"
        if not self._hang.hangs(now):
            self._judged = due
            settled = due + 2 * every(self._timeout) <= now  # the samples are of the whole time
            return self._doubt(due, now) if settled else []
        self._hung_since, self._silence = due - self._timeout, self._hang.silence(now)
        self._is_secret = False
        return [Tell(mon.RanksHung(self._silence)), *self._gather(now)]

    def _look(self, hang: HangRule, now: float) -> list[Action]:
        """Ask the hosts where ranks are that write but do nothing else (V-6)."""
        if now < self._doubt_again or self._awaited or self._reported:
            return []
        if not hang.is_doubtful(now):
            self._stood, self._doubt_again = None, now + every(self._timeout)
            return []
        self._doubt_again, self._is_secret = now + self._timeout, True
        return self._gather(now)

    def _doubt(self, due: float, now: float) -> list[Action]:
        """Report once in a silence that some ranks are idle while others keep the job alive."""
        if self._hang is None or self._doubted == due:
            return []
        busy = self._hang.busy(now)
        still = sorted(self._living.keys() - set(busy))
        if not busy or not still or not all(map(self._hang.is_at_work, busy)):
            return []  # a busy rank that stopped working will count as still soon
        self._doubted = due
        return [Tell(mon.RanksWait(now - due + self._timeout, tuple(still), tuple(busy)))]

    # -- where the ranks are ----------------------------------------------------------------

    def _gather(self, now: float) -> list[Action]:
        if self._awaited:
            return []  # V-1
        self._number += 1
        self._stacks.clear()
        self._answers.clear()
        self._awaited = set(self._living.values())
        self._until = now + GATHER
        hung = self._hung_since is not None or (self._is_secret and self._stood is not None)
        hosts = sorted(self._awaited)
        self._askers = hosts[:ASKERS]
        asked: list[Action] = [
            GatherStacks(host, self._number, LOOK, hung, host in self._askers) for host in hosts
        ]
        return asked or self._conclude(now)

    def _answered(self, host: int, now: float) -> list[Action]:
        """Note that ``host`` has answered, or never will."""
        if host not in self._awaited:
            return []
        self._awaited.discard(host)
        return [] if self._awaited else self._conclude(now)

    def _conclude(self, now: float) -> list[Action]:
        groups = stack_frames.grouped(
            {
                s.rank: (s.how, s.state, stack_frames.read_frames(s.how, s.text))
                for s in self._stacks.values()
            },
            {each.rank: each.text for one in self._answers for each in one.natives},
        )
        late, since = tuple(sorted(self._awaited)), self._hung_since
        collective = self._collective()
        actions: list[Action] = [Tell(mon.StacksGathered(self._number, groups, late, collective))]
        began = self._stands(collective, now) if self._is_secret else None
        if self._is_secret and began is None:
            self._forget()
            return []
        (ras, nccl), idle = self._by_ras(), () if self._hang is None else self._hang.idle_gpus(now)
        self._forget()
        if began is not None:  # V-6
            seconds = now - began
            actions.insert(0, Tell(mon.RanksHung(seconds, writing=True)))
        elif since is not None and self._due == since + self._timeout:  # V-3
            seconds = self._silence
        else:
            return actions
        self._reported = True  # V-4
        self.hung = hang_rule.hung(
            seconds, groups, collective, ras, idle, nccl, writing=began is not None
        )
        return actions

    def _stands(self, collective: collectives.Collective | None, now: float) -> float | None:
        """Since when ranks that write have waited in the same place; None if that is not sure."""
        what: object = None
        if collective is not None:
            what = collective.group, collective.sequence
        elif self._hang is not None and self._hang.gpus_wait(now):
            what = "GPUs"
        before, self._stood = self._stood, None if what is None else (now, what)
        if before is None or what is None or before[1] != what:
            return None
        return before[0] - self._timeout

    def _collective(self) -> collectives.Collective | None:
        texts = (
            {
                each.rank: each.text
                for each in one.recorders
                if self._living.get(each.rank) == one.node
            }
            for one in self._answers
        )
        return collectives.stuck(texts, self._ranks)

    def _by_ras(self) -> tuple[list[int], list[tuple[int, str]]]:
        """The ranks that RAS blames, and its (rank, error or state) pairs.

        All askers must report the same about another host's rank: one alone could blame any.
        """
        pids = self._pids | {rank: stack.pid for rank, stack in self._stacks.items()}
        addresses = {r: self._addresses.get(host, ()) for r, host in self._living.items()}
        texts = {one.node: one.ras for one in self._answers}
        told: list[set[tuple[int, str]]] = []
        own = set()
        for host in self._askers:
            reply = collectives.read_ras(texts.get(host, b""))
            named = [(hang_rule.rank_of(one, pids, addresses), "") for one in reply.blamed]
            named += [(hang_rule.rank_of(one, pids, addresses), words) for one, words in reply.said]
            told.append({(rank, words) for rank, words in named if rank is not None})
            own |= {one for one in told[-1] if self._living.get(one[0]) == host}
        agreed = own | (set.intersection(*told) if told else set())
        return [r for r, words in agreed if not words], [one for one in agreed if one[1]]

    def _forget(self) -> None:
        self._awaited.clear()
        self._stacks.clear()
        self._answers.clear()
        self._until = self._hung_since = None
        self._is_secret = False


class MonitoredRun:
    """A run with its ``HangMonitor``: both get the events, and both give actions.

    Only the monitor gets samples, stacks and news of output.
    """

    def __init__(self, run: RunMachine) -> None:
        self._run = run
        self._monitor: HangMonitor | None = None
        if run.plan.limits.hang_timeout:
            self._keep_watch()

    def handle(self, event: ev.Event, now: float) -> list[Action]:
        """The actions that ``event``, observed at ``now``, calls for."""
        if self._run.state == OVER:
            return []
        if isinstance(event, mon.StacksWanted):
            self._keep_watch()
        if isinstance(event, mon.NodeSampled) and event.node != self._run.host_at(0):
            event = replace(event, mark=None)  # only node 0 has the progress file
        if self._monitor is None:  # sinks show samples; a host may also send unasked ones
            return [] if isinstance(event, HangMonitor.OWN) else self._run.handle(event, now)
        actions = self._watch(self._monitor.handle(event, now), now)
        if isinstance(event, self._monitor.OWN):
            return actions
        return actions + self._run.handle(event, now)

    def tick(self, now: float) -> list[Action]:
        """The actions that are due at ``now``."""
        actions = [] if self._monitor is None else self._watch(self._monitor.tick(now), now)
        return actions + self._run.tick(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` must be called next; None if nothing is due."""
        whens = [self._run.next_deadline()]
        if self._monitor is not None and self._run.state == TRYING:
            whens.append(self._monitor.next_deadline())
        return min((when for when in whens if when is not None), default=None)

    def extend_deadlines(self, seconds: float) -> None:
        """Move all deadlines by ``seconds``, in which the launcher itself was stopped."""
        self._run.extend_deadlines(seconds)
        if self._monitor is not None:
            self._monitor.extend_deadlines(seconds)

    def is_quiet(self, now: float) -> bool:
        """Whether the monitor must hear about any output now, because the ranks seem to hang."""
        return self._monitor is not None and self._monitor.is_quiet(now)

    def _keep_watch(self) -> None:
        plan, ranks = self._run.plan, self._run.rank_hosts
        self._monitor = self._monitor or HangMonitor(
            plan.limits.hang_timeout,
            shows_progress=plan.restarts.shows_progress,
            attempt=self._run.attempt if ranks else -1,
            living=ranks,
        )
        if not self._run.may_have_ranks:
            self._monitor.rest()

    def _watch(self, actions: list[Action], now: float) -> list[Action]:
        """The monitor's ``actions`` while ranks live; if they run and hang, those that end them."""
        assert self._monitor is not None
        hung, self._monitor.hung = self._monitor.hung, None
        if not self._run.may_have_ranks:
            return [action for action in actions if isinstance(action, Tell)]
        if hung is None or not self._run.has_running_ranks:
            return actions
        return actions + self._run.end_hung(hung, now)
