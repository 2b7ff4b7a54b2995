"""``report.json``: how the run ended, with the same facts as the verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dispatcher.core.events import RankSpawned, RanksPlaced, WorldPlaced
from dispatcher.core.policy import MpiAborted, RankFailed, Verdict
from dispatcher.plan import worlds
from dispatcher.plan.job import JobPlan
from dispatcher.sinks import attempts
from dispatcher.sinks.base import Sink, Stamped
from dispatcher.sinks.files import create, write_all
from dispatcher.sinks.verdict import Last, alike


class Pids(Sink):
    """The process id of every rank on its host; ``spawned``: the worlds that ranks spawned."""

    def __init__(self) -> None:
        self.by_rank: dict[int, int] = {}
        self.spawned: list[WorldPlaced] = []

    def event(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, RanksPlaced):  # of another attempt than what is known
            self.by_rank.clear()
            self.spawned.clear()
        elif isinstance(event, RankSpawned):
            self.by_rank[event.rank] = event.pid
        elif isinstance(event, WorldPlaced):
            self.spawned.append(event)


def report(
    verdict: Verdict,
    plan: JobPlan,
    lines: list[str],
    seconds: float,
    pids: Pids,
    last: Last,
    hosts: Sequence[str],
) -> dict[str, Any]:
    """The report as plain values; ``lines`` are the verdict in words.

    pids: of the ranks, and the worlds they spawned, whose ranks are named ``1.0``, ``1.1``.
    last: see ``describe``. hosts: name of each host by its number in events.
    """
    cause = verdict.cause
    fields = {} if cause is None else dict(vars(cause))
    if "failure" in fields:
        fields["failure"] = _failure(fields["failure"])
    if "failures" in fields:
        fields["failures"] = {
            plan.nodes[node].host.name: _failure(f) for node, f in fields["failures"].items()
        }
    if "rank" in fields and fields["rank"] >= worlds.FIRST:
        fields["rank"] = worlds.name(fields["rank"])
    if "node" in fields:
        fields["host"] = plan.nodes[fields.pop("node")].host.name
    if isinstance(cause, (RankFailed, MpiAborted)):
        fields["pid"] = pids.by_rank.get(cause.rank)
        fields["error"] = None if cause.error is None else vars(cause.error)
        fields["last_lines"] = last(cause.rank)[1]
    if isinstance(cause, RankFailed):
        fields["same"] = alike(cause, verdict.statuses, last)
    return {
        "run_id": plan.run_id,
        "ok": verdict.ok,
        "exit_code": verdict.exit_code,
        "cause": None if cause is None else {"kind": type(cause).__name__, **fields},
        "verdict": lines,
        "seconds": round(seconds, 3),
        "world_size": verdict.world_size,
        "statuses": {
            worlds.name(rank): status for rank, status in sorted(verdict.statuses.items())
        },
        "spawned": [
            {
                "world": world.world,
                "by": worlds.name(world.by),
                "hosts": [hosts[node] for node in world.nodes],
            }
            for world in pids.spawned
        ],
        "lost": {plan.nodes[n].host.name: _failure(f) for n, f in verdict.lost.items()},
        "unkillable": {plan.nodes[n].host.name: p for n, p in verdict.unkillable.items()},
        "stuck": {plan.nodes[n].host.name: text for n, text in verdict.stuck.items()},
        **attempts.record(verdict),
        "swept": {plan.nodes[n].host.name: count for n, count in verdict.swept.items()},
    }


def _failure(failure: Any) -> dict[str, Any]:
    return {"kind": failure.kind.value, "why": failure.why, "hint": failure.hint}


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to the new file ``path``, mode 0600. Raises: OSError."""
    fd = create(path)
    try:
        write_all(fd, (json.dumps(value, indent=2) + "\n").encode())
    finally:
        os.close(fd)
