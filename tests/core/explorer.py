"""Every order of events in a small world, each state once.

A world is a machine of the core and what its edge would do: ``steps`` says what can happen next,
``take`` lets one of these happen and checks the rules, ``key`` tells it from others. ``explore``
takes every step from every state that can be reached. Of the whole graph it checks
that from every state the end is reached by what is left to happen without more faults, and by time
alone from those that are ``bounded``.

Times are kept apart only as far as they lie ahead: of what is over only its order counts.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

from typing_extensions import Self

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.verdicts import Cause, RestartAsked, Verdict
from dispatcher.core.run.tables import Deadlines
from dispatcher.model.frozen import Value
from dispatcher.plan.exec_plan import ExecLimits
from dispatcher.plan.job.job_plan import JobPlan, NodePlan
from dispatcher.plan.job.request import Limits, Restarts

#: when worlds begin; greater numbers in a machine's state are times
BEGIN = 1e6

Step = tuple[Any, ...]
#: the step in which time passes to the next deadline
WAIT = ("wait",)


class Broken(AssertionError):
    """A rule does not hold. steps: the shortest way there."""

    def __init__(self, why: str, steps: Sequence[Step] = ()) -> None:
        super().__init__("\n  ".join([why, *map(repr, steps)]))
        self.why, self.steps = why, tuple(steps)


def need(holds: object, why: str) -> None:
    """Raises: Broken."""
    if not holds:
        raise Broken(why)


class World(Protocol):
    """One state. faults: how many more may happen."""

    faults: int

    @property
    def code(self) -> int | None:
        """How it ended, None before."""

    @property
    def bounded(self) -> bool:
        """Whether from here on time alone must end it."""

    def steps(self) -> Iterable[Step]:
        """All that can happen next."""

    def take(self, step: Step) -> None:
        """Let ``step`` happen. Raises: Broken."""

    def copy(self) -> Self: ...

    def key(self) -> Step:
        """Equal for states from which the same can follow."""


# -- states ---------------------------------------------------------------------------------------


def clone(thing: Any, memo: dict[int, Any]) -> Any:
    """A copy of a machine: what never changes is shared, what is shared stays so."""
    kind = type(thing)
    if kind in _SHARED:
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    if kind is dict:
        made = memo[id(thing)] = thing.copy()
        for key, item in thing.items():
            if type(item) not in _SHARED:
                made[key] = clone(item, memo)
        return made
    if kind in (set, Counter, deque):
        made = memo[id(thing)] = thing.copy()
        return made
    if kind is Deadlines:
        made = memo[id(thing)] = Deadlines()
        for key, when in thing.items():
            made[key] = when
        return made
    if kind is list:
        made = memo[id(thing)] = [clone(item, memo) for item in thing]
        return made
    if issubclass(kind, (Value, JobPlan, type, int)) or callable(thing):
        _SHARED.add(kind)
        return thing
    made = memo[id(thing)] = object.__new__(kind)
    fields = made.__dict__
    for name, item in thing.__dict__.items():
        fields[name] = item if type(item) in _SHARED else clone(item, memo)
    return made


#: types whose values never change, as far as the machines are concerned
_SHARED: set[type] = {str, int, float, bytes, bool, tuple, frozenset, type(None)}


def freeze(thing: Any, now: float, seen: dict[int, int]) -> Any:
    """What tells a state from others, as something that can be a key."""
    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if kind is float:
        if thing < BEGIN / 2 or thing == math.inf:
            return thing
        return round(thing - now, 3) if thing > now else -1.0
    if kind is tuple:
        return tuple([freeze(item, now, seen) for item in thing])
    if kind in _NAMED:
        return _NAMED[kind](thing)
    if id(thing) in seen:
        return seen[id(thing)]
    seen[id(thing)] = len(seen)
    if kind is list or kind is deque:
        return tuple([freeze(item, now, seen) for item in thing])
    if kind is set or kind is frozenset:
        return frozenset([freeze(item, now, seen) for item in thing])
    if isinstance(thing, dict):
        return frozenset([(key, freeze(item, now, seen)) for key, item in thing.items()])
    if isinstance(thing, int):
        return int(thing)
    if callable(thing):
        return getattr(thing, "__name__", "")
    return kind.__name__, *[freeze(item, now, seen) for item in thing.__dict__.values()]


_PLAIN = {str, int, bytes, bool, type(None)}
#: what stands for things that are the same in all states, or are told apart by less
_NAMED: dict[type, Callable[[Any], Any]] = {
    JobPlan: lambda plan: tuple([_NAMED[NodePlan](node) for node in plan.nodes]),
    NodePlan: lambda node: (node.host.name, tuple(node.ranks)),
    ev.Facts: lambda known: known.hostname,
    Limits: lambda limits: None,
    Restarts: lambda rules: None,
    ExecLimits: lambda limits: None,
    Verdict: lambda end: (
        end.exit_code or len(end.statuses), _cause(end.cause), tuple(end.lost),
    ),
}  # fmt: skip


def _cause(cause: Cause | None) -> Step:
    """What ``cause`` decides: the exit code, whether the ranks start again, and where."""
    asked = isinstance(cause, RestartAsked)
    nodes = tuple(getattr(cause, "failures", ()))
    final = cause is not None and cause.no_restart is not None
    code = 0 if cause is None else cause.exit_code
    return code, asked, final, getattr(cause, "node", None), nodes


_NAMED.update(dict.fromkeys(get_args(Cause), _cause))


@dataclass
class Explored:
    """states: how many there are. steps: between them. ends: states in which the run is over."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    codes: set[int] = field(default_factory=set)


