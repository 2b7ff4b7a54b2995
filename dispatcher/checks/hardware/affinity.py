"""Which CPUs and network cards are near to which GPU, as ``nvidia-smi topo -m`` has it; pure.

A matrix of GPUs and cards with the way between any two, the nearest first:

====  =========================================================
PIX   at most one PCIe bridge
PXB   several bridges, below one host bridge
PHB   through the host bridge, the CPU's own
NODE  through several host bridges of a NUMA node
SYS   from one NUMA node to another
====  =========================================================

Behind it each GPU's CPUs and NUMA node, below it the cards' names; older drivers have those at the
head, and no NUMA node. It judges nothing but whether hosts are alike; how they should be built only
who built them knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dispatcher.checks.check import Finding, Seen, Unread, ok
from dispatcher.checks.gpu import silent
from dispatcher.model.hostset import fold

NEAREST = ("PIX", "PXB", "PHB", "NODE", "SYS")

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_LEGEND = re.compile(r"\s*(NIC\d+): (\S{1,64})\s*")
_GPU = re.compile(r"GPU\d{1,3}")


def parse(text: str) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """GPU number -> its NUMA node or else CPUs, the way to the nearest cards, their names.

    "" and () where nothing is said; {} for another text.
    """
    lines = _STYLE.sub("", text).splitlines()
    names = {match[1]: match[2] for line in lines if (match := _LEGEND.fullmatch(line))}
    head: list[str] = []
    found: dict[str, tuple[str, str, tuple[str, ...]]] = {}
    for line in lines:
        words = line.split()
        if not head:
            if words[:1] == ["GPU0"]:
                head = line.partition("CPU Affinity")[0].split()
        elif words and words[0] in head and _GPU.fullmatch(words[0]):
            ways = dict(zip(head, words[1:], strict=False))
            cards = {name: way for name, way in ways.items() if not _GPU.fullmatch(name)}
            way = next((way for way in NEAREST if way in cards.values()), "")
            near = tuple(names.get(name, name) for name, there in cards.items() if there == way)
            found[words[0][3:]] = _home(words[1 + len(head) :]), way, near if way else ()
    return found


def _home(words: list[str]) -> str:
    """``NUMA node 0``, or ``CPUs 0-23``, of the columns behind the matrix."""
    if len(words) > 1 and words[1].isdigit():
        return f"NUMA node {words[1]}"
    return f"CPUs {words[0]}" if words and words[0][:1].isdigit() else ""


def affinity(seen: Seen) -> Finding:
    """Where the GPUs sit; value: NUMA node and way to the nearest cards of each."""
    if trouble := silent(seen, "smi topo"):
        return trouble
    there = parse(seen.output("smi topo"))
    if not there:
        raise Unread("nvidia-smi topo -m listed no GPU")
    short = [f"{home.rpartition(' ')[2]}/{way}" for home, way, _ in there.values()]
    return ok(" ".join(short), "; ".join(_lines(there)))


def _lines(there: Mapping[str, tuple[str, str, tuple[str, ...]]]) -> list[str]:
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for gpu, about in there.items():
        groups.setdefault(about, []).append(f"gpu{gpu}")
    lines = []
    for (home, way, near), gpus in groups.items():
        cards = [f"{' '.join(near)} ({way})"] if near else []
        lines.append(f"{fold(gpus)}: {', '.join([home or 'NUMA node not told', *cards])}")
    return lines
