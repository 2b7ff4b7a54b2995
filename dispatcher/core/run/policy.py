"""The rules of an ending: what counts as a cause, what it costs, who is told to stop and how.

The *root cause* is the first failure observed by the launcher's loop; whatever
fails after it is a consequence. Pure functions and frozen values only.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

from dispatcher.core.events.verdicts import Cause, Interrupted, Rejected
from dispatcher.model import errors
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass


def rejection(failures: Mapping[int, Failure], problems: Mapping[int, frozenset[str]]) -> Rejected:
    """The verdict on nodes that cannot be used before a start.

    problems: node -> what its agent found wrong. When every failure is that the
    program is missing (or may not be executed), the exit code is the shell's
    127 (or 126), as it would be on one machine.
    """
    words = {word for node in failures for word in problems.get(node, frozenset({"link"}))}
    code = errors.CLUSTER
    if words and words <= {"missing", "no script", "not executable"}:
        code = errors.NOT_EXECUTABLE if words == {"not executable"} else errors.NOT_FOUND
    return Rejected(dict(failures), code, dict(problems))


@value
class KillStep(Value):
    """One step of an escalation: ``signum`` to every rank, then ``grace`` seconds."""

    signum: int
    grace: float


def kill_steps(cause: Cause, grace: float) -> tuple[KillStep, ...]:
    """The signals that end a job for ``cause``; after the last step everything is killed.

    Ctrl-C is passed on as INT first, since programs save their work on it;
    every other cause starts with TERM. The time between TERM and KILL after an
    unanswered INT is short: those ranks had their grace.
    """
    match cause:
        case Interrupted(signum=signal.SIGINT):
            return (KillStep(signal.SIGINT, grace), KillStep(signal.SIGTERM, min(grace, 2.0)))
        case Interrupted(signum=signal.SIGQUIT):
            return (KillStep(signal.SIGQUIT, grace),)
    return (KillStep(signal.SIGTERM, grace),)


def unreachable_master(addresses: tuple[str, ...], reached: tuple[str, ...]) -> Failure:
    """Why a node cannot take part: it reaches node 0 at none of the ``addresses`` others do."""
    tried = ", ".join(addresses)
    got = f", only at {', '.join(reached)}" if reached else ""
    return Failure(
        Kind.CHECK,
        f"cannot reach node 0 at {tried}{got}",
        hint="name an address all hosts reach with --master-addr, or skip with --check none",
    )
