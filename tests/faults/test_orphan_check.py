"""What comes between a lost host and the next attempt: an orphan check, or its lease.

The ranks of one attempt are dead before the next begins, also where nobody on the host could
end them any more; and where that is known at once, nobody waits for a lease.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest
from rig import wait_for

from .conftest import Job, kill_at_once
from .test_matrix import LEASE, QUICK, SILENCE, SLACK

pytestmark = pytest.mark.cluster

Start = Callable[..., Job]
WORLD = range(6)  # three hosts, and n4 waits
AGAIN = ("--max-restarts", "1", "--spares", "1")


def goes_on(run: Job, limit: float) -> str:
    """Wait ``limit`` seconds at most until all ranks run again; what was said until then."""
    files = [os.path.join(run.logs, "latest/restart-1", f"rank-{r:05d}.out") for r in WORLD]

    def all_up() -> bool:
        return all(os.path.exists(file) and os.path.getsize(file) for file in files)

    wait_for(all_up, limit, run.said)
    assert not run.ranks("n2")
    wait_for(lambda: not run.cluster.processes("n2"), 20, "n2 is idle")
    said = run.said()
    assert re.search(r"note: n2: checked again: .* is left, \d were killed\n", said), said
    run.process.terminate()
    assert run.process.wait(timeout=60) == 143, run.said()
    run.clean(2 + SLACK)
    return said


def test_both_killed(job: Start) -> None:
    """The lease of 30 s is not waited for."""
    run = job("stray", *AGAIN).up(*WORLD)
    kill_at_once(*run.agents("n2"))
    said = goes_on(run, 5 + 2 * SLACK)
    assert "note: n4 takes the place of n2 with ranks 2-3 (host lost: the agent was kill" in said


def test_both_stopped(job: Start) -> None:
    """Nobody there can end the ranks when the lease has run out."""
    run = job("stray", *AGAIN, *QUICK).up(*WORLD)
    for pid in reversed(run.agents("n2")):
        os.kill(pid, signal.SIGSTOP)
    assert goes_on(run, SILENCE + LEASE + 14 + 2 + SLACK)
