"""What happened before the cause of a verdict and after it, in the order in which it happened.

Pure, as ``verdict_text`` is, which tells the cause itself: ranks that had ended well before, what
became of the others, and which of it was dispatch's own doing. Whatever is told is told once, with
the ranks that it is true of.

What a rank says of its end often tells of another's: ``Connection closed by peer [10.0.0.3]:414``.
The addresses and the numbers in it are those of ranks and hosts that are known here (``peers``).
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Collection, Mapping, Sequence

from dispatcher.core.events import verdicts
from dispatcher.core.events.monitor_events import PlacedNode, RankError
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.output.text.fold import Trouble, fold_ranks, grouped, hints
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.job.placement import name

TYPE_CHECKING = False

if TYPE_CHECKING:
    from dispatcher.output.text.last_error import LastError

#: kinds of errors that are told of ranks other than the cause
_MOST_KINDS = 6

#: what differs between ranks that fail alike
NUMBER = r"0x[0-9a-fA-F]+|[0-9]+"

#: signals that dispatch ends ranks by, the gentlest first; each may be followed by those behind it
_KILL_STEPS = (signal.SIGQUIT, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def before(verdict: Verdict, homes: Mapping[int, str]) -> list[str]:
    """The line about ranks that had exited 0 before the cause. homes: rank -> host."""
    if not verdict.before or isinstance(verdict.cause, verdicts.LeftMpi):
        return []
    where = fold(dict.fromkeys(homes[rank] for rank in verdict.before if rank in homes))
    place = f" on {where}" if where else ""  # of spawned ranks homes say nothing
    return [f"  {fold_ranks(verdict.before)}{place} had exited 0 before"]


def errors_of(
    verdict: Verdict, error: Callable[[int, int], LastError | None]
) -> tuple[RankError, ...]:
    """Why the ranks ended, as far as they wrote it; equal words once, those of the cause first.

    error: what a rank of a status wrote about its end. Only the cause has a hint.
    """
    first = getattr(verdict.cause, "rank", None)
    ranks = [rank for rank, status in verdict.statuses.items() if status and rank != first]
    found: dict[str, tuple[LastError, list[int]]] = {}
    for rank in [*([] if first is None else [first]), *sorted(ranks)]:
        one = error(rank, verdict.statuses.get(rank, 1))
        if one is not None and (one.text or rank == first):
            found.setdefault(re.sub(NUMBER, "0", one.text), (one, []))[1].append(rank)
    return tuple(
        RankError(tuple(who), one.text, one.place, one.is_echo, one.hint if first in who else "")
        for one, who in found.values()
    )


def in_words(error: RankError) -> str:
    """``ValueError: no (train.py:33)``, sanitized."""
    return sanitize_text(f"{error.text} ({error.place})" if error.place else error.text)


def behind(cause: RankError, errors: Sequence[RankError], homes: Mapping[int, str]) -> list[str]:
    """The line on who failed for a reason of its own, where ``cause`` only tells of others."""
    own = next((one for one in errors if one.text and not one.is_echo), None)
    if own is None or not cause.is_echo:
        return []
    where = fold(dict.fromkeys(homes[rank] for rank in own.ranks if rank in homes))
    return [f"  likely behind it: {fold_ranks(own.ranks)} on {where}: {in_words(own)}"]


# compiled where they are needed: few runs fail, and all of them load this
_ADDRESS = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)|(?<=\[)[0-9a-f:]*:[0-9a-f:]+(?=\])"
_RANK = r"\b[Rr]anks? (\d+)\b|from \[(\d+)\] "
#: ranks of a group of some ranks are counted otherwise
_SUBGROUP = r"\bPG (?:ID )?[1-9]"


def peers(
    error: RankError,
    nodes: Sequence[PlacedNode],
    addresses: Mapping[str, Collection[str]],
) -> list[str]:
    """Lines on the hosts and ranks that ``error`` tells of. addresses: of each host by name."""
    own = error.ranks[0]
    lines = []
    for address in dict.fromkeys(re.findall(_ADDRESS, error.text)):
        for node in nodes:
            if own not in node.ranks and address in addresses.get(node.host, ()):
                ranks = fold_ranks(node.ranks)
                lines.append(f"  {address} is {node.host} ({ranks})")
    for match in () if re.search(_SUBGROUP, error.text) else re.finditer(_RANK, error.text):
        rank = int(match[1] or match[2])
        for node in nodes:
            if rank != own and rank in node.ranks:
                lines.append(f"  rank {rank} is on {node.host}")
    return [*dict.fromkeys(lines)]


def after(
    verdict: Verdict,
    reported: Collection[int],
    nodes: Sequence[PlacedNode],
    pids: Mapping[int, int],
    errors: Sequence[RankError] = (),
) -> list[str]:
    """What became of the ranks and hosts that are not ``reported`` yet."""
    names = [node.host for node in nodes]
    lines = _others(verdict, reported, errors)
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


def _others(verdict: Verdict, reported: Collection[int], errors: Sequence[RankError]) -> list[str]:
    """Ranks that failed by themselves after the cause."""
    said = {rank: one for one in errors if one.text for rank in one.ranks}
    kinds: dict[tuple[int, RankError | None], list[int]] = {}
    for rank, status in sorted(verdict.statuses.items()):
        if rank not in reported and status != 0 and not ended_by_us(verdict, rank):
            kinds.setdefault((status, said.get(rank)), []).append(rank)
    lines = [
        f"  then {fold_ranks(ranks)}: {status_words(status)}"
        + (f": {in_words(error)}" if error else "")
        for (status, error), ranks in kinds.items()
    ]
    if len(lines) <= _MOST_KINDS:
        return lines
    rest = [rank for ranks in [*kinds.values()][_MOST_KINDS - 1 :] for rank in ranks]
    return [*lines[: _MOST_KINDS - 1], f"  then {fold_ranks(rest)}, each in another way"]


def _ended_by_us(verdict: Verdict, reported: Collection[int]) -> list[str]:
    """``dispatch then ended ranks 0-1,3 (SIGTERM)``, and who took that for an end of work."""
    by_signal: dict[int, list[int]] = {}
    graceful: dict[int, list[int]] = {}
    for rank, sent in sorted(verdict.ended.items()):
        if rank in reported:
            continue
        if verdict.statuses.get(rank) == 0:
            graceful.setdefault(sent, []).append(rank)
        elif ended_by_us(verdict, rank):
            by_signal.setdefault(_signal(verdict.statuses[rank]), []).append(rank)
    lines = [
        f"  {fold_ranks(ranks)} exited 0 after {signal_name(sent)}"
        for sent, ranks in graceful.items()
    ]
    for sent in sorted(by_signal, key=_step):
        who, how = fold_ranks(by_signal[sent]), signal_name(sent)
        more = ", which had not ended on a gentler signal" if sent == signal.SIGKILL else ""
        lines.append(f"  dispatch then ended {who} ({how}){more}")
    return lines


def ended_by_us(verdict: Verdict, rank: int) -> bool:
    """Whether the signal that ended ``rank``, which was reaped, is one that dispatch had sent."""
    sent, ended = verdict.ended.get(rank), _signal(verdict.statuses[rank])
    return sent is not None and (ended == sent or 0 <= _step(ended) <= _step(sent))


def _step(signum: int) -> int:
    """Its place among the kill steps; -1 for any other that ``--stop-signal`` may put first."""
    return _KILL_STEPS.index(signum) if signum in _KILL_STEPS else -1


def _signal(status: int) -> int:
    """What ended a rank of ``status``, a shell's word for it included; 0 if it was no signal."""
    return max(0, -status if status < 0 else status - 128)


def status_words(status: int) -> str:
    """``exit code 3``, ``killed by SIGKILL (signal 9)``."""
    if status >= 0:
        return f"exit code {status}"
    named = signal_name(-status)
    return (
        f"killed by {named} (signal {-status})" if named.startswith("SIG") else f"killed by {named}"
    )


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 63`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def restart_asked(cause: verdicts.RestartAsked) -> str:
    """``restarted by dispatch restart -x LR -- train.py``."""
    told = ["dispatch restart", *(f"-x {name}" for name in cause.names)]
    told += ["--", shlex.join(cause.words)] if cause.words else []
    return sanitize_text(f"restarted by {' '.join(told)}")


def interrupted(cause: verdicts.Interrupted) -> str:
    """``interrupted``, ``stopped by dispatch stop``, ``interrupted by SIGTERM``."""
    if cause.by:
        return f"stopped by {sanitize_text(cause.by)}"
    if cause.signum == signal.SIGINT:
        return "interrupted"
    return f"interrupted by {signal_name(cause.signum)}"
