"""Checks the reports of an agent, turns them into events, and limits them; pure.

A report has the name and the fields of its event (``REPORTS``), less node and attempt, which are
known from the link. Everything in it came from a host and is hostile until shown otherwise: the
annotations of the event's class bound each field (``model.bounds``), a field that the class does
not have is refused, and a rank counts only if it was given to this very node. A value comes as a
dict of its fields, values in a list as rows of theirs.

Reports need no credit, so a host that lies could fill our memory: docs/design/security.md has the
bounds of ``Quota``, ``Turns`` and ``Notices``.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.model.bounds import BODY_LIMIT, LIST_LIMIT, Bound, OwnRank, Pid, at_most, own_rank
from dispatcher.model.frozen import Value, value
from dispatcher.model.names import size
from dispatcher.remote.protocol.packing import PackError, unpack

#: values in one report; a sample of 4096 ranks has 40,000
MOST_VALUES = 1 << 16

#: the events that agents report
REPORTS: tuple[type[ev.Event], ...] = (
    ev.NodeReady, ev.NodeProbed, ev.NodeHeard, ev.NodePaused, ev.NodeDying, ev.NodeSwept,
    ev.NodeNoticed, ev.RankFailedToStart, ev.RankExited, ev.RankLeaked, ev.InputClosed,
    mon.GpusUsed, mon.NodeSampled, mon.NodeStacks, mon.NodeVersions, mpi_events.PmiCommitted,
    mpi_events.PmiAborted, mpi_events.PmiAsked, mpi_events.PmiSpawnAsked, mpi_events.PmiWaiting,
    mpi_events.PmixWanted, mpi_events.PmixFailed, mpi_events.MpiFound, mpi_events.MpiInside,
)  # fmt: skip
_CLASSES = {cls.name: cls for cls in REPORTS}


@value
class Spawned(Value):
    """One report for all ranks that were started together: (rank, process id)."""

    pids: tuple[tuple[OwnRank, Pid], ...]


class ReportError(ValueError):
    """A report that breaks the protocol; its link cannot be trusted any more."""


def read(node: int, ranks: Container[int], body: bytes, attempt: int = 0) -> list[ev.Event]:
    """Read one control frame of ``node``, which was given ``ranks`` in ``attempt``; its events.

    Raises: ReportError.
    """
    if len(body) > BODY_LIMIT:
        raise ReportError(f"report too long: {len(body)} bytes")
    try:
        message = unpack(body, MOST_VALUES)
    except PackError as error:
        raise ReportError(f"malformed report: {error}") from None
    name = message.pop("type", None) if isinstance(message, dict) else None
    if not isinstance(name, str):
        raise ReportError("report without a type")
    of = {"attempt": attempt} if attempt else {}
    try:
        if name == ev.RankSpawned.name:
            pids = _made(Spawned, message, ranks, {}).pids
            return [ev.RankSpawned(node, rank, pid, **of) for rank, pid in pids]
        cls = _CLASSES.get(name)
        if cls is None:
            raise ValueError(f"unknown report {name[:40]!r}")  # noqa: TRY301
        link = of if issubclass(cls, ev.OfAttempt) else {}
        return [_made(cls, message, ranks, {"node": node, **link})]
    except ValueError as error:
        raise ReportError(str(error)) from None


@cache
def fields_of(cls: Any) -> tuple[dict[str, Bound], frozenset[str]]:
    """The bounds of the fields that a report has of ``cls``, and those of them that it must have.

    The link knows ``node`` and ``attempt`` where they have no bound. A field with a default may be
    left out, unless it is a rank.
    """
    types = ev.types_of(cls, bounded=True)
    fields = [n for n in cls._defaults if n not in ("node", "attempt") or types[n] is not int]
    needed = frozenset(n for n in fields if n in cls._required or types[n] == OwnRank)
    return {name: reader(types[name]) for name in fields}, needed


def _made(cls: Any, found: Any, ranks: Container[int], values: dict[str, Any]) -> Any:
    """The value of ``cls`` with the ``found`` fields, and the ``values`` that are known."""
    if type(found) is not dict:
        raise ValueError("not a dict")
    takes, needed = fields_of(cls)
    name = ""
    try:
        for name, item in found.items():
            values[name] = takes.get(name, _unknown)(item, ranks)
    except ValueError as error:
        where = "" if takes.get(name) is own_rank else f"{name[:40]}: "
        raise ValueError(f"{where}{error}") from None
    if not needed <= found.keys():
        raise ValueError(f"missing: {', '.join(sorted(needed - found.keys()))}")
    made = cls(**values)
    check = getattr(made, "check", None)
    if check is not None:
        check()
    return made


@cache
def reader(wanted: Any) -> Bound:
    """Return the bound of the type ``wanted``, an annotation. Raises: TypeError if it lacks one."""
    bounds: list[Any] = []
    if get_origin(wanted) is Annotated:
        wanted, *bounds = get_args(wanted)
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        (one,) = [part for part in parts if part is not NoneType]
        inner = reader(Annotated[one, bounds[0]] if bounds else one)
        return lambda found, ranks: None if found is None else inner(found, ranks)
    if origin is tuple:
        if parts[-1] is not Ellipsis:
            return _row([reader(part) for part in parts], tuple)
        (most,) = bounds or [at_most(LIST_LIMIT)]
        return _items(_item(parts[0]), most)
    if bounds:
        bound: Bound = bounds[0]
        return bound
    if wanted is bool:
        return _flag
    if _is_value(wanted):
        return lambda found, ranks: _made(wanted, found, ranks, {})
    raise TypeError(f"{wanted}: no bound")


def _is_value(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, Value)


def _item(wanted: Any) -> Bound:
    if _is_value(wanted):
        takes, _ = fields_of(wanted)
        return _row([*takes.values()], lambda values: wanted(*values))
    return reader(wanted)


def _items(take: Bound, most: int) -> Bound:
    def read(found: Any, ranks: Container[int]) -> tuple[Any, ...]:
        if type(found) is not list or len(found) > most:
            raise ValueError(f"not a list of at most {most}")
        return tuple([take(item, ranks) for item in found])

    return read


def _row(takes: list[Bound], make: Callable[[list[Any]], Any]) -> Bound:
    def read(found: Any, ranks: Container[int]) -> Any:
        if type(found) is not list or len(found) != len(takes):
            raise ValueError(f"not a row of {len(takes)}")
        return make([take(item, ranks) for take, item in zip(takes, found)])  # noqa: B905

    return read


def _unknown(found: Any, ranks: Container[int]) -> Any:
    raise ValueError("not a field of this report")


def _flag(found: Any, ranks: Container[int]) -> bool:
    if type(found) is not bool:
        raise ValueError("neither true nor false")
    return found


# -- how many reports ---------------------------------------------------------------------

#: what a report counts beside its bytes, in bytes; and a second of reading it, which is a third of
#: the time of its whole way: so ``RATE`` is a twentieth of a core
REPORT, SECOND = 2 << 10, 64 << 20
#: times its bytes that this time counts at most, of which the dearest report takes a quarter. Our
#: garbage collection falls into the time of the report that is read then, and may take seconds
DEAREST = 64
#: bytes a second that pass for ever, and how many may come at once
RATE, BURST = 1 << 20, 4 << 20
#: what passes at once when there is room again: else each report would wake its thread
SLICE = 64 << 10
#: seconds of more than that after which the link ends
PATIENCE = 5.0
#: what a byte of a report may become while it waits, and how much of one host's may wait
GROWTH, MOST_WAITING = 8, 8 << 20


class Quota:
    """The reports that one host may send besides output. The sinks' thread calls ``done``."""

    def __init__(self) -> None:
        self._level, self._at = 0.0, 0.0
        self._since: float | None = None  # when it began to be too much
        #: pieces and bytes of each kind, since then or since it was last little
        self._said: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._waiting: deque[tuple[ev.Event, int]] = deque()
        self._size = 0
        self._lock = threading.Lock()

    def said(self, what: str, nbytes: int, now: float, took: float = 0.0) -> None:
        """Count a report of kind ``what``. took: seconds of a core to read it.

        Raises: ReportError if it has been too much for long.
        """
        self._drain(now)
        self._level += nbytes + REPORT + min(took * SECOND, DEAREST * (nbytes + REPORT))
        self._said[what] += 1
        self._bytes[what] += nbytes
        if self._level <= BURST:
            return
        self._since = now if self._since is None else self._since
        if now - self._since > PATIENCE:
            most, count = self._said.most_common(1)[0]
            raise ReportError(
                f"a flood: {size(self._bytes[most])} of {most} in {count:,} pieces "
                f"within {now - self._since:.0f} s, more than any job brings"
            )

    def told(self, event: ev.Event, nbytes: int) -> None:
        """Count ``event``, made from ``nbytes`` bytes, as on its way to the sinks."""
        with self._lock:
            self._waiting.append((event, GROWTH * nbytes + REPORT))
            self._size += self._waiting[-1][1]

    def done(self, event: ev.Event) -> bool:
        """The sinks have taken ``event``, which may be another's; whether there is room again."""
        with self._lock:
            if not self._waiting or self._waiting[0][0] is not event:
                return False
            before = self._size
            self._size -= self._waiting.popleft()[1]
            return self._size < MOST_WAITING <= before

    @property
    def is_full(self) -> bool:
        """Whether to leave the link unread from now on; ``wait`` says for how long."""
        return self._level > BURST or self._size >= MOST_WAITING

    def wait(self, now: float) -> float:
        """Seconds to leave the link unread; infinity: until ``done`` says that there is room."""
        if self._size >= MOST_WAITING:
            return math.inf
        self._drain(now)
        return max(0.0, (self._level - BURST + SLICE) / RATE)

    def _drain(self, now: float) -> None:
        self._level = max(0.0, self._level - (now - self._at) * RATE)
        self._at = now
        if self._level < BURST // 2:
            self._since = None
            self._said.clear()
            self._bytes.clear()


