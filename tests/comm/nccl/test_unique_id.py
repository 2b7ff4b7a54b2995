"""An id is passed on exactly and never shown."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dispatcher.comm import UniqueId

RAW = bytes(range(128))


class Foreign:
    """As nccl4py's: the bytes under ``as_bytes``."""

    as_bytes = RAW


@pytest.mark.parametrize(
    "other",
    [
        RAW,
        bytearray(RAW),
        memoryview(RAW),
        tuple(RAW),
        [byte - 256 if byte > 127 else byte for byte in RAW],
        Foreign(),
        UniqueId(RAW),
    ],
    ids=lambda other: type(other).__name__,
)
def test_ids_of_other_bindings(other: Any) -> None:
    assert bytes(UniqueId.of(other)) == RAW
    assert UniqueId.of(other) == UniqueId(RAW)


@pytest.mark.parametrize("other", [3, "text", None])
def test_what_is_no_id(other: Any) -> None:
    with pytest.raises(TypeError):
        UniqueId.of(other)


def test_a_short_id_is_no_id() -> None:
    with pytest.raises(ValueError, match="128 bytes, not 127"):
        UniqueId(RAW[:-1])


def test_text_has_the_hash_only() -> None:
    shown = f"{UniqueId(RAW)} {UniqueId(RAW)!r}"
    assert shown == "UniqueId(sha256 471fb943) UniqueId(sha256 471fb943)"


def test_an_id_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(UniqueId(RAW))
