"""The verdict's lines before and after the cause, and the last words of ranks.

Lines are in order of time. Each fact is one line, with all ranks that it applies to. A rank often
names another (``Connection closed by peer [10.0.0.3]:414``): ``peers`` looks up the addresses and
numbers. ``Tail`` keeps the end of each rank's output.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Collection, Mapping, Sequence

from dispatcher.core.events import verdicts
from dispatcher.core.events.monitor_events import PlacedNode, RankError
from dispatcher.core.events.run_events import Entry, OutputEnded, RanksPlaced, RunRestarting, Sink
from dispatcher.core.events.verdicts import Cause, MpiAborted, RankFailed, Verdict
from dispatcher.model.failure import Kind
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.output.text.fold import Trouble, fold_ranks, grouped, hints
from dispatcher.output.text.lines import LineAssembler
from dispatcher.output.text.sanitize import sanitize, sanitize_text
from dispatcher.plan.job.placement import rank_name
from dispatcher.remote.protocol.frames import STDERR, STDOUT

TYPE_CHECKING = False

if TYPE_CHECKING:
    from dispatcher.output.text.last_error import LastError

#: kinds of errors of other ranks that are shown
_MOST_KINDS = 6

#: text that differs between ranks with the same failure
NUMBER = r"0x[0-9a-fA-F]+|[0-9]+"

#: signals by which dispatch ends ranks, in this order
_KILL_STEPS = (signal.SIGQUIT, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def before(verdict: Verdict, homes: Mapping[int, str]) -> list[str]:
    """The line about ranks that had exited 0 before the cause. homes: rank -> host."""
    if not verdict.before or isinstance(verdict.cause, verdicts.LeftMpi):
        return []
    where = fold(dict.fromkeys(homes[rank] for rank in verdict.before if rank in homes))
    place = f" on {where}" if where else ""  # spawned ranks are not in homes
    return [f"  {fold_ranks(verdict.before)}{place} had exited 0 before"]


def errors_of(
    verdict: Verdict, error: Callable[[int, int], LastError | None]
) -> tuple[RankError, ...]:
    """Why the ranks ended, as far as they wrote it; equal texts once, the cause's first.

    error: (rank, status) -> the error that the rank wrote. Only the cause has a hint, unless
    dispatch's signal ended it.
    """
    first = getattr(verdict.cause, "rank", None)
    ranks = [rank for rank, status in verdict.statuses.items() if status and rank != first]
    found: dict[str, tuple[LastError, list[int]]] = {}
    for rank in [*([] if first is None else [first]), *sorted(ranks)]:
        status = verdict.statuses.get(rank, 1)
        if status != 1 and ended_by_us(verdict, rank):
            status = -signal.SIGTERM  # unlike KILL, it is not a reason
        one = error(rank, status)
        if one is not None and (one.text or rank == first):
            found.setdefault(re.sub(NUMBER, "0", one.text), (one, []))[1].append(rank)
    hinted = {first} - {rank for rank in verdict.ended if ended_by_us(verdict, rank)}
    return tuple(
        RankError(tuple(who), one.text, one.place, one.is_echo, one.hint if hinted & {*who} else "")
        for one, who in found.values()
    )


def error_text(error: RankError) -> str:
    """``ValueError: no (train.py:33)``, sanitized."""
    return sanitize_text(f"{error.text} ({error.place})" if error.place else error.text)


def behind(cause: RankError, errors: Sequence[RankError], homes: Mapping[int, str]) -> list[str]:
    """The line on ranks that failed for their own reason, if ``cause`` only blames others."""
    own = next((one for one in errors if one.text and not one.is_echo), None)
    if own is None or not cause.is_echo:
        return []
    where = fold(dict.fromkeys(homes[rank] for rank in own.ranks if rank in homes))
    return [f"  likely behind it: {fold_ranks(own.ranks)} on {where}: {error_text(own)}"]


# compiled at the first use: every run loads this module, and few fail
_ADDRESS = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)|(?<=\[)[0-9a-f:]*:[0-9a-f:]+(?=\])"
_RANK = r"\b[Rr]anks? (\d+)\b|from \[(\d+)\] "
#: groups that do not have all ranks number their ranks otherwise
_SUBGROUP = r"\bPG (?:ID )?[1-9]"


def peers(
    error: RankError,
    nodes: Sequence[PlacedNode],
    addresses: Mapping[str, Collection[str]],
    per_node: bool = False,
) -> list[str]:
    """Lines on the hosts and ranks in ``error``. addresses: of each host by name.

    per_node: ranks are launchers, and the numbers in ``error`` are those of their ranks.
    """
    own = error.ranks[0]
    lines = []
    for address in dict.fromkeys(re.findall(_ADDRESS, error.text)):
        for node in nodes:
            if own not in node.ranks and address in addresses.get(node.host, ()):
                ranks = fold_ranks(node.ranks)
                lines.append(f"  {address} is {node.host} ({ranks})")
    others = per_node or re.search(_SUBGROUP, error.text)
    for match in () if others else re.finditer(_RANK, error.text):
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
    """The ends of the ranks and hosts that are not ``reported`` yet."""
    names = [node.host for node in nodes]
    lines = _came(verdict) + _others(verdict, reported, errors)
    blamed = verdict.cause.node if isinstance(verdict.cause, verdicts.NodeFailed) else None
    lost = grouped(
        Trouble(names[node], failure.kind.value, failure.why, failure.hint)
        for node, failure in verdict.lost.items()
        if node != blamed
    )
    for hosts, one in lost:
        ranks = [rank for node in nodes if node.host in hosts for rank in node.ranks]
        who = fold(hosts) + (f" ({fold_ranks(ranks)})" if ranks else "")
        why = one.why if one.kind == Kind.LOST.value else f"{one.kind}: {one.why}"
        lines.append(f"  then {who} {'was' if len(hosts) == 1 else 'were'} lost, too: {why}")
    lines += hints(lost)
    lines += _ended_by_us(verdict, reported)
    for node, left in verdict.unkillable.items():
        own = {pids[rank]: rank for rank in nodes[node].ranks if rank in pids}
        stuck = [sanitize_text(text) for text in verdict.stuck.get(node, ())]
        about = [
            [f"rank {rank_name(own[pid])}" if pid in own else "", *stuck[at : at + 1]]
            for at, pid in enumerate(left)
        ]
        named = (
            f"{pid} ({': '.join(filter(None, words))})" if any(words) else f"{pid}"
            for pid, words in zip(left, about, strict=True)
        )
        lines.append(f"error: {names[node]}: processes survived SIGKILL: {', '.join(named)}")
    swept = sum(verdict.swept.values())
    if swept:
        where = fold(names[node] for node in verdict.swept)
        lines.append(f"note: {where}: killed {plural(swept, 'process', 'processes')} left behind")
    return lines


def _others(verdict: Verdict, reported: Collection[int], errors: Sequence[RankError]) -> list[str]:
    said = {rank: one for one in errors if one.text for rank in one.ranks}
    kinds: dict[tuple[int, RankError | None], list[int]] = {}
    for rank, status in sorted(verdict.statuses.items()):
        if rank not in reported and status != 0 and not ended_by_us(verdict, rank):
            kinds.setdefault((status, said.get(rank)), []).append(rank)
    lines = [
        f"  then {fold_ranks(ranks)}: {status_words(status)}"
        + (f": {error_text(error)}" if error else "")
        for (status, error), ranks in kinds.items()
    ]
    if len(lines) <= _MOST_KINDS:
        return lines
    rest = [rank for ranks in [*kinds.values()][_MOST_KINDS - 1 :] for rank in ranks]
    return [*lines[: _MOST_KINDS - 1], f"  then {fold_ranks(rest)}, each in another way"]


def _came(verdict: Verdict) -> list[str]:
    """``then came SIGHUP, SIGTERM``: dispatch's signals after the one that ended the job."""
    cause = verdict.cause
    own = isinstance(cause, verdicts.Interrupted) and verdict.came[:1] == (cause.signum,)
    more = [signum for signum in dict.fromkeys(verdict.came[own:]) if signum != signal.SIGPIPE]
    return [f"  then came {', '.join(map(signal_name, more))}"] if more else []


