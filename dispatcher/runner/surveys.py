"""Readings of many hosts, collected: one survey, two visits of all hosts, rounds of pairs.

A fan-out command runs the agent's ``survey`` module; its answer is one packed value, which is
checked here before a check uses it. The first visit reads. The second is for checks of two hosts or
two moments: every host calls the first host, and repeats readings to compare them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dispatcher.bootstrap import payload
from dispatcher.checks.check import Asked, Check, Reading, Seen, Unread
from dispatcher.checks.network import parse_netdevs
from dispatcher.checks.pair_ranking import Pair
from dispatcher.checks.report import CheckReport, Want, first_readings, make_report, second_readings
from dispatcher.core.events.exec_events import Exited, Failed, Interrupted, Outcome, TimedOut
from dispatcher.core.events.run_events import Entry, NodeConnected, Sink
from dispatcher.model import errors
from dispatcher.model.errors import DispatchError
from dispatcher.model.host import Host
from dispatcher.model.names import size
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
from dispatcher.remote.protocol.packing import PackError, pack, unpack
from dispatcher.runner.exec.exec_loop import ExecRunner
from dispatcher.transport.base import Transport

#: bytes of one host's answer
MOST = 4 << 20
#: values in it
MOST_VALUES = 1 << 16
#: modules of the agent that a survey needs
NEEDS = ("protocol.packing", "host.host_facts", "probe.probes")


class Stopped(DispatchError):
    """dispatch got a signal to stop before all hosts had answered."""

    code = "interrupted"

    def __init__(self, signum: int) -> None:
        super().__init__(f"{signal.Signals(signum).name} came while hosts were asked")
        self.exit_code = errors.SIGNAL_BASE + signum


@dataclass(frozen=True)
class HostAnswer:
    """The answer of a host. problem: why there are no readings; lost: it was not reached.

    hint: a remedy. ahead: (least, most) seconds that its clock is ahead of our clock; it
    was read between our order and the arrival of its words. address: where we reached it, if known.
    """

    readings: Mapping[str, Reading] = field(default_factory=dict)
    problem: str = ""
    lost: bool = False
    ahead: tuple[float, float] | None = None
    address: str | None = None
    hint: str | None = None


class _SurveyOutput(Sink):
    """The hosts' bytes, and when each was reached and spoke first, by ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.out: dict[int, bytearray] = {}
        self.err: dict[int, bytearray] = {}
        self.reached: dict[int, float] = {}
        self.spoke: dict[int, float] = {}
        self.address: dict[int, str | None] = {}
        self._clock = clock

    def event(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, NodeConnected):
            self.reached[event.node] = self._clock()
            self.address[event.node] = event.address

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream == 1:
            self.spoke.setdefault(rank, self._clock())
        buffer = (self.out if stream == 1 else self.err).setdefault(rank, bytearray())
        buffer += data[: MOST + 1 - len(buffer)]


def survey(
    hosts: Sequence[Host],
    readings: Sequence[Sequence[Any]],
    transport_for: Callable[[Host], Transport],
    *,
    seconds: float,
    connect: float = 10.0,
    clock: Callable[[], float] = time.time,
) -> tuple[HostAnswer, ...]:
    """The answers of ``hosts`` in their order, in at most ``connect + seconds``. Raises: Stopped.

    readings: see ``remote.probe.survey``. seconds: for all readings of one host together. clock:
    ours. While the user types a secret, no host's time passes, nor that of a single host's survey.
    """
    source = payload.standalone("probe.survey", NEEDS)
    words = payload.standalone_command(source, pack(list(readings)))
    total = None if len(hosts) == 1 else connect + seconds
    limits = ExecLimits(connect=connect, command=seconds, grace=0.5, total=total)
    answers = _SurveyOutput(clock)
    runner = ExecRunner(ExecPlan(tuple(hosts), words, limits=limits), transport_for, [answers])
    outcomes = runner.run()
    for outcome in outcomes:
        if isinstance(outcome, Interrupted):
            raise Stopped(outcome.signum)
    return tuple(_answer(outcome, node, answers) for node, outcome in enumerate(outcomes))


