"""The programs of a job: one, or several side by side (MPMD), each with its own ranks.

All ranks are one world and count through the parts in their order; on a host the local ranks do
the same. A part takes slots that those before it have left, on the hosts that it names or on all:
``np`` ranks; or ``nproc_per_node`` on each of its hosts; or, with neither, as many as its hosts
have slots. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dispatcher.model.arguments import Arguments
from dispatcher.model.errors import (
    ConflictingOptions,
    MissingArgument,
    NoHosts,
    TooManyRanks,
    UnknownHost,
    UsageError,
)
from dispatcher.model.frozen import Value, value
from dispatcher.model.hostset import fold
from dispatcher.model.names import MOST_RANKS, plural, quoted
from dispatcher.plan.job.placement import Ranks, TooFewSlots, parse_ranks, ranks_of, shares

if TYPE_CHECKING:
    from dispatcher.plan.job.devices import NodePlan

#: characters of a part's name that labels show
LONGEST_NAME = 24
#: programs of one job at most
MOST_PARTS = 256


@value
class Program(Value):
    """The program of each rank: a Python script, a module (``-m``), or any command.

    argv[0] is the script, the module's name, or the program; the rest are its
    arguments, passed on byte for byte.
    """

    kind: Literal["script", "module", "command"]
    argv: tuple[str, ...]


#: what ``--wrap`` looks like
WRAP = "--wrap '0:nsys profile -o report-%q{RANK}'"


def parse_wrap(text: str, size: int | None = None) -> tuple[Ranks, tuple[str, ...]]:
    """The ranks and the words of ``RANKS:COMMAND``, in a world of ``size`` ranks if that is known.

    Raises: UsageError.
    """
    import shlex  # few runs need it

    ranks, colon, command = text.partition(":")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--wrap: {quoted(text)}: {error}", hint=WRAP) from None
    if not colon or not words or not words[0]:
        raise UsageError(f"--wrap: not RANKS:COMMAND: {quoted(text)}", hint=WRAP)
    try:
        return parse_ranks(ranks, "--wrap", size), tuple(words)
    except UsageError as error:
        raise UsageError(error.message, hint=WRAP) from None


@value
class Part(Arguments):
    """One program of several, with its own options.

    argv, kind: as for ``request``. np, nproc_per_node: ranks in all, or on each of its hosts.
    hosts: the job's hosts that it runs on, and how many ranks at most, None for as many as
    there are slots; (): on all. cwd: from the job's folder on. exports, env_files: on top of the
    job's; python: in place of the job's.
    """

    argv: tuple[str, ...]
    kind: Literal["script", "module", "command"] = "script"
    np: int | None = None
    nproc_per_node: int | None = None
    hosts: tuple[tuple[str, int | None], ...] = ()
    cwd: str | None = None
    python: str | None = None
    exports: tuple[str, ...] = ()
    env_files: tuple[tuple[str, bytes | str], ...] = ()

    @property
    def program(self) -> Program:
        return Program(self.kind, tuple(self.argv))


@value
class PartPlan(Value):
    """A part as planned. name: for messages, unique in the job; "" of a program alone.

    cwd, python, exports: given to its ranks. first, size: its ranks, 0 while the plan is open.
    """

    name: str
    program: Program
    python: str
    cwd: str
    exports: tuple[tuple[str, str], ...] = ()
    np: int | None = None
    nproc_per_node: int | None = None
    hosts: tuple[tuple[str, int | None], ...] = ()
    first: int = 0
    size: int = 0

    @property
    def takes_the_rest(self) -> bool:
        """Whether it has all slots that others leave."""
        return _is_open(self)

    def most_on(self, host: str) -> int | None:
        """How many of its ranks ``host`` may have; None for no bound but the slots."""
        return dict(self.hosts).get(host) if self.hosts else None

    def runs_on(self, host: str) -> bool:
        """Whether it may have ranks on ``host``."""
        return not self.hosts or host in dict(self.hosts)


def _is_open(part: Part | PartPlan) -> bool:
    """Whether its number of ranks is unset, even host by host."""
    counted = part.hosts and all(most is not None for _, most in part.hosts)
    return part.np is None and part.nproc_per_node is None and not counted


def check(parts: Sequence[Part], *, numbers: bool) -> None:
    """Check that these ``parts`` can make a job. numbers: the job itself sets the number of ranks.

    Raises: UsageError.
    """
    if numbers:
        raise ConflictingOptions(
            "several programs: each says how many ranks it has, the job does not",
            hint="--np 2 ./a : --np 6 ./b",
        )
    if len(parts) > MOST_PARTS:
        raise UsageError(f"{len(parts)} programs: a job has {MOST_PARTS} at most")
    open_ones = []
    for name, part in zip(names(parts), parts, strict=True):
        if not part.argv or not part.argv[0]:
            raise MissingArgument("an empty program among several", hint="--np 2 ./a : --np 6 ./b")
        for text in (*part.argv, part.python or "", part.cwd or ""):
            if "\0" in text:
                raise UsageError(f"a NUL byte in {quoted(text)}: no program can be given one")
        if part.python is not None and (not part.python or part.python.startswith("-")):
            raise UsageError(f"{name}: --python: not a program: {quoted(part.python)}")
        for flag, number in (("--np", part.np), ("--nproc-per-node", part.nproc_per_node)):
            if number is not None and not 1 <= number <= MOST_RANKS:
                raise UsageError(f"{name}: {flag}: {number} is not between 1 and {MOST_RANKS}")
        if _is_open(part):
            open_ones.append(name)
    if len(open_ones) > 1:
        raise MissingArgument(
            f"{' and '.join(open_ones[:2])}: how many ranks has each? "
            "Only one of several programs can take all slots that are left",
            hint="--np 2 ./a : --np 6 ./b",
        )


def names(parts: Sequence[Part | PartPlan]) -> tuple[str, ...]:
    """A readable name of each: its program, without folders and ``.py``; numbered if equal."""
    found: list[str] = []
    for part in parts:
        program = part.program
        word = (program.argv or ("",))[0]
        tail = word.rpartition("." if program.kind == "module" else "/")[2].removesuffix(".py")
        plain = re.sub(r"[^A-Za-z0-9._+-]", "_", tail)[:LONGEST_NAME] or "part"
        alike = sum(one == plain or one.startswith(f"{plain}#") for one in found)
        found.append(f"{plain}#{alike + 1}" if alike else plain)
    return tuple(found)


def folder(cwd: str, own: str | None) -> str:
    """Where a part runs in the job's folder ``cwd``, if it names ``own``."""
    return posixpath.join(cwd, own) if own else cwd


