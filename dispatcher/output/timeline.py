"""A run's trace (``--trace``) read back and drawn: ``read``, then ``phases``, then ``page``. Pure.

``read`` gives the spans and moments of a trace, whether or not its run has ended. The format is
the "Trace Event Format" of the Chromium project as far as ``output.files.trace`` writes it:
complete events (X), instants (i) and names (M), one a line, times in microseconds. A run that was
killed leaves the array open; whole lines count.

``phases`` says where the time went: each phase over all hosts or ranks, and who was slowest.

``page`` is one HTML page, complete in itself: a table of phases, and every host's line drawn to
scale. It has two pictures where that makes a difference: the start alone, which is over in a
second, and the whole run. No script, no font and nothing else is loaded.
"""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from dispatcher.model.errors import FileUnusable

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
        """How long it took."""
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
                label = str(record["args"]["name"])
                if name == "process_name":
                    hosts[process] = label
                else:
                    lines[process, line] = label
                continue
            at = float(record["ts"]) / 1e6
            if kind == "X":
                spans.append(Span(process, line, name, at, at + float(record["dur"]) / 1e6))
            elif kind == "i":
                moments.append(Moment(process, name, at))
        except (ValueError, KeyError, TypeError, RecursionError):
            if number == len(rows) and not ended:
                break  # the run was killed in the middle of a line
            raise FileUnusable(
                f"{source}:{number}: not a line of a trace",
                hint="dispatch --trace run.json -H hostfile train.py  # writes one",
            ) from None
    if not spans:
        raise FileUnusable(f"{source}: no trace in it", hint="dispatch --trace run.json ...")
    spans.sort(key=lambda span: (span.since, span.until))
    return Timeline(tuple(spans), tuple(moments), hosts, lines, ended)


@dataclass(frozen=True)
class Phase:
    """One kind of span: how many there were, and their seconds. slowest: whose took ``longest``."""

    name: str
    count: int
    shortest: float
    median: float
    longest: float
    slowest: str


def phases(timeline: Timeline) -> list[Phase]:
    """Every phase, in the order in which they first begin."""
    found: dict[str, list[tuple[float, str]]] = {}
    for span in timeline.spans:
        found.setdefault(span.name, []).append(
            (span.seconds, owner(timeline, span.process, span.line))
        )
    return [
        Phase(
            name,
            len(took),
            min(seconds for seconds, _ in took),
            statistics.median(seconds for seconds, _ in took),
            *max(took),
        )
        for name, took in found.items()
    ]


def owner(timeline: Timeline, process: int, line: int) -> str:
    """``dispatch``, a host's name, or ``rank 3 on n1``."""
    host = timeline.hosts.get(process, f"process {process}")
    if process == LAUNCHER or line == LINK:
        return host
    return f"{timeline.lines.get((process, line), f'line {line}')} on {host}"


