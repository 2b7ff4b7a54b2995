"""Named files and modules that hosts differ in, and code that changes between two attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.verdicts import CodeChange, Rejected
from dispatcher.core.run.restart import code_changes, own_code, program_alone
from dispatcher.core.run.start_check import StartCheck, differences
from dispatcher.plan.job.compared import NamedFile
from dispatcher.plan.job.job_plan import JobPlan

from ..conftest import facts, make_plan
from .world import World

GONE = (None, None, True)


def planned(n_nodes: int, *named: NamedFile, modules: tuple[str, ...] = ()) -> JobPlan:
    return replace(make_plan(n_nodes), named=named, modules=modules)


@cases(
    ("rows", "text"),
    [
        ([(1, 1, True), (1, 2, True)], None),
        ([GONE, GONE], None),  # an output
        ([(1, 1, True), (2, 2, True)], "c differs: n1 has another text than n0"),
        ([(1, 1, True), (1, 2, True), (2, 3, True), (1, 4, True)],
         "c differs: n2 has another text than n0 (and 2 more)"),
        ([(1, 1, True), (1, 2, True), GONE], "n2: c is missing (n[0-1] have it)"),
        ([(1, 1, False), (2, 1, False)], None),  # the very same, on a file system that they share
        ([(None, 1, False), (None, 2, False)],
         "c: compared only in part on n[0-1], because it is large or slow to read"),
        ([(1, 1, True), (2, 2, True), (2, 3, True), (None, 4, False)],
         "c differs: n0 has another text than n1 (and 1 more)"),
    ],
)  # fmt: skip
def test_a_named_file(rows: list[tuple[Any, ...]], text: str | None) -> None:
    there = {node: facts(node, named=(row,)) for node, row in enumerate(rows)}
    found = [*differences(planned(len(rows), NamedFile("c")), there)]
    assert [one.text for one in found] == ([] if text is None else [text])


def test_a_folder_modules_and_a_host_that_did_not_look() -> None:
    plan = planned(3, NamedFile("data", folder=True), modules=("torch", "wandb"))
    there = {
        0: facts(0, named=((1, 1, True),), modules=(True, True)),
        1: facts(1, named=((2, 2, True),), modules=(True, False)),
        2: facts(2, named=((1, 3, True),)),
    }
    assert [one.text for one in differences(plan, there)] == [
        "data differs: n1 has other files than n0 (and 1 more)",
        "n1: no module named wandb (n0 has it)",
    ]
    there[0] = there[1] = facts(0, modules=(True, False))
    assert [*differences(plan, there)] == []


@cases(
    ("row", "why"),
    [
        ((2, 2, True), "--sync: c: not the same as on n0"),
        (GONE, "--sync: c: missing, but it is on n0"),
    ],
)
@cases(("sent", "prove"), [(True, True), (False, True), (True, False)])
def test_what_sync_has_sent_must_be_there(
    row: tuple[Any, ...], why: str, sent: bool, prove: bool
) -> None:
    check = StartCheck(planned(2, NamedFile("c", sent=sent)), prove=prove)
    check.ready(ev.NodeReady(0, facts(0, named=((1, 1, True),))))
    answer = check.ready(ev.NodeReady(1, facts(1, named=(row,))))
    assert isinstance(answer, Rejected) == (sent and prove)
    assert len(check.differences) == prove
    if isinstance(answer, Rejected):
        assert answer.failures[1].why == why
        assert (answer.failures[1].hint or "").startswith("touch c, so that --sync sends it again;")


@cases(
    ("before", "now", "restarts", "found"),
    [
        ({"n0": {"a": 1}}, {"n0": {"a": 1}}, 1, []),
        ({"n0": {"a": 1}}, {"n0": {"a": 2}}, 0, []),
        ({"n0": {"a": 1}}, {"n0": {"a": 2}}, 1,
         ["a changed between attempt 1 and attempt 2 on n0"]),
        ({"n0": {"a": 1}, "n1": {"a": 1}}, {"n0": {"a": 2}, "n1": {"a": 2}}, 2,
         ["a changed between attempt 2 and attempt 3 on all hosts"]),
        ({"n0": {"a": 1, "b": 1}, "n1": {"a": 1}}, {"n0": {"a": 2, "b": 2}, "n1": {"a": 1}}, 1,
         ["a, b changed between attempt 1 and attempt 2 on n0"]),
        ({}, {"n0": {"a": 2}}, 1, []),  # a spare
        ({"n0": {"a": 1}}, {"n0": {}}, 1, []),
    ],
)  # fmt: skip
def test_code_that_changed(before: Any, now: Any, restarts: int, found: list[str]) -> None:
    assert [one.text for one in code_changes(before, now, restarts)] == found


def test_many_changed_files_are_counted() -> None:
    names = tuple(f"m{n}.py" for n in range(9))
    assert CodeChange(names, 1).text == (
        "m0.py, m1.py, m2.py, m3.py and 5 more changed between attempt 1 and attempt 2 on all hosts"
    )


@cases(
    ("program", "there", "found"),
    [
        ("src/a.py", {"script": 7, "code": (("a.py", 7), ("lib", 2))}, {"a.py": 7, "lib": 2}),
        ("./a.out", {"named": ((3, 1, True), (5, 2, True))}, {"a.out": 3}),
        ("hostname", {"named": ((3, 1, True), (5, 2, True))}, {}),
    ],
)
def test_the_own_files_of_a_program(program: str, there: Any, found: dict[str, int]) -> None:
    plan = planned(1, NamedFile("./a.out"), NamedFile("c"), modules=("wandb",))
    plan = replace(plan, program=replace(plan.program, argv=(program, "c")))
    assert own_code(plan, [4], {4: facts(0, **there)}) == {"n0": found}
    left = program_alone(plan)
    assert ([file.name for file in left.named], left.modules) == (
        ["./a.out"] if program == "./a.out" else [], ()
    )  # fmt: skip


@cases("nodes", [(0, 1), (1,)])
def test_a_change_is_told_at_once_and_by_the_verdict(nodes: tuple[int, ...]) -> None:
    world = World(2, most=1)
    world.ready(0, 1, code=(("train.py", 1), ("old.py", 4)))
    world.probed(1)
    world.fail(1)
    for node in (0, 1):
        world.ready(node, code=(("train.py", 2 if node in nodes else 1),))
    found = CodeChange(("train.py",), 1, () if len(nodes) == 2 else ("n1",))
    if len(nodes) == 2:
        world.probed(1)
        assert [event.text for event in world.told(ev.HostsNoted)] == [found.text]
        world.end_well()
    else:  # hosts are not the same any more
        world.swept()
    assert world.ended is not None
    assert world.ended.changed == (found,)
