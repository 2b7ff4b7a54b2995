"""How fast GPUs are beside their peers: matrix products, copies, an all-reduce in a host; pure.

A GPU that is slow, or calculates wrongly, passes every look at its counters. So ``check --full
--speed`` lets each work for some seconds (``remote.rank.gpu_speed``). GPUs of one kind should be
equal in the whole cluster; an outlier is named, as DLRover's and Azure's checks of hosts do.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.checks.check import (
    CheckHosts,
    Finding,
    Seen,
    Unread,
    a_few,
    critical,
    each,
    ok,
    warn,
)
from dispatcher.checks.health import has_gpus
from dispatcher.checks.pair_ranking import InsideHost, below

#: shares of the usual: of a product; of a copy, which shares its way with other GPUs
SLOW_PRODUCT, SLOW_COPY = 0.9, 0.7
#: GPUs of a host that are looked at
MOST_GPUS = 64


@dataclass(frozen=True)
class Speed:
    """One GPU. product: TFLOP/s; to, back: GB/s of copies; same: two equal products are equal."""

    name: str
    product: float
    same: bool
    to: float
    back: float


@dataclass(frozen=True)
class Speeds:
    """The GPUs of a host. all_reduce: GB/s of busbw among them, None if it was not measured."""

    gpus: tuple[Speed, ...] = ()
    all_reduce: float | None = None
    hung: bool = False


def speeds(seen: Seen) -> Speeds:
    """Read the host's last line. Raises: Unread."""
    if not has_gpus(seen):
        return Speeds()
    reading = seen.reading("speed")
    lines = [line for line in reading.text.splitlines() if line.startswith("{")]
    if not lines:
        raise Unread(reading.why() if reading.status != 0 else "nothing was measured")
    try:
        found = json.loads(lines[-1])
        if why := found.get("why"):
            raise Unread(str(why)[:200])
        gpus = tuple(
            Speed(
                str(one["name"])[:80], _rate(one["product"]), one["same"] is True,
                _rate(one["to"]), _rate(one["from"]),
            )
            for one in found["gpus"][:MOST_GPUS]
        )  # fmt: skip
        among = found["all_reduce"]
        return Speeds(gpus, None if among is None else _rate(among), reading.hung)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Unread("it stopped before all was measured") from None


def _rate(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a rate")
    return float(value)


def products(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
    """Matrix products: as fast as on other GPUs of the kind, and the same each time."""
    usual = _usual(hosts, "product")

    def one(seen: Seen) -> Finding:
        gpus = speeds(seen).gpus
        wrong = [f"gpu {at}" for at, gpu in enumerate(gpus) if not gpu.same]
        if wrong:
            text = f"{a_few(wrong)}: two equal products differ"
            return critical(text, "drain the host; dcgmi diag -r 3; replace the GPU")
        slow = [
            f"gpu {at}: {gpu.product:.0f} TFLOP/s, {usual[gpu.name]:.0f} is usual"
            for at, gpu in enumerate(gpus)
            if gpu.product < SLOW_PRODUCT * usual[gpu.name]
        ]
        return critical(a_few(slow), "look at its clocks, power and cooling") if slow else ok()

    return each(one)(hosts)


def copies(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
    """Copies between a GPU and the memory of its host, both ways."""
    ways = {"to": _usual(hosts, "to"), "back": _usual(hosts, "back")}

    def one(seen: Seen) -> Finding:
        slow = [
            f"gpu {at}: {getattr(gpu, way):.1f} GB/s {way}, {usual[gpu.name]:.1f} is usual"
            for at, gpu in enumerate(speeds(seen).gpus)
            for way, usual in ways.items()
            if getattr(gpu, way) < SLOW_COPY * usual[gpu.name]
        ]
        return warn(a_few(slow), "lspci -vv: LnkSta of it and its switch") if slow else ok()

    return each(one)(hosts)


def all_reduce(slow: float) -> CheckHosts:
    """The check of the all-reduce within each host. slow: a share of the usual rate."""

    def find(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
        inside = {
            at: InsideHost(found.all_reduce * 1e9, found.gpus[0].name, len(found.gpus))
            for at, found in enumerate(map(_known, hosts.values()))
            if found.all_reduce is not None and found.gpus
        }
        short = {[*hosts][at]: (inside[at].rate, due) for at, due in below(inside, slow).items()}

        def one(seen: Seen) -> Finding:
            found = speeds(seen)
            if seen.name in short:
                rate, due = (value / 1e9 for value in short[seen.name])
                text = f"{rate:.0f} GB/s, at least {due:.0f} is usual"
                return critical(text, "dispatch check --full looks at its NVLinks")
            if found.hung and found.all_reduce is None and len(found.gpus) > 1:
                return critical("it hangs", "nvidia-smi nvlink -s; dmesg -T | grep -i -e xid")
            return ok()

        return each(one)(hosts)

    return find


def _known(seen: Seen) -> Speeds:
    """The measured speeds; empty if they cannot be read."""
    try:
        return speeds(seen)
    except Unread:
        return Speeds()


def _usual(hosts: Mapping[str, Seen], figure: str) -> dict[str, float]:
    """Name of a GPU -> what most of that kind reach."""
    rates: dict[str, list[float]] = {}
    for gpu in (gpu for seen in hosts.values() for gpu in _known(seen).gpus):
        rates.setdefault(gpu.name, []).append(getattr(gpu, figure))
    return {name: statistics.median_high(each) for name, each in rates.items()}
