"""Draws a run as one HTML page, which a user can send to others. Pure.

Pictures are SVG, drawn here: the smallest charting library that draws heat maps is larger than
such a page, and needs a script. The page loads nothing and runs nothing, which its
Content-Security-Policy forbids. Texts of hosts and programs may hold any bytes; only ``escaped``
inserts them, and never as attributes.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dispatcher.model.names import plural
from dispatcher.output.text.story import status_words
from dispatcher.output.timeline import FIGURES, LINK, Heat, History, RankLife, Span, owner, phases
from dispatcher.plan.job.placement import rank_name

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --dim: #667; --line: #d5d8de; --soft: #f3f4f7;
--paper: #fff; --bad: #c5221f; --good: #1a7f37 }
@media (prefers-color-scheme: dark) { :root { --ink: #dde1e6; --dim: #99a; --line: #3a3f47;
--soft: #22262c; --paper: #16191d; --bad: #ff7b72; --good: #56d364 } }
@media print { :root { color-scheme: light; --ink: #000; --dim: #444; --line: #bbb; --soft: #eee;
--paper: #fff; --bad: #b00; --good: #060 } figure, tr, pre { break-inside: avoid } }
* { print-color-adjust: exact; -webkit-print-color-adjust: exact }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
margin: 2em auto; max-width: 1180px; padding: 0 1em }
h1 { font-size: 1.5em; margin: 0 0 .3em } h2 { font-size: 1.15em; margin: 1.8em 0 .4em }
h3 { font-size: 1em; margin: 1em 0 .2em; font-weight: 600 }
.badge { font-size: .75em; padding: .15em .6em; border-radius: 1em; border: 1px solid; margin-left:
.5em; white-space: nowrap } .good { color: var(--good) } .bad { color: var(--bad) }
.dim, figcaption { color: var(--dim) } figure { margin: .3em 0 1em }
pre { background: var(--soft); padding: .7em 1em; overflow-x: auto; font: 12.5px/1.45
ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
overflow-wrap: anywhere }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .15em .9em .15em 0; text-align: right; vertical-align: top }
th { color: var(--dim); font-weight: 500 }
td:first-child, th:first-child, td:last-child, th:last-child, .left td, .left th {
text-align: left }
.left td:last-child { overflow-wrap: anywhere }
tr + tr { border-top: 1px solid var(--line) }
i { display: inline-block; width: .9em; height: .8em; margin-right: .4em }
svg { display: block; width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif;
fill: var(--ink) } svg .dim { fill: var(--dim) } .grid { stroke: var(--line) }
.mark { stroke: var(--bad); stroke-width: 2 } .stop { stroke: var(--bad); stroke-dasharray: 3 3 }
.try { fill: var(--good); opacity: .3 } .try.bad { fill: var(--bad) }
.frame { fill: none; stroke: var(--line) } .row { fill: transparent }
.row:hover { fill: #8886 } .heat { shape-rendering: crispEdges } summary { cursor: pointer }
"""
#: colours of a host's phases, which colour-blind people can distinguish
_PHASES = {
    "connect": "#4477aa", "boot": "#66ccee", "check": "#ccbb44", "wait for others": "#bbbbbb",
    "spawn": "#ee8866", "ranks": "#44aa88",
}  # fmt: skip
_LEFT, _WIDTH, _ROW = 170, 1000, 14  # units of a picture
#: notes that are shown; hosts up to which bars have titles
MOST_NOTES, MOST_TITLED = 200, 128
#: colours of a heat map, from little to much: viridis, which works in grey and for all eyes
_HEAT = (
    "#440154", "#411864", "#3f2f73", "#3c4683", "#375b8b", "#306d8b", "#287f8c", "#21918c",
    "#32a180", "#44b174", "#55c168", "#75cd59", "#a2d648", "#d0de36", "#fde725",
)  # fmt: skip
_SGR = re.compile(r"\x1b\[[0-9;:]{0,64}m")


@dataclass(frozen=True)
class Told:
    """The texts of a page beside the history of its run.

    state: how it ended, in short. ok: whether it ended well; None: not yet. verdict: its lines.
    notes: (seconds, line). tails: (title, lines) of failed ranks. command: as shell text.
    settings: (name, value). version: of dispatch.
    """

    state: str
    ok: bool | None
    verdict: Sequence[str] = ()
    notes: Sequence[tuple[float, str]] = ()
    tails: Sequence[tuple[str, Sequence[str]]] = ()
    command: str = ""
    settings: Sequence[tuple[str, str]] = ()
    version: str = ""


def escaped(text: str) -> str:
    """Escape any text, even from a host, for HTML. Colours of a terminal are left out."""
    plain = _SGR.sub("", text).replace("\t", "    ")
    return html.escape("".join(char if char.isprintable() else "\ufffd" for char in plain))


