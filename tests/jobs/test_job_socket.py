"""What passes through a job's socket, whatever the pieces it comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.jobs import job_socket
from dispatcher.jobs.job_socket import (
    Frames,
    Malformed,
    frame,
    parse_order,
    wants_table,
    way_to_stop,
)


@given(st.lists(st.text(max_size=40), max_size=8), st.integers(1, 50))
def test_frames_survive_any_split(lines: list[str], step: int) -> None:
    sent = b"".join(frame(type="say", line=line) for line in lines)
    frames = Frames()
    heard: list[dict[str, Any]] = []
    for at in range(0, len(sent), step):
        heard += frames.feed(sent[at : at + step])
    assert heard == [{"type": "say", "line": line} for line in lines]


@given(st.binary(max_size=200))
def test_a_stream_of_anything_is_frames_or_malformed(data: bytes) -> None:
    """What stood before it is read first."""
    heard = []
    try:
        for fields in Frames().feed(frame(type="say", line="ab") + data):
            heard.append(fields)
    except Malformed:
        pass
    assert heard[0] == {"type": "say", "line": "ab"}
    assert all(isinstance(fields, dict) for fields in heard)


@cases(
    "sent",
    [b"[]\n", b"\n", b"3\n", b"null\n", b"\xff\n", b"[" * 9 + b"\n", b"x" * 65],
)  # fmt: skip
def test_what_is_no_frame(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_socket, "LONGEST_LINE", 64)
    with pytest.raises(Malformed):
        list(Frames().feed(sent))


def test_frames_as_large_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_socket, "LONGEST_LINE", 64)
    assert list(Frames().feed(b'{"a": 8}\n' + b"x" * 64)) == [{"a": 8}]


@given(st.binary(max_size=200))
def test_no_noise_is_an_order(line: bytes) -> None:
    with pytest.raises(Malformed):
        parse_order(line)


@given(
    st.dictionaries(st.sampled_from(["notes", "now", "table"]), st.none() | st.text()),
    st.sampled_from(["attach", "stop", "stacks", "kill", "", None]),
)
def test_any_fields_beside_an_order_are_its_own(fields: dict[str, Any], name: str | None) -> None:
    line = json.dumps({**fields, "order": name}).encode()
    if name in ("attach", "stop", "stacks"):
        assert parse_order(line) == {**fields, "order": name}
    else:
        with pytest.raises(Malformed):
            parse_order(line)


@cases(
    "line",
    [b"", b"null", b'{"order": ["attach"]}', b'{"order": "kill"}', b"[" * 4000, b" " * 5000,
     b'{"order": "attach"}'.ljust(job_socket.LONGEST_ORDER + 1)],
)  # fmt: skip
def test_what_is_no_order(line: bytes) -> None:
    with pytest.raises(Malformed):
        parse_order(line)


def test_an_order_as_long_as_may_be() -> None:
    assert parse_order(b'{"order": "attach"}'.ljust(job_socket.LONGEST_ORDER))


@cases(
    ("fields", "how"),
    [
        ("", "stop"), (', "now": false, "signal": 0', "0"), (', "signal": 10', "10"),
        (', "signal": 10, "now": true', "kill"), (', "signal": 9', "stop"),
        (', "signal": true', "stop"), (', "signal": [15]', "stop"), (', "signal": 65', "stop"),
    ],
)  # fmt: skip
def test_how_a_job_is_to_be_stopped(fields: str, how: str) -> None:
    assert way_to_stop(parse_order(b'{"order": "stop"%s}' % fields.encode())) == how


@cases(
    ("asked", "seconds"),
    [(0.2, 0.2), (0.19, None), (3600, 3600.0), (3600.5, None), (True, None), ("2", None),
     (None, None), (2, 2.0)],
)  # fmt: skip
def test_who_wants_a_table(asked: object, seconds: float | None) -> None:
    assert wants_table({"order": "attach", "table": asked}) == seconds
