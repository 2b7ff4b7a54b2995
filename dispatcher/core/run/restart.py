"""Whether a cause may be followed by another attempt, and where it puts the blame. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dispatcher.core.run import policy
from dispatcher.model import exitcodes
from dispatcher.plan.job.request import Limits

#: seconds beyond its lease that a stuck agent lives until its guardian kills it, that a sweep
#: may take, and one for the way of the launcher's last word
GUARDIAN, SWEEP, MARGIN = 8.0, 5.0, 1.0


def refusal(cause: policy.Cause) -> str | None:
    """Why ``cause`` must not be followed by a restart; None when it may be.

    Interrupts are the user's wish. What would fail again in the same way, or must be
    looked at by a person, is not tried again.
    """
    match cause:
        case policy.Interrupted():
            return "it was interrupted"
        case policy.Impossible():
            return "the hosts cannot hold it"
        case policy.OutputLost():
            return "output was lost"
        case policy.MpisDiffer():
            return "its ranks use different MPIs"
        case policy.RankNotStarted(step="exec"):
            return "the program cannot be executed"
        case policy.RankFailed(status=exitcodes.NO_RESTART):
            return f"exit code {exitcodes.NO_RESTART} asks for none"
        case policy.MpiAborted(code=exitcodes.NO_RESTART):
            return f"MPI_Abort({exitcodes.NO_RESTART}) asks for none"
    return None


def why_not(cause: policy.Cause | None, most: int, interrupted: bool) -> str | None:
    """Why no restart follows ``cause``, where the user allowed ``most`` of them."""
    if not most or cause is None or isinstance(cause, policy.Interrupted):
        return None
    if interrupted:
        return "it was interrupted"
    if isinstance(cause, policy.Rejected):
        return None
    return refusal(cause) or exhausted(most)


def exhausted(most: int) -> str:
    """Why there is no restart after ``most`` of them."""
    return f"{most} restart{'s were' if most != 1 else ' was'} made, which is the most"


def lemon(faults: int) -> str:
    """Why a host is left out on which ``faults`` attempts ended."""
    return f"{faults} attempt{'s' if faults != 1 else ''} ended there"


def blamed(cause: policy.Cause | None) -> int | None:
    """The node on which ``cause`` happened; None where that is no single one."""
    return getattr(cause, "node", None)


def outward(cause: policy.Cause, seats: Sequence[int]) -> policy.Cause:
    """``cause`` with the host in each seat in place of the plan's node."""
    if isinstance(cause, policy.Rejected):
        return replace(cause, failures={seats[n]: f for n, f in cause.failures.items()})
    node = blamed(cause)
    return cause if node is None else replace(cause, node=seats[node])  # type: ignore[arg-type]


def fence(limits: Limits) -> float:
    """Seconds after which the ranks of a host that was given up are surely dead.

    The launcher has closed the link, so the agent hears nothing more: its lease runs
    out, its ranks get TERM, then KILL. If it is stuck, its guardian does that.
    """
    return limits.lease + max(limits.lifeline_grace, GUARDIAN) + SWEEP + MARGIN
