"""Rounds of pairs: every host measures the way to another one, all at once, a visit a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dispatcher.checks.check import Asked, Seen
from dispatcher.checks.pair_ranking import Pair
from dispatcher.checks.reading import Reading
from dispatcher.model.host_part import Host
from dispatcher.runner.examine import meeting_place
from dispatcher.runner.surveys import survey
from dispatcher.transport.base import Transport

#: seconds that each direction of a pair is measured
SECONDS = 0.4

#: where each host can be called: (address, port)
Places = Mapping[int, tuple[str, int]]


def find_places(
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
    places, problems = {}, {}
    for at, answer in enumerate(answers):
        seen = Seen(hosts[at].name, answer.readings, asked=Asked(iface=iface))
        addresses, port = meeting_place(seen, answer.address)
        if answer.problem:
            problems[at] = answer.problem
        elif not addresses or not port:
            problems[at] = f"no address on {iface}" if iface else "no address to call"
        else:
            places[at] = (addresses[0], port)
    return places, problems


def play_round(
    hosts: Sequence[Host],
    places: Places,
    pairs: Sequence[tuple[int, int]],
    transport_for: Callable[[Host], Transport],
    *,
    limit: float,
    connect: float,
) -> list[Pair]:
    """What ``pairs`` (numbers of hosts) measured, all at once. limit: seconds for each."""
    playing = sorted(host for pair in pairs for host in pair)
    order = {host: at for at, host in enumerate(playing)}
    table: dict[str, list[Any]] = {}
    for a, b in pairs:
        address, port = places[b]
        table[str(order[b])] = ["listen", address, port]
        table[str(order[a])] = ["call", address, port]
    reading = ["pair", "call", ["pair", table, SECONDS, limit], limit + 1.0, 4096]
    answers = survey(
        [hosts[host] for host in playing], [reading], transport_for,
        seconds=limit + 4.0, connect=connect, more=("pair",),
    )  # fmt: skip
    said = {
        host: _said(answer.readings.get("pair"), answer.problem)
        for host, answer in zip(playing, answers, strict=True)
    }
    return [_pair(a, b, said[a], said[b]) for a, b in pairs]


def _said(reading: Reading | None, problem: str) -> tuple[float | None, float | None, str]:
    """(latency, bytes/s received, what went wrong) of one end."""
    if reading is None:
        return None, None, problem
    value = reading.value()
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], str):
        return None, None, reading.why()
    latency, rate = (float(v) if isinstance(v, int | float) and v >= 0 else None for v in value[:2])
    return latency, rate, value[2]


def _pair(
    a: int,
    b: int,
    caller: tuple[float | None, float | None, str],
    listener: tuple[float | None, float | None, str],
) -> Pair:
    return Pair(a, b, caller[0], listener[1], caller[1], caller[2] or listener[2])
