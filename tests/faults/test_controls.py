"""Controls: a row of the fault matrix whose mechanism is switched off must fail.

A control *is* the row's own test, run with a ``dispatch`` that lacks one mechanism
(``without.py``); it passes when that test fails in the way that is expected. One a mechanism;
docs/design/faults.md says which rows lean on it, and a test reads that page.
"""

from __future__ import annotations

import contextlib
import inspect
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import remote.agent.test_endings as endings
import runs.conftest as desks
import runs.run.test_hosts as over_hosts
import runs.run.test_local as local
from remote.driver import Agent
from rig import kill_left

from dispatcher.bootstrap import payload

from . import conftest, test_matrix, test_orphan_check, test_scarce
from .without import AGENT, FAULTS, LAUNCHER, switch_off

WITHOUT = str(Path(__file__).with_name("without.py"))
PAGE = Path(__file__).parents[2] / "docs/design/faults.md"
#: how a row fails
FAILURES = (
    AssertionError, subprocess.TimeoutExpired, OSError, queue.Empty, pytest.fail.Exception,
)  # fmt: skip


@dataclass(frozen=True)
class Control:
    """row: a test, a method of a fresh object or a function. told: how its failure reads (a
    pattern). fields: its arguments that are no fixtures. here: it runs in this
    process."""

    row: Callable[..., None]
    told: str
    fields: dict[str, Any] = field(default_factory=dict)
    here: bool = False


RANKS, AGENTS = test_matrix.TestRanks(), test_matrix.TestAgents()
NETWORK, ENDING = test_matrix.TestNetwork(), local.TestEnding()
LOGINS = test_matrix.TestLogins()
LEFT = "nothing is left; there is"
RUNS_ON = "it runs on"

CONTROLS = {
    "first failure": Control(
        RANKS.test_a_failure_ends_all, RUNS_ON, {"kind": "exit", "code": 3, "how": ""}
    ),
    "waiting": Control(RANKS.test_an_early_success_is_waited_on, "rank 3 has ended|is None"),
    "grace": Control(RANKS.test_stubborn_ranks_get_their_grace_and_no_more, RUNS_ON),
    "sweep": Control(RANKS.test_strays_go_with_the_job, "killed 1 process left behind"),
    "subreaper": Control(RANKS.test_strays_go_with_the_job, "killed 1 process left behind"),
    "continuing": Control(RANKS.test_a_stopped_rank_ends_with_the_others, RUNS_ON),
    "exit by wait": Control(
        RANKS.test_who_closed_its_output_has_not_ended, "is None|killed by SIGKILL"
    ),
    "drain limit": Control(RANKS.test_a_child_that_holds_the_output_is_cut_off, "not in"),
    "autopsy": Control(
        ENDING.test_the_error_file_is_in_the_verdict_and_the_report,
        "its traceback",
        {"how": "exit", "said": "exit code 9"},
    ),
    "program check": Control(
        test_matrix.test_one_host_lacks_the_program, "error: rank . on n2: exec .*permission denied"
    ),
    "port check": Control(local.TestEnvironment().test_a_fixed_port_is_kept_or_refused, "125"),
    "sweep limit": Control(
        test_matrix.test_a_rank_that_cannot_be_killed_is_named, "n2: host lost: no heartbeat"
    ),
    "guardian": Control(AGENTS.test_one_is_killed, LEFT, {"whom": "agent"}),
    "agent's death signal": Control(
        endings.TestKilled().test_guardian, "waited", {"after": "exec sleep 300"}, here=True
    ),
    "ranks' death signal": Control(AGENTS.test_both_and_the_launcher_are_killed_at_once, LEFT),
    "heartbeats": Control(AGENTS.test_a_stopped_agent, RUNS_ON),
    "lease": Control(NETWORK.test_a_lost_login_host, LEFT, {"how": "cut"}),
    "lifeline": Control(
        ENDING.test_the_launchers_end_leaves_nothing,
        LEFT,
        {"signum": signal.SIGKILL, "code": -9, "text": local.SLEEP},
    ),
    "end of link": Control(AGENTS.test_one_is_killed, RUNS_ON, {"whom": "session"}),
    "connect limit": Control(NETWORK.test_a_host_that_is_down_from_the_start, RUNS_ON),
    "monotonic clock": Control(test_scarce.test_clocks_that_differ_and_jump, "host lost"),
    "sync marker": Control(
        over_hosts.test_noise_before_the_agent_is_skipped_and_quoted_on_failure,
        "protocol error: bad frame",
    ),
    "host keys": Control(LOGINS.test_a_changed_host_key, "assert 3 == 125"),
    "byte count": Control(RANKS.test_output_that_was_lost_is_an_error, "== 125"),
    "signals": Control(
        ENDING.test_the_launchers_end_leaves_nothing,
        "timed out",
        {"signum": signal.SIGTERM, "code": 143, "text": local.SLEEP},
    ),
    "resting lease": Control(
        ENDING.test_ctrl_z_stops_the_ranks_for_longer_than_their_lease,
        r"No such file .*/proc/\d+/stat|== \['T', 'T'\]",
    ),
    "orphan check": Control(test_orphan_check.test_both_killed, "n2 is idle"),
    "search by run id": Control(
        AGENTS.test_both_are_killed_at_once, r"None = .*search.*'note: n2: killed"
    ),
    # never on this machine itself, where it would end the runs of others
    "own run id": Control(AGENTS.test_another_run_is_not_touched, "== 2"),
}


