"""``dispatch fold``: equal lines of a labelled stream once, as dshbak and clubak do, streaming.

Reads the output of launchers and parallel shells, ``n1: line`` or ``[3] line``, from
standard input. It needs no host and no plan.
"""

from __future__ import annotations

import os
import re
import select
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from dispatcher.cli import say
from dispatcher.cli.options.declaration import Options, preset
from dispatcher.model.hostset import fold
from dispatcher.model.names import fold_numbers
from dispatcher.model.paths import write_all
from dispatcher.output.exec.host_blocks import apart
from dispatcher.output.text.fold import WINDOW, Folding, gather_blocks
from dispatcher.output.text.lines import LineAssembler, Spill
from dispatcher.output.text.sanitize import sanitize_lines, sanitize_text

#: the label before a line: [3], [gpu01:3]!, or n1:, after a time of ``--timestamps``
_LABEL = re.compile(
    rb"(?:\d\d:\d\d:\d\d\.\d{3} )?(?:\[([^\[\]\s]{1,255})\](!?) |([^\s:\[\]]{1,255}):(?: |$))"
)
#: more speakers than any stream has: a line waits its full time, since more may come
_ANYBODY = 1 << 40
_RULE = b"-" * 15


class FoldOptions(Options):
    """Show equal lines of labelled output once, with all their labels.

    It reads standard input: the output of dispatch, pdsh, clush or another launcher, with a label
    such as n1: or [3] before each line. Times of --timestamps before the labels are left out.
    """

    examples = (
        ("pdsh -w 'n[1-8]' uname -r | dispatch fold", "n[1-8]: and the line, once"),
        ("dispatch -H hostfile train.py | dispatch fold --numbers", "while the job runs"),
        ("dispatch fold --gather < saved.txt", "hosts with equal output together"),
    )

    whole: bool = preset("-b", "--gather", help="Compare whole outputs instead of lines.")
    numbers: bool = preset("-n", help="Treat lines that differ only in numbers as equal.")
    window: float | None = preset(
        metavar="SECONDS", help="Let a line wait SECONDS for equal lines.", usual=f"{WINDOW:g}"
    )


def folded(options: FoldOptions) -> int:
    """Fold standard input; the exit code. Raises: UsageError."""
    if options.whole:
        gathered(_input())
    else:
        stream(WINDOW if options.window is None else options.window, mask=options.numbers)
    return 0


class Labels:
    """Takes labels off lines and puts folded ones on, in the notation they came in."""

    def __init__(self) -> None:
        self._brackets = True

    def off(self, line: bytes) -> tuple[str, int, bytes]:
        """(label, 2 for standard error or 1, the line); the label "" for a line without one."""
        match = _LABEL.match(line)
        if match is None:
            return "", 1, line
        self._brackets = match[1] is not None
        label = (match[1] or match[3]).decode("utf-8", "backslashreplace")
        return label, 2 if match[2] else 1, line[match.end() :]

    def on(self, labels: Sequence[str], kind: int) -> bytes:
        """The label before a line that ``labels`` have written."""
        text = sanitize_text(named(labels))
        if not text:
            return b""
        mark = "!" if kind == 2 else ""
        return (f"[{text}]{mark} " if self._brackets else f"{text}: ").encode()


def named(labels: Iterable[str]) -> str:
    """``0-3`` or ``n[1-4]``."""
    labels = list(dict.fromkeys(labels))
    if all(label.isascii() and label.isdigit() and len(label) < 10 for label in labels):
        return fold_numbers(map(int, labels))
    return fold(labels)


def stream(window: float, *, mask: bool) -> None:
    """Fold standard input line by line, until its end."""
    folding: Folding[str] = Folding(_ANYBODY, window=window, mask=mask)
    labels, spill, looked_at = Labels(), Spill(), os.isatty(1)

    def show(groups: Iterable[Any]) -> None:
        fit = sanitize_lines if looked_at else bytes
        text = b"".join(labels.on(g.speakers, g.kind) + fit(g.line) + b"\n" for g in groups)
        if text:
            write_all(1, text)

    def long(pieces: Iterator[bytes], end: bytes) -> None:
        """Pass on a line that is too long to be compared, with its label."""
        show(folding.finish())
        for piece in chain(pieces, (end,)):
            write_all(1, piece)

    if looked_at:
        lines = LineAssembler(bars=False)
    else:
        lines = LineAssembler(long, spill, bars=False)
    while True:
        wait = window / 4 if folding.waiting else None
        ready = select.select([0], [], [], wait)[0]
        data = os.read(0, 1 << 16) if ready else None
        block = b"" if data is None else lines.feed(data) if data else lines.finish()
        for line in block.split(b"\n")[:-1]:
            who, kind, text = labels.off(line)
            show(folding.add(who, text, time.monotonic(), kind))
        show(folding.due(time.monotonic()))
        if data == b"":
            show(folding.finish())
            for words in spill.words():
                say(f"note: {words}")
            return


def gathered(chunks: Iterable[bytes]) -> None:
    """Read all, then show each different output once below the labels that have it."""
    labels, spill = Labels(), Spill()
    found: list[bytes] = []  # lines that were put aside
    assembler = LineAssembler(
        lambda pieces, end: found.append(b"".join((*pieces, end))), spill, bars=False
    )
    numbers: dict[bytes, int] = {}  # each different line is kept once
    lines_by: dict[str, array[int]] = {}
    for chunk in chunks:
        block = assembler.feed(chunk) if chunk else assembler.finish()
        block = b"".join((*found, block))
        found.clear()
        for line in block.split(b"\n")[:-1]:
            who, _, text = labels.off(line)
            number = numbers.setdefault(text, len(numbers))
            lines_by.setdefault(who, array("Q")).append(number)
    texts = list(numbers)
    groups = gather_blocks((who, lines_by[who].tobytes()) for who in lines_by)
    blocks = [b"".join(texts[number] + b"\n" for number in array("Q", one)) for _, one in groups]
    for (speakers, _), text in zip(groups, apart(blocks, exact=not os.isatty(1)), strict=True):
        count = f" ({len(speakers)})" if len(speakers) > 1 else ""
        head = sanitize_text(named(speakers)) + count if speakers != [""] else "no label"
        write_all(1, b"%s\n%s\n%s\n%s" % (_RULE, head.encode(), _RULE, text))


def _input() -> Iterable[bytes]:
    """Chunks of standard input, and b"" at its end."""
    while data := os.read(0, 1 << 16):
        yield data
    yield b""
