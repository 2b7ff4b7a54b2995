"""Lines out of chunks, and nothing a terminal would obey."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.sinks.lines import CONTINUED, LINE_LIMIT, LineAssembler, harmless

SAFE = re.compile(
    "^(?:[^\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\x1b\\[[0-9;:]{0,64}m)*$"
)


def assembled(chunks: list[bytes]) -> list[bytes]:
    lines = LineAssembler()
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.finish()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"10%\r20%\r30%\n", [b"10%", b"20%", b"30%"]),
        (b"end\r", [b"end"]),
        (b"\n\n", [b"", b""]),
        (b"x\r\r\n", [b"x", b""]),
    ],
)
def test_line_ends(data: bytes, lines: list[bytes]) -> None:
    assert assembled([data]) == lines
    assert assembled([data[at : at + 1] for at in range(len(data))]) == lines


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_any_split_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(edges)]
    assert assembled(chunks) == assembled([data])


def test_a_long_line_comes_in_marked_pieces_and_bounded_memory() -> None:
    lines = LineAssembler()
    pieces = []
    for _ in range(64):
        pieces += lines.feed(b"x" * 5000)
        assert len(lines._rest) <= LINE_LIMIT
    pieces += lines.finish()
    assert all(piece.endswith(CONTINUED) for piece in pieces[:-1])
    assert b"".join(piece.removesuffix(CONTINUED) for piece in pieces) == b"x" * 320_000


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain \t text", "plain \t text"),
        ("grün 漢".encode(), "grün 漢"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        (b"\x1b[31mred", "\x1b[31mred\x1b[0m"),
        (b"\x1b]52;c;ZXZpbA==\x07", "\\x1b]52;c;ZXZpbA==\\x07"),
        (b"\x1b]0;title\x1b\\", "\\x1b]0;title\\x1b\\"),
        (b"\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        (b"\x9b31m", "\\x9b31m"),
        (b"a\xffb", "a\\xffb"),
        (b"nul\0", "nul\\x00"),
        ("\u202eevil".encode(), "\\u202eevil"),
        ("c1 \u009b".encode(), "c1 \\x9b"),
    ],
)
def test_harmless(line: bytes, shown: str) -> None:
    assert harmless(line).decode() == shown


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "replace"))))
def test_nothing_a_terminal_obeys_passes(line: bytes) -> None:
    line = line.replace(b"\n", b"").replace(b"\r", b"")
    shown = harmless(line)
    assert SAFE.match(shown.decode())
    assert harmless(shown) == shown
