"""``--include`` and ``--exclude``: which hosts, and which of their slots; as DeepSpeed has it::

    filter = spec *( "@" spec )
    spec   = host [ ":" slot *( "," slot ) ]     host may be a range: n[01-04]
    slot   = number [ "-" number ]  /  a GPU's name (GPU-..., MIG-...)

Hosts keep the order of the hostfile, slots come sorted; an unknown host or slot is an error. With
``gpus=GPU-...`` in the hostfile a number counts positions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dispatcher.model import hostset
from dispatcher.model.errors import PlanError, UnknownHost, UsageError
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host
from dispatcher.model.names import BadName, is_ipv6, nearest, quoted
from dispatcher.plan.hosts.hostfile_line import MOST_SLOTS

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?\Z")
_NAMED = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9/-]{1,100}\Z")


@value
class Choice(Value):
    """A host that takes part, with the slots it offers; None: all, number not yet known.

    named: the user has named these GPUs, else they are only counted.
    """

    host: Host
    slots: tuple[str, ...] | None
    named: bool = False


def slots_of(host: Host) -> tuple[str, ...] | None:
    """Names of a host's slots in order, or None while their number is not known."""
    if host.gpus is not None:
        return host.gpus
    return None if host.slots is None else tuple(map(str, range(host.slots)))


def choose_hosts(
    hosts: Sequence[Host], include: str | None = None, exclude: str | None = None
) -> tuple[Choice, ...]:
    """The hosts and slots that the filters leave, in the hosts' order; may be empty.

    Raises: UsageError for a malformed filter; PlanError for an unknown host or slot (the message
    names the known hosts), or when slots are excluded on a host without a known number of slots.
    """
    wanted = None if include is None else _parsed(include, "--include", hosts)
    unwanted = {} if exclude is None else _parsed(exclude, "--exclude", hosts)
    left = []
    for host in hosts:
        slots, named = slots_of(host), host.gpus is not None
        if wanted is not None:
            if host.name not in wanted:
                continue
            ids = wanted[host.name]
            slots, named = _included(host, ids), named or ids is not None
        if host.name in unwanted:
            ids = unwanted[host.name]
            if ids is None:
                continue
            if slots is None:
                raise PlanError(
                    f"--exclude: {host.name}: its slots are not known",
                    hint=f"say how many in the hostfile: {host.name} slots=8",
                )
            known, named = slots_of(host), True
            gone = ids if known is None else {_slot(host, known, name) for name in ids}
            slots = tuple(slot for slot in slots if slot not in gone)
            if not slots:
                continue
        left.append(Choice(host, slots, named))
    return tuple(left)


def fitting(text: str, hosts: Sequence[Host], source: str, *, strict: bool) -> str | None:
    """The filter ``text`` of a file, as far as it is about ``hosts``; None: not at all.

    source: the place that has it. strict: no other host may be in it; hosts typed on
    the command line are not those it was written for.
    Raises: UsageError for a malformed filter, PlanError for an unknown host.
    """
    names = {host.name for host in hosts}
    found = _parsed(text, source, hosts, strict=strict)
    specs = [
        name if ids is None else f"{f'[{name}]' if is_ipv6(name) else name}:{','.join(sorted(ids))}"
        for name, ids in found.items()
        if name in names
    ]
    return "@".join(specs) or None


def _included(host: Host, ids: set[str] | None) -> tuple[str, ...] | None:
    slots = slots_of(host)
    if ids is None:
        return slots
    if slots is None:
        return tuple(sorted(ids, key=lambda name: (len(name), name)))
    wanted = {_slot(host, slots, name) for name in ids}
    return tuple(slot for slot in slots if slot in wanted)


def _slot(host: Host, slots: tuple[str, ...], name: str) -> str:
    """The slot of ``host`` that the user called ``name``."""
    if name in slots:
        return name
    if name.isdigit() and not slots[0].isdigit() and int(name) < len(slots):
        return slots[int(name)]
    known = ",".join(slots) if len(slots) < 9 else f"{slots[0]} to {slots[-1]}"
    raise UnknownHost(f"{host.name}: no slot {quoted(name)} (it has {known})")


def _parsed(
    text: str, flag: str, hosts: Sequence[Host], *, strict: bool = True
) -> dict[str, set[str] | None]:
    """Slots by host name as the filter says; None: the whole host. strict: hosts are known."""
    if not text:
        raise UsageError(f"{flag}: empty filter", hint=f"leave it out, or: {flag} host:0,1")
    known = {host.name for host in hosts}
    found: dict[str, set[str] | None] = {}
    for spec in text.split("@"):
        name, slots = _split(spec, flag)
        if slots is not None and "," in re.sub(r"\[[^\]]*\]", "", name):
            raise UsageError(
                f"{flag}: {quoted(spec)}: several hosts before ':'", hint="join specs by @"
            )
        ids = None if slots is None else _ids(slots, spec, flag)
        try:
            names = [name] if is_ipv6(name) else hostset.expand(name)
        except BadName as bad:
            raise UsageError(f"{flag}: {quoted(spec)}: {bad.message}", hint=bad.hint) from None
        for host in names:
            if strict and host not in known:
                raise _unknown(host, known, flag)
            before = found.get(host, set())
            found[host] = None if ids is None or before is None else before | ids
    return found


def _split(spec: str, flag: str) -> tuple[str, str | None]:
    """Host part and slot part of one spec; the slot part is None without a ``:``."""
    if not spec:
        raise UsageError(f"{flag}: a host is missing beside '@'")
    if re.search(r"\s", spec):
        raise UsageError(f"{flag}: {quoted(spec)}: a blank inside", hint="write host:0,1@host2")
    inside, bracket, tail = spec[1:].partition("]")
    if spec.startswith("[") and bracket and ":" in inside:
        if tail and not tail.startswith(":"):
            raise UsageError(f"{flag}: {quoted(spec)}: text after the bracketed address")
        return inside, tail[1:] if tail else None
    if is_ipv6(spec):
        return spec, None
    name, colon, slots = spec.partition(":")
    return name, slots if colon else None


def _ids(text: str, spec: str, flag: str) -> set[str]:
    ids: set[str] = set()
    for item in text.split(","):
        span = _RANGE.match(item)
        if span and item.isascii():
            first, last = int(span[1]), int(span[2] or span[1])
            if first <= last <= MOST_SLOTS:
                ids |= {str(number) for number in range(first, last + 1)}
                continue
        elif _NAMED.match(item):
            ids.add(item)
            continue
        raise UsageError(
            f"{flag}: {quoted(spec)}: not a slot: {quoted(item)}",
            hint=f"slots are numbers or GPU names: {flag} host:0,2",
        )
    return ids


def _unknown(name: str, known: set[str], flag: str) -> PlanError:
    near = nearest(name, sorted(known))
    names = hostset.fold(sorted(known))
    names = names if len(names) <= 300 else names[:300] + "..."
    return UnknownHost(
        f"{flag}: no host {quoted(name)} (known: {names})",
        hint=f"did you mean {near}?" if near else None,
    )
