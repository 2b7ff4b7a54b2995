"""One HTML page, complete in itself: a table of phases, and every host's line drawn to scale.

Two pictures where it makes a difference: the start alone, which is over in a
second, and the whole run. No script, no font and nothing else is loaded.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from dispatcher.output.phases import owner, phases
from dispatcher.output.reading import LAUNCHER, LINK, Span, Timeline

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
            told = f"{_text(moment.name)}, at {_seconds(moment.at)}"
            yield (
                f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y:.0f}' y2='{y + _ROW - 2:.0f}' "
                f"stroke='#d00'><title>{told}</title></line>"
            )
    yield "</svg>"


def _bar(
    timeline: Timeline, span: Span, y: float, scale: float, until: float, colours: dict[str, str]
) -> str:
    width = max(0.5, (min(span.until, until) - span.since) * scale)
    tall = (_ROW if span.line == LINK else _THIN) - 1
    told = (
        f"{owner(timeline, span.process, span.line)}: {span.name}, {_seconds(span.seconds)} "
        f"from {_seconds(span.since)}"
    )
    return (
        f"<rect x='{_LEFT + span.since * scale:.1f}' y='{y:.0f}' width='{width:.1f}' "
        f"height='{tall}' fill='{colours[span.name]}'><title>{_text(told)}</title></rect>"
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