#: those that take more than five seconds, most of them the row's own bound
SLOW = {"agent's death signal", "connect limit", "drain limit", "grace", "heartbeats",
        "monotonic clock", "orphan check", "signals", "sweep limit", "waiting"}  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[desks.Desk]:
    """A desk after which whatever is left is killed: a row that fails leaves things."""
    desk = desks.Desk(tmp_path)
    yield desk
    with contextlib.suppress(AssertionError):
        desk.close()
    while left := desk.left():
        kill_left(pid for pid, _ in left)


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent on pipes, whose link does not end with its guardian."""
    agent = Agent(sys.executable, payload=payload.payload_of(payload.sources()))
    yield agent
    agent.close()


frozen = test_matrix.frozen


def marked(row: Callable[..., object]) -> Iterator[str]:
    """The fixtures that marks give ``row``: on itself or on its module."""
    for place in (row, inspect.getmodule(row)):
        marks = getattr(place, "pytestmark", [])
        for mark in marks if isinstance(marks, list) else [marks]:
            if mark.name == "usefixtures":
                yield from mark.args


@pytest.mark.cluster
@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(name, marks=[pytest.mark.nightly] if name in SLOW else []) for name in CONTROLS],
)
def test_without(
    mechanism: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = CONTROLS[mechanism]
    if control.here:
        switch_off(mechanism, monkeypatch.setattr)
    for name in marked(control.row):
        request.getfixturevalue(name)
    names = [n for n in inspect.signature(control.row).parameters if n not in control.fields]
    fixtures = {name: request.getfixturevalue(name) for name in names}
    # nothing is to come: no reason to wait long for it
    if control.told == RUNS_ON:
        for module in (test_orphan_check, test_matrix, test_scarce):
            monkeypatch.setattr(module, "SLACK", 2.0)
        monkeypatch.setattr(test_matrix, "START", 2.0)
    if control.told == LEFT:  # but for the end that comes before
        clean, less = conftest.Job.clean, test_matrix.SLACK - 2.0
        monkeypatch.setattr(
            conftest.Job, "clean", lambda run, limit, *hosts: clean(run, limit - less, *hosts)
        )
        monkeypatch.setattr(desks, "CLEAN", 3.0)
    weak = [sys.executable, WITHOUT, mechanism]
    for module, name in ((conftest, "DISPATCH"), (over_hosts, "DISPATCH"), (desks, "PROGRAM")):
        monkeypatch.setattr(module, name, weak)
    with pytest.raises(FAILURES, match=control.told):
        control.row(**fixtures, **control.fields)


def test_every_mechanism_has_its_control() -> None:
    assert set(CONTROLS) == (set(AGENT) | set(LAUNCHER)) - FAULTS


#: the rows that must be proved
ROWS = {*range(1, 13), *range(15, 22), *range(23, 32), *range(36, 44), *range(46, 53),
        *range(55, 64), 65, 66}  # fmt: skip
TESTS = Path(__file__).parents[1]


def table() -> list[tuple[set[int], list[str], list[str]]]:
    """The rows of the page: their numbers, the tests named and the controls named."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"[\d, ]+", cells[0]):
            numbers = {int(number) for number in cells[0].split(",")}
            found.append((numbers, cells[4].split("; "), cells[5].split(", ")))
    return found


def test_every_row_is_on_the_page() -> None:
    assert set().union(*(numbers for numbers, _, _ in table())) >= ROWS


@pytest.mark.parametrize(("numbers", "tests", "controls"), table(), ids=lambda x: str(x)[:20])
def test_what_the_page_names_is_there(
    numbers: set[int], tests: list[str], controls: list[str]
) -> None:
    for named in tests:
        file, _, name = named.replace("`", "").partition(": ")
        text = (TESTS / f"{file}.py").read_text()
        assert re.search(rf"^\s*def test_{name}\(|^class {name}\b", text, re.M) or not name, named
    for control in controls:
        assert control in CONTROLS or control.startswith("none: "), control
