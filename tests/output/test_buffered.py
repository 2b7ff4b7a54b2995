"""A sink that is slow: nobody waits for it, what it did not get is counted, memory is bounded."""

from __future__ import annotations

import inspect
import itertools
import re
import threading
from types import SimpleNamespace

import pytest
from cases import cases
from rig import wait_for

from dispatcher.core.events.codec import _classes
from dispatcher.core.events.mpi_events import PmiAsked, PmiCommitted
from dispatcher.core.events.run_events import (
    Counts,
    Entry,
    NodeHeard,
    NodeNoticed,
    OutputEnded,
    RanksPlaced,
    Sink,
)
from dispatcher.output import buffered
from dispatcher.output.buffered import OVERHEAD, BufferedSink, Filtered
from dispatcher.output.files.rank_logs import MergedLog, RankFiles
from dispatcher.output.monitor.metrics import Metrics
from dispatcher.output.terminal.screen import Screen

CHUNK = b"x" * 1000


class Slow(Sink):
    """Stops in its first ``output`` until it is let go."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.go = threading.Event()
        self.stopped = threading.Event()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.stopped.set()
        assert self.go.wait(30)
        self.told.append((rank, stream, data))

    def gap(self, missing: Counts) -> None:
        self.told.append(("gap", dict(missing)))

    def event(self, entry: Entry) -> None:
        self.told.append(("event", entry.seq))

    def say(self, line: str) -> None:
        self.told.append(("say", line))

    def close(self) -> None:
        self.told.append(("closed",))


@pytest.fixture
def stuck() -> Slow:
    return Slow()


def start(sink: Slow, **options: object) -> BufferedSink:
    behind = BufferedSink(sink, "test", limit=4 * (len(CHUNK) + OVERHEAD), **options)  # type: ignore[arg-type]
    behind.output(0, 1, CHUNK)
    assert sink.stopped.wait(60)
    return behind


def test_what_finds_no_room_is_left_out_and_counted_in_its_place(stuck: Slow) -> None:
    behind = start(stuck)
    for rank in (0, 1, 2):
        behind.output(rank, 1, CHUNK)  # the limit: one is being taken, three wait
    for rank in (1, 1, 2):
        behind.output(rank, 2, CHUNK)
    behind.event(Entry(7, 0.0, OutputEnded(0, 0, 1, 0, 0)))
    behind.say("note")
    stuck.go.set()
    behind.close()
    assert stuck.told == [
        *[(rank, 1, CHUNK) for rank in (0, 0, 1, 2)],
        ("gap", {(1, 2): 2000, (2, 2): 1000}),
        ("event", 7),
        ("say", "note"),
        ("closed",),
    ]


def test_what_hosts_say_at_will_does_not_wait(stuck: Slow) -> None:
    behind = start(stuck)
    said = (
        NodeHeard(0), NodeNoticed(0, "x" * 4096),
        PmiAsked(0, 0, "lookup", b"x" * 4096, b""), PmiCommitted(0, 0, "WORLD", 0, b"x" * 4096),
    )  # fmt: skip
    for number in range(1000):
        behind.event(Entry(number, 0.0, said[number % len(said)]))
    assert len(behind._waiting) == 0
    behind.event(Entry(1000, 0.0, RanksPlaced(4, "n1", 29500)))
    stuck.go.set()
    behind.close()
    assert stuck.told[1:] == [("event", 1000), ("closed",)]


@cases("sink", [Screen, RankFiles, MergedLog, Metrics])
def test_who_is_followed_acts_on_no_other_event(sink: type[Sink]) -> None:
    known = {cls.__name__ for cls in _classes().values()}
    for cls in sink.__mro__:
        if "event" in vars(cls):
            words = set(re.findall(r"\w+", inspect.getsource(vars(cls)["event"])))
            assert words & known <= {cls.__name__ for cls in buffered.DIVIDERS}


def test_after_a_gap_all_goes_on(stuck: Slow) -> None:
    behind = start(stuck)
    for _ in range(10):
        behind.output(0, 1, CHUNK)
    stuck.go.set()
    wait_for(lambda: len(stuck.told) == 5, 30, lambda: f"it is emptied: {stuck.told}")
    behind.output(0, 1, b"fresh")
    behind.close()
    lost = sum(told[1][0, 1] for told in stuck.told if told[0] == "gap")  # type: ignore[index]
    shown = sum(len(told[2]) for told in stuck.told if told[0] == 0)  # type: ignore[misc, arg-type]
    assert lost + shown == 11 * len(CHUNK) + len(b"fresh")
    assert stuck.told[-2] == (0, 1, b"fresh")


def test_the_notes_of_a_paused_terminal_are_bounded(stuck: Slow) -> None:
    behind = start(stuck)
    for number in range(1500):
        behind.say(str(number))
    stuck.go.set()
    behind.close()
    said = [told[1] for told in stuck.told if told[0] == "say"]
    assert said == [*map(str, range(1000)), "... 500 more notes not shown"]


def test_a_slow_reader_gets_all_and_one_that_paused_is_left_behind(stuck: Slow) -> None:
    behind = start(stuck, stall_limit=60)
    for _ in range(3):
        behind.output(0, 1, CHUNK)
    full = threading.Thread(target=behind.output, args=(0, 1, CHUNK), daemon=True)
    full.start()
    full.join(0.2)
    assert full.is_alive()  # it waits for the reader
    stuck.go.set()
    full.join(60)
    assert not full.is_alive()
    behind.close()
    assert stuck.told == [(0, 1, CHUNK)] * 5 + [("closed",)]


def test_patience_ends(stuck: Slow) -> None:
    behind = start(stuck, stall_limit=0.2)
    for _ in range(6):
        behind.output(0, 1, CHUNK)
    stuck.go.set()
    behind.close()
    assert ("gap", {(0, 1): 3 * len(CHUNK)}) in stuck.told


def test_time_in_which_nothing_of_ours_ran_is_not_the_sink_s(
    stuck: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = [100.0], list[float]()
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(buffered, "time", clock)
    behind = start(stuck, stall_limit=2.0)
    wait = behind._cond.wait

    def wait_and_stand_still(timeout: float | None = None) -> bool:
        if timeout is None or threading.current_thread() is behind._thread:
            return wait(timeout)
        waits.append(timeout)
        if len(waits) == 1:
            now[0] += timeout + 60  # the machine slept; its reader is there again as we are
            stuck.go.set()
            return False
        return wait(60)

    for _ in range(3):
        behind.output(0, 1, CHUNK)
    monkeypatch.setattr(behind._cond, "wait", wait_and_stand_still)
    now[0] += 60  # nor does it count that nobody looked meanwhile
    behind.output(0, 1, CHUNK)
    assert waits[:2] == [2.0, 2.0]
    behind.close()
    assert stuck.told == [(0, 1, CHUNK)] * 5 + [("closed",)]


class Stepwise(Slow):
    """Takes one chunk each time it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = threading.Semaphore(0)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.stopped.set()
        assert self.steps.acquire(timeout=30)
        self.told.append((rank, stream, data))

    def let(self, behind: BufferedSink, count: int) -> None:
        """Let it take so many, and see that they are done with."""
        size = behind._size
        self.steps.release(count)
        done = count * (len(CHUNK) + OVERHEAD)
        wait_for(lambda: behind._size == size - done, 30, lambda: f"{behind._size} of {size}")