def placed(
    parts: Sequence[PartPlan],
    nodes: Sequence[NodePlan],
    *,
    map_by: str,
    rank_by: str,
    oversubscribe: bool,
) -> tuple[tuple[PartPlan, ...], tuple[tuple[int, ...], ...]]:
    """``parts`` with their ranks, and the ranks of each of ``nodes`` in order of local rank.

    Raises: PlanError when they do not fit.
    """
    free = [len(node.slots) or max(1, sum(_each(part, node) for part in parts)) for node in nodes]

    def shared_out(order: Sequence[int]) -> dict[int, tuple[int, ...]]:
        taken = [0] * len(nodes)
        found: dict[int, tuple[int, ...]] = {}
        for index in order:
            found[index] = _counts(parts[index], nodes, free, taken, map_by, oversubscribe)
            taken = [have + more for have, more in zip(taken, found[index], strict=True)]
        return found

    counts = shared_out(sorted(range(len(parts)), key=lambda index: parts[index].takes_the_rest))
    rest = next((index for index, part in enumerate(parts) if part.takes_the_rest), None)
    if rest is not None:  # as many as are left, but in its turn, if that goes
        parts = [*parts[:rest], replace(parts[rest], np=sum(counts[rest])), *parts[rest + 1 :]]
        with suppress(TooManyRanks):
            counts = shared_out(range(len(parts)))
    ranks: list[tuple[int, ...]] = [()] * len(nodes)
    done: list[PartPlan] = []
    first = 0
    for index, part in enumerate(parts):
        own = ranks_of(counts[index], rank_by)
        ranks = [
            (*have, *(first + rank for rank in more)) for have, more in zip(ranks, own, strict=True)
        ]
        done.append(replace(part, first=first, size=sum(counts[index])))
        first += done[-1].size
    return tuple(done), tuple(ranks)


