"""What the ranks of a run are called on the screen: ``[3]``, ``[gpu01:3]``, ``[0-63]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dispatcher.model.hostset import fold
from dispatcher.output.text.fold import fold_numbers
from dispatcher.plan.job.worlds import FIRST, name


class Homes(Protocol):
    """Where ranks run: ``home`` is the host's number and the rank's own there."""

    def home(self, rank: int) -> tuple[int, int]: ...
    def host_of(self, rank: int) -> str: ...


class RankLabels:
    """kind: ``rank``, ``host`` or ``none``. runner: gives the run, which is made later."""

    def __init__(self, kind: str, runner: Callable[[], Homes]) -> None:
        self._kind = kind
        self._runner = runner

    def of(self, rank: int) -> str:
        if self._kind == "none":
            return ""
        if self._kind == "rank":
            return f"[{name(rank)}]"
        runner = self._runner()
        own = name(rank) if rank >= FIRST else runner.home(rank)[1]
        return f"[{runner.host_of(rank)}:{own}]"

    def of_many(self, ranks: Sequence[int]) -> str:
        """One label for several ranks."""
        if self._kind == "none":
            return ""
        if self._kind == "rank":
            return f"[{fold_numbers(ranks, name)}]"
        runner = self._runner()
        return f"[{fold({runner.host_of(rank) for rank in ranks})}]"

    def hue(self, rank: int) -> int:
        """What chooses the colour of a label: the host where labels name hosts, else the rank."""
        by_host = self._kind == "host" and rank < FIRST
        return self._runner().home(rank)[0] if by_host else rank
