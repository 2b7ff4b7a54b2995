"""An agent's report of where its ranks are, checked; pure, and as distrustful as ``reports``."""

from __future__ import annotations

from typing import Any

from dispatcher.core.events.stack_frames import HOW
from dispatcher.core.events.stacks import Flight, NodeStacks, RankStack
from dispatcher.runner.run.reports import Fields, ReportError

#: bytes of one text or dump
MOST = 256 << 10


def read_stacks(fields: Fields, node: int) -> NodeStacks:
    """The event that the report tells. Raises: ReportError."""
    ranks, flights = [], []
    for item in fields.items("ranks"):
        rank, pid, state, how, text = _row(item, (int, int, str, str, bytes))
        if how not in HOW or len(state) != 1 or not (state.isalpha() or state == "-"):
            raise ReportError("ranks: not stacks")
        ranks.append(RankStack(fields.own(rank), pid, state, how, text))
    for item in fields.items("flights"):
        rank, path, size, data = _row(item, (int, str, int, bytes))
        flights.append(Flight(fields.own(rank), path[:4096], size, data))
    number, ras = fields.integer("number"), fields.bytes("ras", MOST)
    return NodeStacks(node, number, tuple(ranks), ras, tuple(flights))


def _row(item: Any, kinds: tuple[type, ...]) -> list[Any]:
    """``item``, a list of values of ``kinds``: no number below 0, no bytes beyond ``MOST``."""
    if not isinstance(item, list) or [type(value) for value in item] != list(kinds):
        raise ReportError("stacks: not a row of them")
    for value in item:
        if (type(value) is int and value < 0) or (type(value) is bytes and len(value) > MOST):
            raise ReportError("stacks: out of bounds")
    return item