def _ended_by_us(verdict: Verdict, reported: Collection[int]) -> list[str]:
    """``dispatch then ended ranks 0-1,3 (SIGTERM)``, and the ranks that exited 0 after it."""
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
        who, how = fold_ranks(by_signal[sent]), f"dispatch then ended {{}} ({signal_name(sent)})"
        if sent == signal.SIGKILL:
            how = "then {}: killed by dispatch"
            if verdict.sent:
                first, seconds = verdict.sent[0][0], verdict.sent[-1][1]
                how += f" {seconds:.0f} s after {signal_name(first)}"
        lines.append(f"  {how.format(who)}")
    return lines


def ended_by_us(verdict: Verdict, rank: int) -> bool:
    """Whether a signal from dispatch ended ``rank``, which was reaped."""
    sent, ended = verdict.ended.get(rank), _signal(verdict.statuses[rank])
    return sent is not None and (ended == sent or 0 <= _step(ended) <= _step(sent))


def _step(signum: int) -> int:
    """Its place among the kill steps; -1 for another signal, as of ``--stop-signal``."""
    return _KILL_STEPS.index(signum) if signum in _KILL_STEPS else -1


def _signal(status: int) -> int:
    """The signal that ended a rank, also as a shell reports it (128 + n); 0 for none."""
    return max(0, -status if status < 0 else status - 128)


def status_words(status: int) -> str:
    """``exit code 3``, ``killed by SIGKILL (signal 9)``."""
    if status >= 0:
        return f"exit code {status}"
    named = signal_name(-status)
    return f"killed by {named}" + (f" (signal {-status})" if named.startswith("SIG") else "")


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


# -- the last output of ranks --------------------------------------------------------------

