"""Two hundred hosts with one trouble are one row and one hint, whatever is each one's own in it."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest
from checks.samples import report_of

from dispatcher.cli.checks import check_table
from dispatcher.core.events import exec_events, verdicts
from dispatcher.core.events.monitor_events import placed
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.exec.host_results import HostResult, describe
from dispatcher.output.text import verdict_text
from dispatcher.output.text.fold import Trouble, grouped, in_common
from dispatcher.plan.hosts.hostfile import parse_inline
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.request import Program, Request

NAMES = [f"n{number:03}" for number in range(1, 201)]


def fingerprint(name: str) -> str:
    return "SHA256:" + b64encode(hashlib.sha256(name.encode()).digest()).decode().rstrip("=")


def told(hint: str | None) -> list[str]:
    """The line of the first host's hint, which stands for all."""
    return [] if hint is None else [f"  hint: {hint}"]


#: a failure of each kind as hosts have it, and what they have in common
FAILURES = [
    (lambda n: Failure(Kind.REFUSED, f"10.77.0.{int(n[1:])}: refused (port 22)", f"is {n} up?"),
     "connection refused", "{address}: refused (port 22)", "is n001 up?"),
    (lambda n: Failure(Kind.REFUSED, f"fd00::{n[1:]}: refused (port 22)"),
     "connection refused", "{address}: refused (port 22)", None),
    (lambda n: Failure(Kind.DNS, f"{n}: name or service not known", f"getent hosts {n}"),
     "name not found", "name or service not known", "getent hosts n001"),
    (lambda n: Failure(Kind.HOST_KEY_UNKNOWN, f"no key of {n}; it shows {fingerprint(n)}"),
     "host key unknown", "no key of {host}; it shows {fingerprint}", None),
    (lambda n: Failure(Kind.HOST_KEY_CHANGED, f"/me/.ssh/known_hosts:{int(n[1:])} has another"),
     "host key changed", "/me/.ssh/known_hosts:{line} has another", None),
    (lambda n: Failure(Kind.AUTH, f"ssh says: me@{n}: Permission denied (publickey)"),
     "authentication failed", "ssh says: me@{host}: Permission denied (publickey)", None),
]  # fmt: skip


@pytest.mark.parametrize(("fail", "kind", "why", "hint"), FAILURES)
class TestOneRow:
    def test_of_a_run(self, fail, kind, why, hint) -> None:  # type: ignore[no-untyped-def]
        plan = plan_of("n[001-200]:1")
        cause = verdicts.Rejected({at: fail(name) for at, name in enumerate(NAMES)})
        found = verdict_text.describe(
            Verdict(cause, 125, 200), placed(plan), {}, lambda rank: ("stderr", [])
        )
        assert found == [
            "error: 200 hosts of 200 cannot be used; nothing was started [hosts-rejected]",
            f"  n[001-200]  {kind}  {why}",
            *told(hint),
        ]

    def test_of_hosts_lost_later(self, fail, kind, why, hint) -> None:  # type: ignore[no-untyped-def]
        plan = plan_of("n[001-200]:1")
        lost = {at: fail(name) for at, name in enumerate(NAMES)}
        said = Verdict(verdicts.Interrupted(2), 130, 200, lost=lost)
        found = verdict_text.describe(said, placed(plan), {}, lambda rank: ("stderr", []))
        assert found[1:] == [
            f"  then n[001-200] (ranks 0-199) were lost, too: {kind}: {why}",
            *told(hint),
        ]

    def test_of_a_fan_out(self, fail, kind, why, hint) -> None:  # type: ignore[no-untyped-def]
        found = described([exec_events.Failed(fail(name)) for name in NAMES])
        assert found == [
            "error: 200 of 200 hosts failed [hosts-failed]",
            f"  n[001-200]  {kind}: {why}",
            *told(hint),
        ]

    def test_of_a_check(self, fail, kind, why, hint) -> None:  # type: ignore[no-untyped-def]
        lost = {n: f"{fail(n).kind.value}: {fail(n).why}" for n in NAMES}
        report = report_of((), {n: {} for n in NAMES}, lost, {}, {n: fail(n).hint for n in NAMES})
        short = check_table.lines(report, colour=False, every=False)
        assert short[1:] == [f"critical: n[001-200]: not reached: {kind}: {why}", *told(hint)]
        whole = check_table.lines(report, colour=False, every=True)
        assert sum(line.startswith("critical: ") for line in whole) == 200
        assert f"critical: n007: not reached: {lost['n007']}" in whole


def described(outcomes: list[exec_events.Outcome]) -> list[str]:
    return describe([HostResult(n, 0, one) for n, one in zip(NAMES, outcomes, strict=True)])


def plan_of(hosts: str) -> JobPlan:
    program = Program("script", ("train.py",))
    return plan_job(Request(hosts=parse_inline(hosts), program=program, cwd="/"), "test")


def test_one_host_alone_keeps_its_own_words() -> None:
    (group,) = grouped([Trouble("n1", "x", "n1 at 10.0.0.1 says no")])
    assert group[1].why == "n1 at 10.0.0.1 says no"


def test_what_is_no_address_and_no_name_stays() -> None:
    for text in ("at 12:30:00", "version 1.2.3.4.5", "n10 and my-n1, n1-eth0", "exit code 127"):
        assert in_common(text, "n1") == text
    assert in_common("/data/n1/x, root@n1:", "n1") == "/data/{host}/x, root@{host}:"
    assert in_common("n1 refuses", "n1:2222") == "{host} refuses"


def test_a_fingerprint_with_the_hosts_name_in_it_is_one_still() -> None:
    for shown in (f"n1+{'x' * 40}", f"{'x' * 20}/n1+{'x' * 19}", f"{'x' * 40}/n1"):
        found = in_common(f"n1 shows SHA256:{shown}, not SHA256:{'y' * 43}", "n1")
        assert found == "{host} shows {fingerprint}, not {fingerprint}"


def test_hosts_that_put_and_get_failed_on_for_one_reason() -> None:
    outcomes: list[exec_events.Outcome] = [
        exec_events.NotCopied(f"/data/{name}/a: no space left") for name in NAMES
    ]
    assert described(outcomes)[1:] == ["  n[001-200]  /data/{host}/a: no space left"]


def test_what_hosts_said_stays_harmless() -> None:
    outcomes: list[exec_events.Outcome] = [
        exec_events.NotCopied(f"{name} \x1b]0;") for name in NAMES
    ]
    assert "\x1b" not in "".join(described(outcomes))
