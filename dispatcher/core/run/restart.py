"""Decides if another attempt follows, when a lost host is empty, and its replacement. Pure.

If a host was given up with living ranks, dispatch must wait (``fence``): its agent or its
guardian has killed them when its lease has run out. ``OrphanCheck`` connects again to make sure,
which is sooner. docs/design/restarts.md has its times and reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import Action, CheckOrphans
from dispatcher.core.events.run_events import Facts
from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import reassignment
from dispatcher.plan.job.job_plan import JobPlan, NodePlan
from dispatcher.plan.job.request import LONG_LIFE, MOST_FRUITLESS, Limits, Restarts

#: seconds beyond its lease that a stuck agent lives until its guardian kills it, that a sweep
#: may take, and one for the way of the launcher's last word
GUARDIAN, SWEEP, MARGIN = 8.0, 5.0, 1.0
#: for a host that finds by itself that our machine does not answer: heartbeats until it doubts
#: (``agent.node``) and until it is certain, with the least seconds of these (``host.ssh_peer``)
LATE, DOUBT, LEAST_DOUBT, LOOK = 1.25, 2.0, 4.0, 1.0
#: seconds between two tries to reach a lost host, the first and the longest
FIRST_LOOK, LAST_LOOK = 15.0, 600.0


#: host -> its program's files: name -> CRC-32
Code = dict[str, dict[str, int]]


def why_not(cause: verdicts.Cause | None, most: int, interrupted: bool) -> str | None:
    """Why no restart follows ``cause``, where the user allowed ``most`` of them."""
    if not most or cause is None or isinstance(cause, verdicts.Interrupted | verdicts.TimeUp):
        return None
    if interrupted:
        return "it was interrupted"
    if isinstance(cause, verdicts.Rejected):
        return None
    made = f"{most} restart{'s were' if most != 1 else ' was'} made, which is the most"
    return cause.no_restart or made


def fence(limits: Limits, *, self_fencing: bool = False) -> float:
    """Seconds after which the ranks of a host that was given up are surely dead.

    Its lease runs out, its ranks get TERM, then KILL; if the agent is stuck, its guardian does
    that. One that is ``self_fencing`` (N-7 of ``agent.node``) does not wait for its lease.
    """
    by_lease = limits.lease + max(limits.lifeline_grace, GUARDIAN) + SWEEP + MARGIN
    if not self_fencing:
        return by_lease
    beat = limits.heartbeat
    certain = LATE * beat + max(LEAST_DOUBT, DOUBT * beat) + LOOK
    return min(by_lease, certain + limits.lifeline_grace + MARGIN)


def look_for(tries: int) -> float:
    """Seconds until dispatch tries to reach a lost host again, after ``tries`` failed tries."""
    return min(FIRST_LOOK * 2.0 ** min(tries, 30), LAST_LOOK)


class RestartBudget:
    """Counts failures in a row, by ``rules``.

    began: when the ranks of the present attempt were started; None while they are not.
    """

    def __init__(self, rules: Restarts) -> None:
        self.began: float | None = None
        self.progressed = False  # in the present attempt
        self._rules = rules
        self._mark: int | None = None  # of the progress file, when last looked at
        self._in_a_row = 0
        self._fruitless = 0

    def start_from(self, mark: int | None) -> None:
        """Note the progress file's time before the ranks start."""
        self._mark = mark

    def see(self, mark: int | None) -> None:
        """Note the progress file's time again; a change is progress."""
        self.progressed = self.progressed or (mark is not None and mark != self._mark)

    def ended(self, now: float, *, failed: bool = True) -> None:
        """Count the present attempt, which is over, if it started ranks.

        failed: else a person has ended it, and only its progress counts.
        """
        if self.began is None:
            return
        if self.progressed or now - self.began >= LONG_LIFE:
            self._in_a_row = 0
        self._in_a_row += failed
        if self._rules.shows_progress:
            self._fruitless = 0 if self.progressed else self._fruitless + failed

    @property
    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        return 0.0 if self.began is None else self._rules.pause(self._in_a_row)

    @property
    def verdict(self) -> str | None:
        """Why no attempt follows; None while one may."""
        if self._fruitless < MOST_FRUITLESS:
            return None
        return f"{MOST_FRUITLESS} attempts without progress"

    def next(self) -> None:
        """Begin to count another attempt."""
        self.began = None
        self.progressed = False


class OrphanCheck:
    """Plans the checks of lost hosts between two attempts. connect: seconds to reach one."""

    def __init__(self, connect: float) -> None:
        self._connect = connect
        self._due: dict[int, float] = {}

    def plan(self, fences: Mapping[int, float], over: Collection[int], now: float) -> list[Action]:
        """The checks to make now. fences: host -> when its lease has surely run out.

        over: hosts whose agent's process was seen to exit.
        """
        closed = {host: when for host, when in fences.items() if when > now}
        at_once = [host for host in closed if host in over]
        self._due = {host: when - SWEEP for host, when in closed.items() if host not in over}
        # it must end before dispatch reconnects to the host (``FIRST_LOOK``), or it kills the agent
        checks = [CheckOrphans(host, min(self._connect, closed[host] - now)) for host in at_once]
        return checks + self.tick(now)

    def tick(self, now: float) -> list[Action]:
        """The checks that are due at ``now``."""
        due = [host for host, when in self._due.items() if when <= now]
        for host in due:
            del self._due[host]
        return [CheckOrphans(host, SWEEP) for host in due]

    def forget(self) -> None:
        """Drop the planned checks, because the pause is over."""
        self._due.clear()

    @property
    def deadline(self) -> float | None:
        """When the next check is due; None: none is."""
        return min(self._due.values(), default=None)


