"""Draws the live footer and the panel at the end with rich. Pure: a picture in, lines out.

rich takes longer to load than a short run takes, so this is loaded when the first footer is drawn.
Lines of the panel are not wrapped and have no frame at their sides, so that hints can be copied.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from dispatcher.model.hostset import fold
from dispatcher.model.names import clock, duration, plural
from dispatcher.output.monitor.run_picture import Picture, progress_text
from dispatcher.output.run_state import CHECKED, LOST, RUNNING, STATES
from dispatcher.output.text.fold import fold_ranks
from dispatcher.output.text.sanitize import sanitize, sanitize_text

#: progress bars of ranks shown at once
MOST_BARS = 8
#: seconds over which the rate of lines is measured
RATE = 3.0
#: cells of a bar
BAR = 20


class Footer:
    """Makes the footer's lines; remembers a few seconds for their rate. hosts: node -> name."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._seen: deque[tuple[float, int]] = deque()

    def lines(
        self, picture: Picture, bars: Sequence[tuple[str, bytes]], columns: int
    ) -> list[Text]:
        """The footer, top first, none wider than ``columns``. bars: (label, state)."""
        lines = bar_lines(bars)
        if picture.silent:
            text = f"no output for {duration(picture.silent_for)}: {fold_ranks(picture.silent)}"
            if picture.idle:
                everyone = picture.idle == picture.silent
                text += ", no CPU" if everyone else f"; no CPU: {fold_ranks(picture.idle)}"
            lines.append(Text(text, style="yellow"))
        if picture.pending and picture.stopping is None:
            names = sanitize_text(fold(self._hosts[node] for node in picture.pending))
            lines.append(Text(f"waiting for {names}", style="dim"))
        lines.append(self._status(picture))
        return [cut_line(line, columns) for line in lines]

    def _status(self, picture: Picture) -> Text:
        parts = [] if picture.stopping is None else [Text("ending", style="bold red")]
        parts.append(self._about_hosts(picture))
        if picture.ranks:
            parts.append(_about_ranks(picture))
        parts.append(Text(clock(picture.seconds)))
        if picture.reached:
            parts.append(Text(progress_text(picture.reached, picture.left), "cyan"))
        if picture.since_line is not None:
            rate = f"{self._rate(picture):,.0f}"
            parts.append(Text(f"{rate} line{'' if rate == '1' else 's'}/s"))
            if picture.since_line >= 2:
                parts.append(Text(f"last line {duration(picture.since_line)} ago"))
        status = Text()
        status.append("\N{BLACK RIGHT-POINTING SMALL TRIANGLE}", style="bold cyan")
        for at, part in enumerate(parts):
            status.append(" \N{MIDDLE DOT} " if at else " ", style="dim")
            status.append_text(part)
        return status

    def _about_hosts(self, picture: Picture) -> Text:
        total = len(self._hosts)
        states = sorted(picture.hosts.items(), reverse=True)
        if picture.pending and picture.stopping is None:
            text = progress_bar((total - len(picture.pending)) / total)
            text.append(f" {plural(total, 'host')}: ")
        else:
            text = Text(f"{plural(total, 'host')}: ")
            states = [(state, count) for state, count in states if state >= CHECKED]
        for at, (state, count) in enumerate(states):
            style = {LOST: "red", RUNNING: "green"}.get(state, "")
            text.append(", " if at else "")
            text.append(f"{count} {STATES[state]}", style=style)
        return text

    def _rate(self, picture: Picture) -> float:
        self._seen.append((picture.seconds, picture.lines))
        while len(self._seen) > 2 and self._seen[1][0] <= picture.seconds - RATE:
            self._seen.popleft()
        then, before = self._seen[0]
        span = picture.seconds - then
        return (picture.lines - before) / span if span > 0 else 0.0


def _about_ranks(picture: Picture) -> Text:
    text = Text(f"{plural(sum(picture.ranks.values()), 'rank')}: ")
    there = [word for word in ("running", "done", "failed", "lost") if word in picture.ranks]
    for at, word in enumerate(there):
        text.append(", " if at else "")
        is_bad = word in ("failed", "lost")
        text.append(f"{picture.ranks[word]} {word}", "bold red" if is_bad else "")
    return text


def bar_lines(bars: Sequence[tuple[str, bytes]]) -> list[Text]:
    """The progress bars of ranks or hosts. bars: (label, state)."""
    lines = []
    for label, state in bars[:MOST_BARS]:
        line = Text()
        line.append(f"{label} ", style="dim")
        line.append_text(Text.from_ansi(sanitize(state).decode()))
        line.expand_tabs(8)
        lines.append(line)
    if len(bars) > MOST_BARS:
        more = len(bars) - MOST_BARS
        lines.append(Text(f"and {plural(more, 'more bar')}", style="dim"))
    return lines


def cut_line(line: Text, columns: int) -> Text:
    """Cut ``line`` to so many columns; characters of no width for rich count as one column."""
    widths = accumulate(max(1, cell_len(one)) for one in line.plain[: columns + 1])
    fit = sum(width <= columns for width in widths)
    if fit < len(line):
        line = line[: max(0, fit - 1)].append("\N{HORIZONTAL ELLIPSIS}")
    line.no_wrap = True
    return line


def progress_bar(part: float) -> Text:
    """A bar of which ``part`` (0 to 1) is full."""
    full = int(BAR * part)
    text = Text()
    text.append("\N{BOX DRAWINGS HEAVY HORIZONTAL}" * full, style="green")
    return text.append("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (BAR - full), style="dim")


def drawn(lines: Sequence[Text], columns: int) -> list[tuple[bytes, int]]:
    """Each line as bytes for a terminal, and how many columns it takes."""
    # rich looks for no markup, emoji or numbers in a ``Text``
    console = Console(
        file=io.StringIO(), width=columns, force_terminal=True, color_system="standard"
    )
    found = []
    for line in lines:
        with console.capture() as captured:
            console.print(line, no_wrap=True, crop=True, end="")
        found.append((captured.get().rstrip("\n").encode(), line.cell_len))
    return found


def closing_panel(
    lines: Sequence[str], *, exit_code: int, hosts: int, ranks: int, seconds: float, columns: int
) -> list[bytes]:
    """The panel at the end, as lines. lines: the verdict, sanitized; [] if all is well."""
    size = f"{plural(ranks, 'rank')} on {plural(hosts, 'host')}, {clock(seconds)}"
    if not lines:
        text = Text()
        text.append("\N{CHECK MARK}", style="bold green")
        text.append(f" {size}")
        return [line for line, _ in drawn([text], columns)]
    style = "red" if exit_code else "green"
    title = Text(f"exit code {exit_code} \N{MIDDLE DOT} {size}", style=f"bold {style}")
    rule = Text()
    rule.append("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 3 + " ", style=style)
    rule.append_text(title)
    left = columns - rule.cell_len - 1
    rule.append(" " + "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * max(0, left), style)
    body = [_styled(line) for line in lines]
    end = Text("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * columns, style=style)
    wide = max(columns, *(line.cell_len for line in body))
    return [line for line, _ in drawn([rule, *body, end], wide)]


def _styled(line: str) -> Text:
    text = Text.from_ansi(line)
    text.expand_tabs(8)  # before it is measured
    for word, style in (("error:", "bold red"), ("hint:", "bold cyan"), ("note:", "bold yellow")):
        if line.lstrip().startswith(word):
            start = text.plain.index(word)
            text.stylize(style, start, start + len(word))
    return text
