"""A sink that is slow: nobody waits for it, what it did not get is counted, memory is bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import wait_for

from dispatcher.core.events.run_events import Counts, Entry, NodeHeard, OutputEnded, Sink
from dispatcher.output.buffered import OVERHEAD, BufferedSink
from dispatcher.output.files.spool import Spool

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
    assert sink.stopped.wait(10)
    return behind


def test_what_finds_no_room_is_left_out_and_counted_in_its_place(stuck: Slow) -> None:
    behind = start(stuck)
    for rank in (0, 1, 2):
        behind.output(rank, 1, CHUNK)  # the limit: one is being taken, three wait
    for rank in (1, 1, 2):
        behind.output(rank, 2, CHUNK)
    behind.event(Entry(7, 0.0, OutputEnded(0, 0, 1, 0, 0)))
    behind.event(Entry(8, 0.0, NodeHeard(0)))
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


def test_after_a_gap_all_goes_on(stuck: Slow) -> None:
    behind = start(stuck)
    for _ in range(10):
        behind.output(0, 1, CHUNK)
    stuck.go.set()
    wait_for(lambda: len(stuck.told) == 5, 10, lambda: f"it is emptied: {stuck.told}")
    behind.output(0, 1, b"fresh")
    behind.close()
    lost = sum(told[1][0, 1] for told in stuck.told if told[0] == "gap")  # type: ignore[index]
    shown = sum(len(told[2]) for told in stuck.told if told[0] == 0)  # type: ignore[misc, arg-type]
    assert lost + shown == 11 * len(CHUNK) + len(b"fresh")
    assert stuck.told[-2] == (0, 1, b"fresh")


def test_a_spool_loses_nothing_and_keeps_the_order(stuck: Slow) -> None:
    behind = start(stuck, spool=Spool())
    for number in range(1000):
        behind.output(number, 1, b"%04d" % number * 100)
    stuck.go.set()
    behind.output(1000, 1, b"end")
    behind.close()
    assert stuck.told == [
        (0, 1, CHUNK),
        *[(number, 1, b"%04d" % number * 100) for number in range(1000)],
        (1000, 1, b"end"),
        ("closed",),
    ]


def test_a_full_spool_holds_back(stuck: Slow) -> None:
    behind = start(stuck, spool=Spool(limit=2 * len(CHUNK)))

    def flood() -> None:
        for _ in range(20):
            behind.output(0, 1, CHUNK)

    thread = threading.Thread(target=flood)
    thread.start()
    wait_for(lambda: len(behind._waiting) == 5, 10, lambda: f"{len(behind._waiting)} wait")
    assert thread.is_alive()
    stuck.go.set()
    thread.join(10)
    behind.close()
    assert stuck.told == [(0, 1, CHUNK)] * 21 + [("closed",)]


def test_the_notes_of_a_paused_terminal_are_bounded(stuck: Slow) -> None:
    behind = start(stuck)
    for number in range(1500):
        behind.say(str(number))
    stuck.go.set()
    behind.close()
    said = [told[1] for told in stuck.told if told[0] == "say"]
    assert said == [*map(str, range(1000)), "... 500 more notes not shown"]


def test_an_error_of_the_sink_is_told_to_the_caller() -> None:
    class Broken(Sink):
        def output(self, rank: int, stream: int, data: bytes) -> None:
            raise ValueError("no")

    behind = BufferedSink(Broken(), "test")
    behind.output(0, 1, b"x")
    with pytest.raises(ValueError, match="no"):
        behind.close()


def test_the_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool(limit=10)
    puts: list[Callable[[], bool]] = [lambda: spool.put(b"abcdef"), lambda: spool.put(b"ghijk")]
    assert [put() for put in puts] == [True, False]
    assert (spool.take(2), spool.take(4), spool.empty) == (b"ab", b"cdef", True)
    assert puts[1]()  # an emptied spool begins anew
    assert list(tmp_path.iterdir()) == []  # nobody can open it by a name
    spool.close()


def test_a_slow_reader_gets_all_and_one_that_paused_is_left_behind(stuck: Slow) -> None:
    behind = start(stuck, stall_limit=60)
    for _ in range(3):
        behind.output(0, 1, CHUNK)
    full = threading.Thread(target=behind.output, args=(0, 1, CHUNK), daemon=True)
    full.start()
    full.join(0.2)
    assert full.is_alive()  # it waits for the reader
    stuck.go.set()
    full.join(10)
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
