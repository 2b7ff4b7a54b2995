"""The one form in which anything important crosses MPI: a status and its payload.

A record says ``ok`` and carries bytes, or says ``err`` and carries the reason, so a
rank that fails ends all ranks with its words instead of leaving them in a
broadcast for ever. Bytes and JSON only; what a rank reads is checked.

::

    magic "dspc" | version u8 | status u8 | length u32 big-endian | payload
"""

from __future__ import annotations

import json
import struct

from dispatcher.comm.errors import (
    CommError,
    EnvironmentMissing,
    GroupError,
    NcclError,
    Refused,
    RollCallError,
    Unreachable,
)

HEADER = struct.Struct("!4sBBI")
_MAGIC = b"dspc"
_VERSION = 1
_OK, _ERR = 0, 1

_KINDS: dict[str, type[CommError]] = {
    kind.__name__: kind
    for kind in (
        CommError,
        EnvironmentMissing,
        GroupError,
        NcclError,
        Refused,
        RollCallError,
        Unreachable,
    )
}


def ok(payload: bytes = b"") -> bytes:
    """The record of a success."""
    return HEADER.pack(_MAGIC, _VERSION, _OK, len(payload)) + payload


def err(error: CommError, who: str = "") -> bytes:
    """The record of a failure: its kind, words (``who`` is the rank it is about), hint, numbers."""
    message = error.message
    if who and not message.startswith(who):
        message = f"{who}: {message.removeprefix('comm: ')}"
    fields: dict[str, object] = {
        "kind": type(error).__name__,
        "message": message,
        "hint": error.hint,
    }
    if isinstance(error, NcclError):
        fields["code"] = error.code
    if isinstance(error, RollCallError):
        fields["missing"] = list(error.missing)
    payload = json.dumps(fields).encode()
    return HEADER.pack(_MAGIC, _VERSION, _ERR, len(payload)) + payload


def failed(record: bytes) -> bool:
    """True for a record of a failure, without raising it."""
    return len(record) > 5 and record[:4] == _MAGIC and record[5] == _ERR


def length(header: bytes) -> int:
    """Payload bytes that follow this header; CommError if it is no header."""
    if len(header) < HEADER.size:
        raise CommError(f"comm: record: {len(header)} bytes are no header")
    magic, version, status, size = HEADER.unpack(header[: HEADER.size])
    if magic != _MAGIC or version != _VERSION or status not in (_OK, _ERR):
        raise CommError(
            "comm: record: not in this version's form: the ranks run different versions of dispatch"
        )
    return int(size)


def open_record(record: bytes) -> bytes:
    """The payload of a success; raises the shared error that a failure carries."""
    size = length(record)
    payload = record[HEADER.size :]
    if len(payload) != size:
        raise CommError(f"comm: record: {len(payload)} bytes came of {size}")
    if not failed(record):
        return payload
    raise _error(payload)


def _error(payload: bytes) -> CommError:
    fields = json.loads(payload)
    kind = _KINDS.get(str(fields.get("kind")), CommError)
    message = str(fields.get("message"))
    hint = None if fields.get("hint") is None else str(fields["hint"])
    if kind is NcclError:
        return NcclError(message, hint=hint, shared=True, code=int(fields.get("code", 0)))
    if kind is RollCallError:
        missing = tuple(int(rank) for rank in fields.get("missing", ()))
        return RollCallError(message, hint=hint, shared=True, missing=missing)
    return kind(message, hint=hint, shared=True)
