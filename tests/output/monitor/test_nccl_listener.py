"""NCCL's words in the ranks' output: in any pieces, told once, and not looked for in vain."""

from __future__ import annotations

from dispatcher.core.events.run_events import Entry, Event, RankSpawned, RanksPlaced
from dispatcher.output.monitor.nccl_listener import (
    FIRST,
    MOST_LINE,
    SETTLED,
    SILENT_LIMIT,
    NcclListener,
)
from dispatcher.output.run_state import RunState
from dispatcher.output.terminal.notes import Notes

HEAD = b"h:42:43 [0] NCCL INFO "
IB = b"loss 3\n" + HEAD + b"NET/IB : Using [0]mlx5_1:1/IB [RO]\n" + HEAD + b"Using network IB\n"
SOCKET = b"\xff\n" + HEAD + b"NET/Socket : Using [0]eno1:10.0.0.3<0>\nstep 1\n"
HOSTS = ["b01", "b02", "b03"]


class Ears:
    """A sink of three hosts with two ranks each, what it told, and its clock."""

    def __init__(self, debug: str = "INFO") -> None:
        self.now = 0.0
        self.told: list[Event] = []
        self.state = RunState(HOSTS, lambda: self.now)
        self.sink = NcclListener(self.state, [{"NCCL_DEBUG": debug}] * 3, self.told.append)
        self.begin()

    def begin(self, early: bytes = b"") -> None:
        self.happens(RanksPlaced(6, "a", 1))
        for rank in range(6):
            self.hear(rank, early)
            self.happens(RankSpawned(rank // 2, rank, 7))

    def happens(self, event: Event) -> None:
        for sink in (self.state, self.sink):
            sink.event(Entry(1, 0.0, event))

    def hear(self, rank: int, data: bytes, piece: int = 1 << 20) -> None:
        for at in range(0, len(data), piece):
            self.sink.output(rank, 1, data[at : at + piece])

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.sink.tick(self.now)


def test_told_once_when_all_hosts_have_spoken() -> None:
    ears = Ears()
    ears.hear(0, IB, piece=1)
    ears.hear(3, IB, piece=7)
    assert ears.wait(SETTLED)
    ears.hear(4, SOCKET)
    assert ears.wait(SETTLED / 2)
    assert ears.told == []
    assert not ears.wait(SETTLED)
    ears.hear(4, SOCKET)
    assert not ears.wait(SILENT_LIMIT)
    said: list[str] = []
    notes = Notes(HOSTS, said.append, verbose=False)
    for event in ears.told:
        notes.event(Entry(3, 0.0, event))
    assert said == [
        "note: NCCL: b03 fell back to Socket, 2 others use IB",
        "  hint: dispatch check --nccl -H b03",
    ]
    assert ears.sink.lines(HOSTS) == said
    assert {node: one.net for node, one in ears.sink.networks().items()} == {
        0: "IB", 1: "IB", 2: "Socket",
    }  # fmt: skip
    ears.begin()  # another attempt has said nothing yet
    assert ears.sink.lines(HOSTS) == []


def test_hosts_that_stay_silent_are_not_waited_for() -> None:
    ears = Ears()
    ears.hear(0, IB)
    ears.hear(2, SOCKET)
    assert ears.wait(SETTLED)
    assert not ears.wait(SILENT_LIMIT)
    assert len(ears.told) == 1
    ears.hear(4, SOCKET)  # late, and as odd
    assert not ears.wait(SILENT_LIMIT)
    assert len(ears.told) == 2


def test_nobody_asked() -> None:
    ears = Ears(debug="WARN")
    ears.hear(2, b"x" * FIRST)
    ears.hear(2, b"\n" + SOCKET)  # too late to be looked for
    assert ears.sink.networks() == {}
    ears.hear(0, IB)  # its program asks by itself
    ears.hear(2, b"\n" + SOCKET)
    assert len(ears.sink.networks()) == 2


def test_a_line_without_end_takes_no_room() -> None:
    ears = Ears()
    for _ in range(100):
        ears.hear(0, b"NCCL " * 4096)
    assert sum(map(len, ears.sink._rests.values())) <= MOST_LINE
    ears.hear(0, b"\n" + IB)
    assert ears.sink.networks()[0].net == "IB"


def test_words_that_come_before_the_news_of_their_rank() -> None:
    ears = Ears()
    ears.begin(IB)
    assert len(ears.sink.networks()) == 3
    assert not ears.wait(SETTLED)  # all have spoken
