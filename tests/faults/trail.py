"""What the ranks of every attempt leave behind in one folder, for whoever asks how a run went.

Each attempt's rank leaves, below ``place`` on a file system that all hosts share::

    count-E-R   8 bytes: what rank R of attempt E has written; negative until it was done
    seen-E-R    its host, the size of its world, and which ranks of other attempts lived then
    alive-E-R   locked (flock(2)) while the rank, or a process that it started, lives

The kernel lets a lock go with the last process that holds it, in whatever way that ended, and
all hosts of the rig have one kernel. So a free lock is proof of death, without a clock and
without a look at process tables. Standard library only: ranks run this.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """What a rank saw when it came up. others: "E-R" of the ranks of other attempts that lived."""

    host: str
    world: int
    others: tuple[str, ...]


def enter(place: str, attempt: int, rank: int) -> int:
    """Say that this rank has come up; the lock that its children are to inherit (a descriptor)."""
    lock = os.open(_path(place, "alive", attempt, rank), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    others = [name for name in _names(place, "alive") if _attempt(name) != attempt]
    living = [name for name in others if _lives(os.path.join(place, f"alive-{name}"))]
    text = "\n".join((socket.gethostname(), os.environ["WORLD_SIZE"], *living))
    with open(_path(place, "seen", attempt, rank) + ".new", "w") as file:
        file.write(text)
    os.rename(file.name, _path(place, "seen", attempt, rank))
    return lock


def counter(place: str, attempt: int, rank: int) -> Callable[[int], None]:
    """``note(count)`` keeps the number of bytes written (negative: not done), whatever ends us."""
    with open(_path(place, "count", attempt, rank), "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def note(count: int) -> None:
        page[:8] = count.to_bytes(8, "little", signed=True)

    return note


# -- for those who ask afterwards ------------------------------------------------------------------


def attempts(place: str) -> list[int]:
    """The attempts of which a rank came up, in order."""
    return sorted({_attempt(name) for name in _names(place, "seen")})


def seen(place: str, attempt: int) -> dict[int, Seen]:
    """Rank -> what it saw, for those of ``attempt`` that came up."""
    found = {}
    for name in _names(place, "seen"):
        if _attempt(name) == attempt:
            with open(os.path.join(place, f"seen-{name}")) as file:
                host, world, *others = file.read().split("\n")
            found[int(name.partition("-")[2])] = Seen(host, int(world), tuple(others))
    return found


def written(place: str, attempt: int, rank: int) -> int | None:
    """Bytes that the rank has written, negative if it was not done; None if it never began."""
    try:
        with open(_path(place, "count", attempt, rank), "rb") as file:
            data = file.read(8)
    except OSError:
        return None
    return int.from_bytes(data, "little", signed=True) if data else None


def _path(place: str, what: str, attempt: int, rank: int) -> str:
    return os.path.join(place, f"{what}-{attempt}-{rank}")


def _names(place: str, what: str) -> list[str]:
    """``E-R`` of every file of the kind ``what``."""
    found = [name.partition("-") for name in os.listdir(place)]
    return sorted(rest for kind, _, rest in found if kind == what and not rest.endswith(".new"))


def _attempt(name: str) -> int:
    return int(name.partition("-")[0])


def _lives(path: str) -> bool:
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
