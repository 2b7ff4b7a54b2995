"""A plan of two nodes with two ranks each, and the events of a good start."""

from __future__ import annotations

import pytest

from dispatcher.core.events import run_events as ev
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.request import Program, Request


def make_plan(n_nodes: int = 2, slots: int | None = 2, **fields: object) -> JobPlan:
    hosts = tuple(Host(f"n{index}", slots=slots) for index in range(n_nodes))
    program = Program("command", ("prog",))
    return plan_job(Request(Hostlist(hosts), program, "/w", **fields), "run-1")  # type: ignore[arg-type]


def facts(node: int, **fields: object) -> ev.Facts:
    known = {
        "hostname": f"n{node}",
        "pid": 100 + node,
        "python": "3.11.7",
        "cores": 2,
        "gpus": 0,
        "addresses": (f"10.0.0.{node + 1}", f"192.168.0.{node + 1}"),
        "machine": f"machine {node}",
        "port": 4000 if node == 0 else None,
    }
    return ev.Facts(**{**known, **fields})  # type: ignore[arg-type]


def use_mpi(job: AttemptMachine, *nodes: int) -> None:
    """Ranks of ``nodes`` have come to MPI."""
    assert job._mpi is not None
    for node in nodes:
        job._mpi.uses(node)


@pytest.fixture
def plan() -> JobPlan:
    return make_plan()


@pytest.fixture
def running(plan: JobPlan) -> AttemptMachine:
    """A job whose four ranks run: 0 and 1 on node 0, 2 and 3 on node 1."""
    job = AttemptMachine(plan)
    job.begin()
    job.handle(ev.NodeReady(0, facts(0)), 0.0)
    job.handle(ev.NodeReady(1, facts(1)), 0.0)
    job.handle(ev.NodeProbed(1, ("10.0.0.1",)), 0.0)
    for rank in range(4):
        job.handle(ev.RankSpawned(rank // 2, rank, 1000 + rank), 0.0)
    assert job.state == "running"
    return job
