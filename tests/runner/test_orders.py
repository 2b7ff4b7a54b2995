"""What all nodes of a start share is made once, and anew for another plan."""

from __future__ import annotations

from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.request import Program, Request
from dispatcher.runner.run import orders
from dispatcher.runner.run.orders import once_a_plan


def plan_of(*names: str) -> JobPlan:
    hosts = Hostlist(tuple(Host(name, slots=2) for name in names))
    return plan_job(Request(hosts, Program("command", ("prog",)), "/w"), "run-1")


def test_it_is_made_once_for_each_plan() -> None:
    seen: list[JobPlan] = []

    @once_a_plan
    def size(plan: JobPlan) -> int:
        seen.append(plan)
        return plan.world_size

    small, large = plan_of("a"), plan_of("a", "b")
    assert [size(plan) for plan in (small, small, large, large, small)] == [2, 2, 4, 4, 2]
    assert [plan is small for plan in seen] == [True, False, True]


def test_names_for_pmix_differ() -> None:
    plan = plan_of("a_1", "a.1", "a+1", "a 1")
    assert orders.hostnames(plan) == ["a_1", "a.1", "a-1", "a-1-3"]
    assert orders.hostnames(plan_of("b")) == ["b"]
