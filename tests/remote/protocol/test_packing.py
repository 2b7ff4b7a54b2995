"""Packed values: exact round trips, and nothing but PackError for whatever else arrives."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from cases import cases
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.remote.protocol.packing import (
    DEPTH_LIMIT,
    INT_LIMIT,
    PackError,
    listed,
    pack,
    pair,
    unpack,
)

texts = st.one_of(st.text(), st.binary().map(os.fsdecode))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-INT_LIMIT, INT_LIMIT - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(),
    texts,
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=30,
)


def same(one: Any, other: Any) -> bool:
    """Equal also in type, all the way down: True is not 1, and 1.0 is not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return repr(one) == repr(other)


@given(values)
@example(-INT_LIMIT)
@example(INT_LIMIT - 1)
@example(-0.0)
@example(5e-324)
@example("\udcff\n")
def test_values_come_back_as_they_were(value: Any) -> None:
    assert same(unpack(pack(value)), value)


@given(st.lists(values, max_size=4), st.binary(), st.binary())
def test_parts_that_are_packed_make_the_same_whole(
    parts: list[Any], one: bytes, two: bytes
) -> None:
    assert listed(map(pack, parts)) == pack(parts)
    assert pair(one, two) == pack([one, two])


@given(st.binary(max_size=60))
@example(b"")
@example(b"i;")
@example(b"i--1;")
@example(b"i+1;")
@example(b"i 1;")
@example(b"i1_0;")
@example(b"i\xd9\xa3;")
@example(b"i99999999999999999999;")
@example(b"b5:abc")
@example(b"b-1:abc")
@example(b"b99999999999999:")
@example(b"s1:\xff")
@example(b"fnan;")
@example(b"finf;")
@example(b"f1e999;")
@example(b"l")
@example(b"d")
@example(b"ds1:a")
@example(b"ds1:ae")
@example(b"di1;Ne")
@example(b"ds1:aNs1:aNe")
@example(b"NN")
def test_garbage_raises_only_pack_errors(data: bytes) -> None:
    try:
        value = unpack(data)
    except PackError:
        return
    assert same(unpack(pack(value)), value)


@cases(
    ("value", "data"),
    [
        (None, b"N"), (True, b"T"), (False, b"F"), (-5, b"i-5;"), (0.5, b"f0.5;"),
        (b"\0", b"b1:\0"), ("\u00e9", b"s2:\xc3\xa9"), ("\udcff", b"s1:\xff"), ([], b"le"),
        ([1, [b""]], b"li1;lb0:ee"), ({"b": 1, "a": {}}, b"ds1:bi1;s1:adee"),
        (1.7976931348623157e308, b"f1.7976931348623157e+308;"),
    ],
)  # fmt: skip
def test_each_has_one_spelling(value: Any, data: bytes) -> None:
    assert pack(value) == data
    assert same(unpack(data), value)


@cases(
    ("value", "why"),
    [
        (INT_LIMIT, "integer beyond 64 bits"), (-INT_LIMIT - 1, "integer beyond 64 bits"),
        (float("nan"), "float is not finite"), (-float("inf"), "float is not finite"),
        ({1: 2}, "dict key is not a string"), ({b"a": 2}, "dict key is not a string"),
        ({1}, "cannot pack set"), ("\ud800", "a lone surrogate"),
    ],
)  # fmt: skip
def test_why_it_cannot_be_packed(value: Any, why: str) -> None:
    with pytest.raises(PackError, match=why):
        pack([value])


@cases("number", [b"", b"-", b"+1", b" 1", b"1 ", b"1_0", b"--1", b"0x1", b"1.0"])
def test_a_number_is_written_in_one_way(number: bytes) -> None:
    for data in (b"i%s;" % number, b"b%s:x" % number):
        with pytest.raises(PackError):
            unpack(data)


@given(values, st.data())
def test_a_cut_value_is_no_value(value: Any, data: st.DataObject) -> None:
    packed = pack(value)
    end = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(PackError):
        unpack(packed[:end])


@cases("bomb", [b"l" * 100_000, b"ds1:a" * 100_000, b"l" * 50 + b"e" * 50])
def test_depth_is_bounded(bomb: bytes) -> None:
    with pytest.raises(PackError, match="too deep"):
        unpack(bomb)


@cases("around", [lambda value: [value], lambda value: {"a": value}])
def test_depth_is_the_same_both_ways(around: Callable[[Any], Any]) -> None:
    deep: Any = None
    for _ in range(DEPTH_LIMIT):
        deep = around(deep)
    assert unpack(pack(deep)) == deep
    with pytest.raises(PackError, match="too deep"):
        pack(around(deep))


def test_a_list_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(PackError, match="too deep"):
        pack(loop)


@cases(
    "value",
    [INT_LIMIT, -INT_LIMIT - 1, float("nan"), float("inf"), {1: 2}, type, {1}, "\ud800"],
    ids=repr,
)
def test_what_cannot_be_packed_is_refused(value: Any) -> None:
    with pytest.raises(PackError):
        pack(value)


@cases(
    ("value", "count"),
    [(None, 1), ([], 1), ([[], []], 3), ({"a": 1}, 3), ([1, "x", b"", {"k": [0.5]}], 8)],
)
def test_values_are_counted(value: Any, count: int) -> None:
    assert unpack(pack(value), count) == value
    with pytest.raises(PackError, match="too many values"):
        unpack(pack(value), count - 1)
