"""The verdict in words: what ended the job, where, and what that rank said last.

Pure: a ``Verdict`` and the tails go in, lines come out. Host names are folded;
texts from hosts are made harmless.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from errno import EMFILE

from dispatcher.core.run import policy
from dispatcher.core.run.policy import Verdict
from dispatcher.model.hostset import fold
from dispatcher.output.text.counted import plural
from dispatcher.output.text.failures import Advise, Trouble, grouped, hints, no_advice
from dispatcher.output.text.fold import fold_numbers
from dispatcher.output.text.sanitize import harmless_text
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.worlds import name
from dispatcher.transport.base import Failure

#: rank -> (name of the stream, its last lines); see ``output.text.tail``
Last = Callable[[int], tuple[str, list[str]]]

#: descriptors that an agent needs for itself, and for each of its ranks
FILES_OF_AGENT, FILES_OF_RANK = 24, 3

#: lines of a traceback that are shown
N_TRACEBACK = 30

#: what hosts find missing that our own machine may know more about, the gravest first
ASKED = ("cwd", "no script", "missing")

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")


def describe(
    verdict: Verdict,
    plan: JobPlan,
    pids: Mapping[int, int],
    last: Last,
    advise: Advise = no_advice,
) -> list[str]:
    """The lines of the verdict; [] for a run that went as planned.

    pids: rank -> process id on its host. last: see ``output.text.tail``. advise: what our machine
    knows to do about a host's trouble.
    """
    cause = verdict.cause
    names = [node.host.name for node in plan.nodes]
    lines: list[str] = []
    match cause:
        case None:
            pass
        case policy.RankFailed(node, rank, status):
            pid = f", pid {pids[rank]}" if rank in pids else ""
            how = ": ".join(filter(None, (status_words(status), _message(cause))))
            lines.append(f"error: rank {name(rank)} on {names[node]}{pid}: {how}")
            if cause.hint:
                lines.append(f"  {harmless_text(cause.hint)}")
            lines += _traceback(cause, last) + _last_lines(rank, last)
            same = alike(cause, verdict.statuses, last)
            if same:
                noun = "rank" if len(same) == 1 else "ranks"
                lines.append(f"  {len(same)} {noun} the same: {fold_ranks(same)}")
        case policy.MpiAborted(node, rank, code, text):
            said = (f"called MPI_Abort({code})", harmless_text(text), _message(cause))
            how = ": ".join(filter(None, said))
            lines.append(f"error: rank {name(rank)} on {names[node]}: {how}")
            lines += _traceback(cause, last) + _last_lines(rank, last)
        case policy.LeftMpi(_, rank):
            nodes = [plan.ranks[rank].node for rank in cause.ranks if rank < len(plan.ranks)]
            where = fold(dict.fromkeys(names[node] for node in nodes or [cause.node]))
            lines.append(f"error: {fold_ranks(cause.ranks)} on {where} {left_words(cause)}")
            if cause.never:
                lines.append("  hint: --mpi none, if ranks use MPI each by itself or not at all")
            lines += _last_lines(rank, last) if last(rank)[1] else []
        case policy.MpisDiffer(used):
            each = "; ".join(_used(one, plan, names) for one in used)
            lines.append(f"error: MPI: the ranks use different libraries and cannot meet: {each}")
            lines.append("  hint: let all find the same one: PATH, LD_LIBRARY_PATH, environments")
        case policy.RankNotStarted(node, rank, errno, step, what):
            why = os.strerror(errno).lower()
            lines.append(
                f"error: rank {name(rank)} on {names[node]}: {step} {harmless_text(what)}: {why}"
            )
            if errno == EMFILE:
                need = FILES_OF_AGENT + FILES_OF_RANK * len(plan.nodes[node].ranks)
                lines.append(
                    f"  hint: logins there may open too few files; let its sshd have {need} or "
                    "more (LimitNOFILE=), or start fewer ranks there"
                )
        case policy.NodeFailed(node, failure):
            ranks = fold_ranks(plan.nodes[node].ranks)
            lines += _failure_lines(f"{names[node]} ({ranks})", failure)
        case policy.Rejected(failures, problems=problems):
            again = any(attempt.started for attempt in verdict.attempts)
            outcome = "the ranks were not started again" if again else "nothing was started"
            lines += _table(failures, problems, names, outcome, advise)
        case policy.Impossible(message, hint):
            lines.append(f"error: {message}")
            if hint:
                lines.append(f"  hint: {hint}")
        case policy.OutputLost(node, rank, received, sent):
            lines.append(
                f"error: rank {name(rank)} on {names[node]}: output lost: "
                f"{received} of {sent} bytes arrived"
            )
        case policy.Hung(seconds, groups):
            from dispatcher.output.text.stacks_text import words  # which needs what is here

            homes = {rank: host for host, node in zip(names, plan.nodes, strict=True)
                     for rank in node.ranks}  # fmt: skip
            lines.append(f"error: no rank has shown a sign of life for {seconds:.0f} s")
            found = words(groups, lambda rank: homes.get(rank, "another host"))
            lines += ["  " + line for line in found]
        case policy.Interrupted(signal.SIGPIPE):
            lines.append(
                "error: nobody reads standard output any more; --log-dir keeps a run going"
            )
        case policy.Interrupted(signum):
            lines.append(f"error: ended by {signal.Signals(signum).name}")
    return lines + _consequences(verdict, plan, names, last, pids)


def left_words(cause: policy.LeftMpi) -> str:
    """``exited 0 without MPI_Init; ranks 0,2-3 wait in it``."""
    called = "MPI_Init" if cause.never else "MPI_Finalize"
    some = len(cause.waiting) != 1
    doing = ("wait" if some else "waits") + " in it"
    if not cause.never:
        doing = ("are" if some else "is") + " still in MPI"
    left = f"; {fold_ranks(cause.waiting)} {doing}" if cause.waiting else ""
    return f"exited 0 without {called}{left}"


def _used(one: policy.UsedMpi, plan: JobPlan, names: list[str]) -> str:
    where = fold(dict.fromkeys(names[plan.ranks[rank].node] for rank in one.ranks))
    library = " ".join(harmless_text(one.version).split(",")[0].split()) or "an MPI"
    path = f" ({harmless_text(one.path)})" if one.path else ""
    return f"{fold_ranks(one.ranks)} on {where}: {library}{path} by {one.way}"


def _message(cause: policy.RankFailed | policy.MpiAborted) -> str:
    return harmless_text(cause.error.message) if cause.error is not None else ""


def _traceback(cause: policy.RankFailed | policy.MpiAborted, last: Last) -> list[str]:
    """The traceback of the rank's error file, unless its last lines end with the same."""
    text = cause.error.traceback.splitlines() if cause.error is not None else []
    if not text or harmless_text(text[-1]) in last(cause.rank)[1]:
        return []
    return ["  its traceback:", *("    " + harmless_text(line) for line in text[-N_TRACEBACK:])]


