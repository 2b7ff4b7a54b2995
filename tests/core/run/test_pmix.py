"""PMIx through the job: who is told to serve, and what ends it."""

from __future__ import annotations

from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import ServePmix, SignalRanks
from dispatcher.core.events.mpi_events import MpiFound, PmixFailed, PmixWanted
from dispatcher.core.run.attempt import AttemptMachine

from ..conftest import make_plan


def test_each_node_serves_once(running: AttemptMachine) -> None:
    assert running.handle(PmixWanted(1), 1.0) == [ServePmix(1)]
    assert running.handle(PmixWanted(1), 1.0) == []
    assert running.handle(PmixWanted(0), 1.0) == [ServePmix(0)]
    assert running.handle(MpiFound(0, "/lib/libmpi.so.40", "OpenPMIx 5"), 1.0) == []


def test_a_host_without_a_library_ends_the_job_and_says_what_would_help(
    running: AttemptMachine,
) -> None:
    actions = running.handle(PmixFailed(1, "/lib/libmpi.so.40", "libpmix.so.2: not found"), 1.0)
    assert {action.node for action in actions if isinstance(action, SignalRanks)} == {0, 1}
    assert isinstance(running.cause, verdicts.NodeFailed)
    failure = running.cause.failure
    assert "/lib/libmpi.so.40 finds its ranks by PMIx" in failure.why
    assert "libpmix.so.2: not found" in failure.why
    assert failure.hint is not None
    assert failure.hint.startswith("apt-get install libpmix2")


def test_a_library_that_dies_is_the_cause(running: AttemptMachine) -> None:
    running.handle(PmixFailed(0, "", ""), 1.0)
    assert isinstance(running.cause, verdicts.NodeFailed)
    assert "has ended" in running.cause.failure.why


def test_nothing_of_it_counts_when_no_rank_runs() -> None:
    job = AttemptMachine(make_plan(), check=False)
    job.begin()
    assert job.handle(PmixWanted(0), 1.0) == []
    assert job.handle(PmixFailed(0, "", ""), 1.0) == []
    assert job.cause is None
