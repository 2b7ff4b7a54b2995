"""The smallest worlds, whole; and that a machine that breaks a rule is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from cases import cases

from dispatcher.core.events.actions import OpenLink, Prepare
from dispatcher.core.exec_machine import ExecMachine
from dispatcher.core.run import tables
from dispatcher.core.run.run_machine import RunMachine

from .explorer import Broken, clone, explore, freeze
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
    due = [host for host, when in self._back.items() if when <= now]
    for host in due:
        del self._back[host]
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
