"""Two visits to all hosts, and what was seen: the first reads, the second tries what needs two.

The second visit lets every host call the first one, at the address where the ranks would
meet, and reads once more what must be compared with itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dispatcher.checks.check import Check, Seen, Unread
from dispatcher.checks.network import parse
from dispatcher.checks.report import Want, first_readings, second_readings
from dispatcher.checks.ruling import Ruling, rule
from dispatcher.model.host_part import Host
from dispatcher.plan.exec_plan import Errand
from dispatcher.runner.surveys import survey
from dispatcher.transport.base import Transport

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
) -> Ruling:
    """The ruling of ``checks`` on ``hosts``, within ``seconds``. Rank 0 would be on the first.

    port: MASTER_PORT, where the user has chosen one. clock: ours, s since 1970.
    """
    names = Errand(tuple(hosts), ("true",)).names
    head = names[0]
    connect = min(connect, CONNECT * seconds)
    answers = survey(
        hosts, first_readings(want, [head]), transport_for,
        seconds=FIRST * seconds, connect=connect, clock=clock,
    )  # fmt: skip
    lost = {n: a.problem for n, a in zip(names, answers, strict=True) if a.lost}
    remedies = {n: a.hint for n, a in zip(names, answers, strict=True) if a.lost}
    unread = {n: a.problem for n, a in zip(names, answers, strict=True) if a.problem and not a.lost}
    seen = {
        name: Seen(name, answer.readings, {}, host.slots, head, answer.ahead, want.asked)
        for name, host, answer in zip(names, hosts, answers, strict=True)
        if not answer.problem
    }
    if head in seen and len(seen) > 1:
        addresses, free = meeting_place(seen[head], answers[0].address)
        there = [h for name, h in zip(names, hosts, strict=True) if name in seen]
        later = survey(
            there,
            second_readings(
                replace(want, seconds=0.5 * SECOND * seconds), addresses, port or free
            ),
            transport_for, seconds=0.7 * SECOND * seconds,
            connect=min(connect, 0.3 * SECOND * seconds),
        )  # fmt: skip
        for name, answer in zip(list(seen), later, strict=True):
            seen[name] = replace(seen[name], later=answer.readings)
    elif head in seen:
        checks = [check for check in checks if check.name not in ("reach", "errors")]
    return rule(checks, seen, names, lost, unread, remedies)


def meeting_place(head: Seen, reached: str | None) -> tuple[list[str], int]:
    """Host 0's addresses, best first, and a port that is free there."""
    try:
        devices = parse(head.reading("netdevs").value())
        port = int(head.value("port"))
    except (Unread, TypeError):
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
