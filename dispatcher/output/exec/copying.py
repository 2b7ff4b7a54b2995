"""``put`` and ``get`` in words: what was copied, equal hosts folded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dispatcher.core.events import exec_events as vi
from dispatcher.model.hostset import fold
from dispatcher.output.text.counted import plural

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Told(Protocol):
    """What is known of the copy to or from one host."""

    @property
    def python(self) -> bool | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def wanted(self) -> int: ...
    @property
    def found(self) -> int: ...
    @property
    def sent(self) -> int | None: ...
    @property
    def equal(self) -> int: ...
    @property
    def error(self) -> str | None: ...
    @property
    def hostile(self) -> bool: ...


def size(nbytes: float) -> str:
    """``17 B``, ``1.5 MiB``."""
    unit = 0
    while nbytes >= 1024 and unit < len(_UNITS) - 1:
        nbytes /= 1024
        unit += 1
    return f"{nbytes:.1f} {_UNITS[unit]}" if unit else f"{nbytes:.0f} B"


def summary(
    names: Sequence[str],
    outcomes: Sequence[vi.Outcome],
    told: Sequence[Told],
    seconds: float,
    verb: str,
) -> list[str]:
    """A line for the hosts that were served alike; [] when none was served. verb: ``sent``."""
    groups: dict[str, list[str]] = {}
    for name, outcome, one in zip(names, outcomes, told, strict=True):
        if not vi.is_good(outcome):
            continue
        if one.sent is None:
            text = f"all {verb}, by tar"
        else:
            text = f"{plural(one.sent, 'file')} {verb}, {one.equal} equal"
            if not one.python:
                text += ", by tar"
            if one.found:
                text += f", {size(one.found)} were there from an interrupted copy"
        groups.setdefault(text, []).append(name)
    total = sum(one.bytes for one in told)
    lines = [f"{fold(hosts)}: {text}" for text, hosts in groups.items()]
    if lines:
        lines[-1] += f"; {size(total)} in {seconds:.1f} s"
    return lines
