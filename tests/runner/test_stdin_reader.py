"""The launcher's input: read only within the window, for those who still want it, and no longer."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator

import pytest

from dispatcher.core.events import run_events as ev
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.request import Program, Request, Stdin
from dispatcher.remote.protocol.frames import INPUT, Decoder
from dispatcher.runner.run import stdin_reader as module
from dispatcher.runner.run.stdin_reader import WINDOW


def plan(stdin: Stdin) -> JobPlan:
    """Two nodes of two ranks each."""
    hosts = tuple(Host(name=f"n{number}", slots=2) for number in (1, 2))
    program = Program("command", ("cat",))
    return plan_job(Request(Hostlist(hosts), program, "/", stdin=stdin), "run")


class Run:
    """A ``StdinReader`` that reads a pipe of the test; what it sends is kept."""

    def __init__(self) -> None:
        self.fd, self.pipe = os.pipe()
        self.sent: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self.told: list[ev.Event] = []
        self.stdin = module.StdinReader(self.take, self.told.append, self.fd)
        self.got: dict[int, bytearray] = {}
        self.ended: set[int] = set()

    def take(self, node: int, frame: bytes) -> None:
        self.sent.put((node, frame))

    def begin(self, stdin: Stdin) -> None:
        self.plan = plan(stdin)
        self.observe(ev.RankSpawned(0, 0, 77))

    def observe(self, event: ev.Event) -> None:
        self.stdin.observe(event, self.plan)

    def hear(self) -> tuple[int, int]:
        """Take one frame that was sent, within a limit; its node and size."""
        node, frame = self.sent.get(timeout=60)
        (found,) = Decoder().feed(frame)
        assert found.kind == INPUT
        self.got.setdefault(node, bytearray()).extend(found.body)
        if not found.body:
            self.ended.add(node)
        return node, len(found.body)

    def close(self) -> None:
        self.stdin.close()
        os.close(self.fd)
        if self.pipe >= 0:
            os.close(self.pipe)


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.close()


def test_nothing_is_read_before_a_rank_runs(run: Run) -> None:
    os.write(run.pipe, b"x")
    run.plan = plan("all")
    run.observe(ev.NodeBooted(0, 0))
    time.sleep(0.05)
    assert run.sent.empty()
    assert run.stdin.close() == []
    assert os.read(run.fd, 9) == b"x"


@pytest.mark.parametrize(("who", "nodes"), [("all", {0, 1}), (0, {0}), (3, {1})])
def test_the_nodes_of_the_readers_get_all_and_its_end(
    run: Run, who: Stdin, nodes: set[int]
) -> None:
    run.begin(who)
    os.write(run.pipe, b"some words")
    os.close(run.pipe)
    run.pipe = -1
    while run.ended != nodes:
        run.hear()
    assert run.got == dict.fromkeys(nodes, b"some words")
    assert run.stdin.close() == []


def test_a_slow_node_holds_the_reading_at_the_window(run: Run) -> None:
    os.set_blocking(run.pipe, False)
    run.begin("all")
    stuck, end = 0, time.monotonic() + 60
    while stuck < 100 and time.monotonic() < end:
        try:
            os.write(run.pipe, bytes(1 << 16))
        except BlockingIOError:
            stuck += len(run.got.get(1, b"")) >= WINDOW  # and then nothing more comes
            time.sleep(0.001)
        while not run.sent.empty():
            node, size = run.hear()
            if node == 0:  # the quick one; node 1 gives nothing back
                run.stdin.taken(0, size)
    assert len(run.got[0]) == len(run.got[1]) == WINDOW
    run.observe(ev.NodeLost(1, Failure(Kind.LOST, "gone")))
    run.hear()
    assert len(run.got[0]) > WINDOW


def test_reading_stops_with_the_last_reader(run: Run) -> None:
    run.begin("all")
    os.write(run.pipe, b"first")
    run.hear()
    run.hear()
    for node, rank in ((0, 0), (0, 1), (1, 2), (1, 3)):
        run.observe(ev.InputClosed(node, rank, 5 if rank else 2))
    run.stdin._thread.join(60)
    os.write(run.pipe, b"second")
    assert run.stdin.close() == [ev.InputLeft((0,), 3, 5)]
    assert run.stdin.close() == []
    assert os.read(run.fd, 99) == b"second"


def test_the_end_does_not_wait_for_input(run: Run) -> None:
    run.begin(0)
    began = time.monotonic()
    run.stdin.close()
    assert time.monotonic() - began < 20
    run.stdin._thread.join(60)
    assert not run.stdin._thread.is_alive()
    run.stdin.taken(0, 1)  # a late word of a host's thread


def test_input_that_cannot_be_read_is_told() -> None:
    run = Run()
    os.close(run.fd)
    run.fd = os.open("/", os.O_RDONLY)
    run.stdin._fd = run.fd
    run.begin(0)
    run.hear()
    assert run.told == [ev.InputBroken("is a directory")]
    assert run.ended == {0}
    run.close()
