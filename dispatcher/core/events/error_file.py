"""What a rank wrote about its own failure: the file TORCHELASTIC_ERROR_FILE names.

``torch.distributed.elastic.multiprocessing.errors.record`` writes it as JSON::

    {"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback ...",
                                                            "timestamp": "1700000000"}}}

The bytes come from a rank and are data, nothing more. Pure.
"""

from __future__ import annotations

import json

from dispatcher.model.frozen import Value, value

MESSAGE_LIMIT = 2048
TRACEBACK_LIMIT = 16384


@value
class ErrorFile(Value):
    """``message`` in one line, ``traceback`` in many; either may be ""."""

    message: str
    traceback: str = ""


def read(data: bytes) -> ErrorFile | None:
    """What the file ``data`` says; None for an empty one."""
    if not data.strip():
        return None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return ErrorFile("its error file is not JSON, or too long")
    message = content.get("message") if isinstance(content, dict) else None
    traceback: object = ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        traceback = extra.get("py_callstack") if isinstance(extra, dict) else ""
        message = message.get("message")
    if not isinstance(message, str):
        return ErrorFile("its error file has no message")
    lines = message.strip().splitlines() or [""]
    text = traceback if isinstance(traceback, str) else ""
    return ErrorFile(lines[0][:MESSAGE_LIMIT], text.strip()[-TRACEBACK_LIMIT:])