#: colours of phases, in the order they appear; told apart by people who see few colours
_COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
    "#bbbbbb", "#ee8866", "#44bb99", "#99ddff", "#7f5f00", "#000000",
)  # fmt: skip
_LEFT, _WIDTH, _ROW, _THIN = 170, 1000, 14, 5  # pixels; _THIN is the row of a rank
_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; max-width: 1220px; color: #222 }
table { border-collapse: collapse } td, th { padding: .15em .8em; text-align: right }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
tr:nth-child(even) { background: #f4f4f4 } svg { display: block; margin: .5em 0 }
svg text { font: 11px system-ui, sans-serif } i { display: inline-block; width: 1em; height: .8em;
margin-right: .4em } h2 { margin-top: 1.5em }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd }
tr:nth-child(even) { background: #222 } svg text { fill: #ddd } }
"""


def page(timeline: Timeline, title: str) -> str:
    """The page as text."""
    names = list(dict.fromkeys(span.name for span in timeline.spans))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>{_text(title)}</title><style>{_STYLE}</style><h1>{_text(title)}</h1>",
        f"<p>{_text(_summary(timeline))}</p>",
        *_table(timeline, colours),
    ]
    start = min(timeline.seconds, timeline.start * 1.02)
    if start < 0.8 * timeline.seconds:
        parts += [f"<h2>The start: {_seconds(start)}</h2>", *_picture(timeline, start, colours)]
    parts += [
        f"<h2>The run: {_seconds(timeline.seconds)}</h2>",
        *_picture(timeline, timeline.seconds, colours),
        "</html>\n",
    ]
    return "\n".join(parts)


def _summary(timeline: Timeline) -> str:
    hosts = len([process for process in timeline.hosts if process != LAUNCHER])
    ranks = len([line for _, line in timeline.lines if line != LINK])
    ended = "" if timeline.ended else "; the trace breaks off: dispatch was killed, or still runs"
    return (
        f"{hosts} hosts, {ranks} ranks; the last rank ran after {_seconds(timeline.start)}, "
        f"the end came after {_seconds(timeline.seconds)}{ended}"
    )


def _table(timeline: Timeline, colours: dict[str, str]) -> Iterator[str]:
    yield "<table><tr><th>phase<th>times<th>shortest<th>median<th>longest<th>slowest"
    for phase in phases(timeline):
        yield (
            f"<tr><td><i style='background:{colours[phase.name]}'></i>{_text(phase.name)}"
            f"<td>{phase.count}<td>{_seconds(phase.shortest)}<td>{_seconds(phase.median)}"
            f"<td>{_seconds(phase.longest)}<td>{_text(phase.slowest)}"
        )
    yield "</table>"


def _picture(timeline: Timeline, until: float, colours: dict[str, str]) -> Iterator[str]:
    """All lines as one SVG: a host's link, then its ranks as thin rows below it."""
    rows: dict[tuple[int, int], float] = {}
    height = 20.0
    for process in sorted(timeline.hosts):
        mine = sorted({span.line for span in timeline.spans if span.process == process} | {LINK})
        for line in mine:
            rows[process, line] = height
            height += _ROW if line == LINK else _THIN
        height += 2
    scale = _WIDTH / max(until, 1e-9)
    yield f"<svg width='{_LEFT + _WIDTH + 10}' height='{height + 6:.0f}'>"
    for tick in range(11):
        x = _LEFT + _WIDTH * tick / 10
        yield f"<line x1='{x}' x2='{x}' y1='16' y2='{height:.0f}' stroke='#8884'/>"
        yield f"<text x='{x}' y='12' text-anchor='middle'>{_seconds(until * tick / 10)}</text>"
    for process, name in sorted(timeline.hosts.items()):
        y = rows[process, LINK] + _ROW - 4
        shown = name if len(name) <= 24 else name[:23] + "…"
        yield f"<text x='{_LEFT - 6}' y='{y:.0f}' text-anchor='end'>{_text(shown)}</text>"
    for span in timeline.spans:
        if span.since < until and (span.process, span.line) in rows:
            yield _bar(timeline, span, rows[span.process, span.line], scale, until, colours)
    for moment in timeline.moments:
        if moment.at <= until and (moment.process, LINK) in rows:
            x = _LEFT + moment.at * scale
            y = rows[moment.process, LINK]
            title = f"{_text(moment.name)}, at {_seconds(moment.at)}"
            yield (
                f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y:.0f}' y2='{y + _ROW - 2:.0f}' "
                f"stroke='#d00'><title>{title}</title></line>"
            )
    yield "</svg>"


def _bar(
    timeline: Timeline, span: Span, y: float, scale: float, until: float, colours: dict[str, str]
) -> str:
    width = max(0.5, (min(span.until, until) - span.since) * scale)
    tall = (_ROW if span.line == LINK else _THIN) - 1
    title = (
        f"{owner(timeline, span.process, span.line)}: {span.name}, {_seconds(span.seconds)} "
        f"from {_seconds(span.since)}"
    )
    return (
        f"<rect x='{_LEFT + span.since * scale:.1f}' y='{y:.0f}' width='{width:.1f}' "
        f"height='{tall}' fill='{colours[span.name]}'><title>{_text(title)}</title></rect>"
    )


def _text(text: str) -> str:
    """Text for HTML; a host's words may hold anything."""
    return html.escape("".join(char if char.isprintable() else "\ufffd" for char in text))


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min"
