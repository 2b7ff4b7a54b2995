"""What is told of hosts that are good enough to start on."""

from __future__ import annotations

import pytest

from core.conftest import facts, make_plan
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import StartRanks, Tell
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.core.run.start_check import host_warnings

SCRIPT = "its script is not the one that most hosts have"


@pytest.mark.parametrize(
    ("scripts", "odd"),
    [
        ((None, None, None), []),
        ((7, 7, 7), []),
        ((7, 7, 8), [2]),
        ((8, 7, 7), [0]),
        ((8, 7), [1]),  # no majority: rank 0's is the right one
        ((7, None, 7), []),  # not read: the program's own look at it says why
        ((1, 2, 3), [1, 2]),
    ],
)
def test_scripts(scripts: tuple[int | None, ...], odd: list[int]) -> None:
    there = {node: facts(node, script=script) for node, script in enumerate(scripts)}
    assert host_warnings(there) == [(node, SCRIPT) for node in odd]


@pytest.mark.parametrize(
    ("room", "told"),
    [
        ((None, None), []),
        ((1 << 30, 1 << 30), []),
        ((4096, 1 << 30), ["the folder for temporary files is full: 4 KiB free"]),
        ((0, 0), ["the folder for temporary files is full: 0 KiB free",
                  "shared memory is full: 0 KiB free"]),
    ],
)  # fmt: skip
def test_room(room: tuple[int | None, int | None], told: list[str]) -> None:
    assert [text for _, text in host_warnings({0: facts(0, room=room)})] == told


@pytest.mark.parametrize("check", [True, False])
def test_a_doubt_is_told_before_the_ranks_start(check: bool) -> None:
    job = AttemptMachine(make_plan(), check=check)
    job.begin()
    job.handle(ev.NodeReady(0, facts(0, script=7)), 0.0)
    actions = job.handle(ev.NodeReady(1, facts(1, script=8)), 0.0)
    if check:
        actions = job.handle(ev.NodeProbed(1, ("10.0.0.1",)), 0.0)
        assert actions[0] == Tell(ev.NodeNoticed(1, SCRIPT))
    assert sum(isinstance(action, StartRanks) for action in actions) == 2
    noticed = [a for a in actions if isinstance(a, Tell) and isinstance(a.event, ev.NodeNoticed)]
    assert len(noticed) == check
