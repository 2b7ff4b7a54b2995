"""The end of a run, set off from its output on a terminal; loaded only there.

Lines are neither wrapped nor framed at their sides: hints are there to be copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from dispatcher.output.terminal.footer import clock, drawn
from dispatcher.output.text.counted import plural


def closing(
    lines: Sequence[str], *, exit_code: int, hosts: int, ranks: int, seconds: float, columns: int
) -> list[bytes]:
    """What to write, line by line. lines: the verdict in words, harmless; [] if all is well."""
    size = f"{plural(ranks, 'rank')} on {plural(hosts, 'host')}, {clock(seconds)}"
    if not lines:
        text = Text()
        text.append("\N{CHECK MARK}", style="bold green")
        text.append(f" {size}")
        return [line for line, _ in drawn([text], columns)]
    style = "red" if exit_code else "green"
    title = Text(f"exit code {exit_code} \N{MIDDLE DOT} {size}", style=f"bold {style}")
    rule = Text()
    left = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 3
    rule.append(f"{left} ", style=style)
    rule.append_text(title)
    rule.append(
        " " + "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * max(0, columns - rule.cell_len - 1), style
    )
    body = [_styled(line) for line in lines]
    end = Text("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * columns, style=style)
    wide = max(columns, *(line.cell_len for line in body))
    return [line for line, _ in drawn([rule, *body, end], wide)]


def _styled(line: str) -> Text:
    text = Text.from_ansi(line)
    for word, style in (("error:", "bold red"), ("hint:", "bold cyan"), ("note:", "bold yellow")):
        if line.lstrip().startswith(word):
            start = line.index(word)
            text.stylize(style, start, start + len(word))
    return text
