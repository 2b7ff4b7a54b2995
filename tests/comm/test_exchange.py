"""A record brings its payload, or raises what the other rank said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.comm import CommError, NcclError, RollCallError, errors, exchange


@given(st.binary(max_size=300))
def test_a_payload_comes_back(payload: bytes) -> None:
    text = exchange.ok(payload)
    assert exchange.open_record(text) == payload
    assert not exchange.failed(text)
    assert exchange.length(text[: exchange.HEADER.size]) == len(payload)


@given(
    st.text(max_size=50),
    st.none() | st.text(max_size=20),
    st.sampled_from(
        [
            kind
            for kind in vars(errors).values()
            if isinstance(kind, type) and issubclass(kind, CommError)
        ]
    ),
)
def test_an_error_comes_back_as_its_kind(
    message: str, hint: str | None, kind: type[CommError]
) -> None:
    text = exchange.err(kind(message, hint=hint))
    assert exchange.failed(text)
    with pytest.raises(kind) as caught:
        exchange.open_record(text)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.shared


def test_numbers_of_errors_come_back() -> None:
    with pytest.raises(NcclError) as caught:
        exchange.open_record(exchange.err(NcclError("n", code=5)))
    assert caught.value.code == 5
    with pytest.raises(RollCallError) as late:
        exchange.open_record(exchange.err(RollCallError("n", missing=(3, 4))))
    assert late.value.missing == (3, 4)


def test_the_rank_it_is_about_is_named_once() -> None:
    for message in ("comm: gpu: gone", "gpu: gone", "rank 3 on h: gpu: gone"):
        with pytest.raises(CommError, match=r"^rank 3 on h: gpu: gone$"):
            exchange.open_record(exchange.err(CommError(message), "rank 3 on h"))


@given(st.binary(max_size=40))
def test_garbage_is_no_record(text: bytes) -> None:
    with pytest.raises(CommError):
        exchange.open_record(text)


def test_a_record_cut_short_is_no_record() -> None:
    with pytest.raises(CommError, match="2 bytes came of 3"):
        exchange.open_record(exchange.ok(b"abc")[:-1])
