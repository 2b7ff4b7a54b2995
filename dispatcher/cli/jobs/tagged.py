"""One look at what runs have left on many hosts, and its result in words; for kill and sweep."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dispatcher.api.tagged import Look, look_by, summary
from dispatcher.cli.options.reach import Reach
from dispatcher.model.host_part import Host
from dispatcher.model.hostset import fold


def look(
    hosts: Sequence[Host], run_ids: Sequence[str], reach: Mapping[str, Any], *, kill: bool
) -> Look:
    """Find (``kill``: and end) what is left of ``run_ids`` on ``hosts``; [] for any run's."""
    # under a rank we would carry its run id to what we start here
    os.environ.pop("DISPATCH_RUN_ID", None)
    with Reach(reach) as transports:
        return look_by(transports.transport_for, hosts, run_ids, kill=kill)


def tell(seen: Look, say: Callable[[str], None]) -> int:
    """Say what a killing look ended and could not; 0, 1 if something is left, 125 for hosts."""
    lines = summary(seen.found, "killed", "removed")
    left = summary(seen.found, "left", "kept")
    for line in [*lines, *left, *seen.failures]:
        say(line)
    if not (lines or left or seen.failures):
        say(f"{fold(seen.found)}: nothing found")
    return 125 if seen.failures else int(bool(left))
