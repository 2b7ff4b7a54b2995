"""Whether numbers grow while things are done again and again; the things of a host, counted."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from testbed.layout import LOGIN, Member


def order(kinds: Sequence[str], seed: int) -> Iterator[str]:
    """Kinds of rounds without end: each comes once before any comes again."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(kinds, len(kinds))


def trend(values: Sequence[float], name: str, most: float = 0.0) -> tuple[float, float, float]:
    """(median of the first quarter, of the last, how much more is allowed) of a number's rounds.

    Of memory (KiB) the third quarter is the first, since the pools of malloc and Python fill for
    more than a hundred runs. Allowed are 1 MiB and a fiftieth more memory, a hundredth more
    objects, and one more of all else. most: is allowed in any case.
    """
    quarter, what = max(1, len(values) // 4), name.split()[-1]
    early = values[-2 * quarter : -quarter] or values if what == "KiB" else values[:quarter]
    first, last = statistics.median(early), statistics.median(values[-quarter:])
    allowed = {"KiB": 1024 + first / 50, "objects": first / 100}.get(what, 1.0)
    return first, last, max(allowed, most - first)


def grown(
    samples: Sequence[Mapping[str, float]], most: Mapping[str, float]
) -> tuple[list[str], int]:
    """A table with a line for each number, and how many numbers grew. most: as for ``trend``."""
    if len(samples) < 8:
        return ["too few rounds to tell what grows"], 0
    lines, grew = [f"{'':22}{'first':>9}{'last':>9}{'allowed':>9}"], 0
    for name in dict.fromkeys(name for sample in samples for name in sample):
        values = [sample.get(name, 0) for sample in samples]
        first, last, allowed = trend(values, name, most.get(name, 0.0))
        grew += last - first > allowed
        word = "GREW" if last - first > allowed else "flat"
        lines.append(f"{name:22}{first:9.0f}{last:9.0f}{allowed:9.0f}  {word}")
    return lines, grew


def inventory(member: Member) -> dict[str, int]:
    """What there is on a host: processes, sockets, and files of its own."""
    root, sockets = f"/proc/{member.pid}/root", 0
    for kind in ("tcp", "tcp6", "unix"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{member.pid}/net/{kind}") as file:
            # number 0: a connection that only the kernel still closes
            sockets += sum(kind == "unix" or line.split()[9] != "0" for line in [*file][1:])
    # login's /tmp is that of this machine
    folders = ["dev/shm", "var/tmp", "run", *([] if member.name == LOGIN else ["tmp"])]
    return {
        "processes": sum(name.isdigit() for name in os.listdir(f"{root}/proc")),
        "files": sum(count(f"{root}/{name}") for name in folders),
        "sockets": sockets,
    }


def count(folder: str, kind: Callable[[int], bool] = bool) -> int:
    """Entries below ``folder``, or those with a mode of this ``kind``; the rig's do not count."""
    found = 0
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith("dispatch-rig-")]
        for name in folders + files:
            with contextlib.suppress(FileNotFoundError):
                found += kind(os.lstat(os.path.join(place, name)).st_mode)
    return found
