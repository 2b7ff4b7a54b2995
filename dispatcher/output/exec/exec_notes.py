"""An errand in words: notes while it goes on, and what became of which hosts at its end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from dispatcher.core.events import exec_events as vi
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.model.hostset import fold
from dispatcher.output.text.counted import plural
from dispatcher.output.text.failures import Advise, Trouble, grouped, hints, no_advice
from dispatcher.output.text.sanitize import harmless_text

#: words of a line of the summary
_WIDEST = 300


class ErrandNotes(Sink):
    """Says what the user should know at once; with ``verbose``, every step of every host.

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
                "output open; what that process writes is not shown"
            )

    def event(self, stamped: Stamped) -> None:
        text = self._always(stamped.event)
        if text is None and self._verbose:
            text = self._detail(stamped.event)
            if text is not None:
                text = f"{stamped.t:.3f} s: {text}"
        if text is not None:
            self._say(f"note: {text}")

    def _always(self, event: ev.Event) -> str | None:
        match event:
            case ev.NodeConnecting(node, attempt) if attempt > 1:
                return f"{self._names[node]}: connection was dropped, attempt {attempt}"
            case vi.CommandEnded(node, held_open=True):
                self._held.append(self._names[node])
            case vi.StatusAsked(connecting, running, waiting):
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
                after = f" after {noise} bytes of noise" if noise else ""
                return f"{self._names[node]}: command started{after}"
            case vi.HostDone(node, outcome):
                return f"{self._names[node]}: {words(outcome)}"
        return None


def words(outcome: vi.Outcome) -> str:
    """``exit code 3``, ``killed by SIGKILL``, ``connection refused: ...``; one line."""
    match outcome:
        case vi.Exited(code):
            return f"exit code {code}"
        case vi.Killed(name):
            return f"killed by SIG{harmless_text(name)}"
        case vi.Failed(failure):
            return f"{failure.kind.value}: {harmless_text(failure.why)}"
        case vi.TimedOut(limit, seconds, ended):
            what = "command" if limit == "command" else "errand"
            return f"timeout: longer than the {seconds:g} s of the {what}" + _unended(ended)
        case vi.Interrupted(signum, ended):
            return f"interrupted by {signal.Signals(signum).name}" + _unended(ended)
        case vi.NotCopied(why):
            return harmless_text(why)
    return f"not started: {outcome.why}"


def _unended(ended: bool) -> str:
    return "" if ended else "; it was not seen to end"


def describe(
    outcomes: Sequence[vi.Outcome], names: Sequence[str], advise: Advise = no_advice
) -> list[str]:
    """The lines told at the end; [] when every command exited 0. Equal outcomes are folded.

    advise: what our machine knows to do about a kind of failure, or ``exit code 127``.
    """
    groups = grouped(
        Trouble(name, *_trouble(outcome))
        for name, outcome in zip(names, outcomes, strict=True)
        if not vi.is_good(outcome)
    )
    if not groups:
        return []
    failed = sum(len(hosts) for hosts, _ in groups)
    rows = [(fold(hosts), one.why) for hosts, one in groups]
    wide = min(40, max(len(row[0]) for row in rows))
    lines = [f"error: {failed} of {plural(len(names), 'host')} failed"]
    lines += [f"  {hosts:<{wide}}  {text}" for hosts, text in rows]
    return lines + hints(groups, advise)


def _trouble(outcome: vi.Outcome) -> tuple[str, str, str | None]:
    """Kind, words and hint of what went wrong."""
    text = words(outcome)[:_WIDEST]
    if isinstance(outcome, vi.Failed):
        return outcome.failure.kind.value, text, outcome.failure.hint
    return text if isinstance(outcome, vi.Exited) else "", text, None