def test_a_gap_lasts_until_half_of_the_room_is_free() -> None:
    sink = Stepwise()
    behind = start(sink)
    for rank in range(1, 4):
        behind.output(rank, 1, CHUNK)
    behind.output(7, 1, CHUNK)  # no room: a gap begins
    sink.let(behind, 2)
    behind.output(8, 1, CHUNK)  # there is room, but not for a good deal
    sink.let(behind, 1)
    behind.output(9, 1, CHUNK)
    sink.steps.release(9)
    behind.close()
    assert sink.told[4:] == [("gap", {(7, 1): 1000, (8, 1): 1000}), (9, 1, CHUNK), ("closed",)]


def test_who_may_not_drop_waits(stuck: Slow) -> None:
    behind = start(stuck, drop=False)
    for _ in range(3):
        behind.output(0, 1, CHUNK)
    full = threading.Thread(target=behind.output, args=(0, 1, CHUNK), daemon=True)
    full.start()
    full.join(0.1)
    assert full.is_alive()
    stuck.go.set()
    full.join(60)
    behind.output(0, 2, b"x" * 10 * len(CHUNK))  # more than the limit, but it is alone
    behind.close()
    assert stuck.told == [(0, 1, CHUNK)] * 5 + [(0, 2, CHUNK * 10), ("closed",)]


