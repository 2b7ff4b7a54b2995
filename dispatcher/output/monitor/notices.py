"""Reports silent ranks, and errors (Xids) and slowdowns that a GPU's driver records.

Each report is an event that comes back on the spine, to the journal and the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatcher.checks.gpu import HARD_SLOW, SOFT_SLOW
from dispatcher.checks.xid import MEANING
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import GpuTroubled, NodeSampled, RanksStalled
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.output.run_state import RunState
from dispatcher.output.text.fold import fold_ranks

_REASONS = {**HARD_SLOW, **SOFT_SLOW}


class StallDetector(Sink):
    """Reports ranks that have written nothing for ``after`` seconds, once for each silence."""

    def __init__(self, state: RunState, after: float, tell: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._after = after
        self._tell = tell
        self._told: dict[int, float] = {}  # rank -> when the silence began that was reported

    def tick(self, now: float) -> bool:
        if self._state.stopping is not None:  # ranks of a lost host have no end
            return False
        due = self._state.clock() - self._after
        waiting = {
            rank: one.wrote
            for rank, one in self._state.ranks.items()
            if one.alive and one.wrote != self._told.get(rank)
        }
        silent = {rank: wrote for rank, wrote in waiting.items() if wrote <= due}
        if silent:
            self._told.update(silent)
            self._tell(RanksStalled(tuple(sorted(silent)), self._after))
        return len(silent) < len(waiting)


class GpuNotes(Sink):
    """Sends ``GpuTroubled``, each trouble once an attempt.

    It reads the samples of hosts, so hosts need NVML, but not root.
    """

    def __init__(self, tell: Callable[[ev.Event], None]) -> None:
        self._tell = tell
        self._told: set[tuple[int, int, int, int]] = set()

    def event(self, entry: Entry) -> None:
        match entry.event:
            case ev.RanksPlaced():
                self._told.clear()
            case NodeSampled():
                for gpu in entry.event.gpus:
                    held = [bit for bit in _REASONS if (gpu.reasons or 0) & bit]
                    for xid, reason in [(xid, 0) for xid in gpu.xids] + [(0, bit) for bit in held]:
                        self._say(entry.event, gpu.index, xid, reason)

    def _say(self, sample: NodeSampled, gpu: int, xid: int, reason: int) -> None:
        key = sample.node, gpu, xid, reason
        if key not in self._told:
            self._told.add(key)
            ranks = tuple(one.rank for one in sample.ranks if gpu in (one.own or ()))
            self._tell(GpuTroubled(sample.node, gpu, ranks, xid, reason))


def gpu_text(event: GpuTroubled, hosts: Sequence[str]) -> str:
    """``GPU 2 of n1 (rank 2): Xid 79 (GPU has fallen off the bus)``."""
    whose = f" ({fold_ranks(event.ranks)})" if event.ranks else ""
    what = f"Xid {event.xid}" if event.xid else f"slowed down: {_REASONS[event.reason]}"
    means = f" ({MEANING[event.xid]})" if event.xid in MEANING else ""
    return f"GPU {event.gpu} of {hosts[event.node]}{whose}: {what}{means}"