def explore(
    first: World,
    most: float = math.inf,
    progress: Callable[[Explored], None] = lambda found: None,
    *,
    deep: bool = False,
) -> Explored:
    """Every state that ``first`` can come to. Raises: Broken, with the shortest way to it.

    most: give up after so many states; then the end is not checked. deep: depth first, which keeps
    few worlds at a time, but tells any way to what is broken.
    """
    graph = _Graph(first)
    found = Explored()
    waiting = deque([(0, first.copy())])
    while waiting and len(graph) < most:
        number, world = waiting.pop() if deep else waiting.popleft()
        faults, steps = world.faults, list(world.steps())
        for step in steps:
            found.steps += 1
            other = world if step is steps[-1] else world.copy()
            try:
                other.take(step)
            except Exception as error:
                raise Broken(str(error), graph.way(number, step)) from error
            at, is_new = graph.add(number, step, other)
            if is_new and other.code is None:
                waiting.append((at, other))
            elif is_new:
                found.codes.add(other.code or 0)
            if is_new and at % 10_000 == 0:
                found.states = at
                progress(found)
            if other.faults == faults:
                graph.link(number, at, is_wait=step == WAIT)
    found.states, found.ends = len(graph), len(graph.ends)
    if not waiting:
        graph.check_ends()
    return found


class _Graph:
    """The states by their numbers, and the steps between them; some 200 bytes each."""

    def __init__(self, first: World) -> None:
        self._numbers = {hash(first.key()): 0}
        self._from = array("L", [0])  # state -> the one from which it was found
        self._by: list[Step] = [("begin",)]  # ... and by which step
        self._steps: dict[Step, Step] = {}  # each once
        self._edges = array("L"), array("L")  # steps that are no fault: from, to
        self._waits: dict[int, int] = {}  # state -> where time alone leads
        self._bounded: list[int] = []
        self.ends: list[int] = []

    def __len__(self) -> int:
        return len(self._from)

    def add(self, number: int, step: Step, world: World) -> tuple[int, bool]:
        """The number of ``world``, to which ``step`` led from ``number``, and whether it is new."""
        key = hash(world.key())
        at = self._numbers.get(key)
        if at is not None:
            return at, False
        at = self._numbers[key] = len(self._from)
        self._from.append(number)
        self._by.append(self._steps.setdefault(step, step))
        if world.code is not None:
            self.ends.append(at)
        elif world.bounded:
            self._bounded.append(at)
        return at, True

    def link(self, number: int, at: int, *, is_wait: bool) -> None:
        """A step without a fault leads from ``number`` to ``at``."""
        self._edges[0].append(number)
        self._edges[1].append(at)
        if is_wait:
            self._waits[number] = at

    def way(self, number: int, *last: Step) -> list[Step]:
        """The steps to state ``number``, and ``last``."""
        steps = list(last)
        while number:
            steps.insert(0, self._by[number])
            number = self._from[number]
        return steps

    def check_ends(self) -> None:
        """From every state an end is reached without more faults. Raises: Broken."""
        reached = self._reached()
        if (never := reached.find(0)) >= 0:
            raise Broken("J-7, E-5: nothing that can happen ends it", self.way(never))
        over = set(self.ends)
        for number in self._bounded:
            at, seen = number, set[int]()
            while at not in over and at not in seen and at in self._waits:
                seen.add(at)
                at = self._waits[at]
            if at not in over:
                raise Broken("J-7, E-5: time alone does not end it", self.way(number, WAIT))
            over |= seen

    def _reached(self) -> bytearray:
        """1 for each state from which an end can be reached, else 0."""
        starts = array("L", bytes(8 * (len(self) + 1)))  # of the steps to a state, in ``before``
        for at in self._edges[1]:
            starts[at + 1] += 1
        for at in range(len(self)):
            starts[at + 1] += starts[at]
        free, before = starts[:], array("L", bytes(8 * len(self._edges[0])))
        for number, at in zip(*self._edges, strict=True):
            before[free[at]] = number
            free[at] += 1
        reached, rest = bytearray(len(self)), list(self.ends)
        for at in rest:
            reached[at] = 1
        while rest:
            at = rest.pop()
            for number in before[starts[at] : starts[at + 1]]:
                if not reached[number]:
                    reached[number] = 1
                    rest.append(number)
        return reached
