"""The smallest worlds, whole; and that a machine that breaks a rule is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from cases import cases

from dispatcher.core.events.actions import OpenLink, Prepare
from dispatcher.core.exec_machine import ExecMachine
from dispatcher.core.run import tables
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.core.run.run_machine import RunMachine

from .explorer import Broken, Step, clone, explore, freeze
from .small_commands import SmallCommand
from .small_worlds import WORLDS, Run, Small

SLOT = Small(slots=1, faults=1, slow=False)


@cases(
    "small, most",
    [
        (dataclasses.replace(SLOT, faults=0), 60),
        (dataclasses.replace(SLOT, kinds=("crash", "lose", "signal")), 1_000),
        (SmallCommand(hosts=2, faults=1, sudo=True), 1_000),
    ],
)
def test_all_rules_hold_in_every_state(small: Small | SmallCommand, most: int) -> None:
    found = explore(small.world())
    assert most / 4 < found.states < most
    assert found.ends


def test_the_beginnings_of_the_worlds_to_be_explored() -> None:
    for name, small in WORLDS.items():
        assert explore(small.world(), 20).states >= 20, name


def _always_first(self: RunMachine, host: int) -> Any:
    """A host that is reached anew prepares for the first attempt."""
    if host in self.hosts.linked:
        return Prepare(host, self.attempt)
    self.hosts.linked.add(host)
    return OpenLink(host)


def _all_at_once(self: tables.HostTable, now: float) -> list[int]:
    """Also who has a link is reached once more."""
    due = [host for host, when in self.back.items() if when <= now]
    for host in due:
        del self.back[host]
        self.linked.add(host)
    return due


def test_what_breaks_a_rule_is_found_with_the_way_there(monkeypatch: pytest.MonkeyPatch) -> None:
    one_restart = dataclasses.replace(SLOT, restarts=1, faults=2, kinds=("crash", "over"))
    monkeypatch.setattr(RunMachine, "_gather", _always_first)
    with pytest.raises(Broken, match="nothing that can happen ends it") as broken:
        explore(one_restart.world())
    assert broken.value.steps[-1] == ("over", 0)


@cases(
    "owner, name, own, small, why",
    [
        (tables.HostTable, "returning", _all_at_once,
         Small(slots=1, faults=2, restarts=1, spares=1, slow=False, kinds=("refuse", "mute")),
         "a second link"),
        (ExecMachine, "_leave_out", lambda self, why, code: [],
         SmallCommand(2, 1, limits=(("fanout", 1),)), "E-8"),
        (tables.RankTable, "give_up", lambda self, node: None, SLOT, "R-5"),
    ],
)  # fmt: skip
def test_other_broken_rules(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, own: Any, small: Any, why: str
) -> None:
    monkeypatch.setattr(owner, name, own)
    with pytest.raises(Broken, match=why):
        explore(small.world())


class Whole(Run):
    """A run that forgets nothing."""

    def _forget(self, job: AttemptMachine) -> None:
        """All of it may matter."""

    def short(self) -> Step:
        """What a run that forgets is told by, in this state."""
        other = self.copy()
        Run._forget(other, other.run._job)
        return other.key()

    def whole(self) -> tuple[Any, ...]:
        """As that, and all that it leaves out."""
        run, job = self.run, self.run._job
        fences = [world.fences._ended for world in job._mpi._worlds.values()] if job._mpi else []
        of_job = job._before, job._sent, job._ended, job._ranks.statuses, job._lost, job.cause
        of_run = run._verdict, run._attempts, run.hosts.out, job._check._failures
        own = self.failed, self.lost_output, [(one.words, one.living) for one in self.agents]
        return self.short(), repr((of_job, of_run, own, fences))


def go_on_alike(small: Small) -> float:
    """All states of ``small``, also those that differ only in what is forgotten; and what follows
    is the same for all that are told as one. Returns how many these are on average.
    """
    after: dict[Step, Any] = {}
    first = Whole(small)
    found, waiting = {first.whole()}, [first]
    while waiting:
        world = waiting.pop()
        follows = set()
        for step in world.steps():
            other = world.copy()
            other.take(step)
            follows.add((step[:3], other.short()))  # less the status of an exit
            if (whole := other.whole()) not in found:
                found.add(whole)
                waiting.append(other)
        known = after.setdefault(world.short(), (world.bounded, follows))
        assert known == (world.bounded, follows)
    return len(found) / len(after)


@cases(
    "small",
    [
        Small(hosts=1, faults=1, slow=False, kinds=("restart", "crash", "missing")),
        dataclasses.replace(SLOT, restarts=1, kinds=("crash", "over")),
    ],
)
def test_states_that_are_told_as_one_go_on_alike(small: Small) -> None:
    assert go_on_alike(small) > 1.5


@pytest.mark.nightly
@cases(
    "small",
    [
        Small(slots=1, faults=1),
        Small(hosts=1, faults=1),
        dataclasses.replace(SLOT, restarts=1),
        dataclasses.replace(SLOT, restarts=1, min_nodes=1),
        dataclasses.replace(SLOT, restarts=1, spares=1),
    ],
)
def test_they_do_so_after_every_fault(small: Small) -> None:
    assert go_on_alike(small) > 1.5


def test_a_copy_is_equal_and_its_own() -> None:
    world = Run(SLOT)
    other = world.copy()
    assert other.key() == world.key()
    step = next(iter(other.steps()))
    other.take(step)
    assert other.key() != world.key()
    world.take(step)
    assert other.key() == world.key()
    shared = [{1: [2]}]
    twice = clone([shared, shared], {})
    assert twice == [shared, shared]
    assert twice[0] is twice[1] is not shared
    assert freeze([1e6 + 2.0, 1e6 - 5.0, 3.5], 1e6, {}) == (2.0, -1.0, 3.5)
