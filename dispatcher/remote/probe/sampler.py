"""Takes samples of the ranks and the GPUs, in a process beside the agent.

::

    agent --- sampler (looks at /proc) --- the process that asks the GPUs, and may hang

The agent's loop never waits. A driver may hang for ever: the process that asks the GPUs is killed
when it is late, the sample is marked so, and another is started a while later. All die with their
parent, are in one process group, and do not count as left behind by the ranks.
"""

from __future__ import annotations

import os
import select
from _signal import SIGKILL, SIGSTOP  # type: ignore[import-not-found]
from time import monotonic, sleep

from dispatcher.remote.host import proctree
from dispatcher.remote.host.child import start_child, work_within
from dispatcher.remote.protocol.frames import Decoder, WireError, control
from dispatcher.remote.protocol.packing import PackError, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Tuple

    from dispatcher.remote.host.poll import Poll
    from dispatcher.remote.probe.versions import Answer

    Action = Tuple[Any, ...]

#: seconds after which a GPU that does not answer is late, beyond one period; and until a retry
LATE, RETRY = 10.0, 60.0
#: bytes of a reading of the GPUs
MOST = 64 << 10


class Sampler:
    """The agent's side. fd: of the pipe, or -1. silence: how long a rank has not written."""

    def __init__(
        self, poll: Poll, silence: Callable[[int], float | None] = lambda rank: None
    ) -> None:
        self.poll = poll
        self.silence = silence
        self.fd = -1
        self.pid = 0
        self.ending: set[int] = set()  # processes that the last ``stop`` ended, perhaps not reaped
        self.seconds = 0.0
        self.decoder = Decoder()

    def begin(
        self,
        order: dict[str, Any],
        ranks: dict[int, int],
        folder: str | None = None,
        mark: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Sample ``ranks`` (rank -> pid) every ``seconds`` of the order from now on, and no others.

        With ``stacks`` in the order, report first where they are, with ``versions`` those of
        software, and with ``look`` the GPUs' users; with 0 seconds, only that.
        folder: where ranks put their stacks. mark: see ``Loop``.
        Raises: OSError.
        """
        self.stop()
        self.seconds = seconds = order["seconds"]
        stacks = order.get("stacks")

        def work(into: int) -> None:
            os.setpgid(0, 0)
            if "look" in order:
                write(into, look(order["look"]))
            if stacks is not None:
                from dispatcher.remote.probe.stack_dump import gather

                write(into, gather(stacks, ranks, folder))
            answer = None
            if "versions" in order:
                from dispatcher.remote.probe.versions import Answer

                answer = Answer(order["versions"], ranks)
            if seconds:
                sample(into, seconds, ranks, mark, answer)
            elif answer is not None:
                write(into, answer.frame(wait=True) or b"")

        self.pid, self.fd = start_child(work, "sampler")
        os.set_blocking(self.fd, False)

    def read(self, drop: bool) -> list[Action]:
        """Messages of the sampler. drop: leave out samples, because the launcher does not read."""
        try:
            data = os.read(self.fd, 65536)
            if data:
                bodies = [unpack(frame.body) for frame in self.decoder.feed(data)]
                wanted = [body for body in bodies if not drop or body["type"] != "node.sampled"]
                for body in wanted:
                    if body["type"] == "node.sampled":
                        body["ranks"] = [[*row, self.silence(row[0])] for row in body["ranks"]]
                return [("send", body.pop("type"), body) for body in wanted]
        except BlockingIOError:
            return []
        except (OSError, WireError, PackError):
            pass
        self.stop()
        if not self.seconds:
            return []  # its one report was sent
        return [
            ("send", "node.noticed", {"text": "the sampler ended; nothing is sampled any more"})
        ]

    def stop(self) -> set[int]:
        """Sample no more; the pids that end by this, or did when it ended by itself."""
        if self.fd < 0:
            return self.ending
        self.poll.remove(self.fd)
        os.close(self.fd)
        self.fd = -1
        self.decoder = Decoder()
        proctree.send_signal(-self.pid, SIGSTOP)  # so that none is started behind our back
        self.ending, found = set(), {self.pid, *proctree.descendants(self.pid)}
        while found - self.ending:  # one that was being forked then comes a moment later
            self.ending |= found
            found = set(proctree.descendants(self.pid))
        for pid in (*self.ending, -self.pid):
            proctree.send_signal(pid, SIGKILL)
        return self.ending


def write(out: int, data: bytes) -> None:
    """Write all of ``data``. Raises: OSError when the reader is gone."""
    while data:
        data = data[os.write(out, data) :]


def look(script: str) -> bytes:
    """The report of what ``script`` says within ``LATE`` seconds; b"" for nothing."""
    from dispatcher.remote.probe.usage import output

    argv = ["/bin/sh", "-c", script, "sh", str(os.getppid())]
    said = work_within(LATE, lambda tell: output(argv)).partition(b"\0")[2]
    return control("gpus.used", said=said) if said else b""


def sample(
    out: int,
    seconds: float,
    ranks: dict[int, int],
    mark: Callable[[], int | None],
    answer: Answer | None = None,
) -> None:
    """Write a sample to ``out`` every ``seconds``, until the reader is gone; and ``answer``."""
    from dispatcher.remote.probe import usage

    of_ranks, gpus = usage.Usage(ranks), Gpus(seconds)
    due = monotonic()
    while True:
        now = monotonic()
        found = of_ranks.of(usage.process_table())
        seen = gpus.latest(now)
        for row in found:
            row += usage.gpus_of(of_ranks.place(row[0]), seen)
        rows = [gpu[:8] + gpu[9:] for gpu in seen]
        write(
            out,
            control("node.sampled", at=now, ranks=found, gpus=rows, late=gpus.late, mark=mark()),
        )
        due = max(due + seconds, now)
        while answer is not None and monotonic() < due:
            gpus.wait(min(due, monotonic() + 0.2))
            frame = answer.frame(wait=False)
            if frame is not None:
                write(out, frame)
                answer = None
        gpus.wait(due)


class Gpus:
    """The sampler's side of the process that asks the GPUs; ``late``: it does not answer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.late = False
        self.reading: list[list[Any]] = []
        self.heard = 0.0
        self.decoder = Decoder()
        self.fd = -1
        self.pid = 0
        self.again: float | None = 0.0  # when to try (again); None: there are no GPUs

    def latest(self, now: float) -> list[list[Any]]:
        """The last reading of the GPUs; [] if there are none, or they are late."""
        if self.fd < 0 and self.again is not None and now >= self.again:
            self.start(now)
        if self.fd >= 0 and now - self.heard > self.seconds + LATE:
            self.late = True
            self.end()
            self.again = now + RETRY
            self.reading = []
        return self.reading

    def wait(self, until: float) -> None:
        """Listen until then."""
        while (left := until - monotonic()) > 0:
            if self.fd < 0:
                sleep(left)
            elif select.select([self.fd], [], [], left)[0]:
                self.read()

    def start(self, now: float) -> None:
        """Start it. Raises: OSError."""

        def work(into: int) -> None:
            from dispatcher.remote.probe.usage import read_gpus

            read_gpus(into, self.seconds)

        self.pid, self.fd = start_child(work, "sampler")
        self.heard, self.decoder = now, Decoder()

    def read(self) -> None:
        """Take a reading from the process, or note its end."""
        data = os.read(self.fd, MOST)
        if not data:  # it found none, or broke
            self.end()
            self.again = monotonic() + RETRY if self.reading else None
            self.reading = []
            return
        for frame in self.decoder.feed(data):
            self.reading = unpack(frame.body)["gpus"]
            self.heard = monotonic()
            self.late = False

    def end(self) -> None:
        """Kill the process and its children; do not wait for one that the kernel holds."""
        for pid in (self.pid, *proctree.descendants(self.pid)):
            proctree.send_signal(pid, SIGKILL)
        os.close(self.fd)
        self.fd = -1
        try:
            os.waitpid(-1, os.WNOHANG)
        except OSError:
            pass
