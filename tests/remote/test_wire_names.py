"""Orders and reports have the names and the fields of actions and events, at both ends."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trees
from cases import cases

import dispatcher.remote
from dispatcher.core.events import actions as act
from dispatcher.core.events import run_events as ev
from dispatcher.plan.job.binding import Topology
from dispatcher.runner.run import reports

REMOTE = Path(dispatcher.remote.__path__[0])
CLASSES: dict[str, Any] = {cls.name: cls for cls in reports.REPORTS}

#: a report whose fields are put together in several places -> those that are not read here
ELSEWHERE = {
    "rank.exited": {"error", "hint", "mpi"}, "pmi.aborted": {"error"},
    "pmi.asked": {"wait", "once"}, "mpi.inside": {"ranks", "over"},
}  # fmt: skip


def fields(tree: ast.AST, sent: ast.expr) -> Iterator[str]:
    """The keys of the dict that ``sent`` is, or that its name has in the function ``tree``."""
    if isinstance(sent, ast.Dict):
        for key, value in zip(sent.keys, sent.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value)
            else:
                yield from fields(tree, value)
    if isinstance(sent, ast.Name):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == sent.id:
                yield from fields(tree, node.value)


def reports_sent() -> dict[str, set[str]]:
    """Name -> fields of each report that the agent's modules send."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in REMOTE.rglob("*.py"):
        for tree in (n for n in ast.walk(trees.tree_of(path)) if isinstance(n, ast.FunctionDef)):
            for node in ast.walk(tree):
                match node:
                    case ast.Tuple(
                        [ast.Constant("send"), ast.Constant(str(name)), sent]
                    ) | ast.Call(ast.Attribute(_, "do_send"), [ast.Constant(str(name)), sent]):
                        found[name] |= set(fields(tree, sent))
                    case ast.Call(ast.Name("control"), [ast.Constant(str(name))], named):
                        found[name] |= {str(one.arg) for one in named}
    return found


SENT = reports_sent()


def test_agents_send_all_reports_that_are_read_and_no_other() -> None:
    assert {name for name in SENT if "." in name} == {*CLASSES, ev.RankSpawned.name}


@cases("name", CLASSES)
def test_a_report_has_the_fields_of_its_event(name: str) -> None:
    known, _ = reports.fields_of(CLASSES[name])
    assert SENT[name] | ELSEWHERE.get(name, set()) == known.keys()


def told_by(function: str, module: str) -> set[str]:
    """The keys of the dicts that a function of ``remote.host`` returns."""
    tree = trees.tree_of(REMOTE / "host" / module)
    (body,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function)
    ends = [n.value for n in ast.walk(body) if isinstance(n, ast.Return) and n.value is not None]
    return {name for end in ends for name in fields(body, end)}


def test_facts_have_the_fields_of_their_class() -> None:
    told = told_by("gather", "host_facts.py") | told_by("places", "host_facts.py")
    own = {"error_folder", "port", "mark", "self_fencing"}  # of ``agent_loop.Loop.do_prepare``
    assert told | own == reports.fields_of(ev.Facts)[0].keys()
    assert told_by("topology", "binding.py") == reports.fields_of(Topology)[0].keys()


#: actions that a host gets as an order, as they are or with more of the plan
ORDERS: list[type[act.Action]] = [
    *act.Order.__subclasses__(), act.Prepare, act.StartRanks, act.SpawnRanks, act.ReleaseFence,
    act.ShareWorld, act.ServePmix, act.Finish,
]  # fmt: skip


def test_an_agent_knows_each_order_by_the_name_of_its_action() -> None:
    files = REMOTE / "agent" / "node.py", REMOTE / "pmi" / "pmi_replies.py"
    nodes = (node for file in files for node in ast.walk(trees.tree_of(file)))
    assert {one.order for one in ORDERS} <= {getattr(node, "value", None) for node in nodes}


def test_an_order_is_its_action_without_the_hosts() -> None:
    release = act.ReleaseFence((0, 1), 2, "WORLD:1", 7, (b"a", b"b"), 3)
    told = {"world": 2, "fence": "WORLD:1", "epoch": 7, "number": 3, "keys": (b"a", b"b")}
    assert (release.order, release.fields()) == ("release_fence", told)
    kill = act.SignalRanks(3, 9, (4, 5), "all").fields()
    assert kill == {"signum": 9, "ranks": (4, 5), "to": "all"}
