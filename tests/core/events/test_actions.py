"""Orders have one name at both ends: that of their action."""

from __future__ import annotations

import ast
from pathlib import Path

import trees
from cases import cases

from dispatcher.core.events import actions as act
from dispatcher.remote.agent import node
from dispatcher.remote.pmi import pmi_replies

#: actions that a host gets as an order, as they are or with more of the plan
ORDERS: list[type[act.Action]] = [
    *act.Order.__subclasses__(), act.Prepare, act.StartRanks, act.SpawnRanks, act.ReleaseFence,
    act.ShareWorld, act.ServePmix, act.Finish,
]  # fmt: skip


def test_an_order_is_its_action_without_the_hosts() -> None:
    kill = act.SignalRanks(3, 9, (4, 5), "all")
    assert (kill.order, kill.fields()) == (
        "signal_ranks", {"signum": 9, "ranks": (4, 5), "to": "all"},
    )  # fmt: skip
    release = act.ReleaseFence((0, 1), 2, "WORLD:1", 7, (b"a", b"b"), 3)
    assert (release.order, release.fields()) == (
        "release_fence",
        {"world": 2, "fence": "WORLD:1", "epoch": 7, "number": 3, "keys": (b"a", b"b")},
    )


@cases("order", ORDERS)
def test_an_agent_knows_each_order_by_that_name(order: type[act.Action]) -> None:
    read = {
        one.value
        for module in (node, pmi_replies)
        for one in ast.walk(trees.tree_of(Path(str(module.__file__))))
        if isinstance(one, ast.Constant)
    }
    assert order.order in read
