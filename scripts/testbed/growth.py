"""What there is, and whether it grows while things are done again and again."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .layout import LOGIN, Member


def order(kinds: Sequence[str], seed: int) -> Iterator[str]:
    """Kinds of rounds without end: each comes once before any comes again."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(kinds, len(kinds))


@dataclass(frozen=True)
class Trend:
    """What became of a number: its medians at the beginning and the end, and its slopes."""

    first: float
    last: float
    an_hour: float
    a_round: float
    allowed: float

    @property
    def grew(self) -> bool:
        return self.last - self.first > self.allowed


def trend(times: Sequence[float], values: Sequence[float], name: str, most: float = 0.0) -> Trend:
    """How ``values`` went, one a round, seen at ``times`` (seconds).

    first and last are medians of the first and the last quarter; of memory (KiB) of the third and
    the last, since the pools of malloc and Python fill for more than a hundred runs. More is
    allowed of memory by 1 MiB and a fiftieth, of objects by a hundredth, of all else by one. most:
    what may be come to in any case.
    """
    quarter, what = max(1, len(values) // 4), name.split()[-1]
    early = values[-2 * quarter : -quarter] or values if what == "KiB" else values[:quarter]
    first, last = statistics.median(early), statistics.median(values[-quarter:])
    allowed = {"KiB": 1024 + first / 50, "objects": first / 100}.get(what, 1.0)
    hours = [seconds / 3600 for seconds in times]
    slopes = _slope(hours, values), _slope(range(len(values)), values)
    return Trend(first, last, *slopes, max(allowed, most - first))


def _slope(at: Sequence[float], values: Sequence[float]) -> float:
    return statistics.linear_regression(at, values).slope if len({*at}) > 1 else 0.0


def trends(
    times: Sequence[float], samples: Sequence[Mapping[str, float]], most: Mapping[str, float]
) -> dict[str, Trend]:
    """The trend of each number of ``samples``; most: of some, as ``trend`` takes it."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {
        name: trend(times, [sample.get(name, 0) for sample in samples], name, most.get(name, 0.0))
        for name in names
    }


def table(found: Mapping[str, Trend]) -> list[str]:
    """A line for each trend, below a head."""
    lines = [f"{'':22}{'first':>9}{'last':>9}{'an hour':>10}{'a round':>10}{'allowed':>9}"]
    for name, one in found.items():
        lines.append(
            f"{name:22}{one.first:9.0f}{one.last:9.0f}{one.an_hour:10.1f}{one.a_round:10.2f}"
            f"{one.allowed:9.0f}  {'GREW' if one.grew else 'flat'}"
        )
    return lines


def inventory(member: Member) -> dict[str, int]:
    """What there is on a host: processes, sockets, and files of its own."""
    root, sockets = f"/proc/{member.pid}/root", 0
    for kind in ("tcp", "tcp6", "unix"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{member.pid}/net/{kind}") as file:
            # number 0: nobody's any more, only the kernel still takes its leave of the other end
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
