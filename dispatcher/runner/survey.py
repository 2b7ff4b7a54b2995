"""One look at many hosts: the same readings on each, what they gave and when.

An errand (``runner.errand``) runs the agent's ``survey`` module alone; its answer is
one packed value, which is checked here before anybody judges it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher import bootstrap
from dispatcher.agent.pack import PackError, pack, unpack
from dispatcher.checks.reading import Reading
from dispatcher.core.visits import Exited, Failed, Outcome, TimedOut
from dispatcher.plan.errand import Errand, ErrandLimits
from dispatcher.plan.host import Host
from dispatcher.runner.errand import ErrandRunner
from dispatcher.sinks.base import Sink
from dispatcher.transport.base import Transport

#: bytes of one host's answer
MOST = 4 << 20
#: modules of the agent that a survey needs
NEEDS = ("pack", "vitals", "senses")

_FIND = (
    'r=$1;shift;for p do command -v "$p" >/dev/null 2>&1&&exec "$p" -I -S -c "$0" "$r";done;'
    f'echo "{bootstrap.NO_PYTHON_MARK}$*" >&2;exit {bootstrap.NO_PYTHON_STATUS}'
)


@dataclass(frozen=True)
class Answer:
    """What a host answered. problem: why there are no readings; lost: it was not reached.

    began, ended: our clock (s since 1970) around the whole survey.
    """

    readings: Mapping[str, Reading] = field(default_factory=dict)
    problem: str = ""
    lost: bool = False
    began: float = 0.0
    ended: float = 0.0


class _Answers(Sink):
    """The hosts' bytes, and when the last of each came."""

    def __init__(self) -> None:
        self.out: dict[int, bytearray] = {}
        self.err: dict[int, bytearray] = {}
        self.last: dict[int, float] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.last[rank] = time.time()
        kept = (self.out if stream == 1 else self.err).setdefault(rank, bytearray())
        kept += data[: MOST + 1 - len(kept)]


def survey(
    hosts: Sequence[Host],
    readings: Sequence[Sequence[Any]],
    transport_for: Callable[[Host], Transport],
    *,
    seconds: float,
    connect: float = 10.0,
) -> tuple[Answer, ...]:
    """The answers of ``hosts`` in their order, in at most ``connect + seconds``.

    readings: see ``agent.survey``. seconds: for all readings of one host together.
    """
    source = bootstrap.alone("survey", NEEDS)
    asked = base64.b64encode(pack(list(readings))).decode()
    pythons = ("python3", *bootstrap.NEWER_PYTHONS, "/usr/bin/python3")
    words = ("/bin/sh", "-c", _FIND, source, asked, *pythons)
    limits = ErrandLimits(connect=connect, command=seconds, grace=0.5, total=connect + seconds)
    answers = _Answers()
    began = time.time()
    outcomes = ErrandRunner(
        Errand(tuple(hosts), words, limits=limits), transport_for, [answers]
    ).run()
    now = time.time()
    return tuple(
        _answer(
            outcome,
            bytes(answers.out.get(node, b"")),
            bytes(answers.err.get(node, b"")),
            began,
            answers.last.get(node, now),
        )
        for node, outcome in enumerate(outcomes)
    )


def _answer(outcome: Outcome, out: bytes, err: bytes, began: float, ended: float) -> Answer:
    if isinstance(outcome, Failed):
        failure = outcome.failure
        return Answer(problem=f"{failure.kind.value}: {failure.why}", lost=True)
    if isinstance(outcome, TimedOut):
        return Answer(problem=f"no answer within {outcome.seconds:.0f} s", lost=True)
    said = err.decode("utf-8", "backslashreplace").strip()
    if bootstrap.NO_PYTHON_MARK in said:
        looked = said.partition(bootstrap.NO_PYTHON_MARK)[2]
        return Answer(problem=f"no python there; looked for {looked[:400]}")
    if outcome != Exited(0):
        last = said.splitlines()[-1][-400:] if said else "nothing"
        return Answer(problem=f"the survey failed; it said: {last}")
    try:
        return Answer(_checked(out), began=began, ended=ended)
    except ValueError as error:
        return Answer(problem=f"a malformed answer: {error}")


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