def alike(cause: policy.RankFailed, statuses: Mapping[int, int], last: Last) -> list[int]:
    """Other ranks that ended as the cause did and said the same, numbers in it apart."""
    own = _shape(cause.rank, last)
    return [
        rank
        for rank, status in sorted(statuses.items())
        if rank != cause.rank and status == cause.status and own and _shape(rank, last) == own
    ]


def _shape(rank: int, last: Last) -> list[str]:
    return [_NUMBER.sub("0", line) for line in last(rank)[1]]


def _consequences(
    verdict: Verdict, plan: JobPlan, names: list[str], last: Last, pids: Mapping[int, int]
) -> list[str]:
    lines = []
    cause = verdict.cause
    told = {cause.rank} if isinstance(cause, (policy.RankFailed, policy.MpiAborted)) else set()
    if isinstance(cause, policy.RankFailed):
        told.update(alike(cause, verdict.statuses, last))
    by_status: dict[int, list[int]] = {}
    for rank, status in sorted(verdict.statuses.items()):
        if rank not in told and status != 0:
            by_status.setdefault(status, []).append(rank)
    for status, ranks in by_status.items():
        lines.append(f"  then {fold_ranks(ranks)}: {status_words(status)}")
    blamed = cause.node if isinstance(cause, policy.NodeFailed) else None
    lost = grouped(
        Trouble(names[node], failure.kind.value, failure.why, failure.hint)
        for node, failure in verdict.lost.items()
        if node != blamed
    )
    lines += [f"  then error: {fold(hosts)}: {one.kind}: {one.why}" for hosts, one in lost]
    lines += hints(lost)
    for node, left in verdict.unkillable.items():
        own = {pids[rank]: rank for rank in plan.nodes[node].ranks if rank in pids}
        stuck = [harmless_text(text) for text in verdict.stuck.get(node, ())]
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


def _table(
    failures: Mapping[int, Failure],
    problems: Mapping[int, frozenset[str]],
    names: list[str],
    outcome: str,
    advise: Advise,
) -> list[str]:
    """All failed hosts together, those with the same trouble folded into one line."""
    groups = grouped(
        Trouble(
            names[node],
            failure.kind.value,
            failure.why,
            failure.hint,
            next((word for word in ASKED if word in problems.get(node, ())), ""),
        )
        for node, failure in sorted(failures.items())
    )
    hosts = plural(len(failures), "host")
    lines = [f"error: {hosts} of {len(names)} cannot be used; {outcome}"]
    rows = [(fold(hosts), one.kind, one.why) for hosts, one in groups]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines += [f"  {h:<{wide[0]}}  {kind:<{wide[1]}}  {why}" for h, kind, why in rows]
    return lines + hints(groups, advise)


def _failure_lines(who: str, failure: Failure) -> list[str]:
    lines = [f"error: {who}: {failure.kind.value}: {harmless_text(failure.why)}"]
    if failure.hint:
        lines.append(f"  hint: {harmless_text(failure.hint)}")
    return lines


def _last_lines(rank: int, last: Last) -> list[str]:
    stream, lines = last(rank)
    if not lines:
        return [f"  rank {name(rank)} wrote nothing"]
    return [f"  last lines of its {stream}:", *("    " + line for line in lines)]


def status_words(status: int) -> str:
    """``exit code 3``, ``killed by SIGKILL (signal 9)``."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name} (signal {-status})"
    except ValueError:
        return f"killed by signal {-status}"


def fold_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-3,7,1.0-1.1``."""
    numbers = sorted(ranks)
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {fold_numbers(numbers, name)}"