def _each(part: PartPlan, node: NodePlan) -> int:
    """The number of ranks of ``part`` that was set for ``node``."""
    if not part.runs_on(node.host.name):
        return 0
    return part.nproc_per_node or part.most_on(node.host.name) or 0


def _counts(
    part: PartPlan,
    nodes: Sequence[NodePlan],
    free: Sequence[int],
    taken: Sequence[int],
    map_by: str,
    oversubscribe: bool,
) -> tuple[int, ...]:
    """How many ranks of ``part`` each node gets. taken: ranks that other parts have on it."""
    allowed = [part.runs_on(node.host.name) for node in nodes]
    hosts = [node.host.name for node, may in zip(nodes, allowed, strict=True) if may]
    if not hosts:
        gone = fold(name for name, _ in part.hosts)
        raise NoHosts(f"{part.name}: its hosts are not among the job's hosts: {gone}")
    room: list[int] = []
    most: list[int | None] = []
    for node, slots, used, may in zip(nodes, free, taken, allowed, strict=True):
        own = part.nproc_per_node or part.most_on(node.host.name)
        left = max(0, slots - used)
        bounds = [own] if own is not None else []
        if node.host.max_slots is not None:
            bounds.append(max(0, node.host.max_slots - used))
        room.append(min([left, *bounds]) if may else 0)
        most.append((min(bounds) if bounds else None) if may else 0)
    if part.np is not None:
        asked = part.np
    elif part.takes_the_rest:
        asked = sum(room)
    else:
        asked = sum(_each(part, node) for node in nodes)
    try:
        found = shares(room, asked, map_by=map_by, most=most, oversubscribe=oversubscribe)
    except TooFewSlots as full:
        left = full.most if oversubscribe and full.most is not None else full.free
        raise _full(part.name, full.asked, left, hosts, oversubscribe) from None
    if not asked:
        raise _full(part.name, 1, 0, hosts, oversubscribe)
    return found


def _full(
    name: str, asked: int, left: int, hosts: Sequence[str], oversubscribe: bool
) -> TooManyRanks:
    ranks = plural(asked, "rank")
    slots = f"{left or 'no'} slot{'s' if left != 1 else ''}"
    why = "may be taken" if oversubscribe else "are left" if left != 1 else "is left"
    hint = None if oversubscribe else "--oversubscribe, or fewer ranks for one of the programs"
    return TooManyRanks(f"{name}: {ranks}, but {slots} {why} for it on {fold(hosts)}", hint=hint)


def check_hosts(parts: Sequence[PartPlan], hosts: Sequence[str]) -> None:
    """Check that all hosts that ``parts`` name are ``hosts``. Raises: UnknownHost."""
    for part in parts:
        strange = [name for name, _ in part.hosts if name not in hosts]
        if strange:
            raise UnknownHost(f"{part.name}: {fold(strange)}: none of the job's hosts")


def by_part(parts: Sequence[PartPlan], hosts: Sequence[str]) -> list[int]:
    """Which of ``hosts`` some part may run on, the first part's hosts in front."""
    found: list[int] = []
    for part in parts:
        found += [at for at, host in enumerate(hosts) if at not in found and part.runs_on(host)]
    return found
