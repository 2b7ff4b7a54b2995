"""The ranks' standard input: writes the launcher's input to the pipes of the ranks that read it.

One copy is held for all readers of this host; the slowest living one sets the pace
(``docs/design/stdin.md``). Loaded only when a rank of this host reads.

Actions (tuples): ("send", type, fields) · ("taken", bytes of credit for the launcher).
"""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Tuple

    from dispatcher.remote.host.poll import Poll

    Action = Tuple[Any, ...]

#: bytes of one write
WRITE_SIZE = 64 << 10
#: credit goes back in portions of at least this; well below the launcher's window
PORTION = 64 << 10


class Stdin:
    """The pipes of ``readers`` (ranks of this host), and the bytes that they have not taken yet."""

    def __init__(self, poll: Poll, readers: list[int]) -> None:
        self.poll = poll
        self.readers = readers
        self.held = bytearray()
        self.base = 0  # place of held[0] in the whole input
        self.over = False  # all of the input has come
        self.unpaid = 0  # bytes taken by all and not yet given back as credit
        self.places: dict[int, int] = {}  # rank -> place of the first byte it has not taken
        self.ends: dict[int, int] = {}  # rank -> our end of its pipe

    def open(self, rank: int) -> int:
        """The end that ``rank`` reads; the caller closes it after the spawn. Raises: OSError."""
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        # no event is asked for: the poll always reports that the reader has gone
        self.poll.add(ours, lambda _, events: self.ready(rank, events), 0)
        self.ends[rank] = ours
        self.places[rank] = self.base
        return theirs

    def close(self, rank: int) -> None:
        """Let go of ``rank``'s pipe, if there is one: it has had all, or will take no more."""
        fd = self.ends.pop(rank, None)
        if fd is not None:
            del self.places[rank]
            self.poll.remove(fd)
            os.close(fd)

    def feed(self, data: bytes) -> list[Action]:
        """Take ``data`` from the launcher; ``b""`` is the end of the input."""
        self.held += data
        self.over = self.over or not data
        actions: list[Action] = []
        for rank in list(self.ends):
            actions += self._write(rank)
        return actions + self._settle()

    def ready(self, rank: int, events: int) -> list[Action]:
        """Act on events of ``rank``'s pipe: it has room, or its reader is gone."""
        if events & select.EPOLLERR:
            return self.ended(rank)
        return self._write(rank) + self._settle()

    def ended(self, rank: int) -> list[Action]:
        """Note that ``rank`` reads no more; report it unless it has read all."""
        return self._leave(rank) + self._settle() if rank in self.ends else []

    def _write(self, rank: int) -> list[Action]:
        """Write to the pipe of ``rank`` as much as it takes now."""
        fd, place = self.ends[rank], self.places[rank]
        end = self.base + len(self.held)
        try:
            while place < end:
                at = place - self.base
                place += os.write(fd, self.held[at : at + WRITE_SIZE])
        except BlockingIOError:
            pass
        except OSError:
            self.places[rank] = place
            return self._leave(rank)
        self.places[rank] = place
        if place == end and self.over:
            self.close(rank)
        else:
            self.poll.change(fd, select.EPOLLOUT if place < end else 0)
        return []

    def _leave(self, rank: int) -> list[Action]:
        taken = self.places[rank] - unread(self.ends[rank])
        self.close(rank)
        return [("send", "input.closed", {"rank": rank, "taken": taken})]

    def _settle(self) -> list[Action]:
        """Drop the bytes that all readers have taken; give credit for them."""
        low = min(self.places.values(), default=self.base + len(self.held))
        freed = low - self.base
        del self.held[:freed]
        self.base = low
        self.unpaid += freed
        if self.unpaid < PORTION:
            return []
        paid, self.unpaid = self.unpaid, 0
        return [("taken", paid)]


def unread(fd: int) -> int:
    """Bytes in a pipe that the reader has not read yet. Source: ioctl FIONREAD, pipe(7)."""
    from _struct import unpack
    from fcntl import ioctl
    from termios import FIONREAD

    size: int = unpack("i", ioctl(fd, FIONREAD, bytes(4)))[0]
    return size
