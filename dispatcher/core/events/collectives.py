"""Finds the collective in which a job hangs, by torch's flight recorders; reads NCCL's RAS. Pure.

Ranks call the collectives of a group in one order. So the ranks that have not called the number at
which others wait are those that are waited for; torch's ``fr_trace`` reasons in the same way.
``read_ras`` reads RAS's answer to ``verbose status``. Source: ``src/ras/client_support.cc`` of
NCCL 2.30.7, and the samples of its guide. Texts come from hosts: unknown lines are left out,
and sinks sanitize the rest. Reasons: docs/design/hangs.md.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any

from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model.formats import HungCollective

#: groups of a rank, collectives of a group and characters of a name that are read at most
MOST_GROUPS, MOST_CALLS, LONGEST = 256, 64, 120
#: groups that all ranks of a host together may report by a mere number of members, which takes a
#: few bytes and is looked up rank by rank: the world, and a dozen copies of it by libraries
MOST_WORLDS = 64
#: collectives that all ranks of a host together may report, and how many each group counts as: 180
#: bytes and 700 are kept for a dozen bytes that were sent
MOST_TOLD, GROUP_COUNTS = 1 << 15, 4


@value
class Collective(Value):
    """Collective ``sequence`` of ``group``, which some ranks are in and which does not end.

    name: the call of most of them, with its tensors, ``gloo:all_reduce Float[8]``. entered: ranks
    in it. missing: members that have not called it. unknown: members without a readable recorder.
    differing: ranks of ``entered`` that called something else: (that name, ranks).
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
    return [placement.rank_name(rank) for rank in ranks]


@value
class Recording(Value):
    """One rank's record of one group. calls: sequence number -> (name, whether it is done).

    first: how many of the first ranks are members, as all are in the world; 0 where ``members``
    lists them.
    """

    group: str
    first: int
    members: tuple[int, ...]
    calls: Mapping[int, tuple[str, bool]]

    @property
    def last(self) -> int:
        return max(self.calls, default=0)

    @property
    def waits_in(self) -> int | None:
        """The number of its first call that is not done; None if all are."""
        return min((number for number, (_, done) in self.calls.items() if not done), default=None)


#: identifies a group: name, library (``nccl``), how many of the first ranks, members
GroupKey = tuple[str, str, int, tuple[int, ...]]


def read(text: bytes) -> tuple[int, dict[GroupKey, Recording]]:
    """Read torch's number of the rank, and its recordings by group.

    ``{"rank": 0, "groups": [["0", "default_pg", 2, [[4, "gloo:all_reduce Float[8]", false]]]]}``:
    members are numbers, or how many of the first ranks. A name alone is not a group: torch gives
    all groups of one ``split_group`` the same. Raises: ValueError for anything else.
    """
    try:
        content = json.loads(text)
        rank, groups = content["rank"], content["groups"][:MOST_GROUPS]
        found = {}
        for key, description, members, calls in groups:
            first, members = (members, ()) if isinstance(members, int) else (0, members)
            known = str(description)[:LONGEST] not in ("", "undefined")
            label = f"group {str(key)[:LONGEST]}" + f" ({description})"[:LONGEST] * known
            called = {
                _number(n): (str(name)[:LONGEST], bool(done))
                for n, name, done in calls[-MOST_CALLS:]
            }
            first, members = _number(first), tuple(map(_number, members))
            library = next((name.partition(":")[0] for name, _ in called.values()), "")
            found[str(key), library, first, members] = Recording(label, first, members, called)
        return _number(rank), found
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"not a flight recorder's record: {error}") from None


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("not a number")
    return value


def stuck(hosts: Iterable[Mapping[int, bytes]], ranks: Iterable[int]) -> Collective | None:
    """Find the collective in which the job hangs; None if no recorder shows one.

    hosts: for each host rank -> a text for ``read``; a text that cannot be read, or is beyond
    ``MOST_WORLDS`` or ``MOST_TOLD``, is ignored. ranks: all of the job. Of several the one
    whose missing ranks wait in none themselves, then the one that most ranks are in.
    """
    found_by_rank: dict[int, dict[GroupKey, Recording]] = {}
    by_torch = {rank: rank for rank in ranks}  # torch's number of a rank -> ours
    for texts in hosts:
        worlds: set[GroupKey] = set()
        n_told = 0
        for rank, text in sorted(texts.items()):
            try:
                number, groups = read(text)
            except ValueError:
                continue
            worlds |= {key for key, one in groups.items() if one.first}
            n_told += sum(GROUP_COUNTS + len(one.calls) for one in groups.values())
            if len(worlds) <= MOST_WORLDS and n_told <= MOST_TOLD:
                found_by_rank[rank], by_torch[number] = groups, rank
    told = dict(sorted(found_by_rank.items()))
    by_key: dict[GroupKey, dict[int, Recording]] = {}
    for rank, groups in told.items():
        for key, recording in groups.items():
            by_key.setdefault(key, {})[rank] = recording
    by_name: dict[tuple[str, str], list[GroupKey]] = {}
    for key in by_key:
        by_name.setdefault(key[:2], []).append(key)
    for (name, library), keys in by_name.items():
        left = (name, library, 0, ())  # as a rank has it that knows the members no longer
        if len(keys) == 2 and left in keys:
            keys.remove(left)
            by_key[keys[0]].update(by_key.pop(left))
    ordered = sorted(by_torch.items())
    found = []
    for (_, _, first, each), within in by_key.items():
        members = {rank for _, rank in ordered[: bisect_left(ordered, (first,))]}
        members |= {by_torch[number] for number in each if number in by_torch}
        stands = _stuck_in(within, members, told)
        if stands is not None:
            found.append(stands)
    waiting = {rank for one in found for rank in one.entered}
    return min(
        found,
        key=lambda one: (not waiting.isdisjoint(one.blamed), -len(one.entered), one.group),
        default=None,
    )


