"""One command once on every host, and the result of each host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from signal import Signals

from dispatcher.core.events.exec_events import HostDone
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.host import Host
from dispatcher.output.exec.host_results import HostResult
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.remote.protocol.frames import STDERR, STDOUT
from dispatcher.runner.exec.exec_loop import HANDLED, ExecRunner
from dispatcher.runner.exec.stdio import StdioHandler
from dispatcher.transport.base import Transport

#: bytes kept of one stream of one host
MOST = 4 << 20


class ExecSession(Sink):
    """Carries out one ``ExecPlan``, and gives the result of each host.

    transport_for, stdio, ask: see ``ExecRunner``. sinks: get its events, too. streams: whose output
    the results hold. say: writes a line about a sink that failed.
    """

    def __init__(
        self,
        exec_plan: ExecPlan,
        transport_for: Callable[[Host], Transport],
        sinks: Sequence[Sink] = (),
        *,
        streams: frozenset[int] = frozenset(),
        stdio: StdioHandler | None = None,
        ask: Callable[[bool], bytes | None] = lambda again: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._names = exec_plan.names
        self._streams = streams
        self._kept: dict[tuple[int, int], bytearray] = {}
        self._dropped: Counter[tuple[int, int]] = Counter()
        self._seconds: dict[int, float] = {}
        self._runner = ExecRunner(
            exec_plan, transport_for, [self, *sinks], stdio=stdio, ask=ask,
            sink_failed=lambda sink, error: say(f"error: {type(sink).__name__}: {error}"),
        )  # fmt: skip
        self.tell = self._runner.tell

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream not in self._streams:
            return
        held = self._kept.setdefault((rank, stream), bytearray())
        left = MOST - len(held)
        held += data[:left]
        self._dropped[rank, stream] += max(0, len(data) - left)

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, HostDone):
            self._seconds[entry.event.node] = entry.t

    def run(self, handled: Sequence[Signals] = HANDLED) -> tuple[HostResult, ...]:
        """Run to the end; the results in the hosts' order. handled: see ``ExecRunner``."""
        outcomes = self._runner.run(handled)
        return tuple(
            HostResult(
                name, node, outcome, self._seconds.get(node, 0.0),
                bytes(self._kept.pop((node, STDOUT), b"")),
                bytes(self._kept.pop((node, STDERR), b"")),
                self._dropped[node, STDOUT], self._dropped[node, STDERR],
            )
            for node, (name, outcome) in enumerate(zip(self._names, outcomes, strict=True))
        )  # fmt: skip
