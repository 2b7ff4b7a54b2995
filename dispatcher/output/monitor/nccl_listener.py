"""Reads in the ranks' output which network NCCL uses (NCCL_DEBUG=INFO), and reports outliers.

To search all output costs time. If NCCL_DEBUG is not set for a host, only the first ``FIRST`` bytes
of each rank are searched. Else blocks are searched for ``NEEDLE`` until every host has named its
network and ``SETTLED`` seconds brought nothing new, or ``SILENT_LIMIT`` if some hosts are silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from dispatcher.core.events.monitor_events import NetworksDiffer
from dispatcher.core.events.run_events import Entry, Event, RankSpawned, RanksPlaced, Sink
from dispatcher.model.hostset import fold
from dispatcher.output.run_state import RunState
from dispatcher.output.text.sanitize import sanitize_text

if TYPE_CHECKING:
    from dispatcher.checks.nccl_log import Networks, NetworkUse

NEEDLE = b"NCCL "
#: bytes of a rank that are searched if NCCL_DEBUG is not set; of an unfinished line
FIRST, MOST_LINE = 64 << 10, 4096
#: seconds without news after which the findings are reported, if all or only some hosts named one
SETTLED, SILENT_LIMIT = 2.0, 15.0
#: values of NCCL_DEBUG with which NCCL prints its network
SPEAKS = ("INFO", "TRACE")


class NcclListener(Sink):
    """Finds hosts whose NCCL uses another network than the others.

    settings: of each host, the variables of its ranks. active: see ``Networks``. tell: called with
    the event once for each finding; it comes back on the spine.
    """

    def __init__(
        self,
        state: RunState,
        settings: Sequence[Mapping[str, str]],
        tell: Callable[[Event], None],
        active: Mapping[int, str] | None = None,
    ) -> None:
        self._state = state
        self._settings = settings
        self._active = active or {}
        self._tell = tell
        self._asked = any(one.get("NCCL_DEBUG", "").upper() in SPEAKS for one in settings)
        self._begin()

    def _begin(self) -> None:
        self._networks: Networks | None = None
        self._looked: dict[int, int] = {}  # rank -> bytes, if NCCL_DEBUG is not set
        self._rests: dict[tuple[int, int], bytes] = {}
        self._news: float | None = None  # when the last line came; None when it was reported
        self._all: bool | None = None  # whether every host has named its network; None: not known
        self._told: set[int] = set()
        self._deaf = False

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if self._deaf:
            return
        if not self._asked:
            looked = self._looked.get(rank, 0)
            if looked >= FIRST:
                return
            self._looked[rank] = looked + len(data)
        rest = self._rests.pop((rank, stream), None)
        if rest is not None:
            data = rest + data
        end = data.rfind(b"\n") + 1
        if end < len(data):
            self._rests[rank, stream] = data[end : end + MOST_LINE]
        if data.find(NEEDLE, 0, end) >= 0:
            self._read(rank, data[:end])

    def _read(self, rank: int, block: bytes) -> None:
        if self._networks is None:
            from dispatcher.checks.nccl_log import Networks

            self._networks = Networks(self._settings, self._active)
            for placed, known in self._state.ranks.items():
                self._networks.place(placed, known.node)
        for line in (one for one in block.split(b"\n") if NEEDLE in one):
            if self._networks.take(rank, line[:MOST_LINE].decode("utf-8", "replace")):
                self._asked = True
                self._news = self._state.clock()

    def event(self, entry: Entry) -> None:
        match entry.event:
            case RanksPlaced():  # also after a restart
                self._begin()
            case RankSpawned(node, rank) if self._networks is not None:
                self._networks.place(rank, node)  # its first output may be here already

    def tick(self, now: float) -> bool:
        if self._news is None or self._networks is None:
            return False
        silence = self._state.clock() - self._news
        if silence < SETTLED:
            self._all = None
            return True
        if self._all is None:  # asked once in a silence: there may be many ranks
            self._all = self._networks.everybody
        if not self._all and silence < SILENT_LIMIT:
            return True
        self._news = None
        self._deaf = self._all
        for differing in self._networks.differing():
            if not self._told.issuperset(differing.nodes):
                self._told.update(differing.nodes)
                self._tell(NetworksDiffer(differing.nodes, differing.what))
        return False

    def networks(self) -> Mapping[int, NetworkUse]:
        """Host -> the network that NCCL uses."""
        return {} if self._networks is None else self._networks.hosts()

    def lines(self, hosts: Sequence[str]) -> list[str]:
        """The findings, for the verdict. hosts: number -> name."""
        differing = [] if self._networks is None else self._networks.differing()
        found = []
        for one in differing:
            note, hint = network_text(NetworksDiffer(one.nodes, one.what), hosts)
            found += [f"note: {note}", f"  hint: {hint}"]
        return found


def network_text(event: NetworksDiffer, hosts: Sequence[str]) -> tuple[str, str]:
    """A finding with its hosts, and a command that shows more. hosts: number -> name."""
    where = fold(hosts[node] for node in event.nodes)
    return f"NCCL: {where} {sanitize_text(event.what)}", f"dispatch check --nccl -H {quote(where)}"
