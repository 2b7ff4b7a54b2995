"""The data of one host on its way in: bytes to frames, frames to output and to events.

A host is not trusted. Its output needs credit, which it gets back in large portions for bytes that
the sinks have taken, and ends; all other reports are limited, each kind in its turn
(``reports``). Frames without room stay in the link. Used by the host's thread alone, except
for ``taken`` and ``done``.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from dispatcher.bootstrap.payload import SyncScanner
from dispatcher.core.events import run_events as ev
from dispatcher.model.bounds import BODY_LIMIT
from dispatcher.remote.protocol.frames import (
    CONTROL,
    COUNT,
    ENDED,
    HEADER,
    INPUT,
    OUTPUT,
    OUTPUT_LIMIT,
    TAKEN,
    Decoder,
    Frame,
    control,
)
from dispatcher.runner.run import reports
from dispatcher.runner.run.reports import Notices, Quota, Turns

#: the most bytes without credit: the rest of a rank's two pipes that others hold open. An agent
#: reads out one rank's at a time, and only while it has credit (``agent_loop.Loop.let_go``)
_CUT = 2 * ((1 << 20) + OUTPUT_LIMIT)


class Credit:
    """Counts one host's output. ``given`` and ``taken`` are called by different threads.

    most: bytes that the agent was granted at its start.
    """

    def __init__(self, most: int) -> None:
        self._portion = most // 2
        self._most = most + _CUT
        self._held = 0  # given, and not yet taken
        self._unpaid = 0  # taken, and not yet given back
        self._lock = threading.Lock()

    @property
    def is_free(self) -> bool:
        """Whether the sinks have all that came, so that more may come."""
        return not self._held

    def given(self, nbytes: int) -> None:
        """Count bytes that came from the host. Raises: ReportError if too many."""
        with self._lock:
            self._held += nbytes
            if self._held > self._most:
                raise reports.ReportError("more output than it was given credit for")

    def taken(self, nbytes: int) -> int:
        """Count bytes that the sinks took; returns the credit to give back now."""
        with self._lock:
            self._held -= nbytes
            self._unpaid += nbytes
            if self._unpaid < self._portion:
                return 0
            count, self._unpaid = self._unpaid, 0
            return count


#: seconds in which an agent reports the end of the output of a rank that exited, or more of it; it
#: reads on for 2 s where other processes hold the pipes (``remote.agent.node.DRAIN``)
ENDS_LIMIT = 10.0


class Ends:
    """The streams of ranks that exited whose end was not reported yet.

    It takes the limit twice until one is late: we may have been stopped (Ctrl-Z) in the first.
    """

    def __init__(self) -> None:
        self._open: set[tuple[int, int]] = set()
        self._since, self._again = 0.0, False

    def exited(self, rank: int, ended: set[tuple[int, int]], now: float) -> None:
        """Note that ``rank`` was reaped; ``ended``: its streams (1, 2) whose end was reported."""
        self._open.update({(rank, 1), (rank, 2)} - ended)
        self.moved(now)

    def ended(self, rank: int, stream: int) -> None:
        """Note that the end of a stream was reported."""
        self._open.discard((rank, stream))

    def moved(self, now: float) -> None:
        """Output came, of whichever rank."""
        self._since, self._again = now, False

    def clear(self) -> None:
        """Wait for no stream any more."""
        self._open.clear()

    def wait(self, now: float) -> float:
        """Seconds until ``late`` wants to be asked."""
        return max(0.0, self._since + ENDS_LIMIT - now) if self._open else math.inf

    def late(self, now: float, *, is_free: bool) -> str:
        """The missing report, if nothing holds it back (``is_free``); "" if none is missing."""
        if not self._open or now < self._since + ENDS_LIMIT:
            return ""
        if is_free and self._again:
            return f"rank {min(self._open)[0]} exited, but its output was never closed"
        self._since, self._again = now, is_free
        return ""


#: the body of the frame by which an agent shows that it lives
_HEARTBEAT = control(ev.NodeHeard.name)[HEADER.size :]


class HostIntake:
    """ranks: the ranks that the host may report on, which are given with the order to start them.

    attempt: the attempt that its agent must prepare.
    credit: output bytes that it may have under way.
    tell, output, input_taken: see ``AgentLink``. on_heartbeat: it gave a beat. on_ready: it is
    ready for the attempt that it was ordered to prepare.
    """

    def __init__(
        self,
        node: int,
        attempt: int,
        *,
        credit: int,
        tell: Callable[[ev.Event], None],
        output: Callable[[int, int, int, bytes], None],
        input_taken: Callable[[int, int], None],
        on_heartbeat: Callable[[], None],
        on_ready: Callable[[], None],
    ) -> None:
        self.ranks: frozenset[int] = frozenset()
        self.is_synced = False  # the agent was heard
        self.rests = False  # it said so, and its next beat is news
        self.is_finishing = False  # its next ``NodeSwept`` is its last word
        self.is_over = False  # it has said that
        self.is_held = False  # something was left for when there is room
        self.input_unpaid = 0  # input bytes written and not yet given back as credit
        self._node = node
        self._credit = Credit(credit)
        self._tell, self._output, self._input_taken = tell, output, input_taken
        self._on_heartbeat, self._on_ready = on_heartbeat, on_ready
        self._scanner = SyncScanner()
        self._decoder = Decoder(BODY_LIMIT)
        self._frames: deque[Frame] = deque()  # decoded, and left for when the quota has room
        self._quota, self.turns, self._notices = Quota(), Turns(), Notices()
        self._received: dict[tuple[int, int], int] = {}
        self._ended: set[tuple[int, int]] = set()
        self._ends = Ends()
        self._ordered = attempt  # the latest attempt that the agent was ordered to prepare
        self._prepared = -1  # the latest attempt that it was ready for

    @property
    def attempt(self) -> int:
        """The attempt that the link's frames belong to."""
        return max(0, self._prepared)

    # -- what others let it know --------------------------------------------------------

    def taken(self, nbytes: int) -> int:
        """Count bytes that the sinks took; returns the credit to give back now."""
        return self._credit.taken(nbytes)

    def done(self, event: ev.Event) -> bool:
        """All sinks have ``event``, maybe another host's; whether there is room again."""
        return self._quota.done(event)

    def again(self, attempt: int) -> None:
        """The agent must prepare ``attempt``; its answer divides old frames from new frames."""
        self._ordered = attempt

    def left_out(self) -> list[ev.Event]:
        """Notices about reports that were counted and not passed on, at the end."""
        return self._notices.left_out(self._node)

    # -- when ---------------------------------------------------------------------------

    def room(self, now: float) -> float:
        """Seconds until there is room for left frames; infinity: until ``done`` makes room."""
        return self._quota.wait(now)

    def due(self, now: float) -> float:
        """Seconds until ``late`` wants to be asked."""
        return self._ends.wait(now)

    def late(self) -> str:
        """A text about overdue reports; "" if there are none."""
        is_free = self._credit.is_free and not self.is_held
        return self._ends.late(time.monotonic(), is_free=is_free)

    # -- bytes --------------------------------------------------------------------------

    def noise(self) -> bytes:
        """The output before the agent's first frame."""
        return self._scanner.finish()

    def feed(self, data: bytes) -> None:
        """Bytes of the link. ``take`` is next.

        Raises: WireError, ReportError, as ``take`` and ``charge`` do.
        """
        if not self.is_synced:
            rest = self._scanner.feed(data)
            if rest is None:
                self.charge("login noise", len(data))
                return
            self._tell(ev.NodeBooted(self._node, len(self._scanner.noise)))
            self.is_synced, data = True, rest
        self._frames.extend(self._decoder.feed(data))

    def charge(self, what: str, nbytes: int, took: float = 0.0) -> None:
        """Count a report of kind ``what``; without room for more, reading stops."""
        now = time.monotonic()
        self._quota.said(what, nbytes, now, took)
        self.is_held = self._quota.is_full

    # -- frames -------------------------------------------------------------------------

    def take(self) -> bool:
        """Take what was fed, as far as there is room; whether there was anything.

        Output of one stream that came together goes on together.
        """
        any_frames = bool(self._frames)
        together: dict[tuple[int, int], list[bytes]] = {}
        try:
            while self._frames and not self.is_held:
                frame = self._frames.popleft()
                if frame.kind == OUTPUT:
                    self._check_output(frame)
                    self._credit.given(len(frame.body))
                    together.setdefault((frame.rank, frame.stream), []).append(frame.body)
                else:
                    self._give(together)
                    self._take(frame)
        finally:
            self._give(together)
        return any_frames

    def _give(self, together: dict[tuple[int, int], list[bytes]]) -> None:
        """Hand output to the sinks, and forget it."""
        if together:
            self._ends.moved(time.monotonic())
        for (rank, stream), bodies in together.items():
            data = bodies[0] if len(bodies) == 1 else b"".join(bodies)
            self._received[rank, stream] = self._received.get((rank, stream), 0) + len(data)
            self._output(self._node, rank, stream, data)
        together.clear()

    def _check_output(self, frame: Frame) -> None:
        if frame.rank not in self.ranks or (frame.rank, frame.stream) in self._ended:
            raise reports.ReportError(f"output of rank {frame.rank}, which is not this node's")

    def _take(self, frame: Frame) -> None:
        if frame.body == _HEARTBEAT and frame.kind == CONTROL and not self.rests:
            self.charge("heartbeats", len(frame.body))
            self._on_heartbeat()
            return
        if frame.kind == CONTROL:
            began = time.thread_time()
            found = reports.read(self._node, self.ranks, frame.body, self.attempt)
            took = time.thread_time() - began
            self.charge(found[0].name if found else "reports", len(frame.body), took)
            for event in self._notices.passed(self._node, found, time.monotonic()):
                self._report(event, len(frame.body))
            return
        self.charge("ends of output" if frame.kind == ENDED else "credit", len(frame.body))
        if frame.kind == TAKEN:
            (count,) = COUNT.unpack(frame.body)
            if count > self.input_unpaid:
                raise reports.ReportError("credit for input that it was not sent")
            self.input_unpaid -= count
            self._input_taken(self._node, count)
            return
        if frame.kind == INPUT:
            raise reports.ReportError("input for the launcher")
        self._check_output(frame)
        key = (frame.rank, frame.stream)
        self._ended.add(key)
        self._ends.ended(*key)
        (sent,) = COUNT.unpack(frame.body)
        received = self._received.get(key, 0)
        self._tell(ev.OutputEnded(self._node, *key, received, sent, attempt=self.attempt))

    def _report(self, event: ev.Event, nbytes: int) -> None:
        """Pass on ``event``, made from ``nbytes`` bytes, if it is in turn."""
        if isinstance(event, ev.NodeReady):
            self._begin(event.attempt)
        self.turns.check(event)
        if isinstance(event, (ev.NodePaused, ev.NodeHeard)):
            self.rests = isinstance(event, ev.NodePaused)
        if isinstance(event, ev.RankExited):
            self._ends.exited(event.rank, self._ended, time.monotonic())
        if isinstance(event, ev.NodeSwept) and self.is_finishing:
            self.is_over = True
        self._quota.told(event, nbytes)
        self._tell(event)

    def _begin(self, attempt: int) -> None:
        if attempt != self._ordered or attempt <= self._prepared:
            raise reports.ReportError(f"ready for attempt {attempt}, which was not asked for")
        self._prepared = attempt
        self.ranks = frozenset()  # other hosts may get the last attempt's ranks
        self._on_ready()
        self._received.clear()
        self._ended.clear()
        self._ends.clear()
        self.turns.begin()
