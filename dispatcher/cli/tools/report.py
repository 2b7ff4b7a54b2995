"""``dispatch report``: a run's trace as one HTML page, and its phases on the terminal."""

from __future__ import annotations

import os
import sys

from dispatcher.cli import named_files, say, tell
from dispatcher.cli.options.declaration import Options, argument, json_option, option
from dispatcher.model.errors import ConflictingOptions
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.output.timeline import page, phases, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model import formats

#: bytes of a trace; some million spans
MOST_TRACE = 1 << 29


class ReportOptions(Options):
    """Draw where the time of a run went, from the file that dispatch run --trace wrote.

    The page is one HTML file; the phases are printed as well.
    """

    examples = (
        ("dispatch --trace run.json -H hostfile train.py", "a run that writes the file"),
        ("dispatch report run.json", "draw it in run.html"),
        ("dispatch report run.json -o - > page.html", "the page on standard output"),
    )
    epilog = "Exit code: 0; 2 if the file is no trace, or the command line is wrong."

    trace: str = argument(required=True, metavar="TRACE")
    output: str | None = option(
        "-o", metavar="FILE|-", help="Write the page to FILE.", usual="TRACE with .html at its end"
    )
    as_json: bool = json_option("the phases", ", and write a page only with -o")


def report(options: ReportOptions) -> int:
    """Write the page and print the phases; the exit code. Raises: UsageError."""
    timeline = read(
        named_files.read(options.trace, options.trace, MOST_TRACE).decode("utf-8", "replace"),
        options.trace,
    )
    if options.as_json:
        if options.output == "-":
            raise ConflictingOptions("--json and -o - both want standard output")
        listed: list[formats.Phase] = [
            {"schema": "phase/1", **vars(one)}  # type: ignore[typeddict-item]
            for one in phases(timeline)
        ]
        tell(listed)
        if options.output is None:
            return 0
    text = page(timeline, os.path.basename(options.trace))
    if options.output == "-":
        sys.stdout.write(text)
        return 0
    path = options.output or os.path.splitext(options.trace)[0] + ".html"
    named_files.write(path, path, text)
    say(f"note: wrote {path}")
    if options.as_json:
        return 0
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
    return 0
