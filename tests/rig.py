"""The cluster of hosts as tests see it; made by ``scripts/cluster``, see docs/rig.md."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir, "scripts"))

import testbed.commands  # noqa: F401 - compiled once: scripts/cluster itself writes no bytecode
from testbed.cluster import PROGRAM, Cluster, gone, hear_signals, wait_for, why_not
from testbed.peak import Peak

__all__ = [
    "PROGRAM",
    "UNMEASURED",
    "Cluster",
    "Peak",
    "gone",
    "hear_signals",
    "kill_left",
    "wait_for",
    "why_not",
]

#: variables of a process that has no room for what coverage does at its end
UNMEASURED = {"COVERAGE_PROCESS_START": "", "COVERAGE_PROCESS_CONFIG": ""}


def kill_left(pids: Iterable[int]) -> None:
    """Kill those of ``pids`` that still live; each may end by itself meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