#: reports of which a rank has one an attempt
_ONCE = (ev.RankExited, ev.RankLeaked, ev.InputClosed)
#: others of which a host has few in an attempt, and how many
_FEW: dict[type[ev.Event], int] = {
    ev.NodeProbed: 2, ev.NodeDying: 2, ev.NodeSwept: 16, mpi_events.PmixWanted: 2,
    mpi_events.PmixFailed: 2, mpi_events.MpiFound: 256, mon.NodeVersions: 4, mon.GpusUsed: 2,
}  # fmt: skip


class Turns:
    """The agent's reports about the present attempt, and the orders that it may answer."""

    def __init__(self) -> None:
        self._seen: set[tuple[type[ev.Event], int]] = set()
        self._few: Counter[type[ev.Event]] = Counter()
        self._n_asked = 0  # gatherings of stacks
        self._may_tell_ras = False

    def asked_for_stacks(self, *, ras: bool) -> None:
        """Let stacks come once; ras: with an answer of NCCL's RAS."""
        self._n_asked += 1
        self._may_tell_ras |= ras

    def begin(self) -> None:
        """Begin another attempt, in which all reports may come again."""
        self._seen.clear()
        self._few.clear()

    def check(self, event: ev.Event) -> None:
        """Note ``event``. Raises: ReportError if it is impossible after the reports and orders."""
        if isinstance(event, (ev.RankSpawned, ev.RankFailedToStart)):
            self._once(ev.RankSpawned, event.rank, event.name)
        elif isinstance(event, _ONCE):
            self._once(type(event), event.rank, event.name)
        elif type(event) in _FEW:
            self._few[type(event)] += 1
            if self._few[type(event)] > _FEW[type(event)]:
                raise ReportError(f"{event.name} more often than it can be")
        elif isinstance(event, mon.NodeStacks):
            if not self._n_asked:
                raise ReportError("stacks that were not asked for")
            self._n_asked -= 1
            if event.ras and not self._may_tell_ras:
                raise ReportError("an answer of RAS, which was not asked for")

    def _once(self, kind: type[ev.Event], rank: int, name: str) -> None:
        if (kind, rank) in self._seen:
            raise ReportError(f"{name} of rank {rank} for the second time")
        self._seen.add((kind, rank))


#: notices of a host that pass at once, and seconds until the next of those that do not
AT_ONCE, SECONDS = 20, 10.0


class Notices:
    """A host's notices: those beyond ``AT_ONCE`` pass one in ``SECONDS``, the rest is counted."""

    def __init__(self) -> None:
        self._room, self._at = float(AT_ONCE), 0.0
        self._left_out = 0

    def passed(self, node: int, events: Sequence[ev.Event], now: float) -> list[ev.Event]:
        """The ``events`` to pass on, with the number of notices left out before."""
        found: list[ev.Event] = []
        for event in events:
            if not isinstance(event, (ev.NodeNoticed, mpi_events.PmiWaiting)):
                found.append(event)
                continue
            self._room = min(AT_ONCE, self._room + (now - self._at) / SECONDS)
            self._at = now
            if self._room < 1:
                self._left_out += 1
                continue
            self._room -= 1
            found += [*self.left_out(node), event]
        return found

    def left_out(self, node: int) -> list[ev.Event]:
        """A notice with the number of notices left out since the last, if any were."""
        count, self._left_out = self._left_out, 0
        what = "notice was" if count == 1 else "notices were"
        return [ev.NodeNoticed(node, f"{count:,} more {what} left out")] if count else []
