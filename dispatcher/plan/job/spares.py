"""Which hosts take part from the start and which ones wait as spares. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.errors import PlanError
from dispatcher.model.hostset import fold
from dispatcher.plan.hosts.filters import Choice


def divide(
    choices: Sequence[Choice], nnodes: int | None, spares: int | None
) -> tuple[tuple[Choice, ...], tuple[Choice, ...]]:
    """Hosts to use and hosts to spare, both in the order given.

    Hosts that the hostfile calls ``spare`` are spares. ``--spares N`` adds the N that
    follow the first ``--nnodes``, or the last N where that is not given.

    Raises: PlanError when there are too few.
    """
    marked = tuple(choice for choice in choices if choice.host.spare)
    others = tuple(choice for choice in choices if not choice.host.spare)
    if not others:
        raise PlanError(f"{fold(c.host.name for c in marked)}: only spares, no host to start on")
    wanted = spares or 0
    if nnodes is None:
        if wanted >= len(others):
            raise _too_few(f"--spares {wanted}: no host is left to start on", others)
        first = len(others) - wanted
    elif nnodes > len(others):
        raise _too_few(f"--nnodes {nnodes}", others)
    elif nnodes + wanted > len(others):
        raise _too_few(f"--nnodes {nnodes} --spares {wanted}", others)
    else:
        first = nnodes
    return others[:first], (*others[first : first + wanted], *marked)


def _too_few(asked: str, choices: Sequence[Choice]) -> PlanError:
    count = len(choices)
    names = fold(choice.host.name for choice in choices)
    return PlanError(f"{asked}: only {count} host{'s' if count != 1 else ''}: {names}")
