"""Where ranks are in their programs, and what asks for it: events of their own.

Apart from ``events``, since most runs never see one. What a host sends is raw text, which
``frames`` reads; the journal has its size only.
"""

from __future__ import annotations

from dispatcher.core.events.run_events import Event, OfAttempt
from dispatcher.core.events.stack_frames import Group
from dispatcher.model.frozen import Value, value


@value
class RankStack(Value):
    """Where a rank is. how: what said so, one of ``frames.HOW``; text: its words, cut.

    pid: the process it is about, on its host. state: the letter of proc(5).
    """

    rank: int
    pid: int
    state: str
    how: str
    text: bytes


@value
class Flight(Value):
    """A dump of torch's flight recorder: ``size`` bytes at ``path`` there; data: b"" if too many.

    Its bytes are a pickle: they are kept as they are and never read here.
    """

    rank: int
    path: str
    size: int
    data: bytes


@value
class NodeStacks(OfAttempt):
    """The answer of a host to gathering ``number``. ras: what NCCL's RAS says, b"" for nothing."""

    node: int
    number: int
    ranks: tuple[RankStack, ...]
    ras: bytes = b""
    flights: tuple[Flight, ...] = ()


@value
class StacksGathered(Event):
    """Gathering ``number`` is over. late: hosts that have not answered in time."""

    number: int
    groups: tuple[Group, ...]
    late: tuple[int, ...] = ()


@value
class OutputSeen(Event):
    """Some rank wrote ``ago`` seconds before, or what it wrote has waited here until then.

    progress: it was the line that shows progress. Told only when it is of use: long after
    the last.
    """

    ago: float
    progress: bool = False
