"""Samples of ranks and GPUs, with clock, pipes and processes played.

By real agents: ``test_real_samples``.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from open_files import open_files

from dispatcher.remote.host import child, proctree
from dispatcher.remote.host.poll import Poll
from dispatcher.remote.probe import sampler, usage
from dispatcher.remote.protocol.frames import CONTROL, Decoder, control, encode
from dispatcher.remote.protocol.packing import unpack
from remote.driver import Os, noting


class TestGpus:
    """The side that waits for a process which may hang, with its clock and that process played."""

    @pytest.fixture
    def gpus(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[sampler.Gpus]:
        self.now = 1000.0
        self.ended: list[int] = []
        self.starts: list[float] = []
        self.said = -1

        def start(now: float) -> None:
            self.starts.append(now)
            one.fd, self.said = os.pipe()
            one.heard, one.decoder, one.pid = now, Decoder(), 1 << 23

        put = monkeypatch.setattr
        put(sampler, "monotonic", lambda: self.now)
        put(proctree, "descendants", lambda pid: [pid + 1])
        put(proctree, "send_signal", lambda pid, number: self.ended.append(pid))
        one = sampler.Gpus(2.0)
        put(one, "start", start)
        yield one
        for fd in (one.fd, self.said):
            if fd >= 0:
                os.close(fd)

    def say(self, gpus: sampler.Gpus, *readings: object) -> None:
        for reading in readings:
            os.write(self.said, control("gpus", gpus=reading))
        gpus.read()

    def test_what_was_said_last_counts_until_it_is_late(self, gpus: sampler.Gpus) -> None:
        assert gpus.latest(1000.0) == []
        self.now = 1001.0
        self.say(gpus, [[0, 1]], [[0, 2]])
        limit = 1001.0 + 2.0 + sampler.LATE
        assert (gpus.latest(limit), gpus.late, self.starts) == ([[0, 2]], False, [1000.0])
        assert (gpus.latest(limit + 0.1), gpus.late) == ([], True)
        assert self.ended == [1 << 23, (1 << 23) + 1]
        assert gpus.fd == -1

    def test_one_that_was_late_is_tried_again_a_while_later(self, gpus: sampler.Gpus) -> None:
        gpus.latest(1000.0)
        assert (gpus.latest(2000.0), gpus.late) == ([], True)
        for now in (2000.0, 2000.0 + sampler.RETRY - 0.1):
            assert gpus.latest(now) == []
        assert self.starts == [1000.0]
        gpus.latest(2000.0 + sampler.RETRY)
        assert self.starts == [1000.0, 2000.0 + sampler.RETRY]
        assert gpus.late  # until it has said something
        self.now = 2100.0
        self.say(gpus, [[0, 3]])
        assert (gpus.latest(2101.0), gpus.late) == ([[0, 3]], False)

    @pytest.mark.parametrize("spoke", [False, True])
    def test_one_that_ends_is_tried_again_only_if_it_knew_any(
        self, gpus: sampler.Gpus, spoke: bool
    ) -> None:
        gpus.latest(1000.0)
        if spoke:
            self.say(gpus, [[0, 1]])
        os.close(self.said)
        self.said = -1
        gpus.read()
        assert (gpus.fd, gpus.late) == (-1, False)
        for now in (1000.0 + sampler.RETRY - 1, 1000.0 + sampler.RETRY, 9e9):
            assert gpus.latest(now) == []
        assert len(self.starts) == (2 if spoke else 1)


class TestSampling:
    def test_samples_are_regular_and_none_is_made_up_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a look that took too long one follows at once, and not all that were missed."""
        now, took = [1000.0], [0.5, 7.0, 0.5, 0.5]
        waits: list[float] = []
        written: list[tuple[int, dict[str, Any]]] = []

        class Gpus:
            late = True

            def __init__(self, seconds: float) -> None:
                assert seconds == 2.0

            def latest(self, now: float) -> list[list[Any]]:
                return [[0, 1, 2, 3, 4, 5, 6, 7, "GPU-x"]]

            def wait(self, until: float) -> None:
                waits.append(until)
                now[0] = max(now[0], until)

        def write(out: int, data: bytes) -> None:
            (frame,) = Decoder().feed(data)
            written.append((out, unpack(frame.body)))
            if not took:
                raise BrokenPipeError

        def look() -> usage.Table:
            now[0] += took.pop(0)
            return {50: ("S", 1, 50, 300, 2, 4, 9)}

        put = monkeypatch.setattr
        put(sampler, "Gpus", Gpus)
        put(sampler, "write", write)
        put(sampler, "monotonic", lambda: now[0])
        put(usage, "process_table", look)
        put(usage, "environ", lambda pid: {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"})
        with pytest.raises(BrokenPipeError):
            sampler.sample(5, 2.0, {3: 50, 4: 51}, lambda: 77)
        monkeypatch.undo()
        assert waits == [1002.0, 1004.0, 1009.0]
        assert [said["at"] for _, said in written] == [1000.0, 1002.0, 1009.0, 1009.5]
        out, said = written[0]
        assert (out, said["type"], said["late"], said["mark"]) == (5, "node.sampled", True, 77)
        assert said["gpus"] == [[0, 1, 2, 3, 4, 5, 6, 7]]
        tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        assert said["ranks"] == [[3, "S", 300 / tick, 4 * page, 2, 1, [0], [0]]]


class TestHeard:
    """The agent's side, with the pipe from a sampler in the test's hands."""

    @pytest.fixture
    def one(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[sampler.Sampler]:
        self.signals: list[Any] = []
        monkeypatch.setattr(proctree, "descendants", lambda pid: [])
        monkeypatch.setattr(proctree, "send_signal", noting(self.signals))
        poll = Poll()
        with poll.epoll:
            one = sampler.Sampler(poll, {3: 1.5}.get)
            one.fd, self.said = os.pipe()
            one.pid, one.seconds = 1 << 23, 2.0
            os.set_blocking(one.fd, False)
            poll.add(one.fd, lambda *_: None)
            yield one
            for fd in (one.fd, self.said):
                if fd >= 0:
                    os.close(fd)

    def test_what_it_says_is_passed_on(self, one: sampler.Sampler) -> None:
        assert one.read(False) == []
        sample = control("node.sampled", at=1.0, ranks=[[3, "S"], [4, "R"]])
        frames = sample + control("node.stacks", number=7)
        os.write(self.said, frames[:-3])
        # the agent adds for how long each has not written
        told = {"at": 1.0, "ranks": [[3, "S", 1.5], [4, "R", None]]}
        assert one.read(False) == [("send", "node.sampled", told)]
        os.write(self.said, frames[-3:] + frames)
        # where nobody reads samples, what was asked for once still counts
        assert one.read(True) == [("send", "node.stacks", {"number": 7})] * 2
        assert self.signals == []

    @pytest.mark.parametrize("how", ["ends", "frame", "body"])
    @pytest.mark.parametrize("seconds", [0.0, 2.0])
    def test_its_end_is_told_unless_it_was_to_end(
        self, one: sampler.Sampler, how: str, seconds: float
    ) -> None:
        one.seconds = seconds
        if how == "ends":
            os.close(self.said)
            self.said = -1
        else:
            os.write(self.said, b"\xff" * 12 if how == "frame" else encode(CONTROL, b"\xff"))
        text = "the sampler ended; nothing is sampled any more"
        assert one.read(False) == ([("send", "node.noticed", {"text": text})] if seconds else [])
        assert one.fd == -1
        group = 1 << 23
        assert self.signals == [(-group, signal.SIGSTOP), (group, 9), (-group, 9)]
        assert one.stop() == one.stop() == {group}
        assert len(self.signals) == 3

    def test_a_host_that_has_no_process_for_it(
        self, one: sampler.Sampler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse() -> int:
            raise OSError(11, "no more")

        one.stop()
        before = open_files()
        monkeypatch.setattr(child, "os", Os(fork=refuse))
        with pytest.raises(OSError, match="no more"):
            one.begin({"seconds": 1.0}, {})
        assert not open_files() - before
        assert one.fd == -1


def test_a_sampler_that_has_ended_is_not_taken_for_something_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may not be reaped yet when the sweep counts what it killed."""
    monkeypatch.setattr(child, "become", lambda *_: os._exit(0))
    one = sampler.Sampler(Poll())
    with one.poll.epoll:
        one.begin({"seconds": 0.0}, {})
        assert select.select([one.fd], [], [], 60.0)[0]
        assert one.read(False) == []
        assert one.pid in one.stop()
    os.waitpid(one.pid, 0)


def test_what_a_sampler_was_just_starting_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that had begun when the group was stopped ends later, and was counted as a rank's."""
    looks = iter([[], [4001], [4001]])
    killed: list[int] = []
    monkeypatch.setattr(proctree, "descendants", lambda pid: next(looks))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    one = sampler.Sampler(Poll())
    with one.poll.epoll:
        before = open_files()
        one.fd, end = os.pipe()
        one.pid = 4000
        assert one.stop() == {4000, 4001} == set(map(abs, killed))
        os.close(end)
        assert not open_files() - before
