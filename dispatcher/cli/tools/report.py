"""``dispatch report``: a run's trace as one HTML page, and its phases on the terminal."""

from __future__ import annotations

import os
import sys

from dispatcher.cli import say
from dispatcher.cli.options.declaration import Options, argument, option
from dispatcher.model.errors import UsageError
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.output.timeline import page, phases, read

#: bytes of a trace; some million spans
MOST_TRACE = 1 << 29


class ReportOptions(Options):
    """Draw where the time of a run went, from the file that --trace wrote."""

    epilog = """\b
    Examples:
      dispatch --trace run.json -H hostfile train.py
      dispatch report run.json                     # writes run.html, prints the phases
      dispatch report run.json -o - > page.html
    Exit code: 0; 2 usage, or no trace.
    """

    trace: str = argument(required=True, metavar="TRACE")
    output: str | None = option(
        "-o", metavar="FILE|-", help="The page [default: TRACE with .html]."
    )


def report(options: ReportOptions) -> int:
    """Write the page and print the phases; the exit code. Raises: UsageError."""
    timeline = read(_contents(options.trace), options.trace)
    text = page(timeline, os.path.basename(options.trace))
    if options.output == "-":
        sys.stdout.write(text)
        return 0
    path = options.output or os.path.splitext(options.trace)[0] + ".html"
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