def test_a_sink_that_goes_on_in_a_single_call_is_no_one_that_stands_still(stuck: Slow) -> None:
    steps = itertools.count()
    behind = start(stuck, stall_limit=0.05, pace=lambda: next(steps))
    for _ in range(3):
        behind.output(0, 1, CHUNK)
    full = threading.Thread(target=behind.output, args=(0, 1, CHUNK), daemon=True)
    full.start()
    full.join(0.3)
    assert full.is_alive()
    stuck.go.set()
    full.join(60)
    behind.close()
    assert stuck.told == [(0, 1, CHUNK)] * 5 + [("closed",)]


def test_a_sink_that_hangs_before_its_first_word_is_not_waited_for_for_ever() -> None:
    class Hangs(Slow):
        def tick(self, now: float) -> bool:
            assert self.go.wait(30)
            return False

    sink = Hangs()
    behind = BufferedSink(sink, "test", limit=2 * (len(CHUNK) + OVERHEAD), stall_limit=0.05)
    for _ in range(4):
        behind.output(0, 1, CHUNK)
    sink.go.set()
    behind.close()
    assert sink.told == [*[(0, 1, CHUNK)] * 2, ("gap", {(0, 1): 2000}), ("closed",)]


def test_notes_come_again_after_some_were_left_out(stuck: Slow) -> None:
    behind = start(stuck)
    for number in range(1001):
        behind.say(str(number))
    stuck.go.set()
    wait_for(lambda: len(stuck.told) == 1002, 30, "all that waited is said")
    behind.say("later")
    behind.close()
    assert [told[1] for told in stuck.told[-3:-1]] == ["... 1 more note not shown", "later"]


def test_a_sink_is_asked_to_draw_as_long_as_it_wants() -> None:
    class Draws(Slow):
        ticks = 0

        def tick(self, now: float) -> bool:
            self.ticks += 1
            return self.ticks < 4

    sink = Draws()
    sink.go.set()
    behind = BufferedSink(sink, "test")
    wait_for(lambda: sink.ticks == 4, 30, "it is asked")
    behind.output(0, 1, b"x")
    wait_for(lambda: sink.ticks == 5, 30, "it is asked once more after what happened")
    behind.close()


def test_an_error_of_the_sink_is_told_at_the_next_call(stuck: Slow) -> None:
    class Broken(Slow):
        def event(self, entry: Entry) -> None:
            raise ValueError("no")

    behind = BufferedSink(Broken(), "test")
    event = Entry(7, 0.0, OutputEnded(0, 0, 1, 0, 0))
    behind.event(event)
    wait_for(lambda: behind._error is not None, 30, "it has failed")
    with pytest.raises(ValueError, match="no"):
        behind.event(event)
    with pytest.raises(ValueError, match="no"):
        behind.output(0, 1, b"x")
    with pytest.raises(ValueError, match="no"):
        behind.close()


def test_who_waits_for_a_sink_that_fails_is_told() -> None:
    class Fails(Slow):
        def output(self, rank: int, stream: int, data: bytes) -> None:
            self.stopped.set()
            assert self.go.wait(30)
            raise ValueError("no")

    for options in ({"drop": False}, {"stall_limit": 60}):
        sink, told = Fails(), list[str]()
        behind = start(sink, **options)
        for _ in range(3):
            behind.output(0, 1, CHUNK)

        def waits(behind: BufferedSink, told: list[str]) -> None:
            try:
                behind.output(0, 1, CHUNK)
            except ValueError as error:
                told.append(str(error))

        full = threading.Thread(target=waits, args=(behind, told), daemon=True)
        full.start()
        full.join(0.05)
        sink.go.set()
        full.join(60)
        assert told == ["no"]
        with pytest.raises(ValueError, match="no"):
            behind.close()


# -- what a sink gets -------------------------------------------------------------------


def test_a_sink_gets_only_what_is_wanted() -> None:
    class Inner(Slow):
        def tick(self, now: float) -> bool:
            self.told.append(("tick", now))
            return True

    inner = Inner()
    inner.go.set()
    sink = Filtered(inner, lambda rank, stream: rank == 1 and stream == 2)
    for rank in (0, 1):
        for stream in (1, 2):
            sink.output(rank, stream, b"x")
    sink.gap({(0, 2): 5, (1, 2): 6})
    sink.gap({(0, 2): 5})
    sink.event(Entry(7, 0.0, NodeHeard(0)))
    sink.say("note")
    assert sink.tick(3.0)
    sink.close()
    assert inner.told == [
        (1, 2, b"x"), ("gap", {(1, 2): 6}), ("event", 7), ("say", "note"), ("tick", 3.0),
        ("closed",),
    ]  # fmt: skip
