"""The attempts of a run in words: what ended each, who left, who came instead. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.core.run import policy
from dispatcher.core.run.orphan_check import NodeCleared
from dispatcher.model.hostset import fold
from dispatcher.output.text.counted import plural
from dispatcher.output.text.sanitize import harmless_text
from dispatcher.output.text.verdict_text import fold_ranks, left_words, status_words
from dispatcher.plan.job.fitness import Exclusion
from dispatcher.plan.job.worlds import name

#: hosts of a rank map that are shown one by one
MOST_SHOWN = 32


def headline(cause: policy.Cause, names: Sequence[str]) -> str:
    """``rank 3 on n2: exit code 1``: the cause in one line. names: node -> host."""
    match cause:
        case policy.RankFailed(node, rank, status):
            error = cause.error
            said = f": {harmless_text(error.message)}" if error and error.message else ""
            return f"rank {name(rank)} on {names[node]}: {status_words(status)}{said}"
        case policy.MpiAborted(node, rank, code):
            return f"rank {name(rank)} on {names[node]}: called MPI_Abort({code})"
        case policy.LeftMpi(node, rank):
            return f"rank {name(rank)} on {names[node]}: {left_words(cause)}"
        case policy.MpisDiffer():
            return "MPI: the ranks use different libraries"
        case policy.RankNotStarted(node, rank, _, step):
            return f"rank {name(rank)} on {names[node]}: could not be started ({step})"
        case policy.NodeFailed(node, failure):
            return f"{names[node]}: {failure.kind.value}: {harmless_text(failure.why)}"
        case policy.Rejected(failures):
            return f"{fold(names[node] for node in failures)} cannot be used"
        case policy.OutputLost(node, rank):
            return f"rank {name(rank)} on {names[node]}: output lost"
        case policy.Hung(seconds):
            return f"no sign of life for {seconds:.0f} s"
        case policy.Impossible(message):
            return message
        case policy.Interrupted(signum):
            return f"ended by {signal.Signals(signum).name}"


def note(event: ev.Event, hosts: Sequence[str]) -> str | None:
    """What the user should know of ``event`` at once; None for events of other kinds.

    hosts: number -> name.
    """
    match event:
        case ev.RunRestarting(cause, number, most, seconds):
            when = f" in {seconds:.0f} s" if seconds >= 1 else ""
            return f"{headline(cause, hosts)}; restart {number} of {most}{when}"
        case NodeCleared(node, killed):
            left = f", {killed} were killed" if killed else ""
            return f"{hosts[node]}: looked at again: no process of the run is left there{left}"
        case ev.HostReplaced(node, by, ranks, why):
            place = f" with {fold_ranks(ranks)}" if ranks else ""
            return f"{hosts[by]} takes the place of {hosts[node]}{place} ({harmless_text(why)})"
        case ev.HostLeftOut(node, why):
            return f"{hosts[node]}: not used any more: {harmless_text(why)}"
        case ev.WorldShrunk(nodes, counts):
            return (
                f"{plural(len(nodes), 'host')} and {plural(sum(counts), 'rank')} go on: "
                + _rank_map(nodes, counts, hosts)
            )
    return None


def _rank_map(nodes: Sequence[int], counts: Sequence[int], hosts: Sequence[str]) -> str:
    shown = [f"{hosts[node]}:{count}" for node, count in zip(nodes, counts, strict=True)]
    return ", ".join(shown[:MOST_SHOWN]) + (", ..." if len(shown) > MOST_SHOWN else "")


def left_out(excluded: Sequence[Exclusion]) -> list[str]:
    """Lines about hosts that were found unfit before anything was started."""
    lines = []
    for one in excluded:
        instead = f"; {one.by} takes its place" if one.by else ""
        lines.append(f"note: {one.host}: left out, not fit: {harmless_text(one.why)}{instead}")
    return lines


def history(verdict: policy.Verdict) -> list[str]:
    """Lines for the verdict: the attempts before the last one, and why there was none after it."""
    lines = []
    for attempt in verdict.attempts:
        which = f"start {attempt.restart + 1}" if attempt.started else "before a start"
        lines.append(f"note: {which}: {headline(attempt.cause, attempt.names)}")
    restarts = sum(attempt.started for attempt in verdict.attempts)
    if verdict.cause is None and restarts:
        lines.append(f"note: the job succeeded after {plural(restarts, 'restart')}")
    for host, why in verdict.left_out.items():
        lines.append(f"note: {host}: not used to the end: {harmless_text(why)}")
    if verdict.no_restart is not None:
        lines.append(f"note: not started again: {verdict.no_restart}")
    return lines


def record(verdict: policy.Verdict) -> dict[str, Any]:
    """The same for the report."""
    return {
        "attempts": [
            {
                "restart": attempt.restart,
                "started": attempt.started,
                "world_size": attempt.world_size,
                "hosts": list(attempt.names),
                "cause": type(attempt.cause).__name__,
                "what": headline(attempt.cause, attempt.names),
                "exit_code": policy.exit_code(attempt.cause),
            }
            for attempt in verdict.attempts
        ],
        "left_out": dict(verdict.left_out),
        "no_restart": verdict.no_restart,
    }