def _answer(outcome: Outcome, node: int, answers: _SurveyOutput) -> HostAnswer:
    if isinstance(outcome, Failed):
        failure = outcome.failure
        why = f"{failure.kind.value}: {failure.why}"
        return HostAnswer(problem=why, lost=True, hint=failure.hint)
    if isinstance(outcome, TimedOut):
        return HostAnswer(problem=f"no answer within {outcome.seconds:.0f} s", lost=True)
    errors_text = bytes(answers.err.get(node, b"")).decode("utf-8", "backslashreplace").strip()
    if tried := payload.pythons_tried(errors_text):
        return HostAnswer(problem=f"no python on the host; looked for {tried}")
    if outcome != Exited(0):
        last = errors_text.splitlines()[-1][-400:] if errors_text else "nothing"
        return HostAnswer(problem=f"the survey failed; it said: {last}")
    said = bytes(answers.out.get(node, b""))
    first, _, rest = said.partition(b"\n")
    try:
        if len(said) > MOST:
            raise PackError(f"more than {size(MOST)}")
        now = float(first)
        readings = _checked(rest)
    except ValueError as error:
        return HostAnswer(problem=f"a malformed answer: {error}")
    spoke = answers.spoke[node]
    ahead = (now - spoke, now - answers.reached.get(node, spoke))
    return HostAnswer(readings, ahead=ahead, address=answers.address.get(node))


def _checked(data: bytes) -> dict[str, Reading]:
    """The readings of an answer. Raises: ValueError for anything else."""
    value = unpack(data, MOST_VALUES)
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


#: of all the time there is: for connecting, for the first visit's readings, for the second visit
CONNECT, FIRST, SECOND = 0.3, 0.4, 0.3


def readings_limit(seconds: float) -> float:
    """Seconds for one reading when all of it may take ``seconds``."""
    return 0.75 * FIRST * seconds


def examine(
    hosts: Sequence[Host],
    want: Want,
    checks: Sequence[Check],
    transport_for: Callable[[Host], Transport],
    *,
    seconds: float,
    connect: float = 10.0,
    port: int | None = None,
    clock: Callable[[], float] = time.time,
) -> CheckReport:
    """The report of ``checks`` on ``hosts``, within ``seconds``.

    Rank 0 would be on the first that answers: there all others must reach it. port: MASTER_PORT,
    where the user has chosen one. clock: as for ``survey``.
    """
    names = ExecPlan(tuple(hosts), ("true",)).names
    connect = min(connect, CONNECT * seconds)
    answers = survey(
        hosts, first_readings(want, names[:1]), transport_for,
        seconds=FIRST * seconds, connect=connect, clock=clock,
    )  # fmt: skip
    lost = {n: a.problem for n, a in zip(names, answers, strict=True) if a.lost}
    remedies = {n: a.hint for n, a in zip(names, answers, strict=True) if a.lost}
    unread = {n: a.problem for n, a in zip(names, answers, strict=True) if a.problem and not a.lost}
    there = [
        (name, host, answer)
        for name, host, answer in zip(names, hosts, answers, strict=True)
        if not answer.problem
    ]
    head = there[0][0] if there else names[0]  # rank 0 will be on the first that can be used
    seen = {
        name: Seen(name, answer.readings, {}, host.slots, head, answer.ahead, want.asked)
        for name, host, answer in there
    }
    if len(seen) > 1:
        addresses, free = meeting_place(seen[head], there[0][2].address)
        later = survey(
            [host for _, host, _ in there],
            second_readings(
                replace(want, seconds=0.5 * SECOND * seconds), addresses, port or free
            ),
            transport_for, seconds=0.7 * SECOND * seconds,
            connect=min(connect, 0.3 * SECOND * seconds),
        )  # fmt: skip
        for name, answer in zip(list(seen), later, strict=True):
            seen[name] = replace(seen[name], later=answer.readings)
    else:
        checks = [check for check in checks if check.name not in ("reach", "errors")]
    return make_report(checks, seen, names, lost, unread, remedies)


