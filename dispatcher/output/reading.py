"""``read(text)``: the spans and moments of a trace, whether or not its run has ended.

The format is the "Trace Event Format" of the Chromium project as far as
``dispatcher.output.files.trace`` writes it: complete events (X), instants (i) and names
(M), one a line, times in microseconds. A run that was killed leaves the array
open; whole lines count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dispatcher.model.errors import UsageError

#: the picture's process of the launcher; a host's line 0 is its link, the others its ranks
LAUNCHER, LINK = 0, 0


@dataclass(frozen=True)
class Span:
    """Something that took time on one line of one process; seconds since the run's start."""

    process: int
    line: int
    name: str
    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass(frozen=True)
class Moment:
    """Something that happened; ``at`` in seconds."""

    process: int
    name: str
    at: float


@dataclass(frozen=True)
class Timeline:
    """A whole trace: spans in time order, names of processes and of their lines."""

    spans: tuple[Span, ...]
    moments: tuple[Moment, ...]
    hosts: dict[int, str]
    lines: dict[tuple[int, int], str]
    ended: bool

    @property
    def seconds(self) -> float:
        """From the launcher's start to the last thing known."""
        ends = [span.until for span in self.spans] + [moment.at for moment in self.moments]
        return max(ends, default=0.0)

    @property
    def start(self) -> float:
        """When the last rank had begun to run, or all of it if none did."""
        begun = [span.until for span in self.spans if span.name == "start"]
        return max(begun, default=self.seconds)


def read(text: str, source: str) -> Timeline:
    """The timeline of a trace. Raises: UsageError naming the line that is none."""
    spans: list[Span] = []
    moments: list[Moment] = []
    hosts: dict[int, str] = {}
    lines: dict[tuple[int, int], str] = {}
    rows = text.splitlines()
    ended = bool(rows) and rows[-1].strip() == "]"
    for number, row in enumerate(rows, 1):
        row = row.strip().rstrip(",")
        if row in ("", "[", "]"):
            continue
        try:
            record = json.loads(row)
            kind, process, line = record["ph"], int(record["pid"]), int(record["tid"])
            name = str(record["name"])
            if kind == "M":
                said = str(record["args"]["name"])
                if name == "process_name":
                    hosts[process] = said
                else:
                    lines[process, line] = said
                continue
            at = float(record["ts"]) / 1e6
            if kind == "X":
                spans.append(Span(process, line, name, at, at + float(record["dur"]) / 1e6))
            elif kind == "i":
                moments.append(Moment(process, name, at))
        except (ValueError, KeyError, TypeError, RecursionError):
            if number == len(rows) and not ended:
                break  # the run was killed in the middle of a line
            raise UsageError(
                f"{source}:{number}: not a line of a trace",
                hint="dispatch --trace run.json -H hostfile train.py  # writes one",
            ) from None
    if not spans:
        raise UsageError(f"{source}: no trace in it", hint="dispatch --trace run.json ...")
    spans.sort(key=lambda span: (span.since, span.until))
    return Timeline(tuple(spans), tuple(moments), hosts, lines, ended)
