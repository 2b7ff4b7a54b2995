"""The simulated cluster: one seed, one course of events; and each fault ends as it is promised."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import rig  # noqa: F401 - makes scripts/ known
from cases import cases
from simulation import model
from simulation.cases import Outcome, Script, simulated

from dispatcher.core.run import restart
from dispatcher.plan.job.request import Limits
from dispatcher.runner.run.reports import PATIENCE
from dispatcher.transport.tree.topology import FEWEST, HostTree, plan_tree

SCRIPT = Path(__file__).parents[2] / "scripts" / "simulate"
LIMITS = Limits()
SILENCE = LIMITS.silence
Simulate = Callable[..., Outcome]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    def run(
        *stages: str,
        hosts: int = 8,
        seed: int = 1,
        ranks: int = 2,
        tree: HostTree | None = None,
        **fields: Any,
    ) -> Outcome:
        folder = tmp_path / f"run{len([*tmp_path.iterdir()])}"
        folder.mkdir()
        script = Script(stages, **fields)
        return simulated(hosts, ranks, script, model.Model(), seed, folder, tree=tree)

    return run


def test_a_seed_is_a_course_of_events(simulate: Simulate) -> None:
    runs = [
        simulate("write", "end", hosts=50, ranks=1),
        simulate("write", "end", hosts=50, ranks=1),
        simulate("write", "end", hosts=50, ranks=1, seed=2),
    ]
    journals = []
    for made in runs:
        assert made.report.log_dir is not None
        assert made.report.ok
        journals.append((made.report.log_dir / "dispatch.jsonl").read_bytes())
    assert journals[0] == journals[1] != journals[2]
    assert journals[0].count(b"\n") > 50 * 10


#: seconds that the launcher and the hosts need between whatever is waited for
WORK = 2.0


@cases(
    "stage, kind, why, least, most",
    [
        ("end", None, "", 0.0, 0.0),
        ("fail", "RankFailed", "", 0.0, 0.0),
        ("cut", "NodeFailed", "no answer for", LIMITS.kernel_silence, LIMITS.kernel_silence),
        # of the last beat, which may be as old as the next one would have been young
        ("stop", "NodeFailed", LIMITS.silence_text, SILENCE - LIMITS.heartbeat, SILENCE),
        ("lie", "NodeFailed", "runs elsewhere", 0.0, 0.0),
        ("flood", "NodeFailed", "a flood: ", PATIENCE, 2 * PATIENCE),
    ],
)
def test_each_fault_ends_as_promised(
    simulate: Simulate, stage: str, kind: str | None, why: str, least: float, most: float
) -> None:
    made = simulate(stage)
    cause = made.report.cause
    assert (None if cause is None else cause.kind) == kind
    assert made.report.exit_code == {None: 0, "RankFailed": 3}.get(kind, 125)
    if cause is not None:
        assert why in str(cause.facts)
    ended = [rank for rank in made.report.ranks if rank.status is not None]
    assert len(ended) == (14 if kind == "NodeFailed" else 16)
    assert least <= made.after(stage) <= most + WORK


def test_a_lost_hosts_ranks_start_again_on_a_spare(simulate: Simulate) -> None:
    made = simulate("cut", "end", restarts=1, spares=1)
    assert made.report.ok
    assert [rank.host for rank in made.report.ranks if rank.host == "node00008"] == [
        "node00008"
    ] * 2
    fence = restart.fence(LIMITS, self_fencing=True)
    waited = made.up[1] - made.began["cut"] - LIMITS.kernel_silence - fence
    assert 0 <= waited <= WORK


@cases("flaw, kind", [("mute", "timeout"), ("refused", "connection refused")])
def test_one_host_that_cannot_be_used(simulate: Simulate, flaw: str, kind: str) -> None:
    alone, spared = simulate("end", flaw=flaw), simulate("end", flaw=flaw, spares=1)
    assert alone.up == []
    assert alone.report.cause is not None
    assert alone.report.cause.kind == "Rejected"
    assert kind in str(alone.report.cause.facts)
    assert spared.report.ok
    assert "node00001" in spared.report.left_out
    limit = LIMITS.boot_timeout if flaw == "mute" else 0.0
    assert limit <= spared.up[0] <= limit + WORK


def test_what_a_barrier_sends_is_all_keys_to_every_host(simulate: Simulate) -> None:
    made = simulate("barrier", "end", hosts=12)
    assert made.report.ok
    assert made.barrier is not None
    keys = 12 * 2 * int(model.Model().keys)
    assert 12 * keys <= made.barrier[0] <= 12 * (keys + 1000)


def test_a_tree_is_up_sooner_where_hosts_are_many(simulate: Simulate) -> None:
    """A few near hosts pay for the relay; each more costs the launcher less. So few get no tree."""

    def up(hosts: int, tree: HostTree | None = None) -> float:
        made = simulate("end", hosts=hosts, ranks=1, tree=tree)
        assert made.report.ok
        return made.up[0]

    assert 0 < up(4, plan_tree(4, 2)) - up(4) < model.Model().relay + 0.05
    for hosts in (8, FEWEST - 1):
        assert up(hosts, plan_tree(hosts)) == up(hosts)
    for hosts in (FEWEST, 100):
        assert up(hosts, plan_tree(hosts)) < up(hosts)


@cases(
    "where, lost",
    [
        (1, {"node00001"}),  # a leaf below the first of three branches
        (0, {"node00000", "node00001", "node00002", "node00003"}),
    ],
)
def test_whom_a_tree_does_not_hear_is_lost_after_its_heartbeats(
    simulate: Simulate, where: int, lost: set[str]
) -> None:
    made = simulate("cut", hosts=12, ranks=1, tree=plan_tree(12, 3), where=where)
    assert made.report.cause is not None
    assert made.report.cause.kind == "NodeFailed"
    assert SILENCE - LIMITS.heartbeat <= made.after("cut") <= SILENCE + WORK
    silent = {rank.host for rank in made.report.ranks if rank.status is None}
    assert silent == lost


def test_the_launchers_work_grows_as_the_hosts_do(simulate: Simulate) -> None:
    """Counted are calls, Python's own and those of the library, from the first to the last."""
    simulate("fail", hosts=4)  # loads what is loaded once

    def calls(hosts: int) -> int:
        count = 0

        def one_more(frame: FrameType, event: str, arg: object) -> None:
            nonlocal count
            count += 1

        before = sys.getprofile()
        sys.setprofile(one_more)
        try:
            simulate("cut", "barrier", "fail", hosts=hosts, restarts=1, spares=1)
        finally:
            sys.setprofile(before)
        return count

    few, many = calls(6), calls(24)
    assert 2 * few < many < 4.3 * few


def test_a_plan_and_its_orders_are_timed_without_a_run() -> None:
    """Also how much memory: what its process has had, and not who started it."""
    large = "import subprocess, sys; held = b'x' * (300 << 20); subprocess.check_call(sys.argv[1:])"
    argv = [sys.executable, str(SCRIPT), "--plan", "20", "--ranks", "2"]
    argv = [sys.executable, "-Sc", large, *argv]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert told.startswith("20 hosts x 2 ranks: plan ")
    planned_in, ordered_in, held = re.findall(r"[\d.]+(?= s| MiB)", told)
    assert min(float(planned_in), float(ordered_in)) >= 0
    assert 10 < int(held) < 256
