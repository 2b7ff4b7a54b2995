"""Activity on its way to the core: heartbeats, output, progress lines, samples.

The threads of hosts and sinks note it without waking the loop. The loop collects it before the core
judges which hosts are late.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from dispatcher.bootstrap import payload
from dispatcher.core.events.actions import GatherStacks
from dispatcher.core.events.run_events import HostsSilent, NodesHeard
from dispatcher.remote.protocol.frames import control
from dispatcher.runner.run.agent_link import AgentLink


class Heartbeats:
    """Collects heartbeats from the hosts' threads; ``news`` makes one event of all.

    So a job that only runs costs the loop a look now and then, however many hosts it has.
    """

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._told: dict[int, float] = {}

    def note(self, node: int) -> None:
        """``node`` gave its beat now; from any thread."""
        self._last[node] = time.monotonic()

    def news(self, now: float) -> NodesHeard | None:
        """The nodes with a beat since the last call, and how long ago; None if there are none."""
        last = self._last.copy()  # at once: others go on to note
        new = {node: when for node, when in last.items() if when != self._told.get(node)}
        self._told = last
        ago = tuple(max(0.0, now - when) for when in new.values())
        return NodesHeard(tuple(new), ago) if new else None


#: seconds in which others may follow the first host that stops responding, or is heard again
FOLD = 1.0


class Silences:
    """Collects silent hosts from the hosts' threads; ``news`` folds them into few events.

    least: seconds of silence worth a word; most: those after which a host is lost.
    """

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self._since: dict[int, float] = {}
        self._told: dict[int, float] = {}
        self._when = math.inf  # when to report what is new

    def note(self, node: int, since: float | None) -> None:
        """Note that ``node`` is silent ``since`` then, None: it is heard; from its thread."""
        if since is None:
            self._since.pop(node, None)
        else:
            self._since.setdefault(node, since)

    def forget(self, node: int) -> None:
        """``node`` is given up."""
        self._since.pop(node, None)
        self._told.pop(node, None)

    def news(self, now: float) -> list[HostsSilent]:
        """The hosts that stopped responding since the last call, and that are heard again."""
        if not self._since and not self._told:
            return []
        since, told = self._since.copy(), self._told  # at once: others go on to note
        late = now - self._least
        new = {node: at for node, at in since.items() if at <= late and node not in told}
        back = {node: at for node, at in told.items() if node not in since}
        self._when = min(self._when, now + FOLD) if new or back else math.inf
        if now < self._when:
            return []
        self._when = math.inf
        self._told = {node: at for node, at in (told | new).items() if node in since}
        gone = now - max(new.values(), default=0.0)
        away = now - FOLD - min(back.values(), default=0.0)
        found = (new, gone, self._most), (back, away, 0.0)
        return [HostsSilent(tuple(sorted(who)), *times) for who, *times in found if who]


class Flow:
    """When ranks last wrote something; each number is written by one kind of threads only.

    While output waits here because the sinks do not take it, the ranks count as writing.
    """

    def __init__(self) -> None:
        self._given: dict[int, int] = {}  # node -> bytes; each written by its own thread
        self._taken = 0
        self._last = 0.0  # when something was given or taken
        self._last_progress = 0.0
        self._told = (0.0, 0.0)

    def given(self, node: int, nbytes: int) -> None:
        """Output of ``node`` has arrived; from its thread."""
        self._given[node] = self._given.get(node, 0) + nbytes
        self._last = time.monotonic()

    def taken(self, nbytes: int) -> None:
        """The sinks took ``nbytes``; from their thread."""
        self._taken += nbytes
        self._last = time.monotonic()

    def progressed(self) -> None:
        """A line that shows progress has arrived; from a host's thread."""
        self._last_progress = time.monotonic()

    def news(self, now: float) -> list[tuple[float, bool]]:
        """(seconds before ``now``, whether it was progress) of activity since the last call."""
        waits = sum(list(self._given.values())) > self._taken
        last, progress = now if waits else self._last, self._last_progress
        before, self._told = self._told, (last, progress)
        found = [(max(0.0, now - last), False)] if last > before[0] else []
        return found + ([(max(0.0, now - progress), True)] if progress > before[1] else [])


