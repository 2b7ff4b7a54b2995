"""The lock: every file pinned by hash, and all that dispatch and its tests need."""

from __future__ import annotations

import re
from importlib.metadata import distribution

import pytest
import rig  # noqa: F401 - puts scripts/ on the path
from packages import lock
from packaging.markers import Marker
from packaging.requirements import Requirement

LOCK = lock.LOCK.read_text()
BLOCKS = [block for block in LOCK.split("\n\n") if "==" in block]


def locked(*words: str) -> dict[str, str]:
    """name -> version of what scripts/setup installs for ``words`` on this Python."""
    found = {}
    for block in BLOCKS:
        first, entry = block.strip().split("\n", 1)
        pin, _, marker = entry.partition("\n")[0].removesuffix(" \\").partition(";")
        if set(first.split()) & set(words) and (not marker or Marker(marker.strip()).evaluate()):
            name, version = pin.strip().split("==")
            found[name.lower()] = version
    return found


def test_every_entry_has_hashes_and_says_for_whom_it_is() -> None:
    words = {*lock.FOR, "cpu", "cuda"}
    for block in BLOCKS:
        first, pin, *hashes = block.strip().split("\n")
        assert set(first.removeprefix("# ").split()) <= words, first
        assert re.match(r"[a-zA-Z0-9._-]+==[\w.+]+( ; .*)? \\$", pin), pin
        assert hashes, pin
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}( \\)?$", one) for one in hashes), pin


def test_it_keeps_to_what_was_chosen() -> None:
    for line in lock.CONSTRAINTS.read_text().splitlines():
        chosen = line.partition("#")[0].partition(";")[0].strip().lower()
        if chosen:
            assert f"\n{chosen} " in LOCK.lower(), chosen


@pytest.mark.parametrize("extras", [("torch",), ("torch", "dev")])
def test_it_has_all_that_is_asked_for_and_what_that_asks_for(extras: tuple[str, ...]) -> None:
    words = ("run", "cpu", "dev")[: 1 + len(extras)]
    there = locked(*words)
    waiting = [("dispatch-launcher", extras)]
    seen = set(waiting)
    while waiting:
        name, wanted = waiting.pop()
        for line in distribution(name).requires or []:
            one = Requirement(line)
            called = re.sub(r"[-_.]+", "-", one.name).lower()
            asked = [{"extra": extra} for extra in ("", *wanted)]
            if one.marker is not None and not any(map(one.marker.evaluate, asked)):
                continue
            if called == "dispatch-launcher":
                continue
            assert called in there, f"{name} asks for {line}"
            assert one.specifier.contains(there[called].partition("+")[0], prereleases=True), line
            new = (called, tuple(sorted(one.extras)))
            if new not in seen:
                seen.add(new)
                waiting.append(new)
