"""Who is to blame for hosts that were lost together, when some were reached through others.

A host that goes takes along all that is reached through it, and who is missed first is
chance. So where a lost host stands above the first one, it is the cause, and those behind
it are told in one line. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from dispatcher.core.run.policy import NodeFailed, Verdict
from dispatcher.model.hostset import fold


def blamed(verdict: Verdict, above: Mapping[int, Sequence[int]]) -> tuple[Verdict, list[int]]:
    """``verdict`` with the host to blame as its cause, and those that were lost behind it.

    above: node -> those it was reached through, nearest first.
    """
    cause = verdict.cause
    if not isinstance(cause, NodeFailed):
        return verdict, []
    lost = {**verdict.lost, cause.node: cause.failure}
    top = next((node for node in reversed(above.get(cause.node, ())) if node in lost), cause.node)
    behind = sorted(node for node in lost if top in above.get(node, ()))
    left = {node: failure for node, failure in lost.items() if node not in behind}
    found = NodeFailed(top, lost[top])
    return dataclasses.replace(verdict, cause=found, lost=left), behind


def words(verdict: Verdict, names: Sequence[str], behind: Sequence[int]) -> list[str]:
    """The line about those ``behind`` the cause. names: of all nodes."""
    if not behind or not isinstance(verdict.cause, NodeFailed):
        return []
    where = fold(names[node] for node in behind)
    return [f"  then {where}: lost with {names[verdict.cause.node]}, which leads to them"]