@value
class Assignment(Value):
    """The next attempt's ``plan`` and the host of each of its nodes.

    swaps: (host that leaves, host that takes its node, that node's ranks). dropped: hosts whose
    nodes are dropped. excluded: hosts among both that still answer, but where too many attempts
    have ended. vacant: nodes that no host can take, so that no attempt can begin; awaited: a host
    may still come. whole: plan and hosts with the dropped nodes, for hosts that return.
    """

    plan: JobPlan
    hosts: tuple[int, ...]
    swaps: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    dropped: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()
    vacant: frozenset[int] = frozenset()
    awaited: bool = False
    whole: tuple[JobPlan, tuple[int, ...]] | None = None


def assign_hosts(
    plan: JobPlan,
    assigned: Sequence[int],
    *,
    bad: Collection[int],
    faulty: Collection[int],
    free: Mapping[int, tuple[NodePlan, Facts]],
    awaited: bool = False,
    distinct: Mapping[int, str] | None = None,
) -> Assignment:
    """Choose the next hosts, after those that were ``assigned`` to the nodes of ``plan``.

    bad: hosts that cannot be used; their nodes go to others, or are dropped as far as
    ``--min-nodes`` allows. faulty: the same, but they stay if neither is possible. free: hosts
    that wait for a node. awaited: more may come. distinct: host -> its machine, if no two nodes may
    be on one.
    """
    machines = distinct or {}
    leaving = [n for n, h in enumerate(assigned) if h in bad]
    leaving += [n for n, h in enumerate(assigned) if h in faulty and h not in bad]
    taken = {machines.get(h) for n, h in enumerate(assigned) if n not in leaving} - {None}
    planned: dict[int, NodePlan] = {}
    hosts = dict(enumerate(assigned))
    left = dict(free)
    for node in leaving:
        for host, (own, facts) in left.items():
            place = reassignment.with_host(plan, node, own, facts.gpus, facts.visible)
            if place is not None and machines.get(host) not in taken:
                planned[node], hosts[node] = place, host
                taken |= {machines.get(host)} - {None}
                del left[host]
                break
    unfilled = [node for node in leaving if node not in planned]
    least = plan.restarts.min_nodes
    n_spare = 0 if least is None else max(0, len(assigned) - least)
    musts = frozenset(node for node in unfilled if assigned[node] in bad)
    if musts and awaited:
        return Assignment(plan, tuple(assigned), vacant=musts, awaited=True)
    if len(musts) > n_spare:
        return Assignment(plan, tuple(assigned), vacant=musts)
    gone = frozenset(unfilled[:n_spare])  # the bad ones come first
    remaining = [node for node in range(len(assigned)) if node not in gone]
    changed = [node for node in leaving if node in planned or node in gone]
    full = reassignment.replaced(plan, planned)
    return Assignment(
        plan=reassignment.shrunk(full, gone),
        whole=(full, tuple(hosts[node] for node in range(len(assigned)))) if gone else None,
        hosts=tuple(hosts[node] for node in remaining),
        swaps=tuple((assigned[n], hosts[n], planned[n].ranks) for n in sorted(planned)),
        dropped=tuple(assigned[node] for node in sorted(gone)),
        excluded=tuple(assigned[node] for node in sorted(changed) if assigned[node] not in bad),
    )


def program_alone(plan: JobPlan) -> JobPlan:
    """``plan`` for ranks that start again: they may have changed files, but not their program."""
    own = tuple(file for file in plan.named if file.name == plan.program.argv[0])
    return replace(plan, named=own, modules=())


def own_code(plan: JobPlan, hosts: Sequence[int], facts: Mapping[int, Facts]) -> Code:
    """The program's files as far as there are ``facts``. hosts: node -> the key of its facts."""
    code: Code = {}
    for node, host in zip(plan.nodes, hosts, strict=False):
        one, program = facts.get(host), plan.parts_at(node)[0].program.argv[0]
        if one is None:
            continue
        rows = zip(plan.named, one.named, strict=False)
        own = next((row[0] for file, row in rows if file.name == program), one.script)
        name = program.rpartition("/")[2]
        code[node.host.name] = dict(one.code) | ({} if own is None else {name: own})
    return code


def code_changes(before: Code, now: Code, restarts: int) -> tuple[verdicts.CodeChange, ...]:
    """The changes between two attempts, the second after so many ``restarts``."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(name for code in now.values() for name in code if restarts):
        pairs = ((host, before.get(host, {}).get(name), now[host].get(name)) for host in now)
        hosts = tuple(host for host, old, new in pairs if None not in (old, new) and old != new)
        if hosts:
            groups.setdefault(() if len(hosts) == len(now) > 1 else hosts, []).append(name)
    return tuple(verdicts.CodeChange(tuple(names), restarts, at) for at, names in groups.items())
