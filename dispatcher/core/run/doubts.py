"""What is odd about hosts that can be started on: no room left, another script; pure.

These are the checks that cost a run nothing, since the agents tell it with what they say
anyway. They only warn; ``dispatch check`` and ``--check full`` judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dispatcher.core.events.facts import Facts

#: free bytes below which even a small file does not fit
LEAST_ROOM = 1 << 20
PLACES = ("the folder for temporary files", "shared memory")


def doubts(facts: Mapping[int, Facts]) -> list[tuple[int, str]]:
    """(node, what is odd about its host), by node. facts: of all nodes."""
    found = []
    # of two scripts as frequent that of the first node is the right one
    scripts = Counter(one.script for _, one in sorted(facts.items()) if one.script is not None)
    usual = max(scripts, key=lambda script: scripts[script], default=None)
    for node, one in sorted(facts.items()):
        for place, free in zip(PLACES, one.room, strict=True):
            if free is not None and free < LEAST_ROOM:
                found.append((node, f"{place} is full: {free >> 10} KiB free"))
        if one.script not in (None, usual):
            found.append((node, "its script is not the one that most hosts have"))
    return found
