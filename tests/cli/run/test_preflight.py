"""The check before a run: whether there is one, what is decided, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import cases
from checks.samples import report_of

from dispatcher.api.request import plan_job
from dispatcher.api.request import request as asked
from dispatcher.checks.check import Finding, Level
from dispatcher.checks.report import CheckReport
from dispatcher.cli.run import preflight as module
from dispatcher.cli.run.preflight import asks, preflight, wants, without_failing
from dispatcher.cli.run.run import RunOptions
from dispatcher.core.events.verdicts import Rejected
from dispatcher.jobs import registry
from dispatcher.model.errors import UsageError
from dispatcher.plan.job.reassignment import Exclusion


def plan_of(hosts: str = "n1:2,n2:2", **fields: Any) -> Any:
    return plan_job(asked(hosts, ["train.py"], **fields))


def report(**levels: Level) -> CheckReport:
    """``n1=Level.WARN``: that is the level of its check ``memory``."""
    words = {Level.WARN: "low", Level.CRITICAL: "bad\x1b", Level.INCOMPLETE: "unread"}
    found = {
        host: {"rdma": Finding(Level.OK, value=f"{host}/1"),
               "memory": Finding(level, words.get(level, ""), "", "add some" if level else None)}
        for host, level in levels.items()
    }  # fmt: skip
    return report_of(("rdma", "memory"), found)


@cases(
    ("options", "there_is"),
    [
        (RunOptions(), False),
        (RunOptions(check="none"), False),
        (RunOptions(check="full"), True),
        (RunOptions(exclude_unhealthy=True), True),
        (RunOptions(check="full", check_timeout=5.0), True),
        (RunOptions(exclude_unhealthy=True, check_timeout=5.0), True),
    ],
)
def test_whether_there_is_one(options: RunOptions, there_is: bool) -> None:
    assert wants(options) is there_is
    assert asks(options) is there_is


@cases(
    ("options", "said"),
    [
        (RunOptions(check="none", exclude_unhealthy=True), "--exclude-unhealthy needs a check"),
        (RunOptions(check_timeout=5.0), "--check-timeout needs --check full or --exclude-unh"),
        (RunOptions(check="none", check_timeout=5.0), "--check-timeout needs"),
    ],
)
def test_contradictions(options: RunOptions, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        wants(options)
    assert caught.value.message.startswith(said)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``found(report)``: that is what the hosts are like."""
    return lambda seen: monkeypatch.setattr(module, "_examined", lambda *_: seen)


def test_hosts_that_are_fit(found: Any) -> None:
    plan = plan_of()
    found(report(n1=Level.OK, n2=Level.WARN))
    decision = preflight(plan, RunOptions(check="full"))
    assert (decision.plan, decision.excluded, decision.verdict) == (plan, (), None)
    assert decision.rdma == {"n1": "n1/1", "n2": "n2/1"}
    assert decision.notes == ["note: n2: memory: low"]


def test_a_spare_takes_the_place_of_an_unfit_host(found: Any) -> None:
    plan = plan_of("n1:2,n2:2,n3:2", spares=1)
    found(report(n1=Level.OK, n2=Level.CRITICAL, n3=Level.OK))
    decision = preflight(plan, RunOptions(check="full"))
    assert [node.host.name for node in decision.plan.nodes] == ["n1", "n3"]
    assert decision.excluded == (Exclusion("n2", "memory: bad\x1b", "n3"),)
    assert decision.verdict is None
    assert any("n2" in line and "n3" in line for line in decision.notes)


def test_without_a_spare_nothing_is_started(found: Any) -> None:
    found(report(n1=Level.OK, n2=Level.CRITICAL))
    decision = preflight(plan_of(), RunOptions(check="full"))
    verdict = decision.verdict
    assert verdict is not None
    assert isinstance(verdict.cause, Rejected)
    (failure,) = verdict.cause.failures.values()
    assert list(verdict.cause.failures) == [1]
    assert failure.why == "memory: bad\x1b"
    assert failure.hint == "add some"
    assert (verdict.exit_code, verdict.cause.exit_code, verdict.world_size) == (125, 125, 4)
    assert decision.notes == []  # the verdict tells


