"""What is judged before the first rank starts, and what is told of hosts that are good enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import cases

from core.conftest import facts, make_plan
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import StartRanks, Tell
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.core.run.start_check import (
    LEAST_FREE,
    Decision,
    ProbeNodes,
    Start,
    StartCheck,
    different_code,
    host_warnings,
    rejection,
)
from dispatcher.model.failure import Failure, Kind

SCRIPT = "its script differs from most hosts' script"


@cases(
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


@cases(
    ("room", "told"),
    [
        ((None, None), []),
        ((1 << 30, 1 << 30), []),
        ((LEAST_FREE, LEAST_FREE - 1), ["shared memory is full: 1024 KiB free"]),
        ((4096, 1 << 30), ["the folder for temporary files is full: 4 KiB free"]),
        ((0, 0), ["the folder for temporary files is full: 0 B free",
                  "shared memory is full: 0 B free"]),
    ],
)  # fmt: skip
def test_room(room: tuple[int | None, int | None], told: list[str]) -> None:
    assert [text for _, text in host_warnings({0: facts(0, room=room)})] == told


@cases("check", [True, False])
def test_a_doubt_is_told_before_the_ranks_start(check: bool) -> None:
    job = AttemptMachine(make_plan(allow_different_code=True), check=check)
    job.begin()
    job.handle(ev.NodeReady(0, facts(0, script=7)), 0.0)
    actions = job.handle(ev.NodeReady(1, facts(1, script=8)), 0.0)
    if check:
        actions = job.handle(ev.NodeProbed(1, ("10.0.0.1",)), 0.0)
        assert actions[0] == Tell(ev.NodeNoticed(1, SCRIPT))
    assert sum(isinstance(action, StartRanks) for action in actions) == 2
    noticed = [a for a in actions if isinstance(a, Tell) and isinstance(a.event, ev.NodeNoticed)]
    assert len(noticed) == check


A, B = ("a.py", 1), ("lib", 2)
NEW_A, NEW_B = ("a.py", 10), ("lib", 20)


@cases(
    ("scripts", "code", "found"),
    [
        ((7, 7), ((A, B), (A, B)), {}),
        ((7, 8), ((), ()), {1: (["src/train.py"], (0,))}),
        ((8, 7, 7), ((), (), ()), {0: (["src/train.py"], (1, 2))}),
        ((None, None, None), ((A, B), (A, NEW_B), (A, B)), {1: (["lib"], (0, 2))}),
        ((7, 7, 9), ((A, B), (A, B), (NEW_A, NEW_B)),
         {2: (["src/train.py", "a.py", "lib"], (0, 1))}),
        ((None, None), ((A,), (B,)), {}),  # what one host alone has is compared with nothing
        ((7, 7), ((("train.py", 1),), (("train.py", 2),)), {}),  # the script has been told
        ((None, 7, 7), ((), (), ()), {}),
    ],
)  # fmt: skip
def test_code_that_is_not_the_same(
    scripts: tuple[int | None, ...], code: Any, found: dict[int, tuple[list[str], tuple[int, ...]]]
) -> None:
    there = {
        node: facts(node, script=script, code=own)
        for node, (script, own) in enumerate(zip(scripts, code, strict=True))
    }
    assert different_code(there, "src/train.py") == found


def test_a_run_does_not_start_with_different_code() -> None:
    many = tuple((f"m{n}.py", n) for n in range(6))
    there = [facts(0, code=many), facts(1, code=tuple((name, 9) for name, _ in many))]
    check = StartCheck(make_plan(), prove=True)
    found = judged(check, *there)
    assert isinstance(found, verdicts.Rejected)
    (failure,) = found.failures.values()
    assert failure.why == ("'m0.py', 'm1.py', 'm2.py', 'm3.py' and 2 more: not the same as on n0")
    assert (failure.hint or "").startswith("--sync sends your folder to all hosts")
    for plan, prove in ((make_plan(allow_different_code=True), True), (make_plan(), False)):
        assert not isinstance(judged(StartCheck(plan, prove=prove), *there), verdicts.Rejected)


GONE = Failure(Kind.UNREACHABLE, "no route to host")


def judged(check: StartCheck, *nodes: ev.Facts, problems: dict[int, str] | None = None) -> Decision:
    """What the last of these nodes to answer leads to; before it nothing follows."""
    found: Decision = None
    for node, known in enumerate(nodes):
        assert found is None
        wrong = tuple(
            (what, f"{what}!") for what in (problems or {}).get(node, "").split("|") if what
        )
        found = check.ready(ev.NodeReady(node, known, wrong))
    return found


def three() -> tuple[ev.Facts, ...]:
    return tuple(facts(node) for node in range(3))


class TestMeetingPlace:
    def test_one_address_for_all_of_those_that_were_asked_about(self) -> None:
        check = StartCheck(make_plan(3), prove=True)
        assert judged(check, *three()) == ProbeNodes((1, 2), ("10.0.0.1",), 4000, 1.0)
        assert check.ready(ev.NodeReady(1, facts(1))) is None  # that is known by now
        assert check.waiting == {1, 2}
        assert check.probed(ev.NodeProbed(1, ("10.0.0.1",))) is None
        assert check.probed(ev.NodeProbed(1, ())) is None  # it has said so already
        assert check.probed(ev.NodeProbed(0, ())) is None
        found = check.probed(ev.NodeProbed(2, ("10.0.0.1", "6.6.6.6")))
        assert isinstance(found, Start)
        assert (found.address, found.port) == ("10.0.0.1", 4000)

    def test_else_the_first_that_all_reach(self) -> None:
        check = StartCheck(make_plan(3), prove=True)
        addresses = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
        assert judged(check, facts(0, addresses=addresses), *three()[1:]) is not None
        check.probed(ev.NodeProbed(1, ()))
        again = check.probed(ev.NodeProbed(2, ("10.0.0.1",)))
        assert again == ProbeNodes((1, 2), addresses, 4000, 3.0)
        check.probed(ev.NodeProbed(1, addresses[1:]))
        found = check.probed(ev.NodeProbed(2, addresses))
        assert isinstance(found, Start)
        assert found.address == "10.0.0.2"

    def test_one_address_is_asked_for_as_long_as_several(self) -> None:
        check = StartCheck(make_plan(2), prove=True)
        only = judged(check, facts(0, addresses=("10.0.0.1",)), facts(1))
        assert only == ProbeNodes((1,), ("10.0.0.1",), 4000, 3.0)
        assert isinstance(check.probed(ev.NodeProbed(1, ())), verdicts.Rejected)

    def test_many_hosts_have_longer_for_it(self) -> None:
        check = StartCheck(make_plan(401), prove=True)
        judged(check, *(facts(node) for node in range(401)))
        for node in range(1, 400):
            check.probed(ev.NodeProbed(node, ("10.0.0.1",)))
        again = check.probed(ev.NodeProbed(400, ()))
        assert isinstance(again, ProbeNodes)
        assert again.seconds == 3.0 + 4

    def test_who_does_not_reach_what_most_do_is_named(self) -> None:
        check = StartCheck(make_plan(3), prove=True)
        judged(check, *three())
        for node in (1, 2):
            check.probed(ev.NodeProbed(node, ()))
        check.probed(ev.NodeProbed(1, ("192.168.0.1",)))
        found = check.probed(ev.NodeProbed(2, ("10.0.0.1",)))
        assert isinstance(found, verdicts.Rejected)
        (node, failure), *others = found.failures.items()
        assert (node, others) == (1, [])  # of two that are reached alike the first is the best
        assert failure.kind is Kind.CHECK
        assert failure.why == ("cannot reach node 0 at 10.0.0.1, 192.168.0.1, only at 192.168.0.1")
        assert "--master-addr" in (failure.hint or "")

    def test_only_one_address_is_asked_about_once(self) -> None:
        check = StartCheck(make_plan(2), prove=True)
        judged(check, facts(0, addresses=("10.0.0.1",)), facts(1))
        found = check.probed(ev.NodeProbed(1, ()))
        assert isinstance(found, verdicts.Rejected)
        assert found.failures[1].why == "cannot reach node 0 at 10.0.0.1"

    @cases(
        ("fields", "prove", "head", "meets"),
        [
            ({"master_addr": "head"}, True, {}, ("head", 4000)),
            ({"master_addr": "head", "master_port": 7}, True, {"port": None}, ("head", 7)),
            ({"master_port": 7}, True, {"port": 9}, None),
            ({}, False, {}, ("10.0.0.1", 4000)),
            ({}, True, {"port": None}, ("10.0.0.1", 0)),
            ({}, True, {"addresses": ()}, ("n0", 4000)),
        ],
    )
    def test_where_nothing_is_probed(
        self,
        fields: dict[str, Any],
        prove: bool,
        head: dict[str, Any],
        meets: tuple[str, int] | None,
    ) -> None:
        found = judged(StartCheck(make_plan(**fields), prove=prove), facts(0, **head), facts(1))
        if meets is None:
            assert found == ProbeNodes((1,), ("10.0.0.1",), 9, 1.0)
        else:
            assert isinstance(found, Start)
            assert (found.address, found.port) == meets

    @cases(
        ("address", "right"),
        [("n0", True), ("10.0.0.1", True), ("alias", True), ("n1", False), ("10.0.0.7", False)],
    )
    def test_an_address_of_another_host_than_the_first_is_refused(
        self, address: str, right: bool
    ) -> None:
        check = StartCheck(make_plan(2, master_addr=address), prove=True)
        found = judged(check, facts(0), facts(1, addresses=("10.0.0.7",)))
        assert isinstance(found, Start) is right
        if not right:
            why = f"--master-addr {address}: that is n1, not n0, the first"
            assert found == verdicts.Impossible(why, "without --master-addr")

    @cases(("n_nodes", "address"), [(1, "127.0.0.1"), (2, "10.0.0.1")])
    def test_this_machine_alone_meets_at_its_own_address(self, n_nodes: int, address: str) -> None:
        plan = make_plan(n_nodes)
        here = replace(plan.nodes[0], host=replace(plan.nodes[0].host, name="localhost"))
        plan = replace(plan, nodes=(here, *plan.nodes[1:]))
        found = judged(StartCheck(plan, prove=False), *three()[:n_nodes])
        assert isinstance(found, Start)
        assert found.address == address

    def test_one_host_probes_nothing(self) -> None:
        found = judged(StartCheck(make_plan(1), prove=True), facts(0))
        assert isinstance(found, Start)
        assert found.address == "10.0.0.1"


class TestRejection:
    def test_all_that_failed_are_named_and_nobody_else(self) -> None:
        check = StartCheck(make_plan(3), prove=True)
        assert check.lost(2, GONE) is None
        found = judged(check, facts(0), facts(1), problems={1: "cwd|iface"})
        assert isinstance(found, verdicts.Rejected)
        assert set(found.failures) == {1, 2}
        assert found.failures[2] == GONE
        assert found.failures[1].why == "cwd!; iface!"
        assert found.problems == {1: frozenset({"cwd", "iface"})}
        assert check.ready_nodes == {0, 1}
        assert check.hostnames == {0: "n0", 1: "n1"}

    def test_a_node_that_is_lost_after_it_answered_cannot_be_told_to_finish(self) -> None:
        check = StartCheck(make_plan(2), prove=True)
        check.ready(ev.NodeReady(0, facts(0)))
        assert check.lost(0, GONE) is None
        assert check.ready_nodes == frozenset()
        assert check.ready(ev.NodeReady(0, facts(0))) is None  # nobody waits for it any more
        assert check.ready_nodes == frozenset()
        assert isinstance(check.ready(ev.NodeReady(1, facts(1))), verdicts.Rejected)

    @cases(
        ("wrong", "hint"),
        [
            ("iface|cwd", "--sync"),
            ("no script", "--sync"),
            ("port|missing", "install it on that host"),
            ("not executable", "chmod a+rx"),
            ("no interpreter", "first line"),
            ("open mpi", "--mpi pmi1"),
            ("silent", "dmesg -T"),
            ("port|iface", "--iface"),
            ("port", "--master-port"),
            ("else", None),
        ],
    )
    def test_the_gravest_problem_has_the_hint(self, wrong: str, hint: str | None) -> None:
        found = judged(StartCheck(make_plan(1), prove=True), facts(0), problems={0: wrong})
        assert isinstance(found, verdicts.Rejected)
        assert (found.failures[0].hint is None) == (hint is None)
        assert (hint or "") in (found.failures[0].hint or "")

    @cases(
        ("failed", "problems", "code"),
        [
            ([0], {0: {"missing"}}, 127),
            ([0], {0: {"no script"}}, 127),
            ([0], {0: {"no interpreter"}}, 127),
            ([0], {0: {"not executable"}}, 126),
            ([0, 1], {0: {"not executable"}, 1: {"missing"}}, 127),
            ([0, 1], {0: {"not executable"}}, 125),
            ([0], {0: {"missing", "cwd"}}, 125),
            ([0], {}, 125),
        ],
    )
    def test_its_code_is_the_shell_s_if_the_program_is_all_that_lacks(
        self, failed: list[int], problems: dict[int, set[str]], code: int
    ) -> None:
        known = {node: frozenset(words) for node, words in problems.items()}
        found = rejection(dict.fromkeys(failed, GONE), known)
        assert (found.exit_code, found.problems) == (code, known)

    def test_each_second_name_of_a_machine_is_told_of_the_first(self) -> None:
        check = StartCheck(make_plan(3), prove=True)
        found = judged(check, *(facts(node, machine="m") for node in range(3)))
        assert isinstance(found, verdicts.Rejected)
        assert {node: one.why for node, one in found.failures.items()} == {
            1: "is the same machine as n0", 2: "is the same machine as n0",
        }  # fmt: skip
        assert {one.kind for one in found.failures.values()} == {Kind.CHECK}
        assert "--check none" in (found.failures[1].hint or "")

    def test_names_are_compared_when_all_are_there(self) -> None:
        check = StartCheck(make_plan(3), prove=True)
        check.lost(2, GONE)
        found = judged(check, facts(0), facts(1, machine="machine 0"))
        assert isinstance(found, verdicts.Rejected)
        assert found.failures == {2: GONE}

    def test_what_the_hosts_cannot_hold_says_what_would_help(self) -> None:
        plan = make_plan(1, slots=None, np=4)
        found = judged(StartCheck(plan, prove=True), facts(0, gpus=2))
        assert found == verdicts.Impossible(
            "4 ranks but only 2 slots on n0", "--oversubscribe, or --np 2", "too-many-ranks"
        )


def test_only_what_is_proved_is_warned_of() -> None:
    for prove in (True, False):
        check = StartCheck(make_plan(1, slots=4), prove=prove)
        judged(check, facts(0, gpus=8, visible="6,7", room=(0, 0)))
        told = [text for _, text in check.warnings]
        assert len(told) == (3 if prove else 1)
        assert "4 ranks share" in told[-1]
