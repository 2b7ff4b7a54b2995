"""A spawn request of PMI-1, line by line; loaded when a rank spawns for the first time.

It has a segment for each program, from ``mcmd=spawn`` to ``endcmd``, and is complete when
``spawnssofar`` is ``totspawns``. Within a segment lines come in any order, and a value runs to the
end of its line. MPICH writes an argument of several lines as it is: a line without a known name
continues the argument before it. Source: MPICH's ``src/pmi/src/pmi_msg.c`` and ``pmi_wire.c``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: bytes of a request with all its lines, segments of it, and items of each kind in a segment
REQUEST_LIMIT, SEGMENT_LIMIT, ITEM_LIMIT = 512 << 10, 256, 2000

NAMES = (
    b"nprocs",
    b"execname",
    b"totspawns",
    b"spawnssofar",
    b"argcnt",
    b"preput_num",
    b"info_num",
)
NUMBERED = (b"arg", b"preput_key_", b"preput_val_", b"info_key_", b"info_val_")


class SpawnRequest:
    """One spawn request; ``feed`` takes its lines, from behind the first ``mcmd=spawn``."""

    def __init__(self) -> None:
        self.size = 0
        self.fields: dict[bytes, bytes] | None = {}  # of the segment being read
        self.last = b""  # the name that the latest line gave a value
        self.segments: list[list[Any]] = []
        self.preput: list[list[bytes]] = []

    def feed(self, line: bytes) -> bool:
        """Take a line; True when the request is complete. Raises: ValueError, saying why."""
        self.size += len(line) + 1
        if self.size > REQUEST_LIMIT:
            raise ValueError("a spawn request of more than %d bytes" % REQUEST_LIMIT)
        if b"\0" in line:
            raise ValueError("a NUL byte in a spawn request")
        fields = self.fields
        if fields is None:
            if line != b"mcmd=spawn":
                raise ValueError("not a spawn request: %r" % line[:60])
            self.fields = {}
            return False
        if line == b"endcmd":
            return self._end(fields)
        name, equals, value = line.partition(b"=")
        if equals and (name in NAMES or name.rstrip(b"0123456789") in NUMBERED):
            if name in fields:
                raise ValueError("a spawn request that says %r twice" % name[:60])
            fields[name] = value
            self.last = name
        elif self.last.startswith(b"arg") and self.last != b"argcnt":
            fields[self.last] += b"\n" + line
        else:
            raise ValueError("not a spawn request: %r" % line[:60])
        return False

    def _end(self, fields: dict[bytes, bytes]) -> bool:
        total = _number(fields, b"totspawns", SEGMENT_LIMIT)
        argv = [arg for (arg,) in _items(fields, b"argcnt", 1, b"arg%d")]
        info = _items(fields, b"info_num", 0, b"info_key_%d", b"info_val_%d")
        if not self.segments:  # only the first has them
            for pair in _items(fields, b"preput_num", 0, b"preput_key_%d", b"preput_val_%d"):
                self.preput.append(pair)
        count = _number(fields, b"nprocs", 1 << 31)
        self.segments.append([count, [fields.get(b"execname", b""), *argv], info])
        if _number(fields, b"spawnssofar", SEGMENT_LIMIT) != len(self.segments) or not (
            0 < len(self.segments) <= total
        ):
            raise ValueError("a spawn request whose segments do not count up")
        self.fields, self.last = None, b""
        return len(self.segments) == total


def _number(fields: dict[bytes, bytes], name: bytes, most: int) -> int:
    text = fields.get(name, b"0")
    if not (text.isdigit() and len(text) < 12 and int(text) <= most):
        raise ValueError("a spawn request with %s=%s" % (name.decode(), ascii(text[:20])))
    return int(text)


def _items(
    fields: dict[bytes, bytes], count: bytes, start: int, *names: bytes
) -> list[list[bytes]]:
    """The values of ``names`` for each item that ``count`` counts. Raises: ValueError."""
    try:
        return [
            [fields[name % i] for name in names]
            for i in range(start, start + _number(fields, count, ITEM_LIMIT))
        ]
    except KeyError as error:
        raise ValueError("a spawn request without %s" % ascii(error.args[0])) from None