#: bytes of a line that the pattern sees at once: longer lines are searched in pieces, each with the
#: end of the last, since a pattern may take time by the square of its input
MOST_PENDING, OVERLAP = 4 << 10, 512


#: bytes kept of a pattern's match
MOST_SHOWN = 80


class ProgressLine:
    """Calls ``seen(node, rank, first, last match, part)`` for output with ``pattern`` in a line.

    ``part`` is (done, total) of the last match, or None.
    Each stream is fed by one thread only, so the pieces of its lines need no lock.
    """

    def __init__(
        self,
        pattern: str,
        seen: Callable[[int, int, str, str, tuple[float, float] | None], None],
    ) -> None:
        from dispatcher.core.events.progress import part_of  # few runs have a pattern

        self._part_of = part_of
        self._search = re.compile(pattern.encode("utf-8", "surrogateescape")).search
        self._seen = seen
        self._rests: dict[tuple[int, int], bytes] = {}

    def begin(self) -> None:
        """Ranks are about to be started: drop unfinished lines of the ranks before them."""
        self._rests.clear()

    def feed(self, node: int, rank: int, stream: int, data: bytes) -> None:
        """Look for the pattern in the next piece of a stream; from the host's thread."""
        key = (rank, stream)
        *lines, rest = (self._rests.get(key, b"") + data).replace(b"\r", b"\n").split(b"\n")
        if len(rest) > MOST_PENDING:
            lines.append(rest)
            rest = rest[-OVERLAP:]
        self._rests[key] = rest
        found = [match for line in lines for match in self._matches(line)]
        if found:
            first, last = (
                match[0][:MOST_SHOWN].decode("utf-8", "replace") for match in (found[0], found[-1])
            )
            self._seen(node, rank, first, last, self._part_of(found[-1]))

    def _matches(self, line: bytes) -> Iterator[re.Match[bytes]]:
        for at in range(0, max(1, len(line) - OVERLAP), MOST_PENDING - OVERLAP):
            if match := self._search(line, at, at + MOST_PENDING):
                yield match


#: modules of the agent that take samples
PARTS = ("probe.sampler", "probe.usage")
#: and modules that find out where ranks are
GATHERING = 30.0  # seconds that this may take
STACKS = ("host.tcp_peer", "probe.nccl_state", "probe.stack_dump")


class Sampling:
    """Orders agents to take samples: at the start of their ranks, or later when a client asks.

    The sampler also finds out where the ranks are, and restarts for that. every: seconds between
    two samples of a host; None until a client wants samples.
    """

    def __init__(self, every: float | None) -> None:
        self._every = every
        self._started: dict[int, AgentLink] = {}
        self._gathered: dict[int, float] = {}  # host -> when it was last asked for stacks

    def started(self, host: AgentLink, *, looks: bool = False) -> None:
        """The ranks of ``host`` have been ordered to start; looks: report ``GpusUsed``, too."""
        self._started[host.node] = host
        if looks:
            from dispatcher.checks.hardware.gpu_users import SCRIPT

            self._order(host, look=SCRIPT)
        elif self._every is not None:
            self._order(host)

    def ask(self, seconds: float) -> None:
        """Sample every ``seconds``, if that is not done more often already; for good."""
        if self._every is None or seconds < self._every:
            self._every = seconds
            for host in self._started.values():
                self._order(host)

    def gather(self, host: AgentLink, asked: GatherStacks) -> None:
        """Have ``host`` report where its ranks are; see ``NodeStacks``."""
        host.intake.turns.asked_for_stacks(ras=asked.ras)
        self._gathered[host.node] = time.monotonic()
        self._order(host, *STACKS, stacks=asked.fields())

    def ask_versions(self) -> None:
        """Have all hosts report the versions of the ranks' software."""
        from dispatcher.checks.health import PROBE

        for host in self._started.values():
            # an order ends the work on the one before it, and stacks are worth more
            if time.monotonic() - self._gathered.get(host.node, -math.inf) > GATHERING:
                self._order(host, "probe.versions", versions=PROBE.encode())

    def _order(self, host: AgentLink, *more: str, **fields: Any) -> None:
        parts = payload.parts((*PARTS, *more))
        host.send(control("sample", seconds=float(self._every or 0), parts=parts, **fields))
