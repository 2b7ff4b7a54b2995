"""Finds your other jobs on the hosts of a job: those that run, wait, or have lost their hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dispatcher.core.events.run_events import Entry, Event, NodeNoticed, NodeReady, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.registry import PAUSED, RUNNING, WAITING, Job
from dispatcher.model.hostset import fold


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
