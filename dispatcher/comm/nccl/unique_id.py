"""NCCL's unique id: the key to a communicator, which is never shown.

128 bytes made by ``ncclGetUniqueId``: an address of the process that made it and a
random number, the only thing that admits a rank. Whoever knows the bytes can join,
so text of any kind has a hash of them only.

Ids of other bindings work too: ``UniqueId.of`` takes nccl4py's (``as_bytes``),
cupy's (a tuple of 128 ints) and plain bytes; ``bytes(id)`` gives them back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

SIZE = 128


class UniqueId:
    """An id for one communicator, once."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        if len(raw) != SIZE:
            raise ValueError(f"a unique id has {SIZE} bytes, not {len(raw)}")
        self._raw = bytes(raw)

    @classmethod
    def of(cls, other: object) -> UniqueId:
        """The same id out of another binding's object; TypeError if it is none."""
        if isinstance(other, cls):
            return other
        raw = getattr(other, "as_bytes", other)
        if callable(raw):
            raw = raw()
        if isinstance(raw, (bytes, bytearray, memoryview)):
            return cls(bytes(raw))
        if isinstance(raw, Iterable) and not isinstance(raw, str):
            # cupy's ints are signed chars
            return cls(bytes(int(byte) & 0xFF for byte in raw))
        raise TypeError(f"no unique id: {type(other).__name__}")

    @property
    def as_bytes(self) -> bytes:
        """The secret itself, named as nccl4py names it."""
        return self._raw

    def __bytes__(self) -> bytes:
        return self._raw

    @property
    def digest(self) -> str:
        """Eight hex digits that tell two ids apart and reveal neither."""
        return hashlib.sha256(self._raw).hexdigest()[:8]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UniqueId) and other._raw == self._raw

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        return f"UniqueId(sha256 {self.digest})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a unique id is a secret and is not pickled: send bytes(id) over MPI")
