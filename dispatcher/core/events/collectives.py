"""The collective in which a job stands still, from what torch's flight recorders hold. Pure.

A rank tells of each process group which collectives it has called last, by their sequence number
in the group, and which of them are done (``remote.rank.sitecustomize`` writes that, as JSON). Ranks
call the collectives of a group in one order: so who has not called the number at which others
wait is the one they wait for. torch's ``fr_trace`` reasons in the same way.

Texts come from hosts: what does not fit is left out, and whoever shows them sanitizes them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model.formats import HungCollective

#: groups of a rank, collectives of a group and characters of a name that are read at most
MOST_GROUPS, MOST_CALLS, LONGEST = 256, 64, 120


@value
class Collective(Value):
    """Number ``sequence`` of ``group``, which some ranks are in and which does not end.

    name: what most of them called, with its tensors, ``gloo:all_reduce Float[8]``. entered: who
    is in it. missing: members that have not called it. unknown: members of which no recorder
    tells. differing: those of ``entered`` that called something else, and what: (name, ranks).
    """

    group: str
    sequence: int
    name: str
    entered: tuple[int, ...]
    missing: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    differing: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def blamed(self) -> tuple[int, ...]:
        """The ranks that the others wait for; () where all are in it."""
        wrong = tuple(sorted(rank for _, ranks in self.differing for rank in ranks))
        return self.missing or wrong or self.unknown

    def plain(self) -> HungCollective:
        """The collective as reports have it."""
        return {
            "group": self.group,
            "sequence": self.sequence,
            "name": self.name,
            "entered": _names(self.entered),
            "missing": _names(self.missing),
            "unknown": _names(self.unknown),
            "differing": [{"name": name, "ranks": _names(ranks)} for name, ranks in self.differing],
        }


def _names(ranks: Iterable[int]) -> list[str]:
    return [placement.name(rank) for rank in ranks]


@value
class Recording(Value):
    """What one rank tells of one group. calls: sequence number -> (name, whether it is done)."""

    group: str
    members: tuple[int, ...]
    calls: Mapping[int, tuple[str, bool]]

    @property
    def last(self) -> int:
        """The number of the last collective that it called; 0 for none."""
        return max(self.calls, default=0)

    @property
    def waits_in(self) -> int | None:
        """The number of the first that it called and that is not done."""
        return min((number for number, (_, done) in self.calls.items() if not done), default=None)


def read(text: bytes) -> tuple[int, dict[str, Recording]]:
    """torch's number of the rank, and its recordings by name of the group.

    ``{"rank": 0, "groups": [["0", "default_pg", 2, [[4, "gloo:all_reduce Float[8]", false]]]]}``:
    members are numbers, or how many of the first ranks. Raises: ValueError for anything else.
    """
    try:
        content = json.loads(text)
        rank, groups = content["rank"], content["groups"][:MOST_GROUPS]
        found = {}
        for key, description, members, calls in groups:
            if isinstance(members, int):
                members = range(min(members, 1 << 20))
            known = str(description)[:LONGEST] not in ("", "undefined")
            label = f"group {str(key)[:LONGEST]}" + f" ({description})"[:LONGEST] * known
            called = {
                _number(n): (str(name)[:LONGEST], bool(done))
                for n, name, done in calls[-MOST_CALLS:]
            }
            found[str(key)] = Recording(label, tuple(_number(one) for one in members), called)
        return _number(rank), found
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"not what a flight recorder's rank writes: {error}") from None


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("not a number")
    return value


def stuck(texts: Mapping[int, bytes]) -> Collective | None:
    """The collective that the others stand still for; None where none is told of.

    texts: rank -> what ``read`` reads; what cannot be read counts as nothing. Of several the
    one whose missing ranks wait in none themselves, then the one that most ranks are in.
    """
    told: dict[int, dict[str, Recording]] = {}
    by_torch: dict[int, int] = {}  # torch's number of a rank -> ours
    for rank, text in sorted(texts.items()):
        try:
            number, told[rank] = read(text)
        except ValueError:
            continue
        by_torch[number] = rank
    found = []
    for key in dict.fromkeys(key for groups in told.values() for key in groups):
        within = {rank: groups[key] for rank, groups in told.items() if key in groups}
        members = {by_torch.get(one, one) for each in within.values() for one in each.members}
        one = _stuck_in(within, members, told)
        if one is not None:
            found.append(one)
    waiting = {rank for one in found for rank in one.entered}
    return min(
        found,
        key=lambda one: (not waiting.isdisjoint(one.blamed), -len(one.entered), one.group),
        default=None,
    )


def _stuck_in(
    within: Mapping[int, Recording], members: Iterable[int], told: Iterable[int]
) -> Collective | None:
    waits = {rank: one.waits_in for rank, one in within.items()}
    sequence = min((number for number in waits.values() if number is not None), default=None)
    if sequence is None:
        return None
    every = {*members, *within}
    names = {rank: one.calls[sequence][0] for rank, one in within.items() if sequence in one.calls}
    (usual, _), *others = Counter(names.values()).most_common()
    return Collective(
        next(iter(within.values())).group,
        sequence,
        usual,
        tuple(rank for rank, one in sorted(within.items()) if one.last >= sequence),
        tuple(
            rank for rank in sorted(every & {*told})
            if rank not in within or within[rank].last < sequence
        ),
        tuple(sorted(every - {*told})),
        tuple(
            (name, tuple(rank for rank, own in sorted(names.items()) if own == name))
            for name, _ in others
        ),
    )  # fmt: skip
