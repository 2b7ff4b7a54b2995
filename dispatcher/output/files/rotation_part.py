"""A log file that is cut into pieces of bounded size.

``rank-00003.out`` is the piece being written; before it came ``rank-00003.out.1``,
``.2`` and so on, oldest first, cut at a line end where there is one. The pieces in
that order are exactly the bytes. With a bound on their number the oldest go, and
the oldest that is left is a mark that says how many bytes stood there::

    [dispatch: 20,971,520 bytes left out here]
"""

from __future__ import annotations

import os
from pathlib import Path

from dispatcher.model.frozen import Value, value
from dispatcher.output.files.files import create, write_all


def mark(count: int) -> bytes:
    """The line that stands for ``count`` bytes which are not in a file."""
    return f"[dispatch: {count:,} bytes left out here]\n".encode()


@value
class Rotation(Value):
    """size: bytes of a piece at most, None for one file. keep: full pieces kept, None for all."""

    size: int | None = None
    keep: int | None = None


class LogFile:
    """A new file ``path``, mode 0600. Raises: OSError, here and when written.

    With ``release`` the descriptor is given back until the next write, for runs with
    more ranks than files may be open.
    """

    def __init__(self, path: Path, rotation: Rotation) -> None:
        self._path = path
        self._rotation = rotation
        self._fd: int | None = create(path)
        self._size = 0
        self._pieces = 0  # full pieces made so far
        self._gone: int = 0  # bytes of pieces removed
        self._sizes: list[int] = []  # of the full pieces that are there

    def make_room(self, size: int) -> None:
        """Begin a new piece if ``size`` bytes that belong together do not fit into this one."""
        limit = self._rotation.size
        if limit is not None and self._size and self._size + size > limit:
            self._rotate()

    def write(self, data: bytes) -> None:
        limit = self._rotation.size
        while limit is not None and self._size + len(data) > limit:
            room = limit - self._size
            cut = data.rfind(b"\n", 0, room) + 1 if room > 0 else 0
            if not cut and not self._size:
                cut = room  # a line longer than a piece
            self._append(data[:cut])
            data = data[cut:]
            self._rotate()
        self._append(data)

    def release(self) -> None:
        """Give the descriptor back; the next write opens the same file again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        self.release()

    def _append(self, data: bytes) -> None:
        if not data:
            return
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        write_all(self._fd, data)
        self._size += len(data)

    def _rotate(self) -> None:
        self.release()
        self._pieces += 1
        os.rename(self._path, self._piece(self._pieces))
        self._sizes.append(self._size)
        keep = self._rotation.keep
        if keep is not None and len(self._sizes) > keep:
            self._gone += self._sizes.pop(0)
            oldest = self._pieces - len(self._sizes)
            os.unlink(self._piece(oldest))
            if oldest > 1:
                os.unlink(self._piece(oldest - 1))  # the mark that stood there
            fd = create(self._piece(oldest))
            try:
                write_all(fd, mark(self._gone))
            finally:
                os.close(fd)
        self._fd = create(self._path)
        self._size = 0

    def _piece(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
