"""The verdict as text: the cause of the job's end, earlier attempts, and the ranks' last lines.

Pure. Host names are folded, texts from hosts sanitized. It stays one file: a new kind of cause gets
all its texts here.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from errno import EMFILE
from types import MappingProxyType

from dispatcher.core.events import verdicts
from dispatcher.core.events.monitor_events import LastWords, PlacedNode, RankError
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model.failure import Failure
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural, size
from dispatcher.output.text import story
from dispatcher.output.text.fold import Advise, Trouble, fold_ranks, grouped, hints, no_advice
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.output.text.story import error_text, status_words
from dispatcher.plan.job.placement import rank_name
from dispatcher.plan.job.reassignment import Exclusion

#: rank -> (name of the stream, its last lines); see ``story.Tail.last``
Last = Callable[[int], tuple[str, list[str]]]

#: descriptors that an agent needs for itself, and for each of its ranks
FILES_OF_AGENT, FILES_OF_RANK = 24, 3

#: lines of a traceback that are shown
N_TRACEBACK = 30

#: rows of a window that are left for the frame and the prompt; quoted lines that are always shown
BESIDE, LEAST_QUOTED = 4, 4
_QUOTES = (" last lines of its stderr:", " last lines of its stdout:", " its traceback:")

#: findings of hosts for which our own machine may have advice, the most severe first
ASKED = ("cwd", "no script", "missing", "not executable")


def describe(
    verdict: Verdict,
    nodes: Sequence[PlacedNode],
    pids: Mapping[int, int],
    last: Last,
    advise: Advise = no_advice,
    errors: Sequence[RankError] = (),
    addresses: Mapping[str, Collection[str]] = MappingProxyType({}),
    program_of: Callable[[int], str] = lambda rank: "",
    per_node: bool = False,
) -> list[str]:
    """The lines of the verdict; [] for a run that went as planned.

    nodes: of the plan. pids: rank -> process id on its host. last: see ``Last``. advise: gives our
    machine's remedy for a host's trouble. errors: the ranks' own reasons, the cause's first.
    addresses: of hosts by name. program_of: a rank's program, if there are several. per_node: each
    rank is a launcher of its own ranks.
    """
    cause = verdict.cause
    names = [node.host for node in nodes]
    homes = {rank: node.host for node in nodes for rank in node.ranks}
    lines: list[str] = []
    reported: set[int] = set()

    def who(node: int, rank: int) -> str:
        program = program_of(rank)
        which = f" ({program})" if program else ""
        return f"error: rank {rank_name(rank)}{which} on {names[node]}"

    match cause:
        case None:
            pass
        case verdicts.RankFailed(node, rank):
            pid = f", pid {pids[rank]}" if rank in pids else ""
            lines.append(f"{who(node, rank)}{pid}: {_how(cause, errors)}")
            if cause.hint:
                lines.append(
                    f"  {_MEMORY_HINT if _OOM.search(cause.hint) else sanitize_text(cause.hint)}"
                )
            lines += _traceback(cause, last) + _last_lines(rank, last)
            same = alike(cause, verdict, last, errors)
            reported.update((rank, *same))
            if same:
                lines.append(f"  {plural(len(same), 'rank')} the same: {fold_ranks(same)}")
        case verdicts.MpiAborted(node, rank, code, text):
            said = _message(cause, errors)
            said = "" if "called MPI_Abort(" in said else said
            parts = (f"called MPI_Abort({code})", sanitize_text(text), said)
            lines.append(f"{who(node, rank)}: {': '.join(filter(None, parts))}")
            reported.add(rank)
            lines += _traceback(cause, last) + _last_lines(rank, last)
        case verdicts.LeftMpi(_, rank):
            left = [homes[rank] for rank in cause.ranks if rank in homes]
            where = fold(dict.fromkeys(left or [names[cause.node]]))
            lines.append(f"error: {fold_ranks(cause.ranks)} on {where} {left_words(cause)}")
            if cause.never:
                lines.append("  hint: --mpi none, if ranks use MPI each by itself or not at all")
            lines += _last_lines(rank, last) if last(rank)[1] else []
        case verdicts.RankNotStarted(node, rank, errno, step, what):
            why = os.strerror(errno).lower()
            lines.append(f"{who(node, rank)}: {step} {sanitize_text(what)}: {why}")
            if errno == EMFILE:
                need = FILES_OF_AGENT + FILES_OF_RANK * len(nodes[node].ranks)
                lines.append(
                    f"  hint: logins may open too few files on that host; allow its sshd {need} or "
                    "more (LimitNOFILE=), or start fewer ranks on it"
                )
        case verdicts.NodeFailed(node, failure):
            where = f"{names[node]} ({fold_ranks(nodes[node].ranks)})"
            lines.append(f"error: {where}: {failure.kind.value}: {sanitize_text(failure.why)}")
            lines += [f"  hint: {sanitize_text(failure.hint)}"] if failure.hint else []
        case verdicts.Rejected(failures, problems=problems):
            again = any(attempt.started for attempt in verdict.attempts)
            outcome = "the ranks were not started again" if again else "nothing was started"
            lines += _table(failures, problems, names, outcome, advise)
        case verdicts.Impossible(message, hint):
            lines += [f"error: {message}", *([f"  hint: {hint}"] if hint else [])]
        case verdicts.OutputLost(node, rank, received, sent):
            lines.append(f"{who(node, rank)}: output lost: {received} of {sent} bytes arrived")
        case verdicts.Hung(seconds, groups):
            from dispatcher.output.text import stacks_text  # few runs hang

            def host_of(rank: int) -> str:
                return homes.get(rank, "another host")

            if cause.writing:
                lines.append(f"error: ranks write, but nothing else happened for {seconds:.0f} s")
            else:
                halted = stacks_text.stopped_words(groups, host_of)
                lines.append(f"error: {halted}no activity on any rank for {seconds:.0f} s")
            found = []
            if cause.collective is not None:
                found.append(stacks_text.collective_line(cause.collective, host_of, groups))
            if cause.signals and (cause.collective or cause.signals[1:]):
                found.append(stacks_text.signals_line(cause.signals))
            found += [f"NCCL: {fold_ranks(o.ranks)}: {sanitize_text(o.name)}" for o in cause.nccl]
            found += stacks_text.stack_lines(groups, host_of)
            lines += ["  " + line for line in found]
        case verdicts.Interrupted(signal.SIGPIPE):
            lines.append("error: standard output was closed; with --log-dir a run continues")
        case _:
            is_wanted = isinstance(cause, verdicts.Interrupted) and cause.by
            lines.append(f"{'note' if is_wanted else 'error'}: {headline(cause, names)}")
    if cause is not None:
        lines[0] += f" [{cause.message_code}]"
        own = own_error(cause, errors)
        told = story.before(verdict, homes)
        if own is not None:
            told += story.peers(own, nodes, addresses, per_node) + story.behind(own, errors, homes)
            if own.hint and not getattr(cause, "hint", ""):
                lines.append(f"  hint: {own.hint}")
        lines[1:1] = told
    rest = story.after(verdict, reported, nodes, pids, errors)
    return lines + [line for line in rest if line not in lines or "  hint: " not in line]


def left_words(cause: verdicts.LeftMpi) -> str:
    """``exited 0 without MPI_Init; ranks 0,2-3 wait in it``."""
    called = "MPI_Init" if cause.never else "MPI_Finalize"
    some = len(cause.waiting) != 1
    doing = ("wait" if some else "waits") + " in it"
    if not cause.never:
        doing = ("are" if some else "is") + " still in MPI"
    left = f"; {fold_ranks(cause.waiting)} {doing}" if cause.waiting else ""
    return f"exited 0 without {called}{left}"


def own_error(cause: verdicts.Cause | None, errors: Sequence[RankError]) -> RankError | None:
    """The reason that the rank of ``cause`` wrote."""
    rank = getattr(cause, "rank", None)
    return next((one for one in errors if rank is not None and rank == one.ranks[0]), None)


_MEMORY_HINT = (
    "hint: smaller batches, fewer DataLoader workers, a larger limit; --sample 5 shows who takes it"
)
#: the agent's texts about the OOM killer (``remote.host.failure_info``)
_OOM = re.compile(
    r"(?:kernel's OOM killer|struck on this host): (?:Memory cgroup)?|in this host's cgroup"
)


def _how(cause: verdicts.RankFailed, errors: Sequence[RankError]) -> str:
    """``exit code 1: ValueError: no``, ``killed by SIGKILL: out of memory (cgroup)``."""
    found = _OOM.search(cause.hint)
    if found is None:
        return ": ".join(filter(None, (status_words(cause.status), _message(cause, errors))))
    kilobytes = sum(map(int, re.findall(r"-rss:([0-9]{1,15})kB", cause.hint)))
    where = "cgroup" if "cgroup" in found[0] else "host"
    more = f"; {size(kilobytes << 10)} resident" if kilobytes else ""
    perhaps = "perhaps " if "struck on" in found[0] else ""  # a container does not see its victim
    return f"killed by SIGKILL: {perhaps}out of memory ({where}{more})"


def fit_window(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """``lines`` of a verdict with fewer of a rank's last lines, so that all fits a window."""
    at = head = next((n for n, line in enumerate(lines, 1) if line.endswith(_QUOTES)), len(lines))
    quoted = sum(1 for line in lines[head:] if line.startswith("    "))
    heights = [max(1, -(-len(line) // columns)) for line in lines]
    over = sum(heights) + BESIDE + 1 - rows  # one line has the number of those left out
    while over > (at == head) and at < head + quoted - LEAST_QUOTED:
        over -= heights[at]
        at += 1
    left = [f"    ({plural(at - head, 'line')} left out for this window)"] if at > head else []
    return [*lines[:head], *left, *lines[at:]]


def _message(cause: verdicts.RankFailed | verdicts.MpiAborted, errors: Sequence[RankError]) -> str:
    """The reason from its output, if that includes its error file's; else its error file's."""
    filed = sanitize_text(cause.error.message) if cause.error is not None else ""
    own = own_error(cause, errors)
    said = error_text(own) if own is not None and own.text else ""
    return said if filed in said else filed


def _traceback(cause: verdicts.RankFailed | verdicts.MpiAborted, last: Last) -> list[str]:
    """The traceback of the rank's error file, unless its last lines end with the same."""
    text = cause.error.traceback.splitlines() if cause.error is not None else []
    if not text or any(line.endswith(sanitize_text(text[-1])) for line in last(cause.rank)[1]):
        return []  # torch puts the rank before its lines
    return ["  its traceback:", *("    " + sanitize_text(line) for line in text[-N_TRACEBACK:])]


def alike(
    cause: verdicts.RankFailed, verdict: Verdict, last: Last, errors: Sequence[RankError] = ()
) -> list[int]:
    """Other ranks that ended as the cause did and wrote the same, except for numbers.

    A rank that dispatch ended counts if it wrote the same error, or its beginning. Ranks that
    wrote nothing count only if the same signal ended them.
    """
    own, error = _shape(cause.rank, last), own_error(cause, errors)
    if not own and cause.status >= 0:
        return []
    same = set(error.ranks) if error is not None and error.text else set()
    found = []
    for rank, status in sorted(verdict.statuses.items()):
        cut = story.ended_by_us(verdict, rank) and status != 0
        if rank == cause.rank or not (cut or status == cause.status):
            continue
        said = _shape(rank, last)
        if rank in same or (_begins(said, own) if cut else said == own):
            found.append(rank)
    return found


def _begins(said: list[str], own: list[str]) -> bool:
    """Whether ``said`` ends inside a traceback that is complete in ``own``."""
    heads = [at for at, line in enumerate(said) if _TRACEBACK in line]
    begins = [at for at, line in enumerate(own) if _TRACEBACK in line]
    if not heads or not begins or len(said) - heads[-1] < 3:
        return False
    part, whole = said[heads[-1] :], own[begins[-1] :]
    return part == whole[: len(part)]


_TRACEBACK = "Traceback (most recent call last):"


def _shape(rank: int, last: Last) -> list[str]:
    return [re.sub(story.NUMBER, "0", line) for line in last(rank)[1]]


def _table(
    failures: Mapping[int, Failure],
    problems: Mapping[int, frozenset[str]],
    names: list[str],
    outcome: str,
    advise: Advise,
) -> list[str]:
    groups = grouped(
        Trouble(names[node], failure.kind.value, failure.why, failure.hint, _about(problems, node))
        for node, failure in sorted(failures.items())
    )
    hosts = plural(len(failures), "host")
    lines = [f"error: {hosts} of {len(names)} cannot be used; {outcome}"]
    rows = [(fold(hosts), one.kind, one.why) for hosts, one in groups]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines += [f"  {h:<{wide[0]}}  {kind:<{wide[1]}}  {why}" for h, kind, why in rows]
    return lines + hints(groups, advise)


def _about(problems: Mapping[int, frozenset[str]], node: int) -> str:
    return next((word for word in ASKED if word in problems.get(node, ())), "")


def advice_on(verdict: Verdict, advise: Advise) -> dict[str, str]:
    """All answers of ``advise`` that ``describe`` would need for ``verdict``."""
    cause = verdict.cause
    if not isinstance(cause, verdicts.Rejected):
        return {}
    troubles = {
        _about(cause.problems, node) or failure.kind.value
        for node, failure in cause.failures.items()
    }
    found = {trouble: advise(trouble) for trouble in sorted(troubles)}
    return {trouble: words for trouble, words in found.items() if words}


def last_words(verdict: Verdict, last: Last, errors: Sequence[RankError] = ()) -> LastWords | None:
    """The part of ``last`` that ``describe`` needs: the failed rank, and ranks like it."""
    cause = verdict.cause
    if not isinstance(cause, (verdicts.RankFailed, verdicts.MpiAborted, verdicts.LeftMpi)):
        return None
    same = alike(cause, verdict, last, errors) if isinstance(cause, verdicts.RankFailed) else []
    stream, lines = last(cause.rank)
    return LastWords((cause.rank, *same), stream, tuple(lines))


def _last_lines(rank: int, last: Last) -> list[str]:
    stream, lines = last(rank)
    if not lines:
        return [f"  rank {rank_name(rank)} wrote nothing"]
    return [f"  last lines of its {stream}:", *("    " + line for line in lines)]


def headline(cause: verdicts.Cause, names: Sequence[str], error: str = "") -> str:
    """``rank 3 on n2: exit code 1: ValueError: no``: the cause in one line.

    names: node -> host. error: the reason that the rank wrote.
    """
    rank = getattr(cause, "rank", None)
    errors = [RankError((rank,), error)] if error and rank is not None else []
    match cause:
        case verdicts.RankFailed():
            what = _how(cause, errors)
        case verdicts.MpiAborted(code=code):
            what = ": ".join(filter(None, (f"called MPI_Abort({code})", _message(cause, errors))))
        case verdicts.LeftMpi():
            what = left_words(cause)
        case verdicts.RankNotStarted(step=step):
            what = f"could not be started ({step})"
        case verdicts.OutputLost():
            what = "output lost"
        case verdicts.NodeFailed(node, failure):
            return f"{names[node]}: {failure.kind.value}: {sanitize_text(failure.why)}"
        case verdicts.Rejected(failures):
            return f"{fold(names[node] for node in failures)} cannot be used"
        case verdicts.Hung(seconds):
            return f"no activity for {seconds:.0f} s"
        case verdicts.TimeUp(seconds):
            return f"the time limit of {seconds:g} s is up"
        case verdicts.Impossible(message):
            return message
        case verdicts.Interrupted():
            return story.interrupted(cause)
        case verdicts.RestartAsked():
            return story.restart_asked(cause)
    return f"rank {rank_name(cause.rank)} on {names[cause.node]}: {what}"


def attempt_line(attempt: verdicts.Attempt, errors: Mapping[int, str]) -> str:
    """The cause of an attempt before the last one, in one line; errors: see ``history``."""
    error = errors.get(attempt.restart, "") if attempt.started else ""
    return headline(attempt.cause, attempt.names, error)


def left_out(excluded: Sequence[Exclusion]) -> list[str]:
    """Lines about hosts that did not pass the checks before the start."""
    lines = []
    for one in excluded:
        instead = f"; {one.by} takes its place" if one.by else ""
        lines.append(f"note: {one.host}: left out, unhealthy: {sanitize_text(one.why)}{instead}")
    return lines


def history(
    verdict: verdicts.Verdict, errors: Mapping[int, str] = MappingProxyType({})
) -> list[str]:
    """Lines for the verdict: the attempts before the last one.

    errors: number of restarts before an attempt -> the error of the rank that ended it.
    """
    lines = []
    of = f" of {verdict.starts}" if verdict.starts else ""
    for attempt in verdict.attempts:
        which = f"attempt {attempt.restart + 1}{of}" if attempt.started else "before a start"
        lines.append(f"note: {which}: {attempt_line(attempt, errors)}")
    return lines


def outcome(verdict: verdicts.Verdict) -> list[str]:
    """Lines for the verdict: the result of the attempts, and why there was no other."""
    lines = []
    restarts = sum(attempt.started for attempt in verdict.attempts)
    if verdict.cause is None and restarts:
        lines.append(f"note: the job succeeded after {plural(restarts, 'restart')}")
    lines += [f"note: {sanitize_text(one.text)}" for one in verdict.changed]
    for host, why in verdict.left_out.items():
        lines.append(f"note: {host} was left out from then on: {sanitize_text(why)}")
    if verdict.may_run_on:
        whose = "its ranks" if len(verdict.may_run_on) == 1 else "their ranks"
        most = max(verdict.may_run_on.values())
        until = f"for up to {most:.0f} s more, until the lease ends (--lease)"
        lines.append(f"note: {fold(verdict.may_run_on)}: {whose} may run on {until}")
    if verdict.no_restart is not None:
        lines.append(f"note: not started again: {verdict.no_restart}")
    return lines
