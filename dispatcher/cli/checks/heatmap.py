"""Host by host rates of ``dispatch check --pairs``: for the screen, and as SVG. Pure.

A row sends, a column receives. A shade stands for the share of the usual rate: what is as
fast as usual, or faster, is full; what was not measured is left empty; what failed is marked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from dispatcher.checks.pair_ranking import Judgement, Pair

SHADES = " ░▒▓█"
FAILED, NOT_MEASURED = "x", "·"
#: hosts that fit on a screen; an SVG takes any number
MOST_SHOWN = 64
CELL, MARGIN = 18, 90


def rates(pairs: Sequence[Pair]) -> dict[tuple[int, int], float | None]:
    """(sender, receiver) -> bytes/s, None where it failed."""
    found: dict[tuple[int, int], float | None] = {}
    for pair in pairs:
        found[pair.a, pair.b] = pair.there
        found[pair.b, pair.a] = pair.back
    return found


def text(names: Sequence[str], pairs: Sequence[Pair], judgement: Judgement) -> list[str]:
    """The map in lines; [] for too many hosts."""
    if len(names) > MOST_SHOWN:
        return []
    there = rates(pairs)
    wide = max(map(len, names))
    lines = []
    for row, name in enumerate(names):
        cells = [_shade(there, row, column, judgement.usual) for column in range(len(names))]
        mark = " <" if row in judgement.culprits else ""
        lines.append(f"{name.rjust(wide)} {''.join(cells)}{mark}")
    return lines


def _shade(there: dict[tuple[int, int], float | None], row: int, column: int, usual: float) -> str:
    if row == column:
        return " "
    if (row, column) not in there:
        return NOT_MEASURED
    rate = there[row, column]
    if rate is None:
        return FAILED
    share = min(1.0, rate / usual) if usual else 0.0
    return SHADES[max(1, round(share * (len(SHADES) - 1)))]


def svg(names: Sequence[str], pairs: Sequence[Pair], judgement: Judgement) -> str:
    """The map as a picture that needs nothing else; each cell tells its rate when pointed at."""
    there = rates(pairs)
    side = CELL * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{side + 2 * MARGIN}" '
        f'height="{side + 2 * MARGIN}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="16">rows send, columns receive; usual: '
        f"{rate_words(judgement.usual)}</text>",
    ]
    for at, name in enumerate(names):
        middle = MARGIN + CELL * at + CELL * 0.7
        style, edge = _style(at in judgement.culprits), MARGIN - 6
        parts.append(
            f'<text x="{edge}" y="{middle:.0f}" text-anchor="end"{style}>{escape(name)}</text>'
        )
        parts.append(
            f'<text x="{middle:.0f}" y="{edge}"{style} '
            f'transform="rotate(-60 {middle:.0f} {edge})">{escape(name)}</text>'
        )
    for (row, column), rate in sorted(there.items()):
        told = "failed" if rate is None else rate_words(rate)
        parts.append(
            f'<rect x="{MARGIN + CELL * column}" y="{MARGIN + CELL * row}" width="{CELL - 1}" '
            f'height="{CELL - 1}" fill="{_colour(rate, judgement.usual)}">'
            f"<title>{escape(names[row])} to {escape(names[column])}: {told}</title></rect>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _style(is_culprit: bool) -> str:
    return ' font-weight="bold" fill="#c00"' if is_culprit else ""


def _colour(rate: float | None, usual: float) -> str:
    """From red (nothing) over yellow to green (as usual); black for a failure."""
    if rate is None:
        return "#000"
    share = min(1.0, rate / usual) if usual else 0.0
    return f"hsl({120 * share:.0f},75%,50%)"


def rate_words(rate: float) -> str:
    """``1.2 GB/s``, ``340 kB/s``."""
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6)):
        if rate >= factor:
            return f"{rate / factor:.1f} {unit}"
    return f"{rate / 1e3:.0f} kB/s"


def named(names: Sequence[str], hosts: Collection[int]) -> list[str]:
    return [names[host] for host in sorted(hosts)]
