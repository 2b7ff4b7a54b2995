"""Values of a copy: what is there already, numbers as text, and the branches of a tree."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.protocol.copy_frames import (
    CHUNK,
    DATA,
    LARGEST,
    LARGEST_PIECE,
    MOST_SAID,
    VALUE,
    Entry,
    entry_columns,
    frames,
    host_branches,
    numbers,
    numbers_of,
    pieces,
    rows,
    starts_of,
    value_of,
)
from dispatcher.remote.protocol.mux import HEADER, Malformed, frame
from dispatcher.remote.protocol.packing import pack


@given(st.lists(st.integers(0, 1 << 50)))
def test_numbers_survive_as_text(values: list[int]) -> None:
    assert numbers_of(numbers(values)) == values


def test_what_is_there_already() -> None:
    assert starts_of({"need": b"", "start": "", "seen": ""}) == {}
    two = {"need": b"\1\1", "start": "3 100 5 7", "seen": "aa bb"}
    assert starts_of(two) == {3: (100, "aa"), 5: (7, "bb")}


@cases(
    "answer",
    [
        {}, {"start": ""}, {"seen": ""}, {"start": "x", "seen": ""}, {"start": 1, "seen": ""},
        {"start": "1 2", "seen": None}, {"start": "1 2", "seen": ""}, {"start": "1", "seen": "a"},
        {"start": "1 2", "seen": "a b"}, {"start": "1 2 3 4", "seen": "a b"},
        {"start": "1 2 3", "seen": "a"}, {"start": "1 2", "seen": "a b c"}, {"need": 1},
    ],
)  # fmt: skip
def test_what_makes_no_sense(answer: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        starts_of({"need": b"\1", **answer})


@cases(
    "how",
    [
        {"seen": "a " * 500_000}, {"seen": "a\t" * 500_000}, {"start": "10 " * 300_000},
        {"start": "10\n" * 300_000}, {"more": [[]] * 400_000},
    ],
)  # fmt: skip
def test_what_an_answer_of_a_megabyte_takes(how: dict[str, Any]) -> None:
    """Each word and each value would be an object of some 70 bytes."""
    body = pack({"need": bytes(100), "start": "", "seen": "", **how})
    tracemalloc.start()
    with pytest.raises(Malformed):
        starts_of(value_of(VALUE, body, MOST_SAID))
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_branches_are_runs_of_nearly_equal_length(hosts: list[int], branches: int) -> None:
    found = host_branches(hosts, branches)
    assert [host for branch in found for host in branch] == hosts
    assert len(found) == min(branches, len(hosts))
    sizes = [len(branch) for branch in found]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


ONE = [Entry("0/a", "f", 0o644, 5, -7, "more"), Entry("0/b\n", "d", 0o755, 0, 1 << 62)]
LISTED = {
    "paths": "0/a\0" + "0/b\n\0", "kinds": "fd", "modes": "420 493", "sizes": "5 0",
    "mtimes": f"-7 {1 << 62}", "more": "more\0\0",
}  # fmt: skip


def fields(entries: list[Entry]) -> list[list[Any]]:
    return [[getattr(entry, name) for name in Entry.__slots__] for entry in entries]


@cases(
    ("count", "length", "sizes"),
    [(0, 1, [0]), (400, 1, [400]), (801, 1, [400, 400, 1]), (5, 4096, [2, 2, 1]), (3, 4097, [2, 1]),
     (9, 2048, [4, 4, 1])],
)  # fmt: skip
def test_a_list_comes_in_pieces_of_some_size(count: int, length: int, sizes: list[int]) -> None:
    entries = [Entry(f"{at:0{length}d}", "f", 0o644, at, -at) for at in range(count)]
    made = list(pieces(entries))
    assert [piece["more"] for piece in made] == [True] * (len(made) - 1) + [False]
    assert [len(rows(piece["list"])) for piece in made] == sizes
    assert fields([one for piece in made for one in rows(piece["list"])]) == fields(entries)
    assert all(len(pack(piece)) < LARGEST_PIECE for piece in made)


def test_a_list_is_its_columns() -> None:
    assert entry_columns(iter(ONE)) == LISTED
    assert fields(rows(LISTED)) == fields(ONE)
    assert rows(entry_columns([])) == []


@cases("name", LISTED)
@cases("value", [None, 7, "absent", "5 x", "1 2 3", "a\0b\0c\0"])
def test_a_list_with_a_broken_column_is_none(name: str, value: Any) -> None:
    listed: dict[str, Any] = {**LISTED, name: value}
    if value == "absent":
        del listed[name]
    with pytest.raises(Malformed):
        rows(listed)


@cases(("kind", "body"), [(DATA, pack({})), (VALUE, b"x"), (VALUE, pack([])), (VALUE, pack(None))])
def test_what_holds_no_dictionary(kind: int, body: bytes) -> None:
    with pytest.raises(Malformed):
        value_of(kind, body)


def test_values_have_a_limit_of_their_own() -> None:
    for kind, most in ((VALUE, 10), (DATA, LARGEST)):
        assert frames(10).feed(HEADER.pack(0, kind, most)) == []
        with pytest.raises(Malformed):
            frames(10).feed(HEADER.pack(0, kind, most + 1))
    assert frames(10).feed(frame(0, DATA, bytes(CHUNK))) == [(0, DATA, bytes(CHUNK))]


def test_an_empty_tree_has_no_branches() -> None:
    assert host_branches([], 3) == []
    assert host_branches([1, 2, 3, 4, 5, 6, 7], 3) == [[1, 2], [3, 4], [5, 6, 7]]