#: lines of a stream that are shown, and bytes of each
N_LINES = 20
LINE_BYTES = 512
#: lines of a stream that are searched
MOST_LINES = 500
#: lines on standard error that are the reason if there are no more of them
_SHORT = 2
#: bytes of a stream that are kept at most, and at least where there are so many ranks that all of
#: their streams would be more than ``TOTAL``; half as many more may come before the oldest go
KEPT, LEAST_KEPT, TOTAL = 32 << 10, 8 << 10, 512 << 20

#: characters of the reason that are searched for; dispatch may have changed its rest
_PART = 40


class Tail(Sink):
    """The end of each rank's output, kept as bytes until a part is needed as lines.

    sizes: (rank, stream) -> bytes of the present attempt. errors: attempt -> the error of the rank
    that ended it, in a line, for those before the present one.
    """

    def __init__(self) -> None:
        self.sizes: dict[tuple[int, int], int] = {}
        self.errors: dict[int, str] = {}
        self._ends: dict[tuple[int, int], bytearray] = {}
        self._kept = KEPT
        self._over: set[tuple[int, int]] = set()
        self._said: dict[int, str] = {}  # rank -> part of the line with its reason

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        self.sizes[key] = self.sizes.get(key, 0) + len(data)
        end = self._ends.setdefault(key, bytearray())
        end += data[-self._kept :]
        if len(end) > self._kept * 3 // 2:
            del end[: -self._kept]

    def event(self, entry: Entry) -> None:
        match entry.event:
            case RanksPlaced(world_size, restart=restart):
                self._kept = min(KEPT, max(LEAST_KEPT, TOTAL // (2 * max(1, world_size))))
                if restart:
                    self.sizes.clear()
                    self._ends.clear()
                    self._over.clear()
                    self._said.clear()
            case OutputEnded(_, rank, stream):
                self._over.add((rank, stream))
            case RunRestarting(cause, number):
                self.errors.setdefault(number - 1, self.told(cause))

    def written(self) -> list[tuple[int, int, int]]:
        """(rank, bytes of its stdout, of its stderr) of each rank that wrote."""
        ranks = sorted({rank for rank, _ in self.sizes})
        return [
            (rank, self.sizes.get((rank, STDOUT), 0), self.sizes.get((rank, STDERR), 0))
            for rank in ranks
        ]

    def last(self, rank: int) -> tuple[str, list[str]]:
        """("stderr" or "stdout", its last lines sanitized); stderr if it has any.

        They end with the line of the rank's reason, if ``error`` has found one further up.
        """
        from dispatcher.output.text.last_error import fold_frames  # few runs fail

        for stream, title in ((STDERR, "stderr"), (STDOUT, "stdout")):
            whole = [line.decode("utf-8", "surrogateescape") for line in self._lines(rank, stream)]
            lines = [line.encode("utf-8", "surrogateescape") for line in fold_frames(whole)]
            while lines and not lines[-1].strip():
                lines.pop()
            lines = _around(lines, self._said.get(rank, "").encode())
            if lines:
                return title, [sanitize(line[:LINE_BYTES]).decode() for line in lines]
        return "stderr", []

    def error(self, rank: int, status: int) -> LastError | None:
        """The error that the rank, of ``status``, wrote; on stdout if stderr has none."""
        from dispatcher.output.text.last_error import last_error  # few runs fail

        for stream, is_last in ((STDERR, False), (STDOUT, False), (STDERR, True)):
            text = b"\n".join(self._lines(rank, stream)).decode("utf-8", "replace")
            lines = text.split("\n") if text else []
            found = last_error(lines, status, is_short=is_last and len(lines) <= _SHORT)
            if found is not None and (found.text or is_last):
                self._said[rank] = (found.text.partition(": ")[2] or found.text)[:_PART]
                return found
        return None

    def told(self, cause: Cause) -> str:
        """The error that the rank of ``cause`` wrote, in a line; "" where that is not known."""
        if not isinstance(cause, (RankFailed, MpiAborted)):
            return ""
        status = cause.status if isinstance(cause, RankFailed) else cause.code
        found = self.error(cause.rank, status)
        return "" if found is None else str(found)

    def _lines(self, rank: int, stream: int) -> list[bytes]:
        """The last whole lines of a stream; if it is over, the last may lack its end."""
        end = self._ends.get((rank, stream))
        if not end:
            return []
        assembler = LineAssembler()
        block = assembler.feed(bytes(end))
        if (rank, stream) in self._over:
            block += assembler.finish()
        lines = block.split(b"\n")[:-1]
        cut = self.sizes[rank, stream] > len(end) and len(lines) > 1
        # the first may lack its beginning
        return (lines[1:] if cut else lines)[-MOST_LINES:]


def _around(lines: list[bytes], said: bytes) -> list[bytes]:
    """The last ``N_LINES``, or as many up to the last one with ``said`` if that is further up."""
    tail = lines[-N_LINES:]
    if not said or any(said in line for line in tail):
        return tail
    at = next((n for n in range(len(lines) - 1, -1, -1) if said in lines[n]), None)
    if at is None:
        return tail
    more = plural(len(lines) - at - 1, "more line")
    return [*lines[max(0, at - N_LINES + 2) : at + 1], b"(%s)" % more.encode()]
