"""Finds in the records of jobs which hosts of a run failed, are in use, or were lost.

A run blames a host that could not be reached or used, that was lost, or whose hardware a rank finds
faulty. A program's own error, a limit of memory, a login and an interrupt blame no host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from dispatcher.core.events import verdicts
from dispatcher.core.events.monitor_events import RankError, RunClosed
from dispatcher.core.events.run_events import Entry, Event, NodeNoticed, NodeReady, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.registry import PAUSED, RUNNING, WAITING, Job
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Document, value
from dispatcher.model.hostset import fold

#: a host's runs that count, the latest; failures in these from which on a start names it
LAST, SEVERAL = 5, 2
#: groups of hosts in a note
MOST_SHOWN = 4

_UNREACHED = {Kind.DNS, Kind.UNREACHABLE, Kind.REFUSED, Kind.TIMEOUT, Kind.DROPPED, Kind.LOST}
#: failures of a host that are neither the user's nor the program's
BROKEN = {*_UNREACHED, Kind.NO_PYTHON, Kind.BOOT, Kind.START, Kind.PROTOCOL}
#: form in a rank's error -> code
_HARDWARE = {
    re.compile(form, re.IGNORECASE): code
    for form, code in (
        ("CUDA.{0,40}system not yet initialized", "GPU-not-ready"),
        ("nvlink error|nvlink.{0,40}uncorrectable|uncorrectable nvlink", "NVLink-error"),
        ("fallen off the bus|GPU is lost", "GPU-lost"),
        ("uncorrectable ECC error", "uncorrectable-ECC-error"),
    )
}


@value
class FailedHost(Document):
    """An element of ``dispatch hosts --failures --json``.

    failures: how many of the host's last ``runs`` (5 at most) failed because of it. causes: code ->
    how often. job: the latest of these runs.
    """

    schema = "failed-host/1"
    host: str
    failures: int
    runs: int
    causes: Mapping[str, int]
    job: str

    @property
    def why(self) -> str:
        """``uncorrectable ECC error (2), unreachable (1)``."""
        return ", ".join(f"{code.replace('-', ' ')} ({n})" for code, n in self.causes.items())


def blamed(closed: RunClosed) -> dict[str, str]:
    """Host -> code of the cause, of all attempts of the run that ended so."""
    verdict = closed.verdict
    names = tuple(node.host for node in closed.nodes)
    found: dict[str, str] = {}
    for one in verdict.attempts:
        said = (closed.attempt_errors.get(one.restart, ""),)
        found |= _at_fault(one.names, one.cause, {}, said)
    return found | _at_fault(names, verdict.cause, verdict.lost, _said(closed.errors, verdict))


def _said(errors: Sequence[RankError], verdict: verdicts.Verdict) -> Iterator[str]:
    """The error of the rank that ended the run."""
    rank = getattr(verdict.cause, "rank", None)
    return (one.text for one in errors if rank in one.ranks)


def _at_fault(
    names: Sequence[str],
    cause: verdicts.Cause | None,
    lost: Mapping[int, Failure],
    said: Iterable[str],
) -> dict[str, str]:
    match cause:
        case None | verdicts.Interrupted() | verdicts.TimeUp() | verdicts.RestartAsked():
            return {}  # which may be why hosts were lost
        case verdicts.NodeFailed(node, failure):
            lost = {**lost, node: failure}
        case verdicts.Rejected(failures):
            lost = {**lost, **failures}
    bad = {names[node]: failure.kind for node, failure in lost.items() if failure.kind in BROKEN}
    if len(names) > 1 and len(bad) == len(names) and _UNREACHED.issuperset(bad.values()):
        return {}  # this machine's own network
    found = {name: kind.code for name, kind in bad.items()}
    if isinstance(cause, (verdicts.RankFailed, verdicts.MpiAborted)):
        own = "" if cause.error is None else cause.error.message
        text = "\n".join((own, *said))
        if codes := [code for form, code in _HARDWARE.items() if form.search(text)]:
            found[names[cause.node]] = codes[0]
    return found


def failing(
    jobs: Iterable[Job], hosts: Container[str] | None = None, least: int = 1
) -> list[FailedHost]:
    """The hosts (among ``hosts``) with ``least`` failures or more, the worst first.

    jobs: the records, the newest last; the last ``LAST`` of a host that have ended count.
    """
    runs: dict[str, list[tuple[str, str]]] = {}
    for job in jobs:
        for name in {name for name, _, _ in job.hosts} if job.end is not None else ():
            if hosts is None or name in hosts:
                runs.setdefault(name, []).append((job.run_id, job.blamed.get(name, "")))
    found = []
    for name, every in sorted(runs.items()):
        bad = [one for one in every[-LAST:] if one[1]]
        if len(bad) >= least:
            causes = dict(Counter(code for _, code in bad).most_common())
            found.append(FailedHost(name, len(bad), len(every[-LAST:]), causes, bad[-1][0]))
    return sorted(found, key=lambda one: -one.failures)


def failures_text(found: Sequence[FailedHost]) -> str:
    """``n[4-5] failed in 3 of the last 5 runs: unreachable (3)``; "" for no host."""
    groups: dict[str, list[str]] = {}
    for one in found:
        runs = f"{one.failures} of the last {one.runs} runs"
        groups.setdefault(f"failed in {runs}: {one.why}", []).append(one.host)
    shown = [f"{fold(names)} {text}" for text, names in [*groups.items()][:MOST_SHOWN]]
    more = len(groups) - len(shown)
    return "; ".join([*shown, *(["and others: dispatch hosts --failures"] if more else [])])


# -- other jobs ---------------------------------------------------------------------------


def neighbours(jobs: Sequence[Job], run_id: str) -> dict[str, list[Job]]:
    """Host -> the other running jobs of ``jobs`` that use it, of the hosts of job ``run_id``.

    Jobs with different GPUs of a host do not meet. A job that waits counts only for those that
    began to wait after it.
    """
    mine = [job for job in jobs if job.run_id == run_id]
    found: dict[str, list[Job]] = {}
    for me in mine:
        for job in jobs:
            later = (job.began, job.run_id) > (me.began, me.run_id) or job.phase == PAUSED
            if job.run_id == run_id or job.state != RUNNING:
                continue
            if job.doing == WAITING and (me.doing != WAITING or later):
                continue
            for (name, _, port), own in zip(me.hosts, me.gpus, strict=False):
                for (other, _, at), theirs in zip(job.hosts, job.gpus, strict=False):
                    apart = own is not None and theirs is not None and own.isdisjoint(theirs)
                    if (name, port) == (other, at) and not apart:
                        found.setdefault(name, []).append(job)
    return found


def jobs_text(found: dict[str, list[Job]]) -> str:
    """``n[1-2]: your job lr-3 (20260131-142501-k3f9x2)``: by job. found: as ``neighbours`` does."""
    hosts: dict[str, list[str]] = {}
    for host, each in found.items():
        for job in each:
            waits = ", which waits, too" if job.doing == WAITING else ""
            hosts.setdefault(f"your job {job.title}{waits}", []).append(host)
    return "; ".join(f"{fold(dict.fromkeys(names))}: {text}" for text, names in hosts.items())


class LostBefore(Sink):
    """Warns if an earlier job lost a host, whose old ranks may still run there, and how long.

    names: of the run's hosts. Hosts are identified by machine, because names may be reused.
    """

    def __init__(self, names: Sequence[str], tell: Callable[[Event], None]) -> None:
        self._names, self._tell = names, tell
        self._left = registry.left()
        self._machines: dict[str, str] = {}

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, NodeReady):
            node, machine = entry.event.node, entry.event.facts.machine
            self._machines[self._names[node]] = machine
            if seconds := self._left.pop(machine, 0.0):
                text = f"an earlier job lost it: that job's ranks may run on for {seconds:.0f} s"
                self._tell(NodeNoticed(node, text))

    def write_down(self, left: Mapping[str, float]) -> None:
        """Remember what this run has ``left``; see ``Report.may_run_on``. Raises: OSError."""
        known = {name: self._machines[name] for name in left if self._machines.get(name)}
        if known:
            registry.note_left({machine: left[name] for name, machine in known.items()})