def test_a_host_that_could_not_be_reached_has_no_remedy(found: Any) -> None:
    hosts = {"n1": {"memory": Finding(Level.OK)}, "n2": {}}
    found(report_of(("memory",), hosts, {"n2": "no route"}))
    verdict = preflight(plan_of(), RunOptions(check="full")).verdict
    assert verdict is not None
    assert isinstance(verdict.cause, Rejected)
    assert (verdict.cause.failures[1].why, verdict.cause.failures[1].hint) == ("no route", None)


def test_the_run_goes_on_without_it(found: Any) -> None:
    found(report(n1=Level.OK, n2=Level.INCOMPLETE))
    decision = preflight(plan_of(), RunOptions(exclude_unhealthy=True))
    assert [node.host.name for node in decision.plan.nodes] == ["n1"]
    assert decision.verdict is None
    assert [(one.host, one.by) for one in decision.excluded] == [("n2", None)]
    assert any("n2" in line for line in decision.notes)


def test_hosts_that_are_not_fit_are_blamed(found: Any) -> None:
    finding = Finding(Level.CRITICAL, "bad")
    hosts = {"n1": {"ecc": finding}, "n2": {"script": finding}, "n3": {"ecc": Finding(Level.OK)}}
    hosts = {name: {**dict.fromkeys(("ecc", "script"), Finding(Level.OK)), **one}
             for name, one in hosts.items()}  # fmt: skip
    lost = {"n4": "host lost: no route", "n5": "authentication failed: no key"}
    found(report_of(("ecc", "script"), {**hosts, "n4": {}, "n5": {}}, lost))
    decision = preflight(plan_of("n1,n2,n3,n4,n5"), RunOptions(check="full"))
    assert decision.unfit == {"n1": "ecc-check-failed", "n4": "host-lost"}


@cases(
    ("hosts", "fields", "nodes", "spares", "said"),
    [
        # a host that is not needed, a spare, none; a spare that fails itself; too few hosts
        ("n1:2,n2:2,n3:2", {"nnodes": 2}, "n1 n3", "", ["left out: n2"]),
        ("n1:2,n2:2,n3:2", {"np": 4}, "n1 n3", "", ["left out: n2"]),
        ("n1:2,n2:2,n3:2", {"spares": 1}, "n1 n3", "", ["left out: n2"]),
        ("n1:2,n2:2,n3:2", {}, "n1 n2 n3", "", ["no other host can take the place of: n2"]),
        ("n1,n2,n3", {"nnodes": 2}, "n1 n3", "", ["left out: n2"]),
        ("n1,n2", {"nproc_per_node": "gpu"}, "n1 n2", "", ["no other host can take"]),
        ("n1:2,n3:2,n2:2", {"spares": 1}, "n1 n3", "", ["left out: n2"]),
        ("n1:2,n2:2,n3:2,n4:2", {"nnodes": 2, "spares": 1}, "n1 n3", "n4", ["left out: n2"]),
        ("n2:2,n5:2,n3:2", {"nnodes": 2}, "n5 n3", "", ["left out: n2", "place of: n5"]),
        ("n2:2,n5:2,n3:2,n4:2", {"spares": 1}, "n4 n5 n3", "", ["left out: n2", "place of: n5"]),
        ("n1:2,n3:2", {}, "n1 n3", "", []),
    ],
)  # fmt: skip
def test_hosts_that_failed_before_are_left_out_where_others_can_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    hosts: str, fields: dict[str, Any], nodes: str, spares: str, said: list[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number, bad in enumerate(("n2", "n5", "n2", "n5", "n2", "n3")):
        folder = registry.enroll(
            f"20260131-14250{number}-aaaaaa", program=["a"], hosts=[(bad, None, None)], ranks=1,
            logs=None, detached=False, reach={},
        )  # fmt: skip
        registry.conclude(folder, 125, [], {bad: "host-lost"})
    request = asked(hosts, ["train.py"], **fields)
    plan = without_failing(plan_job(request), request, 2)
    assert " ".join(node.host.name for node in plan.nodes) == nodes
    assert " ".join(node.host.name for node in plan.spares) == spares
    lines = capsys.readouterr().err.splitlines()
    assert [one in line for one, line in zip(said, lines, strict=True)] == [True] * len(said)
