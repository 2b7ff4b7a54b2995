"""A ``JobPlan`` as JSON and back, and as a picture for eyes.

``to_json`` loses nothing, not even bytes that are not UTF-8 (surrogates travel
as ``\\udcXX``); ranks are implied by their nodes. ``from_json`` trusts nothing:
a wrong shape is a PlanError that names the field. ``describe`` hides secrets
and is never read back.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

from dispatcher.model.errors import PlanError
from dispatcher.plan.job import job_plan
from dispatcher.plan.job.rank_environment import rank_environment
from dispatcher.plan.variables import redacted

VERSION = 1


def to_json(plan: job_plan.JobPlan) -> str:
    """The plan as one line of JSON, all of it."""
    return json.dumps({"version": VERSION, "plan": dataclasses.asdict(plan)}, separators=(",", ":"))


def from_json(text: str) -> job_plan.JobPlan:
    """The plan that ``to_json`` wrote.

    Raises: PlanError when the text is not JSON, of another version, or of another shape.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"plan: not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise PlanError(f"plan: not a plan of version {VERSION}")
    plan = _built(job_plan.JobPlan, found.get("plan"), "plan")
    assert isinstance(plan, job_plan.JobPlan)
    _check(plan)
    return plan


def describe(plan: job_plan.JobPlan) -> dict[str, Any]:
    """Hosts, ranks, commands and environments, JSON-ready, secrets hidden.

    Environments hold placeholders ``<...>`` where only the hosts know. An open
    plan has no ranks to show.
    """
    shared = dict(plan.exports)
    return {
        "run_id": plan.run_id,
        "world_size": plan.world_size or None,
        "cwd": plan.cwd,
        "nodes": [
            {
                "index": node.index,
                "host": node.host.name,
                "user": node.host.user,
                "port": node.host.port,
                "origin": node.host.origin,
                "slots": list(node.slots) or None,
                "ranks": list(node.ranks),
                "environment": redacted(dict(node.host.env)),
            }
            for node in plan.nodes
        ],
        "spares": [
            {"host": spare.host.name, "slots": list(spare.slots) or None} for spare in plan.spares
        ],
        "exports": redacted(shared),
        "ranks": [
            {
                "rank": place.rank,
                "host": plan.nodes[place.node].host.name,
                "local_rank": place.local_rank,
                "argv": list(plan.argv(place.rank)),
                "environment": redacted(
                    {
                        name: value
                        for name, value in rank_environment(plan, place.rank).items()
                        if shared.get(name) != value
                    }
                ),
            }
            for place in plan.ranks
        ],
        "limits": dataclasses.asdict(plan.limits),
        "restarts": dataclasses.asdict(plan.restarts),
        "notices": list(plan.notices),
    }


def _built(wanted: Any, found: Any, where: str) -> Any:
    """``found`` (from JSON) as the type ``wanted``, or PlanError."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        if not isinstance(found, dict):
            raise PlanError(f"{where}: not an object")
        hints = typing.get_type_hints(wanted)
        names = {field.name for field in dataclasses.fields(wanted)}
        if set(found) != names:
            odd = ", ".join(sorted(map(str, set(found) ^ names)))
            raise PlanError(f"{where}: missing or unknown: {odd}")
        return wanted(
            **{name: _built(hints[name], found[name], f"{where}.{name}") for name in names}
        )
    if origin is tuple:
        if not isinstance(found, list):
            raise PlanError(f"{where}: not a list")
        if arguments[-1] is Ellipsis:
            arguments = (arguments[0],) * len(found)
        if len(arguments) != len(found):
            raise PlanError(f"{where}: {len(found)} items, not {len(arguments)}")
        return tuple(
            _built(kind, item, f"{where}[{index}]")
            for index, (kind, item) in enumerate(zip(arguments, found, strict=True))
        )
    if origin in (typing.Union, types.UnionType):
        for kind in arguments:
            try:
                return _built(kind, found, where)
            except PlanError:
                continue
    elif origin is typing.Literal:
        if isinstance(found, str) and found in arguments:
            return found
    elif wanted is types.NoneType:
        if found is None:
            return None
    elif wanted is float:
        if type(found) in (int, float):
            return float(found)
    elif type(found) is wanted:
        return found
    raise PlanError(f"{where}: not what a plan holds there: {ascii(found)[:60]}")


def _check(plan: job_plan.JobPlan) -> None:
    """What types do not say: nodes are numbered in order, ranks are 0 to world size - 1."""
    if [node.index for node in plan.nodes] != list(range(len(plan.nodes))) or not plan.nodes:
        raise PlanError("plan.nodes: not numbered from 0 in order")
    if not plan.program.argv:
        raise PlanError("plan.program.argv: empty")
    ranks = sorted(rank for node in plan.nodes for rank in node.ranks)
    if ranks != list(range(len(ranks))):
        raise PlanError("plan.nodes: ranks are not 0 to world size - 1, each once")
    if ranks and not all(node.ranks for node in plan.nodes):
        raise PlanError("plan.nodes: a node without ranks")
