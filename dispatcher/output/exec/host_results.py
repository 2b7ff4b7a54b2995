"""The result of each host of a fan-out command or a copy: a value, JSON, the lines at the end."""

from __future__ import annotations

import base64
import shlex
import signal
from collections.abc import Sequence
from typing import Any, Protocol

from dispatcher.core.events import exec_events
from dispatcher.model.frozen import Value, value
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural, size
from dispatcher.output.text.fold import Advise, Trouble, grouped, hints, no_advice
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.remote.protocol.frames import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model import formats

BOTH = frozenset({STDOUT, STDERR})
#: characters of a line of the summary
_WIDEST = 300
#: the trouble of hosts that were never contacted, as a key for advice
NOT_STARTED = "not started"


@value
class HostResult(Value):
    """The result of a command on one host. index: the number of the host.

    outcome: how the command ended. seconds: from the start of the whole command to this host's end.
    stdout, stderr: the first 4 MiB; stdout_dropped, stderr_dropped: bytes beyond.
    """

    host: str
    index: int
    outcome: exec_events.Outcome
    seconds: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return exec_events.is_good(self.outcome)

    @property
    def code(self) -> int | None:
        """The exit code of the command, None if it did not exit by itself."""
        return self.outcome.code if isinstance(self.outcome, exec_events.Exited) else None

    @property
    def words(self) -> str:
        """The outcome as text; one line."""
        return outcome_text(self.outcome)

    @property
    def text(self) -> str:
        """The standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def dropped(self) -> int:
        """Bytes of both streams that were not kept."""
        return self.stdout_dropped + self.stderr_dropped


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


def about(one: HostResult) -> formats.HostOutcome:
    """One host's outcome, for programs."""
    outcome = one.outcome
    failure = outcome.failure if isinstance(outcome, exec_events.Failed) else None
    kind = type(outcome).__name__.replace("Not", "not ").lower()
    return {
        "host": one.host,
        "index": one.index,
        "ok": one.ok,
        "outcome": "timeout" if isinstance(outcome, exec_events.TimedOut) else kind,
        "code": one.code,
        "signal": outcome.signal if isinstance(outcome, exec_events.Killed) else None,
        "kind": failure.kind.value if failure else None,
        "message_code": failure.kind.code if failure else None,
        "words": one.words,
    }


def host_record(one: HostResult) -> dict[str, Any]:
    """One host as plain values for JSON. Output that is not UTF-8 comes as base64."""
    found: dict[str, Any] = {"schema": "exec/1", **about(one), "seconds": round(one.seconds, 3)}
    for title, data, dropped in (
        ("stdout", one.stdout, one.stdout_dropped),
        ("stderr", one.stderr, one.stderr_dropped),
    ):
        try:
            found[title] = data.decode()
        except UnicodeDecodeError as bad:
            if dropped and bad.reason == "unexpected end of data":  # a character was cut
                dropped += len(data) - bad.start
                found[title] = data[: bad.start].decode()
            else:
                found[f"{title}_base64"] = base64.b64encode(data).decode()
        if dropped:
            found[f"{title}_dropped"] = dropped
    return found


def describe(
    results: Sequence[HostResult],
    advise: Advise = no_advice,
    again: Sequence[str | None] | None = None,
) -> list[str]:
    """The lines at the end; [] when every command exited 0. Equal outcomes are folded.

    advise: gives the remedy that our machine knows for a kind of failure, or ``exit code 127``.
    again: each host's name for -w, None where it has none; that of its result by default.
    """
    typed = again or [one.host for one in results]
    bad = [(one, name) for one, name in zip(results, typed, strict=True) if not one.ok]
    if not bad:
        return []
    left = sum(isinstance(one.outcome, exec_events.NotStarted) for one, _ in bad)
    rest = [name for _, name in bad if name is not None] if left else []
    line = f"-w {shlex.quote(fold(rest))}  # goes on with all of these"
    hint = line if len(rest) == len(bad) and len(line) <= _WIDEST else None
    groups = grouped(Trouble(one.host, *_trouble(one.outcome, hint)) for one, _ in bad)
    rows = [(fold(hosts), one.why) for hosts, one in groups]
    wide = min(40, max(len(row[0]) for row in rows))
    failed, total = len(bad) - left, plural(len(results), "host")
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


def exec_summary(
    results: Sequence[HostResult], copies: Sequence[CopyResult], seconds: float, verb: str
) -> list[str]:
    """A line for each group of hosts with the same result; [] when none was served.

    verb: ``sent`` or ``fetched``. Bytes are per host, if all hosts got as many.
    """
    groups: dict[str, list[str]] = {}
    for result, one in zip(results, copies, strict=True):
        if not result.ok:
            continue
        if one.sent is None:
            text = f"all {verb}, by tar"
        else:
            text = f"{plural(one.sent, 'file')} {verb}, {one.equal} equal"
            if not one.python:
                text += ", by tar"
            if one.found:
                text += f", {size(one.found)} were there from an interrupted copy"
        groups.setdefault(text, []).append(result.host)
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
