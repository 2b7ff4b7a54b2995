"""NVLinks: complete, all at full speed, none with errors; pure.

``nvidia-smi nvlink -s`` lists a GPU's links, a dead link as ``<inactive>`` or not at all. A card
for PCIe without a bridge is not a fault, so the number of links is checked only for kinds with an
NVSwitch (``Machine``). ``nvidia-smi nvlink -e`` counts errors since the driver was loaded. A link
that recovers again and again was seen to fail for good (marin-community/marin#9086).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.checks.check import Finding, Seen, Unread, a_few, critical, mode, ok, warn
from dispatcher.checks.gpu import silent

#: below this share of the usual speed a link is slow
SLOW = 0.9
#: words of counters of which each is a link that was lost for a while
LOST = ("Recovery Errors", "Link recovery")

_GPU = re.compile(r"GPU (\d{1,4}): ([^(\n]{1,80})")
_LINK = re.compile(r"\s*Link (\d{1,4}): (?:([\d.]{1,20}) GB/s|<inactive>)")
_COUNT = re.compile(r"\s*Link (\d{1,4}): ([A-Z][\w ]{1,40}(?:Errors|events|discards)): (\d{1,20})$")

#: link -> GB/s, None for one that is inactive
Links = Mapping[int, float | None]


def parse(text: str) -> dict[str, tuple[str, Links]]:
    """GPU -> its name, and its links, of what ``nvidia-smi nvlink -s`` prints. Raises: Unread."""
    found: dict[str, tuple[str, dict[int, float | None]]] = {}
    links: dict[int, float | None] = {}
    for line in text.splitlines():
        if gpu := _GPU.match(line.strip()):
            links = {}
            found[gpu[1]] = gpu[2].strip(), links
        elif link := _LINK.match(line):
            links[int(link[1])] = float(link[2]) if link[2] else None
    if not found and text.strip():
        raise Unread("nvidia-smi nvlink listed no GPU")
    return dict(found)


def links(seen: Seen) -> Finding:
    """One that is inactive or slow halves what goes through it."""
    if trouble := silent(seen, "smi nvlink"):
        return trouble
    found = parse(seen.output("smi nvlink"))
    speeds = [speed for _, there in found.values() for speed in there.values() if speed]
    remedy = "drain the host; reset its GPUs, or reboot"
    counts = {gpu: sum(1 for speed in there.values() if speed) for gpu, (_, there) in found.items()}
    kinds = {gpu: machine(name) for gpu, (name, _) in found.items()}
    if not speeds:
        if len(found) > 1 and all(kinds.values()):
            return warn("no NVLink is active", "systemctl status nvidia-fabricmanager")
        return ok("0")
    inactive = [
        f"gpu {gpu} link {link}"
        for gpu, (_, there) in found.items()
        for link, speed in there.items()
        if speed is None and counts[gpu]
    ]
    if inactive:
        return critical(f"inactive: {a_few(inactive)}", remedy)
    few = [
        f"gpu {gpu}: {counts[gpu] or 'no'} active links of {kind.links}"
        for gpu, kind in kinds.items()
        if kind is not None and counts[gpu] < kind.links
    ]
    if few:
        return critical(a_few(few), remedy)
    usual = float(mode(str(speed) for speed in speeds) or 0)
    slow = []
    for gpu, (_, there) in found.items():
        kind = kinds[gpu]
        due = kind.link_rate if kind is not None else usual
        slow += [
            f"gpu {gpu} link {link}: {speed:g} GB/s of {due:g}"
            for link, speed in there.items()
            if speed and speed < SLOW * due
        ]
    if slow:
        return critical(f"slow: {a_few(slow)}", remedy)
    return ok(f"{len(speeds)} x {usual:g} GB/s")


def errors(seen: Seen) -> Finding:
    """Error counters, and above all those that rose between the two visits."""
    if trouble := silent(seen, "smi nvlink errors"):
        return trouble
    before = _counts(seen.output("smi nvlink errors"))
    again = seen.later.get("smi nvlink errors")
    after = before if again is None or again.status != 0 else _counts(again.text)
    rises = {key: after[key] - n for key, n in before.items() if after.get(key, n) > n}
    lost = [key for key in rises if key[1].startswith(LOST)]
    remedy = "drain the host; nvidia-smi nvlink -e; is it the same link again?"
    if lost:
        return critical(a_few([f"{_words(key)} +{rises[key]}" for key in lost]), remedy)
    if rises:
        return warn(a_few([f"{_words(key)} +{n}" for key, n in rises.items()]), remedy)
    there = [f"{_words(key)} {n}" for key, n in after.items() if n]
    if there:
        text = f"since the driver was loaded: {a_few(there)}"
        return warn(text, "look again later: do they rise?")
    return ok()


def _counts(text: str) -> dict[tuple[str, str], int]:
    """(GPU and link, counter) -> its value. Raises: Unread."""
    found: dict[tuple[str, str], int] = {}
    gpu = ""
    for line in text.splitlines():
        if head := _GPU.match(line.strip()):
            gpu = head[1]
        elif (count := _COUNT.match(line)) and not count[2].startswith("Total"):
            found[f"gpu {gpu} link {count[1]}", count[2]] = int(count[3])
    if not gpu and text.strip():
        raise Unread("nvidia-smi nvlink listed no GPU")
    return found


def _words(key: tuple[str, str]) -> str:
    return f"{key[0]}: {key[1]}"


@dataclass(frozen=True)
class Machine:
    """GPUs of one kind. links: NVLinks of each; link_rate: GB/s of one, one way.

    floor: GB/s of busbw that an all-reduce over ``gpus`` of them in one host should reach
    (``docs/design/checks.md``). ring: the share of it that is reached without NVLink SHARP: 370 of
    480 GB/s were measured on an H100 (NVIDIA/nccl-tests#212, #309). Sources of links: gpud's
    nvlink.status.a100; NVIDIA's data sheets of H100 and H200; NVIDIA/k8s-test-infra#371.
    """

    kind: str
    links: int
    link_rate: float
    floor: float
    gpus: int = 8
    ring: float = 0.75


_KNOWN = (
    (re.compile(r"A100-SXM"), Machine("A100", 12, 25.0, 228.0, ring=1.0)),
    (re.compile(r"H100 80GB HBM3$"), Machine("H100", 18, 26.562, 460.0)),
    (re.compile(r"H200$"), Machine("H200", 18, 26.562, 431.0)),
    (re.compile(r"\bB200$"), Machine("B200", 18, 53.125, 747.0)),
)


def machine(name: str) -> Machine | None:
    """The known facts of the GPU that nvidia-smi or CUDA calls ``name``; None if it is unknown.

    Cards for PCIe (``H100 PCIe``, ``H100 NVL``) are joined by bridges or not at all: not known.
    """
    return next((one for pattern, one in _KNOWN if pattern.search(name)), None)


def floors(name: str, gpus: int) -> tuple[float, float] | None:
    """GB/s of busbw that an all-reduce over ``gpus`` GPUs ``name`` of one host should reach.

    The second without NVLink SHARP. None where nothing is known.
    """
    known = machine(name)
    if known is None or known.gpus != gpus:
        return None
    return known.floor, known.floor * known.ring
