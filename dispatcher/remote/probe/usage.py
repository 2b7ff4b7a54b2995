"""What the ranks' processes use of their host, from one look at /proc.

A rank's figures are those of its whole tree: a program that trains has loaders,
compilers and wrappers (``bash run.sh``) below it, and the process we started may do
nothing but wait. To the tree belongs what descends from the rank's process, and what is
still in its session after its parent died. The state is that of the rank's own
process: whether *it* hangs is the question.

CPU time only counts up (time of children that were waited for included), so whoever
takes two samples knows the share between them; nothing is remembered here but when each
rank's process was born, so that a number that was given away again is not mistaken for it.
RSS counts pages that processes share once for each: a bound, not a sum to be trusted.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

    #: state, parent, session, CPU ticks, threads, RSS in pages, when born (ticks)
    Stat = Tuple[str, int, int, int, int, int, int]
    Table = Dict[int, Stat]
    #: CUDA_VISIBLE_DEVICES, number on this host, ranks on this host
    Place = Tuple["str | None", int, int]

#: processes of a host that are looked at
MOST = 1 << 16
#: bytes of a rank's environment
MOST_ENVIRON = 1 << 20


def parse_stat(text: bytes) -> Stat | None:
    """What /proc/PID/stat says; None for anything else. Source: proc(5)."""
    # the command name in parentheses may itself hold spaces and parentheses
    words = text.rpartition(b")")[2].split()
    try:
        state = words[0].decode("ascii")
        numbers = [int(word) for word in words[1:22]]
    except (IndexError, ValueError):
        return None
    if len(state) != 1 or not state.isalpha() or len(numbers) < 21 or min(numbers[10:14]) < 0:
        return None
    return (
        state, numbers[0], numbers[2], sum(numbers[10:14]), max(0, numbers[16]),
        max(0, numbers[20]), numbers[18],
    )  # fmt: skip


def look() -> Table:
    """pid -> what it is, of all processes that there are now."""
    found: Table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or len(found) >= MOST:
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                stat = parse_stat(file.read(4096))
        except OSError:
            continue  # it ended while we looked
        if stat is not None:
            found[int(name)] = stat
    return found


def started_with(pid: int) -> Place | None:
    """The place of the rank whose process is ``pid``; None if its environment cannot be read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            words = dict(item.partition(b"=")[::2] for item in file.read(MOST_ENVIRON).split(b"\0"))
        local, count = (int(words[name]) for name in (b"MPI_LOCALRANKID", b"MPI_LOCALNRANKS"))
    except (OSError, KeyError, ValueError):
        return None
    devices = words.get(b"CUDA_VISIBLE_DEVICES")
    return None if devices is None else devices.decode("ascii", "replace"), local, count


class Usage:
    """``ranks``: rank -> pid of its process, which leads a session."""

    def __init__(self, ranks: dict[int, int]) -> None:
        self.ranks = ranks
        self.tick = float(os.sysconf("SC_CLK_TCK"))
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.born: dict[int, int] = {}
        self.places: dict[int, Place | None] = {}

    def place(self, rank: int) -> Place | None:
        """What ``nvidia.given`` must know of ``rank``, by what it was started with."""
        if rank not in self.places:
            self.places[rank] = started_with(self.ranks[rank])
        return self.places[rank]

    def of(self, table: Table) -> list[list[Any]]:
        """[rank, state, CPU seconds, RSS in bytes, threads, processes] of each that lives."""
        leaders = {}
        for rank, pid in self.ranks.items():
            stat = table.get(pid)
            if stat is not None and self.born.setdefault(pid, stat[6]) == stat[6]:
                leaders[pid] = rank
        sums = {pid: [0, 0, 0, 0] for pid in leaders}
        known: dict[int, int] = {}
        for pid, stat in table.items():
            leader = owner(pid, table, sums, known)
            if leader and stat[0] not in "ZX":
                for at, value in enumerate((stat[3], stat[5], stat[4], 1)):
                    sums[leader][at] += value
        return [
            [
                rank, table[pid][0], sums[pid][0] / self.tick, sums[pid][1] * self.page,
                sums[pid][2], sums[pid][3],
            ]
            for pid, rank in leaders.items()
        ]  # fmt: skip


def owner(pid: int, table: Table, leaders: Any, known: dict[int, int]) -> int:
    """The one of ``leaders`` to whose tree ``pid`` belongs, 0 if to none; ``known`` grows."""
    path: list[int] = []
    found = 0
    while pid in table and pid not in known and len(path) < len(table):
        path.append(pid)
        if pid in leaders or table[pid][2] in leaders:
            found = pid if pid in leaders else table[pid][2]
            break
        pid = table[pid][1]
    else:
        found = known.get(pid, 0)
    for passed in path:
        known[passed] = found
    return found
