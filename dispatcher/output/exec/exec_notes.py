"""The notes of a fan-out command or a copy, and its summary with each host's outcome.

Equal hosts are folded. ``Passthrough`` shows the output of one host's terminal on the user's, byte
for byte and not sanitized, as ``ssh -t`` does: a full-screen program needs the whole terminal.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural, size
from dispatcher.model.paths import write_all
from dispatcher.output.text.fold import Advise, Trouble, grouped, hints, no_advice
from dispatcher.output.text.sanitize import sanitize_text

#: characters of a line of the summary
_WIDEST = 300
#: the trouble of hosts that were never contacted, as a key for advice
NOT_STARTED = "not started"


class ExecNotes(Sink):
    """Prints a note for important events at once; with ``verbose``, for every step of a host.

    names: node -> name. say: writes one line.
    """

    def __init__(self, names: Sequence[str], say: Callable[[str], None], *, verbose: bool) -> None:
        self._names = names
        self._say = say
        self._verbose = verbose
        self._held: list[str] = []

    def close(self) -> None:
        if self._held:
            self._say(
                f"note: {fold(self._held)}: the command ended, but a process it started holds its "
                "output open; later output of that process is not shown"
            )

    def event(self, entry: Entry) -> None:
        text = self._always(entry.event)
        if text is None and self._verbose:
            text = self._detail(entry.event)
            if text is not None:
                text = f"{entry.t:.3f} s: {text}"
        if text is not None:
            self._say(f"note: {text}")

    def _always(self, event: ev.Event) -> str | None:
        match event:
            case ev.NodeConnecting(node, attempt) if attempt > 1:
                return f"{self._names[node]}: connection was dropped, attempt {attempt}"
            case exec_events.CommandEnded(node, held_open=True):
                self._held.append(self._names[node])
            case exec_events.StatusAsked(connecting, running, waiting):
                parts = [
                    f"{fold(self._names[node] for node in nodes)} {word}"
                    for nodes, word in (
                        (running, "running"),
                        (connecting, "connecting"),
                        (waiting, "not started"),
                    )
                    if nodes
                ]
                return f"stopping; {', '.join(parts) or 'all done'}; again to kill"
        return None

    def _detail(self, event: ev.Event) -> str | None:
        match event:
            case ev.NodeConnected(node, address, transport):
                return f"{self._names[node]}: connected to {address or 'it'} by {transport}"
            case ev.NodeBooted(node, noise):
                after = f" after {plural(noise, 'byte')} of noise" if noise else ""
                return f"{self._names[node]}: command started{after}"
            case exec_events.BatchStarted(number, total, nodes):
                return f"batch {number} of {total}: {fold(self._names[node] for node in nodes)}"
            case exec_events.HostDone(node, outcome):
                return f"{self._names[node]}: {outcome_text(outcome)}"
        return None


def outcome_text(outcome: exec_events.Outcome) -> str:
    """``exit code 3``, ``killed by SIGKILL``, ``connection refused: ...``; one line."""
    match outcome:
        case exec_events.Exited(code):
            return f"exit code {code}"
        case exec_events.Killed(name):
            return f"killed by SIG{sanitize_text(name)}"
        case exec_events.Failed(failure):
            return f"{failure.kind.value}: {sanitize_text(failure.why)}"
        case exec_events.TimedOut(limit, seconds, ended):
            whose = "of the command" if limit == "command" else "for all hosts"
            return f"timeout: longer than the {seconds:g} s {whose}" + _unended(ended)
        case exec_events.Interrupted(signum, ended):
            return f"interrupted by {signal.Signals(signum).name}" + _unended(ended)
        case exec_events.NotCopied(why):
            return sanitize_text(why)
    return f"not started: {outcome.why}"


def _unended(ended: bool) -> str:
    return "" if ended else "; it was not seen to end"


def describe(
    outcomes: Sequence[exec_events.Outcome],
    names: Sequence[str],
    advise: Advise = no_advice,
    again: Sequence[str | None] | None = None,
) -> list[str]:
    """The lines at the end; [] when every command exited 0. Equal outcomes are folded.

    advise: gives the remedy that our machine knows for a kind of failure, or ``exit code 127``.
    again: each host's name for -w, None where it has none; ``names`` by default.
    """
    bad = [
        (name, outcome, typed)
        for name, outcome, typed in zip(names, outcomes, again or names, strict=True)
        if not exec_events.is_good(outcome)
    ]
    if not bad:
        return []
    left = sum(isinstance(outcome, exec_events.NotStarted) for _, outcome, _ in bad)
    rest = [typed for _, _, typed in bad if typed is not None] if left else []
    line = f"-w {shlex.quote(fold(rest))}  # goes on with all of these"
    hint = line if len(rest) == len(bad) and len(line) <= _WIDEST else None
    groups = grouped(Trouble(name, *_trouble(outcome, hint)) for name, outcome, _ in bad)
    rows = [(fold(hosts), one.why) for hosts, one in groups]
    wide = min(40, max(len(row[0]) for row in rows))
    failed, total = len(bad) - left, plural(len(names), "host")
    if failed:
        head = f"{failed} of {total} failed" + (f", {left} {NOT_STARTED}" if left else "")
    else:
        head = f"{left} of {total} {NOT_STARTED}"
    lines = [f"error: {head} [hosts-failed]"]
    lines += [f"  {hosts:<{wide}}  {text}" for hosts, text in rows]
    return lines + hints(groups, advise)


def _trouble(outcome: exec_events.Outcome, rest: str | None) -> tuple[str, str, str | None]:
    """Kind, text and hint of a bad outcome. rest: the hint where hosts were not started."""
    text = outcome_text(outcome)[:_WIDEST]
    match outcome:
        case exec_events.Failed(failure):
            return failure.kind.value, text, failure.hint
        case exec_events.NotStarted():
            return NOT_STARTED, text, rest
        case exec_events.Exited():
            return text, text, None
        case exec_events.NotCopied():
            return "", text, outcome.hint
    return "", text, None


class CopyResult(Protocol):
    """The state of the copy to or from one host; see ``transfer.host_copy``."""

    python: bool | None
    bytes: int
    wanted: int
    found: int
    sent: int | None
    equal: int
    error: str | None
    hostile: bool


def summary(
    names: Sequence[str],
    outcomes: Sequence[exec_events.Outcome],
    copies: Sequence[CopyResult],
    seconds: float,
    verb: str,
) -> list[str]:
    """A line for each group of hosts with the same result; [] when none was served.

    verb: ``sent`` or ``fetched``. Bytes are per host, if all hosts got as many.
    """
    groups: dict[str, list[str]] = {}
    for name, outcome, one in zip(names, outcomes, copies, strict=True):
        if not exec_events.is_good(outcome):
            continue
        if one.sent is None:
            text = f"all {verb}, by tar"
        else:
            text = f"{plural(one.sent, 'file')} {verb}, {one.equal} equal"
            if not one.python:
                text += ", by tar"
            if one.found:
                text += f", {size(one.found)} were there from an interrupted copy"
        groups.setdefault(text, []).append(name)
    each = [one.bytes for one in copies if one.bytes]
    what = size(sum(each))
    if len(each) > 1:
        way = "to" if verb == "sent" else "from"
        alike = len({*each}) == 1
        what = f"{size(each[0])} {way} {len(each)} hosts" if alike else f"{what} in all"
    lines = [f"{fold(hosts)}: {text}" for text, hosts in groups.items()]
    if lines:
        lines[-1] += f"; {what} in {seconds:.1f} s"
    return lines


class Passthrough(Sink):
    """Writes to ``fd``; on_broken: called once, when the reader has gone."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd: int | None = fd
        self._on_broken = on_broken

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if self._fd is None:
            return
        try:
            write_all(self._fd, data)
        except OSError:
            self._fd = None
            self._on_broken()
