"""Lines out of chunks, and nothing a terminal would obey."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.output.text.lines import CONTINUED, LINE_LIMIT, LineAssembler, Spill
from dispatcher.output.text.sanitize import (
    character_edge,
    sanitize,
    sanitize_lines,
    sanitize_paragraph,
    sanitize_pieces,
    sanitize_text,
)

SAFE = re.compile(
    "^(?:[^\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
    "|\x1b\\[[0-9;:]{0,64}m)*$"
)


def assembled(chunks: list[bytes]) -> list[bytes]:
    lines = LineAssembler()
    return listed(b"".join(map(lines.feed, chunks)) + lines.finish())


def listed(block: bytes) -> list[bytes]:
    assert not block or block.endswith(b"\n")
    return block.split(b"\n")[:-1]


@cases(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"10%\r20%\r30%\n", [b"30%"]),
        (b"\r10%\r20%", [b"20%"]),
        (b"20%\r   \r", []),
        (b"20%\r   \rdone\n", [b"done"]),
        (b"end\r", [b"end"]),
        (b"\n\n", [b"", b""]),
        (b"x\r\r\n", [b"x"]),
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


def test_a_program_gets_the_line_ends_that_were_written() -> None:
    data = b"a\r\nb\n10%\r20%\r\nc\r\n"
    for step in (1, len(data)):
        lines = LineAssembler(keep_ends=True)
        found = b"".join(lines.feed(data[at : at + step]) for at in range(0, len(data), step))
        assert found == b"a\r\nb\n20%\nc\r\n"


#: of lines that are put aside; smaller here than in life
SMALL = 8


def whole(chunks: list[bytes], room: int) -> tuple[bytes, int]:
    """The lines of ``chunks`` where lines of more than ``SMALL`` bytes are put aside in ``room``
    bytes, and how many lines came in pieces all the same."""
    shown: list[bytes] = []
    spill = Spill(room)

    def long(pieces: Iterator[bytes], end: bytes) -> None:
        shown.extend((*pieces, end))

    lines = LineAssembler(long, spill, limit=SMALL, keep_ends=True)
    for chunk in chunks:
        shown.append(lines.feed(chunk))
    shown.append(lines.finish())
    spill.close()
    return b"".join(shown), spill.broken


TEXT = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"0123456789"])).map(b"".join)


@given(data=TEXT, cuts=st.lists(st.integers(0, 300), max_size=6), room=st.integers(0, 8 * SMALL))
def test_a_line_of_any_length_is_whole_where_there_is_room(
    data: bytes, cuts: list[int], room: int
) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(edges) if a < b]
    lines = LineAssembler(limit=1 << 20, keep_ends=True)
    expected = lines.feed(data) + lines.finish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dispatcher.output.text.lines.BLOCK", SMALL)
        assert whole(chunks, 1 << 20) == (expected, 0)
        shown, broken = whole(chunks, room)
    if b"\r" not in data:
        assert shown.replace(CONTINUED + b"\n", b"") == expected
    assert (shown != expected) <= (0 < broken <= data.count(b"\n") + 1)


@cases(
    ("data", "line"),
    [
        (b"one\r\x1b[2Ktwo\n", b"two\n"),
        (b"one\rtwo \x1b[K\n", b"two \n"),
        (b"one\rt\x1b[2Kwo\x1b[0K\n", b"wo\n"),
        (b"one\r\x1b[2K\n", b"\n"),
        (b"no bar \x1b[2K\n", b"no bar \x1b[2K\n"),
    ],
)
def test_a_bar_may_wipe_its_line(data: bytes, line: bytes) -> None:
    for step in (1, 2, 100):
        lines = LineAssembler()
        assert b"".join(lines.feed(data[n : n + step]) for n in range(0, len(data), step)) == line
    lines.feed(data[:-1])
    assert lines.rest == line[:-1]


def test_no_line_is_longer_than_the_limit_however_it_comes() -> None:
    whole = b"a\n" + "\N{EURO SIGN}".encode() * 60_000 + b"\nb\n"
    for step in (1 << 20, 50_000, 7_001):
        pieces = assembled([whole[at : at + step] for at in range(0, len(whole), step)])
        assert max(len(piece.removesuffix(CONTINUED)) for piece in pieces) <= LINE_LIMIT
        assert [pieces[0], pieces[-1]] == [b"a", b"b"]
        for piece in pieces:
            piece.decode()  # no character was cut


def test_a_bar_keeps_its_state_and_no_more() -> None:
    lines = LineAssembler()
    for percent in range(101):
        assert lines.feed(b"\r%3d%%|%s" % (percent, b"#" * 500)) == b""
        assert lines.is_bar
        assert lines.rest.startswith(b"%3d%%" % percent)
        assert len(lines._rest) < 600
    assert lines.feed(b"\nnext") == b"100%|" + b"#" * 500 + b"\n"
    assert (lines.is_bar, lines.rest) == (False, b"next")


def test_an_unfinished_line_can_be_had_before_its_end() -> None:
    lines = LineAssembler()
    assert lines.feed("sure? \N{EURO SIGN}".encode()[:-1]) == b""
    assert lines.flush() == b"sure? " + CONTINUED + b"\n"
    assert lines.feed("\N{EURO SIGN}".encode()[-1:] + b" yes\n") == "\N{EURO SIGN} yes\n".encode()
    assert lines.flush() == b""


@cases(
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
        (b"two\nlines", "two\\x0alines"),
    ],
)
def test_harmless(line: bytes, shown: str) -> None:
    assert sanitize(line).decode() == shown


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "replace"))))
def test_nothing_a_terminal_obeys_passes(line: bytes) -> None:
    line = line.replace(b"\n", b"").replace(b"\r", b"")
    shown = sanitize(line)
    assert SAFE.match(shown.decode())
    assert sanitize(shown) == shown


#: any text at all, halves of surrogate pairs as well, as JSON may say them
ANY = st.text(st.characters(codec=None, exclude_categories=()))


@given(ANY)
def test_any_text_can_be_shown(text: str) -> None:
    shown = sanitize_text(text)
    assert "\n" not in shown
    assert SAFE.match(shown)
    assert sanitize_text(shown) == shown
    lines = sanitize_paragraph(text).split("\n")
    assert lines == [sanitize_text(line) for line in text.split("\n")]


@cases(
    ("text", "shown"),
    [
        ("half \ud83d", "half \\ud83d"), ("\udc00", "\\udc00"), ("\udfff\ud800", "\\udfff\\ud800"),
        ("byte \udcff", "byte \\xff"), ("\ud83d\ude00", "\\ud83d\\ude00"),
    ],
)  # fmt: skip
def test_halves_of_pairs_are_told(text: str, shown: str) -> None:
    assert sanitize_text(text) == shown


#: what may not be torn, or does not look like it
ESCAPES = [
    b"\x1b[31m", b"\x1b[0m", b"\x1b[" + b"1;" * 32 + b"m", b"\x1b", b"m",
    "\N{EURO SIGN}\x9b".encode(), b"\xff",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(ESCAPES) | st.binary(max_size=9)).map(b"".join),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_a_line_in_pieces_is_made_as_harmless(line: bytes, cuts: list[int]) -> None:
    line = line.replace(b"\n", b"")
    edges = [0, *sorted(min(cut, len(line)) for cut in cuts), len(line)]
    pieces = [line[a:b] for a, b in pairwise(edges)]
    assert b"".join(sanitize_pieces(pieces)) == sanitize_lines(line)


def test_every_coloured_line_ends_plain() -> None:
    block = b"\x1b[31mred\nplain\n\x1b[1mbold\x1b[0m\n"
    assert sanitize_lines(block) == b"\x1b[31mred\x1b[0m\nplain\n\x1b[1mbold\x1b[0m\n"


@cases(
    ("text", "at", "edge"),
    [
        (b"abc", 3, 3), (b"abc", 0, 0), ("é".encode(), 2, 2), ("é".encode(), 1, 0),
        ("a€".encode(), 4, 4), ("a€".encode(), 3, 1), ("a€".encode(), 2, 1),
        ("\U0001f600".encode(), 4, 4), ("\U0001f600".encode(), 3, 0),
        ("a\U0001f600".encode(), 2, 1),
        (b"\x80\x80\x80\x80", 4, 4), (b"\x80", 1, 1), (b"ab\xff", 3, 2), (b"\xc3", 1, 0),
    ],
)  # fmt: skip
def test_where_a_text_may_be_cut(text: bytes, at: int, edge: int) -> None:
    assert character_edge(text, at) == edge


@cases(
    ("line", "shown"),
    [
        (b"\x1b[" + b"1" * 64 + b"m", "\x1b[" + "1" * 64 + "m\x1b[0m"),
        (b"\x1b[" + b"1" * 65 + b"m", "\\x1b[" + "1" * 65 + "m"),
        (b"\x1b[38:5:1mx", "\x1b[38:5:1mx\x1b[0m"), (b"\x1b[m", "\x1b[m\x1b[0m"),
        (b"\x7f\x0b\t", "\\x7f\\x0b\t"), ("\u2028\ufeff\u061c".encode(), "\\u2028\\ufeff\\u061c"),
        ("\u0085".encode(), "\\x85"),
    ],
)  # fmt: skip
def test_edges_of_what_passes(line: bytes, shown: str) -> None:
    assert sanitize(line).decode() == shown


def test_a_line_in_pieces_ends_plain_once() -> None:
    assert list(sanitize_pieces([b"\x1b[31mred", b" more"]))[-1] == b"\x1b[0m"
    assert b"".join(sanitize_pieces([b"\x1b[31mred\x1b[", b"0m"])) == b"\x1b[31mred\x1b[0m"
    assert b"".join(sanitize_pieces([])) == b""
    assert b"".join(sanitize_pieces([b"plain"])) == b"plain"


@cases(
    ("fed", "state"),
    [
        (b"half", b"half"), (b"\rhalf", b"half"), (b"half\r", b"half"), (b"a\n", b""),
        (b"   ", b""), (b"\r\x1b[2K", b""), ("h\u00e9".encode()[:-1], b"h"),
    ],
)  # fmt: skip
def test_the_state_of_a_line_leaves_it_as_it_is(fed: bytes, state: bytes) -> None:
    lines = LineAssembler()
    lines.feed(fed)
    for _ in range(2):
        assert lines.state() == (state + CONTINUED + b"\n" if state else b"")
    rest = lines.rest
    assert lines.feed(b"x\n") == (rest + b"x\n" if not fed.endswith(b"\r") else b"x\n")


def test_what_was_flushed_does_not_come_again() -> None:
    lines = LineAssembler()
    lines.feed(b"one")
    assert lines.flush() == b"one" + CONTINUED + b"\n"
    assert (lines.flush(), lines.finish(), lines.rest) == (b"", b"", b"")
    lines.feed(b"two")
    assert lines.finish() == b"two\n"
    assert lines.finish() == b""


def long_lines(limit: int = 8) -> tuple[LineAssembler, list[tuple[bytes, bytes]], Spill]:
    """An assembler that gives away lines of more than ``limit`` bytes, and what it gave."""
    given_: list[tuple[bytes, bytes]] = []
    spill = Spill()
    lines = LineAssembler(
        lambda pieces, end: given_.append((b"".join(pieces), end)), spill, limit=limit
    )
    return lines, given_, spill


@cases("end", ["flush", "finish"])
def test_a_long_line_that_is_cut_short(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.output.text.lines.BLOCK", 8)
    lines, told, spill = long_lines()
    lines.feed(b"x" * 20)
    assert lines.state() == b""  # it comes whole
    assert getattr(lines, end)() == b""
    assert told == [(b"x" * 20, (CONTINUED if end == "flush" else b"") + b"\n")]
    assert lines.feed(b"rest\n") == b"rest\n"
    assert len(told) == 1
    spill.close()
