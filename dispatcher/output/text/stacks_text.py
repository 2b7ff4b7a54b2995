"""Shows where the ranks are, as lines and as files.

``stack_lines`` is short, for the verdict and for ``dispatch stacks``. ``stacks-N.txt`` has every
group's frames and every rank's text as it came; NCCL's and torch's output goes to files beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dispatcher.core.events.collectives import Collective
from dispatcher.core.events.monitor_events import NodeStacks, StacksGathered
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.core.events.stack_frames import Group
from dispatcher.core.events.verdicts import Signal
from dispatcher.model.errors import reason
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.model.paths import write_new
from dispatcher.output.text.fold import fold_ranks
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.job.placement import rank_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model.formats import Gathered

#: groups in the verdict, and frames of an odd group
MOST_GROUPS, MOST_FRAMES = 6, 8


def stack_lines(groups: Sequence[Group], host_of: Callable[[int], str]) -> list[str]:
    """``rank 21 on n3 is in load_batch at data.py:88`` and its stack, then the others."""
    lines = []
    for group in groups[:MOST_GROUPS]:
        halted = " (stopped)" if group.state in ("T", "t") else ""
        verb = "is" if len(group.ranks) == 1 else "are"
        place, own = group.place, group.own
        if own is not None and own.words != place:
            place += f", called in {own.words}"
        if group.native:
            place += f"; innermost {group.native}"
        place = sanitize_text(place)
        lines.append(f"{_where(group.ranks, host_of)} {verb} in {place}{halted}")
        if group.odd and len(group.frames) > 1:
            lines += ["  " + sanitize_text(f.words) for f in group.frames[:MOST_FRAMES]]
    if len(groups) > MOST_GROUPS:
        rest = sum(len(group.ranks) for group in groups[MOST_GROUPS:])
        lines.append(f"{plural(rest, 'rank')} elsewhere, in {len(groups) - MOST_GROUPS} places")
    return lines


def _stopped(groups: Sequence[Group]) -> list[int]:
    return sorted(rank for one in groups if one.state in ("T", "t") for rank in one.ranks)


def stopped_words(groups: Sequence[Group], host_of: Callable[[int], str]) -> str:
    """``rank 2 on n2 is stopped (SIGSTOP or debugger); ``, "" where none is."""
    ranks = _stopped(groups)
    are = "are" if ranks[1:] else "is"
    return f"{_where(ranks, host_of)} {are} stopped (SIGSTOP or debugger); " if ranks else ""


def _where(ranks: Sequence[int], host_of: Callable[[int], str]) -> str:
    return f"{fold_ranks(ranks)} on {fold(dict.fromkeys(map(host_of, ranks[:4096])))}"


def collective_line(
    one: Collective, host_of: Callable[[int], str], groups: Sequence[Group] = ()
) -> str:
    """``rank 1 on n3 has not called gloo:all_reduce Float[8], number 4 of default_pg (0); ...``.

    groups: where the ranks are; stopped ranks are not listed as unknown.
    """

    def where(ranks: Sequence[int]) -> str:
        return _where(ranks, host_of)

    called = sanitize_text(f"{one.name}, number {one.sequence} of {one.group}")
    some = "waits" if len(one.entered) == 1 else "wait"
    if one.missing:
        have = "has" if len(one.missing) == 1 else "have"
        line = f"{where(one.missing)} {have} not called {called}"
        line += f"; {fold_ranks(one.entered)} {some} in it"
    elif one.differing:
        others = "; ".join(f"{where(r)}: {sanitize_text(name)}" for name, r in one.differing)
        line = f"ranks have called different collectives: {called}, but {others}"
    elif one.unknown:
        line = f"{fold_ranks(one.entered)} {some} in {called}"
    else:
        line = f"all of {fold_ranks(one.entered)} are in {called}, which does not end"
    unknown = [rank for rank in one.unknown if rank not in _stopped(groups)]
    return line + (f"; no record from {where(unknown)}" if unknown else "")


def signals_line(signals: Sequence[Signal]) -> str:
    """``flight recorder and stacks agree; RAS points at rank 3``."""
    first, *rest = signals
    agree = [first.name, *(one.name for one in rest if one.ranks == first.ranks)]
    same = f"known from: {first.name}"
    if agree[1:]:
        same = f"{', '.join(agree[:-1])} and {agree[-1]} agree"
    others = [
        f"{o.name} point{'' if o.name.endswith('s') else 's'} at {fold_ranks(o.ranks)}"
        for o in rest
        if o.ranks != first.ranks
    ]
    return "; ".join([same, *others])


class StackFiles(Sink):
    """Writes files in ``folder`` (None: none) for each gathering, and answers it.

    hosts: number -> name. answer: gets the gathering's number, its lines, and its record for
    programs. warn: called if a file cannot be written.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        folder: Path | None,
        answer: Callable[[int, list[str], Gathered], None],
        warn: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._folder = folder
        self._answer = answer
        self._warn = warn
        self._seen: list[NodeStacks] = []

    def event(self, entry: Entry) -> None:
        match entry.event:
            case NodeStacks() as stacks:
                self._seen.append(stacks)
            case StacksGathered(number, groups, late, collective):
                seen = [one for one in self._seen if one.number == number]
                self._seen.clear()
                homes = {stack.rank: one.node for one in seen for stack in one.ranks}

                def host_of(rank: int) -> str:
                    return self._hosts[homes[rank]] if rank in homes else "another host"

                lines = stack_lines(groups, host_of)
                if collective is not None:
                    lines.insert(0, collective_line(collective, host_of, groups))
                if late:
                    names = fold(self._hosts[node] for node in late)
                    lines.append(f"{names}: no answer in time")
                if not groups and not late:
                    lines.append("no rank is running")
                try:
                    self._write(number, lines, groups, seen)
                except OSError as error:
                    self._warn(f"note: {self._folder}: stacks cannot be written: {reason(error)}")
                found: Gathered = {
                    "groups": [one.plain() for one in groups],
                    "hosts": {rank_name(r): self._hosts[node] for r, node in sorted(homes.items())},
                    "late": [self._hosts[node] for node in late],
                    "collective": None if collective is None else collective.plain(),
                }
                self._answer(number, lines, found)

    def _write(
        self, number: int, lines: list[str], groups: Sequence[Group], seen: list[NodeStacks]
    ) -> None:
        if self._folder is None:
            return
        text = [*lines, ""]
        for group in groups:
            text += [f"== {fold_ranks(group.ranks)}, by {group.how}, state {group.state}"]
            text += ["  " + sanitize_text(frame.words) for frame in group.frames] + [""]
        body = "\n".join(text).encode()
        for one in seen:
            for stack in one.ranks:
                where = f"rank {rank_name(stack.rank)} on {self._hosts[one.node]}, pid {stack.pid}"
                heading = f"-- {where}, state {stack.state}, by {stack.how}\n"
                body += heading.encode() + stack.text.rstrip() + b"\n\n"
            for kind, texts in (("flight recorder", one.recorders), ("frames of C", one.natives)):
                for each in texts:
                    body += f"-- {kind} of rank {rank_name(each.rank)}\n".encode()
                    body += each.text.rstrip() + b"\n\n"
            for flight in one.flights:
                where = f"{self._hosts[one.node]}:{sanitize_text(flight.path)}"
                size = plural(flight.size, "byte")
                body += (
                    f"-- torch's dump of rank {rank_name(flight.rank)}: {where}, {size}\n".encode()
                )
                if flight.data:
                    dump = f"flight-{number}-rank-{flight.rank:05d}.bin"
                    write_new(self._folder / dump, flight.data)
        ras = next((one.ras for one in seen if one.ras), b"")
        if ras:
            write_new(self._folder / f"ras-{number}.txt", ras)
        write_new(self._folder / f"stacks-{number}.txt", body)