def meeting_place(head: Seen, reached: str | None) -> tuple[list[str], int]:
    """Host 0's addresses, best first, and a port that is free on it."""
    try:
        devices = parse_netdevs(str(head.value("netdevs")))
        port = int(head.value("port"))
    except (Unread, TypeError, ValueError):
        return ([reached] if reached else []), 0
    wanted = head.asked.iface
    addresses = [reached] if reached and wanted is None else []
    for device in devices:
        if device.usable and wanted in (None, device.name):
            addresses += device.addresses
    usable = [
        a for a in dict.fromkeys(addresses) if not a.startswith(("127.", "fe80")) and a != "::1"
    ]
    return usable[:8], port


#: seconds that each direction of a pair is measured
SECONDS = 0.4

#: where each host can be called: (address, port)
Addresses = Mapping[int, tuple[str, int]]


def find_addresses(
    hosts: Sequence[Host],
    iface: str | None,
    transport_for: Callable[[Host], Transport],
    *,
    seconds: float,
    connect: float,
) -> tuple[dict[int, tuple[str, int]], dict[int, str]]:
    """Where the hosts can be called, and of the others why not, both by number."""
    readings = [
        ["netdevs", "call", ["netdevs"], seconds, 64 << 10],
        ["port", "call", ["free_port"], seconds, 4096],
    ]
    answers = survey(hosts, readings, transport_for, seconds=2 * seconds, connect=connect)
    addresses_of, problems = {}, {}
    for at, answer in enumerate(answers):
        seen = Seen(hosts[at].name, answer.readings, asked=Asked(iface=iface))
        addresses, port = meeting_place(seen, answer.address)
        if answer.problem:
            problems[at] = answer.problem
        elif not addresses or not port:
            problems[at] = f"no address on {iface}" if iface else "no address to call"
        else:
            addresses_of[at] = (addresses[0], port)
    return addresses_of, problems


def play_round(
    hosts: Sequence[Host],
    addresses_of: Addresses,
    pairs: Sequence[tuple[int, int]],
    transport_for: Callable[[Host], Transport],
    *,
    limit: float,
    connect: float,
) -> list[Pair]:
    """Measure between ``pairs`` (numbers of hosts), all at once. limit: seconds for each."""
    playing = sorted(host for pair in pairs for host in pair)
    order = {host: at for at, host in enumerate(playing)}
    table: dict[str, list[Any]] = {}
    for a, b in pairs:
        address, port = addresses_of[b]
        table[str(order[b])] = ["listen", address, port]
        table[str(order[a])] = ["call", address, port]
    reading = ["pair", "call", ["pair", table, SECONDS, limit], limit + 1.0, 4096]
    answers = survey(
        [hosts[host] for host in playing], [reading], transport_for,
        seconds=limit + 4.0, connect=connect,
    )  # fmt: skip
    measured = {
        host: _measured(answer.readings.get("pair"), answer.problem)
        for host, answer in zip(playing, answers, strict=True)
    }
    found = [(a, b, measured[a], measured[b]) for a, b in pairs]
    return [Pair(a, b, ours[0], its[1], ours[1], ours[2] or its[2]) for a, b, ours, its in found]


def _measured(reading: Reading | None, problem: str) -> tuple[float | None, float | None, str]:
    """(latency, bytes/s received, what went wrong) of one end."""
    if reading is None:
        return None, None, problem
    value = reading.value()
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], str):
        return None, None, reading.why()
    latency, rate = (float(v) if isinstance(v, int | float) and v >= 0 else None for v in value[:2])
    return latency, rate, value[2]