def seconds_text(value: float) -> str:
    """``250 ms``, ``12.5 s``, ``3.1 min``, ``2.5 h``."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


def run_page(history: History, told: Told) -> str:
    """The page of a run."""
    began = history.began
    title = " ".join(filter(None, (began.job_name, began.run_id))) if began else "?"
    spans = _of_hosts(history)
    kind = {True: "good", False: "bad", None: "dim"}[told.ok]
    state = f"<span class='badge {kind}'>{escaped(told.state)}</span>"
    parts = [f"<h1>{escaped(title)} {state}</h1>", f"<p>{escaped(_facts(history))}</p>"]
    if told.verdict:
        parts += ["<h2>Verdict</h2>", _block(told.verdict)]
    for whose, lines in told.tails:
        parts += [f"<h3>{escaped(whose)}</h3>", _block(lines)]
    parts += [*_pictures(history, spans), *_phase_table(history, spans)]
    parts += [*_heat_maps(history), *_apart_table(history), *_note_list(told.notes)]
    parts += _settings(told)
    if told.version:
        parts.append(f"<p class=dim>dispatch {escaped(told.version)}</p>")
    return "\n".join([
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name=viewport content="width=device-width">',
        f"<title>{escaped(title)}: {escaped(told.state)}</title><style>{_STYLE}</style></head>",
        "<body>", *parts, "</body></html>\n",
    ])  # fmt: skip


def _block(lines: Iterable[str]) -> str:
    return "<pre>" + "\n".join(map(escaped, lines)) + "</pre>"


def _facts(history: History) -> str:
    began, last = history.began, history.tries[-1] if history.tries else None
    size = 0 if last is None else last.world_size
    words = [plural(len(began.hosts) if began else 0, "host"), plural(size, "rank")]
    words += [plural(len(history.tries), "attempt")] if len(history.tries) > 1 else []
    if began is not None:
        try:
            at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began.at))
        except (OverflowError, ValueError, OSError):
            at = "no time"
        words.append(f"began {at}")
    closed = history.closed
    words.append(f"took {seconds_text(closed.seconds if closed else history.seconds)}")
    return ", ".join(words)


# -- times ------------------------------------------------------------------


def _of_hosts(history: History) -> list[Span]:
    """The phases of hosts: a transport's steps as one, ranks from the first to the last."""
    kept: dict[int, list[Span]] = {}
    for span in history.spans():
        if span.rank == LINK and span.name != "ranks":
            phase = span.name if span.name in _PHASES else "connect"
            mine = kept.setdefault(span.node, [])
            if mine and mine[-1].name == phase and span.since - mine[-1].until < 1e-3:
                mine[-1] = replace(mine[-1], until=max(mine[-1].until, span.until))
            else:
                mine.append(replace(span, name=phase))
    for one in history.tries:
        for node, since, until in one.hosts(history.seconds):
            kept.setdefault(node, []).append(Span(node, LINK, "ranks", since, until))
    return sorted((one for mine in kept.values() for one in mine), key=lambda one: one.since)


def _phase_table(history: History, spans: Sequence[Span]) -> Iterator[str]:
    if not spans:
        return
    yield "<table><tr><th>phase<th>times<th>shortest<th>median<th>longest<th>slowest</tr>"
    for phase in phases(spans, history.hosts):
        yield (
            f"<tr><td><i style='background:{_PHASES[phase.name]}'></i>{escaped(phase.name)}"
            f"<td>{phase.count}<td>{seconds_text(phase.shortest)}<td>{seconds_text(phase.median)}"
            f"<td>{seconds_text(phase.longest)}<td>{escaped(phase.slowest)}</tr>"
        )
    yield "</table>"


def _pictures(history: History, spans: Sequence[Span]) -> Iterator[str]:
    """The whole run, and the start alone if it is too short to be visible in the whole."""
    if not spans:
        return
    begun = [life.since for life in history.tries[0].ranks.values()] if history.tries else []
    start = min(history.seconds, max(begun, default=history.seconds) * 1.05)
    if start < 0.8 * history.seconds:
        yield f"<h2>The start: {seconds_text(start)}</h2>"
        yield from _picture(history, spans, start)
    yield f"<h2>The run: {seconds_text(history.seconds)}</h2>"
    yield from _picture(history, spans, history.seconds, tries=True)


