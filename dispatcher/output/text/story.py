"""What happened before the cause of a verdict and after it, in the order in which it happened.

Pure, as ``verdict_text`` is, which tells the cause itself: ranks that had ended well before, what
became of the others, and which of it was dispatch's own doing. Whatever is told is told once, with
the ranks that it is true of.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence

from dispatcher.core.events import verdicts
from dispatcher.core.events.monitor_events import PlacedNode
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model.hostset import fold
from dispatcher.output.text.fold import Trouble, fold_ranks, grouped, hints, plural
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.job.placement import name

#: signals that dispatch ends ranks by, the gentlest first; each may be followed by those behind it
_KILL_STEPS = (signal.SIGQUIT, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def before(verdict: Verdict, homes: Mapping[int, str]) -> list[str]:
    """The line about ranks that had exited 0 before the cause. homes: rank -> host."""
    if not verdict.before or isinstance(verdict.cause, verdicts.LeftMpi):
        return []
    where = fold(dict.fromkeys(homes[rank] for rank in verdict.before if rank in homes))
    return [f"  {fold_ranks(verdict.before)} on {where} had exited 0 before"]


def after(
    verdict: Verdict,
    reported: Collection[int],
    nodes: Sequence[PlacedNode],
    pids: Mapping[int, int],
) -> list[str]:
    """What became of the ranks and hosts that are not ``reported`` yet."""
    names = [node.host for node in nodes]
    lines = _others(verdict, reported)
    blamed = verdict.cause.node if isinstance(verdict.cause, verdicts.NodeFailed) else None
    lost = grouped(
        Trouble(names[node], failure.kind.value, failure.why, failure.hint)
        for node, failure in verdict.lost.items()
        if node != blamed
    )
    lines += [f"  then error: {fold(hosts)}: {one.kind}: {one.why}" for hosts, one in lost]
    lines += hints(lost)
    lines += _ended_by_us(verdict, reported)
    for node, left in verdict.unkillable.items():
        own = {pids[rank]: rank for rank in nodes[node].ranks if rank in pids}
        stuck = [sanitize_text(text) for text in verdict.stuck.get(node, ())]
        about = [
            [f"rank {name(own[pid])}" if pid in own else "", *stuck[at : at + 1]]
            for at, pid in enumerate(left)
        ]
        named = (
            f"{pid} ({': '.join(filter(None, words))})" if any(words) else f"{pid}"
            for pid, words in zip(left, about, strict=True)
        )
        lines.append(f"error: {names[node]}: processes that would not die: {', '.join(named)}")
    swept = sum(verdict.swept.values())
    if swept:
        where = fold(names[node] for node in verdict.swept)
        lines.append(f"note: {where}: killed {plural(swept, 'process', 'processes')} left behind")
    return lines


def _others(verdict: Verdict, reported: Collection[int]) -> list[str]:
    """Ranks that failed by themselves after the cause."""
    by_status: dict[int, list[int]] = {}
    for rank, status in sorted(verdict.statuses.items()):
        if rank not in reported and status != 0 and not ended_by_us(verdict, rank):
            by_status.setdefault(status, []).append(rank)
    return [f"  then {fold_ranks(who)}: {status_words(how)}" for how, who in by_status.items()]


def _ended_by_us(verdict: Verdict, reported: Collection[int]) -> list[str]:
    """``dispatch then ended ranks 0-1,3 (SIGTERM)``, and who took that for an end of work."""
    by_signal: dict[int, list[int]] = {}
    graceful: dict[int, list[int]] = {}
    for rank, sent in sorted(verdict.ended.items()):
        if verdict.statuses.get(rank) == 0:
            graceful.setdefault(sent, []).append(rank)
        elif rank not in reported and ended_by_us(verdict, rank):
            by_signal.setdefault(_signal(verdict.statuses[rank]), []).append(rank)
    lines = []
    for sent in sorted(by_signal, key=_KILL_STEPS.index):
        who, how = fold_ranks(by_signal[sent]), signal.Signals(sent).name
        more = ", which had not ended on a gentler signal" if sent == signal.SIGKILL else ""
        lines.append(f"  dispatch then ended {who} ({how}){more}")
    for sent, ranks in graceful.items():
        lines.append(f"  {fold_ranks(ranks)} exited 0 after {signal.Signals(sent).name}")
    return lines


def ended_by_us(verdict: Verdict, rank: int) -> bool:
    """Whether the signal that ended ``rank``, which was reaped, is one that dispatch had sent."""
    sent, ended = verdict.ended.get(rank), _signal(verdict.statuses[rank])
    if sent is None or ended not in _KILL_STEPS:
        return False
    return _KILL_STEPS.index(ended) <= _KILL_STEPS.index(sent)


def _signal(status: int) -> int:
    """What ended a rank of ``status``, a shell's word for it included; 0 if it was no signal."""
    return max(0, -status if status < 0 else status - 128)


def status_words(status: int) -> str:
    """``exit code 3``, ``killed by SIGKILL (signal 9)``."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name} (signal {-status})"
    except ValueError:
        return f"killed by signal {-status}"


def interrupted(cause: verdicts.Interrupted) -> str:
    """``interrupted``, ``stopped by dispatch stop``, ``interrupted by SIGTERM``."""
    if cause.by:
        return f"stopped by {sanitize_text(cause.by)}"
    if cause.signum == signal.SIGINT:
        return "interrupted"
    return f"interrupted by {signal.Signals(cause.signum).name}"
