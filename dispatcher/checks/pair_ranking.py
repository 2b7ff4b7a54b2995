"""Hosts measured two by two: the next pairs, and the slow hosts and links; pure.

docs/design/checks.md explains how two rounds find the culprit of a bad pair.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dispatcher.checks.hardware.nvlink import floors
from dispatcher.model.frozen import Value, value

#: a latency this many times the usual latency, and this much above it (s), is bad
LATE_FACTOR, LATE = 10.0, 0.005


@dataclass(frozen=True)
class Pair:
    """A measurement of hosts ``a`` and ``b`` (numbers). latency: s, there and back.

    there, back: bytes/s from a to b, and from b to a; None with ``why`` if it failed. rails:
    bytes/s between their first GPUs, their second GPUs, ..., all at once; () for one GPU each.
    """

    a: int
    b: int
    latency: float | None = None
    there: float | None = None
    back: float | None = None
    why: str = ""
    rails: tuple[float | None, ...] = ()

    @property
    def rate(self) -> float | None:
        """The slower way's bytes/s; None when one failed."""
        return None if self.there is None or self.back is None else min(self.there, self.back)


@dataclass(frozen=True)
class PairRanking:
    """culprits: hosts whose pairs are bad; links: bad pairs of good hosts; bad: all bad pairs.

    median: bytes/s that most hosts reach, 0 when nothing was measured. fine: hosts that
    were good with another host, and are not culprits.
    """

    culprits: tuple[int, ...]
    links: tuple[tuple[int, int], ...]
    bad: frozenset[tuple[int, int]]
    median: float
    fine: frozenset[int] = frozenset()


def tournament(hosts: Sequence[int], nth: int) -> list[tuple[int, int]]:
    """The pairs of round ``nth`` in which all meet all within len(hosts) - 1 rounds.

    The circle method: the first stays, the others move on by one. With an odd number one rests.
    """
    circle: list[int | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    if len(circle) < 2:
        return []
    turn = nth % (len(circle) - 1)
    moved = circle[1 + turn :] + circle[1 : 1 + turn]
    circle = [circle[0], *moved]
    half = len(circle) // 2
    pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def is_bad(pair: Pair, median: float, latency: float, slow: float) -> bool:
    """Whether a pair failed, or is below ``slow`` (a share) of the usual rate, or late."""
    if pair.rate is None or pair.rate < slow * median:
        return True
    return pair.latency is not None and pair.latency > LATE_FACTOR * latency + LATE


def rank_pairs(pairs: Sequence[Pair], slow: float) -> PairRanking:
    """The hosts and links to blame for slow pairs.

    The usual is what most hosts reach with their best partner: one bad host spoils the
    pairs of many, but no best pair.
    """
    best: dict[int, float] = {}
    soonest: dict[int, float] = {}
    for pair in pairs:
        for host in (pair.a, pair.b):
            if pair.rate is not None:
                best[host] = max(pair.rate, best.get(host, 0.0))
            if pair.latency is not None:
                soonest[host] = min(pair.latency, soonest.get(host, pair.latency))
    median = statistics.median_high(best.values()) if best else 0.0
    latency = statistics.median_low(soonest.values()) if soonest else 0.0
    bad = {(pair.a, pair.b) for pair in pairs if is_bad(pair, median, latency, slow)}
    good = {(pair.a, pair.b) for pair in pairs} - bad
    culprits = _culprits(bad, good)
    links = tuple(sorted(p for p in bad if not culprits & set(p)))
    fine = frozenset(host for pair in good for host in pair) - culprits
    return PairRanking(tuple(sorted(culprits)), links, frozenset(bad), median, fine)


def _culprits(bad: set[tuple[int, int]], good: set[tuple[int, int]]) -> set[int]:
    """Hosts that are bad with two others at least, and with more than they are good with.

    The worst first, and then without its pairs: they do not count against its partners.
    """
    found: set[int] = set()
    while True:
        blamed = Counter(h for pair in bad if not found & set(pair) for h in pair)
        cleared = Counter(h for pair in good for h in pair)
        suspects = [h for h, n in blamed.items() if n >= 2 and n > cleared[h]]
        if not suspects:
            return found
        found.add(min(suspects, key=lambda h: (cleared[h] - blamed[h], cleared[h], h)))


@value
class InsideHost(Value):
    """The GPUs of one host among themselves. rate: busbw of an all-reduce, bytes per second.

    gpu: their name. gpus: how many. below: the least that it should be, null if it is reached.
    """

    rate: float
    gpu: str
    gpus: int
    below: float | None = None


def slow_rails(pairs: Sequence[Pair], slow: float) -> list[tuple[int, int, float, float]]:
    """(host, rail, its best rate, the usual rate) if that is below ``slow`` of the usual.

    A rail has two ends: the best rate of a host's end with any partner counts.
    """
    best: dict[tuple[int, int], float] = {}
    for pair in pairs:
        for rail, rate in enumerate(pair.rails):
            for host in (pair.a, pair.b):
                best[host, rail] = max(rate or 0.0, best.get((host, rail), 0.0))
    usual = statistics.median_high(best.values()) if best else 0.0
    return [(*who, rate, usual) for who, rate in sorted(best.items()) if rate < slow * usual]


def below(
    inside: Mapping[int, InsideHost], slow: float, *, by_kind: bool = True
) -> dict[int, float]:
    """Hosts whose GPUs reach less among themselves than they should -> the least, bytes/s.

    Machines that are known have a floor, with ``by_kind``; others ``slow`` (a share) of the usual
    rate. If no host of a kind reaches its floor, NCCL has no NVLink SHARP (it is switched off,
    or too old, or in a virtual machine), and the lower floor holds.
    """
    best: dict[tuple[str, int], float] = {}
    for one in inside.values():
        best[one.gpu, one.gpus] = max(one.rate, best.get((one.gpu, one.gpus), 0.0))
    usual = statistics.median_high(one.rate for one in inside.values()) if inside else 0.0
    found = {}
    for host, one in sorted(inside.items()):
        known = floors(one.gpu, one.gpus) if by_kind else None
        due = slow * usual
        if known is not None:
            due = known[best[one.gpu, one.gpus] < known[0] * 1e9] * 1e9
        if one.rate < due:
            found[host] = due
    return found


def next_round(
    hosts: Sequence[int], pairs: Sequence[Pair], nth: int, slow: float
) -> list[tuple[int, int]]:
    """The pairs of round ``nth``, given the results of earlier rounds.

    A host in doubt (bad once, or never measured) meets a host that was good; the others meet a
    new partner. A host is in one pair.
    """
    if nth == 0:
        return tournament(hosts, 0)
    known = rank_pairs(pairs, slow)
    met = {frozenset((pair.a, pair.b)) for pair in pairs}
    free = [host for host in hosts if host in known.fine]
    next_pairs = []
    for host in doubtful(hosts, known):
        partner = next((one for one in free if frozenset((one, host)) not in met), None)
        if partner is not None:
            free.remove(partner)
            next_pairs.append((partner, host))
    return next_pairs + [pair for pair in tournament(free, nth) if frozenset(pair) not in met]


def doubtful(hosts: Sequence[int], known: PairRanking) -> list[int]:
    """Hosts that are not known to be good or bad yet."""
    return [host for host in hosts if host not in known.fine and host not in known.culprits]
