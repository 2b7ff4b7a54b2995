"""One look at many hosts: the same readings on each, what they gave and when.

An errand (``runner.exec.exec_loop``) runs the agent's ``survey`` module alone; its answer is
one packed value, which is checked here before anybody judges it.
"""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.bootstrap import payload
from dispatcher.checks.reading import Reading
from dispatcher.core.events.exec_events import Exited, Failed, Interrupted, Outcome, TimedOut
from dispatcher.core.events.run_events import NodeConnected
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.model import exitcodes
from dispatcher.model.errors import DispatchError
from dispatcher.model.host_part import Host
from dispatcher.plan.exec_plan import Errand, ErrandLimits
from dispatcher.remote.protocol.packing import PackError, pack, unpack
from dispatcher.runner.exec.exec_loop import ErrandRunner
from dispatcher.transport.base import Transport

#: bytes of one host's answer
MOST = 4 << 20
#: modules of the agent that a survey needs
NEEDS = ("protocol.packing", "probe.probes")

_FIND = (
    'r=$1;shift;for p do command -v "$p" >/dev/null 2>&1&&exec "$p" -I -S -c "$0" "$r";done;'
    f'echo "{payload.NO_PYTHON_MARK}$*" >&2;exit {payload.NO_PYTHON_STATUS}'
)


class Stopped(DispatchError):
    """dispatch was told by a signal to stop before all hosts had answered."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"ended by {signal.Signals(signum).name} while hosts were looked at")
        self.exit_code = exitcodes.SIGNAL_BASE + signum


@dataclass(frozen=True)
class Answer:
    """What a host answered. problem: why there are no readings; lost: it was not reached.

    hint: what to do about that.

    ahead: (least, most) seconds that its clock is ahead of ours: it was read between our
    order and the arrival of what it said, and nobody knows when within. address: where
    we reached it, None where that is not known.
    """

    readings: Mapping[str, Reading] = field(default_factory=dict)
    problem: str = ""
    lost: bool = False
    ahead: tuple[float, float] | None = None
    address: str | None = None
    hint: str | None = None


class _Answers(Sink):
    """The hosts' bytes, and when each was reached and spoke first, by ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.out: dict[int, bytearray] = {}
        self.err: dict[int, bytearray] = {}
        self.reached: dict[int, float] = {}
        self.spoke: dict[int, float] = {}
        self.address: dict[int, str | None] = {}
        self._clock = clock

    def event(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, NodeConnected):
            self.reached[event.node] = self._clock()
            self.address[event.node] = event.address

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream == 1:
            self.spoke.setdefault(rank, self._clock())
        kept = (self.out if stream == 1 else self.err).setdefault(rank, bytearray())
        kept += data[: MOST + 1 - len(kept)]


def survey(
    hosts: Sequence[Host],
    readings: Sequence[Sequence[Any]],
    transport_for: Callable[[Host], Transport],
    *,
    seconds: float,
    connect: float = 10.0,
    more: Sequence[str] = (),
    clock: Callable[[], float] = time.time,
) -> tuple[Answer, ...]:
    """The answers of ``hosts`` in their order, in at most ``connect + seconds``.

    readings: see ``remote.probe.survey``. seconds: for all readings of one host together.
    more: modules of the agent that these readings need. clock: our own, s since 1970.
    Raises: Stopped.
    """
    source = payload.alone("probe.survey", (*NEEDS, *more))
    asked = base64.b64encode(pack(list(readings))).decode()
    pythons = ("python3", *payload.NEWER_PYTHONS, "/usr/bin/python3")
    words = ("/bin/sh", "-c", _FIND, source, asked, *pythons)
    limits = ErrandLimits(connect=connect, command=seconds, grace=0.5, total=connect + seconds)
    answers = _Answers(clock)
    outcomes = ErrandRunner(
        Errand(tuple(hosts), words, limits=limits), transport_for, [answers]
    ).run()
    for outcome in outcomes:
        if isinstance(outcome, Interrupted):
            raise Stopped(outcome.signum)
    return tuple(_answer(outcome, node, answers) for node, outcome in enumerate(outcomes))


def _answer(outcome: Outcome, node: int, answers: _Answers) -> Answer:
    if isinstance(outcome, Failed):
        failure = outcome.failure
        why = f"{failure.kind.value}: {failure.why}"
        return Answer(problem=why, lost=True, hint=failure.hint)
    if isinstance(outcome, TimedOut):
        return Answer(problem=f"no answer within {outcome.seconds:.0f} s", lost=True)
    said = bytes(answers.err.get(node, b"")).decode("utf-8", "backslashreplace").strip()
    if payload.NO_PYTHON_MARK in said:
        looked = said.partition(payload.NO_PYTHON_MARK)[2]
        return Answer(problem=f"no python there; looked for {looked[:400]}")
    if outcome != Exited(0):
        last = said.splitlines()[-1][-400:] if said else "nothing"
        return Answer(problem=f"the survey failed; it said: {last}")
    first, _, rest = bytes(answers.out.get(node, b"")).partition(b"\n")
    try:
        now = float(first)
        readings = _checked(rest)
    except ValueError as error:
        return Answer(problem=f"a malformed answer: {error}")
    spoke = answers.spoke[node]
    ahead = (now - spoke, now - answers.reached.get(node, spoke))
    return Answer(readings, ahead=ahead, address=answers.address.get(node))


def _checked(data: bytes) -> dict[str, Reading]:
    """The readings of an answer. Raises: ValueError for anything else."""
    if len(data) > MOST:
        raise PackError(f"more than {MOST >> 20} MiB")
    value = unpack(data)
    if not isinstance(value, dict):
        raise PackError("not a dict")
    found = {}
    for name, item in value.items():
        if not isinstance(item, list) or len(item) != 3:
            raise PackError(f"{name[:40]!r}: not a reading")
        status, output, cut = item
        good = (status is None or type(status) is int) and isinstance(output, bytes)
        if not good or not isinstance(cut, bool):
            raise PackError(f"{name[:40]!r}: not a reading")
        found[name] = Reading(status, output, cut)
    return found
