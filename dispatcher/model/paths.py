"""``{host}`` and ``{rank}`` in the names of files: what they mean, filled in before any host is
touched.

``{host}`` is the host's name as the user wrote it. ``{rank}`` stands for each rank of the host
in turn, as a run would place them: in the hosts' order, as many as each has slots. In a
source it names that many sources; in a destination each rank's sources go to a place of
their own. ``{{host}}`` is the text ``{host}``.

A host's name is checked where it is read (``model.names``), and once more here, where it
becomes part of a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dispatcher.model.errors import UsageError
from dispatcher.model.host_part import Host

_WORD = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")

HOST, RANK = "host", "rank"

#: (destination, sources)
Group = tuple[str, tuple[str, ...]]


def check(text: str, what: str) -> None:
    """Raises: UsageError when ``text``, called ``what``, has a placeholder we do not know."""
    for found in _WORD.finditer(text):
        if found[2] not in (None, HOST, RANK):
            raise UsageError(
                f"{what}: unknown placeholder: {found[0]}",
                hint=f"{{host}} and {{rank}} are known; {{{found[0]}}} is the text itself",
            )


def uses(text: str, name: str) -> bool:
    """Whether the placeholder ``name`` is in ``text``."""
    return any(found[2] == name for found in _WORD.finditer(text))


def fill(text: str, host: str, rank: int | None = None) -> str:
    """``text`` with the placeholders filled in. Raises: UsageError for a name unfit for a path."""
    if host in ("", ".", "..") or "/" in host or "\0" in host:
        raise UsageError(f"host {host!r}: cannot be part of a path")
    values = {HOST: host, RANK: str(rank)}
    return _WORD.sub(lambda found: f"{{{found[1]}}}" if found[1] else values[found[2]], text)


def ranks_of(hosts: Sequence[Host]) -> list[range]:
    """The ranks of each host. Raises: UsageError when a host does not say how many it has."""
    ranges, next_rank = [], 0
    for host in hosts:
        if host.slots is None:
            raise UsageError(
                f"{{rank}}: how many ranks has {host.name}?",
                hint=f"slots in the hostfile, or -H {host.name}:1",
            )
        ranges.append(range(next_rank, next_rank + host.slots))
        next_rank += host.slots
    return ranges


def groups(sources: Sequence[str], dest: str, hosts: Sequence[Host]) -> list[tuple[Group, ...]]:
    """What goes where, a tuple of groups a host.

    Raises: UsageError for an unknown placeholder, and for ``{rank}`` without slots.
    """
    for text in (*sources, dest):
        check(text, text)
    ranked = any(uses(text, RANK) for text in (*sources, dest))
    ranges = ranks_of(hosts) if ranked else [range(1)] * len(hosts)
    filled = []
    for host, ranks in zip(hosts, ranges, strict=True):
        if uses(dest, RANK):
            each = [
                (fill(dest, host.name, rank), _fill_all(sources, host.name, [rank]))
                for rank in ranks
            ]
        else:
            each = [(fill(dest, host.name), _fill_all(sources, host.name, ranks))]
        filled.append(tuple(each))
    return filled


def _fill_all(texts: Iterable[str], host: str, ranks: Iterable[int]) -> tuple[str, ...]:
    """The texts filled in, those with ``{rank}`` once a rank."""
    ranks = list(ranks)
    return tuple(
        fill(text, host, rank)
        for text in texts
        for rank in (ranks if uses(text, RANK) else ranks[:1])
    )
