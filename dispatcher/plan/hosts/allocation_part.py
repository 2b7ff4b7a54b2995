"""Hosts from the surroundings, for a command without ``-H``: ``discover``.

Inside a batch job the hosts are known already. Every source is looked at (see
``allocators``), because a stale one is common: a container image with a
``/job/hostfile`` inside a Slurm job. Sources that agree are one; two that
disagree are an error that names both, never a silent choice.
"""

from __future__ import annotations

import ipaddress

from dispatcher.model.errors import UsageError
from dispatcher.model.host_part import Hostlist
from dispatcher.model.hostset import fold
from dispatcher.plan.hosts import allocation
from dispatcher.plan.hosts.allocation import Grant, Surroundings

_SOURCES = (
    allocation.slurm,
    allocation.pbs,
    allocation.lsf_file,
    allocation.lsf,
    allocation.sge,
    allocation.flux,
    allocation.mpi_operator,
    *(allocation.variable(name) for name in allocation.HOSTFILE_VARIABLES),
    allocation.deepspeed,
)


def discover(place: Surroundings) -> Hostlist | None:
    """The hosts we were given, with a notice of who said so; None outside any allocation.

    Raises: UsageError when a source cannot be read or two disagree; HostfileError
    when the text of one is wrong.
    """
    grants = [grant for grant in (source(place) for source in _SOURCES) if grant is not None]
    if not grants:
        return None
    chosen = next((grant for grant in grants if grant.counted), grants[0])
    for other in grants:
        why = _difference(chosen, other)
        if why is not None:
            raise UsageError(
                f"two sources of hosts disagree: {_told(chosen)} and {_told(other)}: {why}",
                hint=f"choose: -H {_spelled(chosen)}, or -H {_spelled(other)}",
            )
    agreeing = [grant.words for grant in grants if grant is not chosen]
    also = f"; the same in {', '.join(agreeing)}" if agreeing else ""
    told = f"hosts of {_told(chosen)}: {_slots(chosen)}{also}"
    return Hostlist(chosen.hosts, (told, *chosen.notices))


def _told(grant: Grant) -> str:
    return grant.who if grant.who == grant.words else f"{grant.who} ({grant.words})"


def _slots(grant: Grant) -> str:
    """Folded names with their slots and what counted them, for people."""
    names = fold([host.name for host in grant.hosts])
    if not grant.counted:
        return f"{names}, a slot per GPU"
    by = "" if grant.counted == grant.words else f" ({grant.counted})"
    counts = {host.slots for host in grant.hosts}
    if len(counts) == 1:
        return f"{names}, {counts.pop()} slots each{by}"
    return f"{names}, {sum(host.slots or 0 for host in grant.hosts)} slots{by}"


def _difference(one: Grant, other: Grant) -> str | None:
    """What two sources say differently, or None."""
    mine = {_short(host.name): host for host in one.hosts}
    theirs = {_short(host.name): host for host in other.hosts}
    for only, grant in (
        ([h.name for key, h in mine.items() if key not in theirs], one),
        ([h.name for key, h in theirs.items() if key not in mine], other),
    ):
        if only:
            return f"only {grant.words} has {fold(only)}"
    for key, host in mine.items():
        again = theirs[key]
        if host.slots is not None and again.slots is not None and host.slots != again.slots:
            return f"{host.name} has {host.slots} slots in one and {again.slots} in the other"
    return None


def _short(name: str) -> str:
    """The name without its domain: batch systems and pods differ in whether they write it."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.partition(".")[0]
    return name


def _spelled(grant: Grant) -> str:
    """The grant as a value of ``-H`` that can be pasted."""
    by_slots: dict[int | None, list[str]] = {}
    for host in grant.hosts:
        by_slots.setdefault(host.slots, []).append(host.name)
    parts = [
        fold(names) if slots is None else ",".join(f"{part}:{slots}" for part in _parts(names))
        for slots, names in by_slots.items()
    ]
    return f"'{','.join(parts)}'"


def _parts(names: list[str]) -> list[str]:
    """The folded text cut at its top-level commas."""
    parts, depth, start = [], 0, 0
    text = fold(names)
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
