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
    wants_output,
    wants_table,
    way_to_stop,
)


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 50))
def test_frames_survive_any_split(payloads: list[bytes], step: int) -> None:
    sent = b"".join(
        frame(data, type="output", rank=n, size=len(data)) for n, data in enumerate(payloads)
    )
    frames = Frames()
    heard: list[tuple[dict[str, Any], bytes]] = []
    for at in range(0, len(sent), step):
        heard += frames.feed(sent[at : at + step])
    assert [payload for _, payload in heard] == payloads
    assert [fields["rank"] for fields, _ in heard] == list(range(len(payloads)))


@given(st.binary(max_size=200))
def test_a_stream_of_anything_is_frames_or_malformed(data: bytes) -> None:
    """What stood before it is read first."""
    heard = []
    try:
        for fields, payload in Frames().feed(frame(b"ab", type="say", size=2) + data):
            heard.append((fields, payload))
    except Malformed:
        pass
    assert heard[0] == ({"type": "say", "size": 2}, b"ab")
    assert all(isinstance(fields, dict) for fields, _ in heard)


@cases(
    "sent",
    [b'{"size": -1}\n', b'{"size": 9}\n123456789', b'{"size": "x"}\n', b'{"size": null}\n',
     b'{"size": []}\n', b"[]\n", b"\n", b"3\n", b"\xff\n", b"[" * 9 + b"\n", b"x" * 65],
)  # fmt: skip
def test_what_is_no_frame(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_socket, "LARGEST", 8)
    monkeypatch.setattr(job_socket, "LONGEST_LINE", 64)
    with pytest.raises(Malformed):
        list(Frames().feed(sent))


def test_frames_as_large_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_socket, "LARGEST", 8)
    monkeypatch.setattr(job_socket, "LONGEST_LINE", 64)
    frames = Frames()
    assert list(frames.feed(b'{"size": 8}\n12345678' + b"x" * 64)) == [({"size": 8}, b"12345678")]


@given(st.binary(max_size=200))
def test_no_noise_is_an_order(line: bytes) -> None:
    with pytest.raises(Malformed):
        parse_order(line)


@given(
    st.dictionaries(st.sampled_from(["output", "now", "table"]), st.none() | st.text()),
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


def test_who_wants_output() -> None:
    assert wants_output(parse_order(b'{"order": "attach"}'))
    assert not wants_output(parse_order(b'{"order": "attach", "output": false}'))
    assert not wants_output(parse_order(b'{"order": "stop", "output": true}'))


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