def _picture(
    history: History, spans: Sequence[Span], until: float, *, tries: bool = False
) -> Iterator[str]:
    """The hosts as rows of one SVG. tries: draw the attempts above them; else only the start."""
    nodes = sorted({span.node for span in spans})
    tall = max(3, min(_ROW, 450 // len(nodes)))
    gap = 2 if tall == _ROW else 0
    top = 38 if tries else 20
    rows = {node: top + number * (tall + gap) for number, node in enumerate(nodes)}
    height = top + len(nodes) * (tall + gap)
    scale = _WIDTH / max(until, 1e-9)
    yield f"<figure><svg viewBox='0 0 {_LEFT + _WIDTH + 30} {height + 6}'>"
    yield from _axis(until, scale, height)
    labelled = -11
    for node, row in rows.items():
        y = row + tall - (4 if gap else 0)
        if y - labelled >= 11:
            labelled = y
            yield _label(history.hosts[node] if node < len(history.hosts) else "?", y)
    for span in spans:
        wide = (min(span.until, until) - span.since) * scale
        if span.since < until and (wide >= 0.2 or not tries):  # else the start alone shows it
            title = (
                f"<title>{escaped(owner(span, history.hosts))}: {span.name}, "
                f"{seconds_text(span.until - span.since)} from {seconds_text(span.since)}</title>"
            )
            yield (
                f"<rect x='{_LEFT + span.since * scale:.1f}' y='{rows[span.node]}' "
                f"width='{max(0.5, wide):.1f}' height='{tall - 1}' fill='{_PHASES[span.name]}'>"
                f"{title if len(nodes) <= MOST_TITLED else ''}</rect>"
            )
    if tries:
        yield from _tries(history, rows, scale, height, tall)
    yield "</svg></figure>"


def _tries(
    history: History, rows: Mapping[int, int], scale: float, height: float, tall: int
) -> Iterator[str]:
    for number, one in enumerate(history.tries, 1):
        until = history.seconds if one.until is None else one.until
        x, wide = _LEFT + one.since * scale, max(1.0, (until - one.since) * scale)
        failed = one.first is not None or bool(one.why)
        said = f"attempt {number} of {plural(one.world_size, 'rank')}"
        said += f": {escaped(one.why)}" if one.why else ""
        yield (
            f"<rect class='try{' bad' if failed else ''}' x='{x:.1f}' y='19' width='{wide:.1f}' "
            f"height='15'><title>{said}</title></rect>"
        )
        if wide > 70:
            yield f"<text x='{x + 4:.1f}' y='30'>attempt {number}</text>"
        if number > 1:
            yield f"<line class=stop x1='{x:.1f}' x2='{x:.1f}' y1='19' y2='{height:.0f}'/>"
        life = one.ranks.get(one.first) if one.first is not None else None
        if one.first is not None and life is not None and life.node in rows:
            at = life.until or life.since
            said = f"rank {rank_name(one.first)}: {_status(life)}, at {seconds_text(at)}"
            yield _mark(at * scale, rows[life.node], tall - 1, said)
    for at, node in history.lost:
        if node in rows:
            said = f"host lost, at {seconds_text(at)}"
            yield _mark(at * scale, rows[node], tall - 1, said)


def _axis(until: float, scale: float, height: float) -> Iterator[str]:
    step = next((one for one in _STEPS if until / one <= 12), _STEPS[-1])
    step = max(step, until / 100)
    at = 0.0
    while at <= until:
        x = _LEFT + at * scale
        yield f"<line class=grid x1='{x:.1f}' x2='{x:.1f}' y1='16' y2='{height:.0f}'/>"
        said = "0" if at == 0 else seconds_text(at)
        yield f"<text class=dim x='{x:.1f}' y='12' text-anchor='middle'>{said}</text>"
        at += step


#: seconds between two ticks
_STEPS = (
    *(base * 10.0**power for power in (-3, -2, -1, 0) for base in (1, 2, 5)), 10, 20, 30, 60, 120,
    300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800,
)  # fmt: skip


def _label(text: str, y: float) -> str:
    shown = text if len(text) <= 24 else text[:23] + "…"
    return f"<text x='{_LEFT - 6}' y='{y:.0f}' text-anchor='end'>{escaped(shown)}</text>"


def _mark(x: float, y: float, tall: float, title: str) -> str:
    x += _LEFT
    return (
        f"<line class=mark x1='{x:.1f}' x2='{x:.1f}' y1='{y:.0f}' y2='{y + tall:.0f}'>"
        f"<title>{title}</title></line>"
    )


# -- ranks ------------------------------------------------------------------


def _heat_maps(history: History) -> Iterator[str]:
    found = {figure: heat for figure, heat in history.heats.items() if heat.columns > 0}
    if found:
        yield "<h2>Ranks over time</h2>"
    for figure, heat in found.items():
        yield from _heat_map(history, figure, heat)


def _heat_map(history: History, figure: str, heat: Heat) -> Iterator[str]:
    members, rows = heat.rows()
    group = len(members[0])
    most = max((value for row in rows for value in row.values()), default=0.0)
    top = max(most, heat.top) or 1.0
    tall = max(1, min(14, 440 // len(rows)))
    height = 20 + tall * len(rows)
    seconds = max(history.seconds, heat.width)
    scale = _WIDTH / seconds
    yield f"<h3>{figure} <span class=dim>({FIGURES[figure]})</span></h3>"
    yield f"<figure><svg viewBox='0 0 {_LEFT + _WIDTH + 30} {height + 4}'>"
    yield from _axis(seconds, scale, 20)
    where = f"translate({_LEFT} {20 + tall / 2}) scale({heat.width * scale:.4g} {tall})"
    yield f"<g class=heat transform='{where}'>"
    yield from heat_cells(rows, heat.columns, top)
    yield "</g>"
    yield f"<rect class=frame x='{_LEFT}' y='20' width='{_WIDTH}' height='{tall * len(rows)}'/>"
    labelled, last = 0.0, ""
    for number, few in enumerate(members):
        y, host = 20 + number * tall, history.host_of(few[0])
        if host != last and y - labelled >= 11:
            labelled = y
            yield _label(host, y + min(11, max(tall, 8)))
        last = host
        mean = sum(rows[number].values()) / max(1, len(rows[number]))
        who = f"rank {rank_name(few[0])}" + (f" to {rank_name(few[-1])}" if group > 1 else "")
        yield (
            f"<rect class=row x='{_LEFT}' y='{y}' width='{_WIDTH}' height='{tall}'>"
            f"<title>{who} on {escaped(host)}: {mean:.3g} on average</title></rect>"
        )
    at_row = {rank: number for number, few in enumerate(members) for rank in few}
    for one in history.tries:
        x = _LEFT + one.since * scale
        if one.restart:
            yield f"<line class=stop x1='{x:.1f}' x2='{x:.1f}' y1='20' y2='{height}'/>"
        if one.first in at_row and one.first in one.ranks:
            life = one.ranks[one.first]
            said = f"rank {rank_name(one.first)}: {_status(life)}"
            y = 20 + at_row[one.first] * tall - (4 if tall < 9 else 0)  # to be seen among 512
            yield _mark((life.until or 0.0) * scale, y, max(tall, 9), said)
    yield "</svg><figcaption>0 "
    yield "".join(f"<i style='background:{colour};margin:0'></i>" for colour in _HEAT)
    more = f"; {group} ranks a row, which shows the rank farthest from the median" * (group > 1)
    yield f" {top:.4g}{more}</figcaption></figure>"


def heat_cells(rows: Sequence[Mapping[int, float]], columns: int, top: float) -> Iterator[str]:
    """A path for each colour: neighbouring cells of one colour in a row are one line of it."""
    drawn: dict[int, list[str]] = {}
    most = len(_HEAT) - 1
    for y, row in enumerate(rows):
        levels = [
            max(0, min(most, int(row[at] / top * len(_HEAT)))) if at in row else -1
            for at in range(columns)
        ]
        x = 0
        for level, run in groupby(levels):
            wide = len(list(run))
            drawn.setdefault(level, []).append(f"M{x} {y}h{wide}")
            x += wide
    for level, parts in sorted(drawn.items()):
        if level >= 0:  # below 0: unknown
            yield f"<path stroke='{_HEAT[level]}' d='{''.join(parts)}'/>"


def _apart_table(history: History) -> Iterator[str]:
    found = history.apart()
    if not found:
        return
    yield "<h2>Ranks unlike the others</h2><table class=left>"
    yield "<tr><th>rank<th>host<th>figure<th>its mean<th>median of all</tr>"
    for figure, one in found[:50]:
        yield (
            f"<tr><td>{rank_name(one.rank)}<td>{escaped(history.host_of(one.rank))}<td>{figure}"
            f"<td>{one.value:.3g}<td>{one.usual:.3g} <span class=dim>{FIGURES[figure]}</span></tr>"
        )
    yield "</table>"


def _note_list(notes: Sequence[tuple[float, str]]) -> Iterator[str]:
    if not notes:
        return
    yield "<h2>Notes</h2><table class=left>"
    for at, line in notes[:MOST_NOTES]:
        yield f"<tr><td>{seconds_text(at)}<td>{escaped(line)}</tr>"
    yield "</table>"
    if len(notes) > MOST_NOTES:
        yield f"<p class=dim>and {len(notes) - MOST_NOTES} more</p>"


def _settings(told: Told) -> Iterator[str]:
    if told.command:
        yield f"<h2>The command</h2><pre>{escaped(told.command)}</pre>"
    if told.settings:
        yield "<details open><summary>Settings</summary><table class=left>"
        for what, value in told.settings:
            yield f"<tr><td>{escaped(what)}<td>{escaped(value)}</tr>"
        yield "</table></details>"


def _status(life: RankLife) -> str:
    if life.status is None:
        return "not seen to end"
    return "0" if life.status == 0 else status_words(life.status)