def _stuck_in(
    within: Mapping[int, Recording], members: Iterable[int], told: Container[int]
) -> Collective | None:
    waits = {rank: one.waits_in for rank, one in within.items()}
    sequence = min((number for number in waits.values() if number is not None), default=None)
    if sequence is None:
        return None
    every = sorted({*members, *within})
    names = {rank: one.calls[sequence][0] for rank, one in within.items() if sequence in one.calls}
    (usual, _), *others = Counter(names.values()).most_common()
    return Collective(
        next(iter(within.values())).group,
        sequence,
        usual,
        tuple(rank for rank, one in sorted(within.items()) if one.last >= sequence),
        tuple(
            rank for rank in every
            if rank in told and (rank not in within or within[rank].last < sequence)
        ),
        tuple(rank for rank in every if rank not in told),
        tuple(
            (name, tuple(rank for rank, own in sorted(names.items()) if own == name))
            for name, _ in others
        ),
    )  # fmt: skip


#: processes of each kind that are kept
MOST = 256

_PROCESS = re.compile(r"  Process (\d{1,9}) on node (\S{1,80})")
_RANK = re.compile(
    r"  Rank \d{1,9}(?: has (?:launched up to operation (\d{1,18})|(not launched) any operations))?"
    r" -- GPU .{1,80}? managed by process (\d{1,9}) on node (\S{1,80})"
)
#: an error that ranks have reported, or their status; of one rank with its process
_SAID = re.compile(
    r"  (?:\d{1,9} ranks (?:reported|have status)|Rank \d{1,9} (?:reported|has status)) "
    r"([A-Z][\w ,]{0,60}?)(?: -- GPU .{1,80}? managed by process (\d{1,9}) on node (\S{1,80}))?$"
)
#: the error of a rank that has lost another: the other rank, or the network, is to blame
REMOTE = "Remote process error"
#: states of a communicator that is as it should be, or not known; and that its rank has left
_USUAL, _LEFT = frozenset({"RUNNING", "UNKNOWN"}), frozenset({"FINALIZE", "NOCOMM"})
_COUNT = re.compile(
    r"  \d{1,9} ranks? ha(?:ve|s) (?:launched up to operation (\d{1,18})|not launched)"
)


@value
class Process(Value):
    """A process that RAS names: ``pid`` on the host of address ``host``."""

    pid: int
    host: str


@value
class RasReply(Value):
    """The processes that RAS reports as troubled.

    dead: out of reach for so long that RAS has given them up. silent: did not answer now.
    behind: have launched fewer collectives than others of their communicator. said: the errors
    that processes have reported, and states of their communicators other than RUNNING.
    """

    dead: tuple[Process, ...] = ()
    silent: tuple[Process, ...] = ()
    behind: tuple[Process, ...] = ()
    said: tuple[tuple[Process, str], ...] = ()

    @property
    def blamed(self) -> tuple[Process, ...]:
        """The processes with the most severe of these troubles."""
        failed = tuple(one for one, words in self.said if words not in {*_LEFT, REMOTE})
        left = tuple(one for one, words in self.said if words in _LEFT)
        reported = tuple(one for one, words in self.said if words == REMOTE)
        return self.dead or failed or self.silent or self.behind or left or reported


def read_ras(text: bytes) -> RasReply:
    """Read RAS's answer; lines of another form are ignored."""
    found: dict[str, dict[Process, None]] = {"DEAD": {}, "INCOMPLETE": {}}
    behind: dict[Process, None] = {}
    section = ""
    counts: dict[Process, int] | None = None  # of those listed of one kind of collective
    every: set[int] = set()  # all counts of that kind
    count = 0
    said: dict[Process, str] = {}
    words = ""  # of the ranks that are listed

    def close() -> None:
        for process, own in (counts or {}).items():
            if own == min(every) < max(every):
                behind[process] = None

    for line in text.decode("utf-8", "backslashreplace").splitlines():
        if not line.startswith("  ") or "ranks have different" in line:
            close()
            counts, every = {} if line.endswith("operation counts") else None, set()
            words = ""
            if line and line[0] != " ":
                section = line
        elif (match := _COUNT.match(line)) and counts is not None:
            count = int(match[1] or 0)
            every.add(count)
        elif counts is None and (match := _SAID.match(line)):
            words = "" if match[1] in _USUAL else match[1]
            if words and match[2]:
                said[Process(int(match[2]), match[3])] = words
        elif counts is None and words and (match := _RANK.match(line)):
            said[Process(int(match[3]), match[4])] = words
        elif (match := _RANK.match(line)) and counts is not None:
            own = int(match[1]) if match[1] else 0 if match[2] else count
            counts[Process(int(match[3]), match[4])] = own
            every.add(own)
        elif (match := _PROCESS.match(line)) and section in found:
            found[section][Process(int(match[1]), match[2])] = None
    close()
    dead, silent = found.values()
    named = [tuple(each)[:MOST] for each in (dead, silent, behind)]
    return RasReply(named[0], named[1], named[2], tuple(said.items())[:MOST])
