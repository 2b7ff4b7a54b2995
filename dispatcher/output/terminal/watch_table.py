"""The table of all ranks on a whole screen: what it looks like, and what a key changes. Pure.

A moment of the run (``live_table.Snapshot``) and a ``ViewState`` go in, lines come out. Loaded only
where it is drawn: rich takes longer to load than a short run takes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from dispatcher.model.hostset import fold
from dispatcher.output.monitor.live_table import Row, Snapshot
from dispatcher.output.monitor.run_progress import NOTHING
from dispatcher.output.terminal.footer import Footer, duration
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.job.placement import name

#: notes of dispatch itself below the table; characters of a filter
NOTES_SHOWN, MOST_FILTER = 3, 64

#: seconds of silence that are worth a colour
LONG = 60.0

HELP = "q lines  s sort  / filter  \N{UPWARDS ARROW}\N{DOWNWARDS ARROW} PgUp PgDn scroll"

#: what s goes through: name -> what the first rows have most of; rank is the plain order
SORTS: dict[str, Callable[[Row], float]] = {
    "rank": lambda row: -row.rank,
    "silence": lambda row: -1.0 if row.silence is None else row.silence,
    "cpu": lambda row: -1.0 if row.cpu is None else row.cpu,
    "rss": lambda row: -1.0 if row.rss is None else row.rss,
}

_KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1b[H": "home", b"\x1b[F": "end",
    b"\x1bOH": "home", b"\x1bOF": "end", b"\x1b[1~": "home", b"\x1b[4~": "end",
    b"\r": "enter", b"\n": "enter", b"\x7f": "back", b"\x08": "back", b"\x1b": "escape",
}  # fmt: skip

_KEY = re.compile(rb"\x1b\[[0-9;]{0,16}[@-~]|\x1bO.|[ -~]|[\x08\n\r\x1b\x7f]", re.DOTALL)


def keys(data: bytes) -> list[str]:
    """The names of the keys that sent ``data``; a printable one is its character."""
    found = []
    for match in _KEY.finditer(data):
        key = _KEYS.get(match[0]) or (match[0].decode() if len(match[0]) == 1 else None)
        if key is not None:
            found.append(key)
    return found


@dataclass(frozen=True)
class ViewState:
    """How the table is looked at. top: rows scrolled away; typing: a filter not yet entered."""

    sort: str = "rank"
    top: int = 0
    filter: str = ""
    typing: str | None = None
    over: bool = False

    def pressed(self, key: str, page: int) -> ViewState:
        """The look after ``key``; ``over``: the user has left. page: rows of a screenful."""
        new = dataclasses.replace
        if self.typing is not None:
            if key == "enter":
                return new(self, filter=self.typing, typing=None, top=0)
            if key == "escape":
                return new(self, typing=None)
            if key == "back":
                return new(self, typing=self.typing[:-1])
            return new(self, typing=(self.typing + key)[:MOST_FILTER]) if len(key) == 1 else self
        if key == "q":
            return new(self, over=True)
        if key == "s":
            order = list(SORTS)
            return new(self, sort=order[(order.index(self.sort) + 1) % len(order)], top=0)
        if key == "/":
            return new(self, typing="")
        if key == "escape":
            return new(self, filter="", top=0)
        moves = {"up": -1, "down": 1, "page up": -page, "page down": page}
        if key in moves:
            return new(self, top=max(0, self.top + moves[key]))
        tops = {"home": 0, "end": 1 << 30}
        return new(self, top=tops[key]) if key in tops else self


def selected(rows: Sequence[Row], view: ViewState) -> list[Row]:
    """The rows that pass the filter (part of a host's name, or a rank), as sorted."""
    wanted = view.filter
    fits = [row for row in rows if not wanted or wanted in row.host or wanted == name(row.rank)]
    return sorted(fits, key=SORTS[view.sort], reverse=True)


class WatchTable:
    """Draws; remembers a few seconds, to know how fast lines come. hosts: node -> name."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._footer = Footer(hosts)
        self.page = 1  # rows of the last picture

    def lines(
        self, snapshot: Snapshot, view: ViewState, notes: Sequence[str], columns: int, height: int
    ) -> tuple[list[Text], ViewState]:
        """At most ``height`` lines, none wider than ``columns``; and the look, scrolled no further
        than there are rows."""
        head = self._footer.lines(snapshot.picture, [], columns)[::-1]
        if snapshot.late:
            names = sanitize_text(fold(snapshot.late))
            head.append(Text(f"GPUs do not answer: {names}", style="yellow"))
        head += [Text(sanitize_text(words), style="yellow") for words in snapshot.slow]
        below = [Text(sanitize_text(note), style="yellow") for note in notes[-NOTES_SHOWN:]]
        rows = selected(snapshot.rows, view)
        self.page = max(1, height - len(head) - len(below) - 2)
        view = dataclasses.replace(view, top=max(0, min(view.top, len(rows) - self.page)))
        seen = rows[view.top : view.top + self.page]
        lines = [*head, *table(seen, snapshot.rows, view.sort)]
        lines += [Text()] * (height - len(lines) - len(below) - 1)
        lines += [*below, _status(view, len(rows), len(seen))]
        for line in lines:
            line.truncate(columns, overflow="ellipsis")
            line.no_wrap = True
        return lines[:height], view


def _status(view: ViewState, total: int, seen: int) -> Text:
    if view.typing is not None:
        return Text(f"host or rank: {view.typing}\N{LOWER ONE EIGHTH BLOCK}")
    where = f"{view.top + 1}-{view.top + seen} of {total}" if total else "no ranks"
    only = f" with {view.filter!r}" if view.filter else ""
    return Text(f"{where}{only}, by {view.sort}   {HELP}", style="dim")


def table(rows: Sequence[Row], everyone: Sequence[Row], sort: str = "") -> list[Text]:
    """Heading and ``rows``; columns as wide as ``everyone`` needs, so that scrolling keeps them."""
    columns = [(title, right, cell) for title, right, cell, there in _COLUMNS if there(everyone)]
    wide = [max([len(title), *(len(cell(row)) for row in everyone)]) for title, _, cell in columns]
    heading = Text(style="bold")
    lines = [heading]
    for at, (title, right, _) in enumerate(columns):
        text = title.rjust(wide[at]) if right else title.ljust(wide[at])
        heading.append(text, style="underline" if title.lower() == sort else "")
        heading.append("  ")
    heading.append("LAST LINE")
    for row in rows:
        line = Text()
        for at, (title, right, cell) in enumerate(columns):
            text = cell(row)
            line.append(text.rjust(wide[at]) if right else text.ljust(wide[at]), _style(title, row))
            line.append("  ")
        line.append(Text.from_ansi(row.last).plain.expandtabs(8), "" if row.alive else "dim")
        lines.append(line)
    return lines


def _style(title: str, row: Row) -> str:
    if not row.alive:
        return "dim" if row.state == "done" else "red" if title == "STATE" else "dim"
    silent = row.silence is not None and row.silence >= LONG
    if title == "SILENCE" and silent:
        return "yellow"
    if title == "CPU" and silent and row.cpu is not None and row.cpu < NOTHING:
        return "bold yellow"
    return {"RANK": "cyan"}.get(title, "red" if title == "STATE" and "disk" in row.state else "")


def _size(count: float | None) -> str:
    if count is None:
        return "-"
    units = ["", "K", "M", "G", "T"]
    while count >= 1000 and len(units) > 1:
        count /= 1024
        del units[0]
    unit = units[0]
    return f"{count:.0f}{unit}" if count >= 10 or not unit else f"{count:.1f}{unit}"


def _gpu(row: Row, at: int, form: Callable[[float | None], str]) -> str:
    return "-" if row.gpu is None else form(row.gpu[at])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


def _silence(row: Row) -> str:
    return "-" if row.silence is None else duration(round(row.silence))


def _always(rows: Sequence[Row]) -> bool:
    return True


def _any_gpu(rows: Sequence[Row]) -> bool:
    return any(row.gpu is not None for row in rows)


#: title, whether numbers stand to the right, what stands there, and when there is such a column
_COLUMNS: list[
    tuple[str, bool, Callable[[Row], str], Callable[[Sequence[Row]], bool]]
] = [
    ("RANK", True, lambda row: name(row.rank), _always),
    ("HOST", False, lambda row: sanitize_text(row.host), _always),
    ("LOCAL", True, lambda row: str(row.local), _always),
    ("PID", True, lambda row: "-" if row.pid is None else str(row.pid), _always),
    ("STATE", False, lambda row: row.state, _always),
    ("CPU", True, lambda row: _percent(row.cpu), _always),
    ("RSS", True, lambda row: _size(row.rss), _always),
    ("GPU", True, lambda row: _gpu(row, 0, _percent), _any_gpu),
    ("GMEM", True, lambda row: _gpu(row, 1, _size), _any_gpu),
    ("POWER", True, lambda row: _gpu(row, 2, lambda w: "-" if w is None else f"{w:.0f}W"),
     _any_gpu),
    ("SILENCE", True, _silence, _always),
]  # fmt: skip
