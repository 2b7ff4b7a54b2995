"""``dispatch report``: a run's trace as one HTML page, and its phases on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from dispatcher.cli.entry import MIXED, enter
from dispatcher.cli.say import say
from dispatcher.model.errors import UsageError
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.output.timeline import page, phases, read

#: bytes of a trace; some million spans
MOST_TRACE = 1 << 29

EPILOG = """\b
Examples:
  dispatch --trace run.json -H hostfile train.py
  dispatch report run.json                     # writes run.html, prints the phases
  dispatch report run.json -o - > page.html
Exit code: 0; 2 usage, or no trace.
"""


@click.command("report", context_settings=MIXED, epilog=EPILOG)
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", metavar="FILE|-", help="The page [default: TRACE with .html].")
def command(trace: str, output: str | None) -> int:
    """Draw where the time of a run went, from the file that --trace wrote."""
    timeline = read(_contents(trace), trace)
    text = page(timeline, os.path.basename(trace))
    if output == "-":
        sys.stdout.write(text)
        return 0
    path = output or os.path.splitext(trace)[0] + ".html"
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or '').lower()}") from None
    rows: list[tuple[str, ...]] = [("phase", "times", "shortest", "median", "longest", "slowest")]
    rows += [
        (
            sanitize_text(p.name),
            str(p.count),
            *(f"{seconds:.3f}" for seconds in (p.shortest, p.median, p.longest)),
            sanitize_text(p.slowest),
        )
        for p in phases(timeline)
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:5], widths[1:], strict=True)]
        sys.stdout.write("  ".join([row[0].ljust(widths[0]), *cells, row[5]]) + "\n")
    say(f"note: wrote {path}")
    return 0


def _contents(path: str) -> str:
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_TRACE + 1)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or '').lower()}") from None
    if len(text) > MOST_TRACE:
        raise UsageError(f"{path}: more than {MOST_TRACE >> 20} MiB, not a trace")
    return text.decode("utf-8", "replace")


def main(words: Sequence[str]) -> int:
    """Run ``dispatch report`` with ``words``; the exit code."""
    return enter(command, words, "dispatch report")
