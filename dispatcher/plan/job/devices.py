"""A node of the plan, and which GPUs its ranks find. Pure.

Ranks find the chosen GPUs, else the GPUs of their node's slots. The first of these
chooses: the user's ``CUDA_VISIBLE_DEVICES`` (``-x``, ``--env-file``, ``env=``); GPUs that the user
names (``gpus=``, ``--include``, ``--exclude``), by the host's own numbers; ``--devices node``; the
variable in the environment that the agent finds on the host; the batch system (``Host.granted``).
Slots that are only counted are positions among the chosen GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dispatcher.model.errors import TooManyRanks
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host, visible
from dispatcher.model.names import plural, quoted

VARIABLE = "CUDA_VISIBLE_DEVICES"

#: the user's variables for all ranks, as ``JobPlan.exports`` has them
Exports = tuple[tuple[str, str], ...]


@value
class NodePlan(Value):
    """A host within the plan: its index (GROUP_RANK), chosen slots, and ranks by local rank.

    slots () means: unset, and not (yet) counted. named: they name GPUs; else
    they are positions among ``gpus``, the chosen GPUs: () if all are hidden, None if none were
    chosen.
    """

    index: int
    host: Host
    slots: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    named: bool = False
    gpus: tuple[str, ...] | None = None


def with_gpus(
    nodes: Sequence[NodePlan],
    policy: str,
    exports: Exports,
    counts: Mapping[int, int],
    variables: Mapping[int, str | None],
) -> tuple[NodePlan, ...]:
    """``nodes`` with the GPUs that were chosen on them (``NodePlan.gpus``).

    policy: as ``--devices`` has it. counts: GPUs of each node, by its index. variables:
    ``CUDA_VISIBLE_DEVICES`` on them.
    """

    def selected(node: NodePlan) -> tuple[str, ...] | None:
        count, typed = counts.get(node.index), typed_value(exports, node)
        if count is None or (typed is None and (node.named or policy == "node")):
            return None
        return _selected(node, count, variables.get(node.index) if typed is None else typed)

    return tuple(replace(node, gpus=selected(node)) for node in nodes)


def _selected(node: NodePlan, count: int, text: str | None) -> tuple[str, ...] | None:
    """The GPUs that the variable's ``text``, or the batch system, leaves of ``count``."""
    if text is not None:
        return visible(text, count)
    granted = node.host.granted
    if granted is None:
        return None
    if len(granted) == count and all(name.isdigit() for name in granted):
        return tuple(map(str, range(count)))  # the others cannot be opened: these begin at 0
    return visible(",".join(granted), count) or None


def visible_devices(policy: str, node: NodePlan, local_rank: int) -> str | None:
    """The value of ``CUDA_VISIBLE_DEVICES`` of a rank on ``node``, or None to leave it alone.

    auto, node: the same for each rank of the node, as scripts expect that index by LOCAL_RANK.
    rank: one each; more ranks than GPUs share them in turn. Slots that were not named restrict
    nothing under ``auto`` and ``node``.
    """
    if policy == "none" or node.gpus == ():
        return None
    names = node.slots if node.gpus is None else node.gpus[: len(node.slots) or None]
    if policy == "rank":
        return names[local_rank % len(names)] if names else str(local_rank)
    return ",".join(names) if names else None


def chosen(node: NodePlan, policy: str, exports: Exports) -> tuple[str, ...] | None:
    """The GPUs that are for the ranks of ``node``, as far as this is known; None: any."""
    text = typed_value(exports, node)
    if text is not None:
        return visible(text, 1 << 10)
    names = node.slots if node.gpus is None else node.gpus[: len(node.slots) or None]
    return None if policy == "none" else names or node.host.granted


def check_one_each(nodes: Sequence[NodePlan]) -> None:
    """Check that ``--devices rank`` can give each rank its own GPU. Raises: PlanError."""
    for node in nodes:
        if node.gpus and len(node.ranks) > len(node.gpus):
            names = ",".join(node.gpus)
            raise TooManyRanks(
                f"{node.host.name}: --devices rank: {len(node.ranks)} ranks, "
                f"but only GPUs {names} are chosen on it",
                hint=f"--nproc-per-node {len(node.gpus)}, or --oversubscribe to share",
            )


def gpu_warnings(
    nodes: Sequence[NodePlan],
    policy: str,
    exports: Exports,
    counts: Mapping[int, int],
    variables: Mapping[int, str | None],
) -> list[tuple[int, str]]:
    """(node, a warning about its GPUs). nodes: as ``with_gpus`` made them."""
    found: list[tuple[int, str]] = []
    if policy == "none":
        return found
    for node in nodes:
        text, count = variables.get(node.index), counts.get(node.index, 0)
        if not text or not count or typed_value(exports, node) is not None:
            continue
        there, names = f"{VARIABLE}={quoted(text)} there", visible(text, count)
        if node.named and names and set(names) != set(node.slots):
            found.append(
                (node.index, f"{there} is not used: GPUs {','.join(node.slots)} are named")
            )
        elif node.gpus == () and _is_list(text):
            found.append((node.index, f"{there} leaves none of its {plural(count, 'GPU')}"))
        elif node.gpus and node.gpus == names and len(node.ranks) > len(names):
            found.append((node.index, f"{len(node.ranks)} ranks share what {there} leaves"))
    return found


def typed_value(exports: Exports, node: NodePlan) -> str | None:
    """The variable's value by ``-x`` and its like."""
    return {**dict(exports), **dict(node.host.env)}.get(VARIABLE)


def _is_list(text: str) -> bool:
    """Whether ``text`` names GPUs, and does not hide them all."""
    return text.strip()[:1].isalnum() and text.strip() != "NoDevFiles"


def hidden(nodes: Sequence[NodePlan]) -> bool:
    """Whether a variable or option hides all GPUs of one of ``nodes``."""
    return any(node.gpus == () for node in nodes)
