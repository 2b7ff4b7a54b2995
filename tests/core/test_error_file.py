"""Error files as torch writes them, and as anything else might."""

from __future__ import annotations

import json

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events.verdicts import (
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    ErrorFile,
    read_error_file,
)

TORCH = {
    "message": {
        "message": "ValueError: no luck\nat all",
        "extraInfo": {"py_callstack": "Traceback\n  x\nValueError: no\n", "timestamp": "17"},
    }
}


@cases(
    ("content", "expected"),
    [
        (TORCH, ErrorFile("ValueError: no luck", "Traceback\n  x\nValueError: no")),
        ({"message": "Signal 9 received"}, ErrorFile("Signal 9 received")),
        ({"message": {"message": "x", "extraInfo": [1]}}, ErrorFile("x")),
        ({"message": {"message": "x", "extraInfo": {"py_callstack": 5}}}, ErrorFile("x")),
        ({"message": "x" * 9999}, ErrorFile("x" * MESSAGE_LIMIT)),
        ({"message": ""}, ErrorFile("")),
        ({"other": 1}, ErrorFile("its error file has no message")),
        ([1, 2], ErrorFile("its error file has no message")),
        (7, ErrorFile("its error file has no message")),
    ],
)
def test_contents(content: object, expected: ErrorFile) -> None:
    assert read_error_file(json.dumps(content).encode()) == expected


@cases("data", [b"{", b"\xff\xfe{", b"[" * 60000, json.dumps(TORCH).encode()[:-1]])
def test_what_is_not_json(data: bytes) -> None:
    assert read_error_file(data) == ErrorFile("its error file is not JSON, or too long")


def test_nothing() -> None:
    assert read_error_file(b" \n") is None


@given(st.binary() | st.recursive(st.text() | st.none(), lambda s: st.dictionaries(
    st.sampled_from(["message", "extraInfo", "py_callstack", "x"]), s
)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_anything_is_bounded(data: bytes) -> None:
    found = read_error_file(data)
    assert (found is None) == (not data.strip())
    if found is not None:
        assert len(found.message) <= MESSAGE_LIMIT
        assert len(found.traceback) <= TRACEBACK_LIMIT
        assert "\n" not in found.message
