"""What drivers say of GPUs while ranks use them."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import GpuSample, GpuTroubled, NodeSampled, RankSample
from dispatcher.core.events.run_events import Entry
from dispatcher.output.monitor.gpu_notes import GpuNotes, gpu_text


def sample(reasons: int | None = None, *xids: int) -> NodeSampled:
    """Rank 3 on host 1 uses GPU 1 of two; GPU 1 says so."""
    rank = RankSample(3, "R", 1.0, 1, 1, 1, own=(1,))
    quiet = GpuSample(0, 99.0, None, None, None, None)
    odd = GpuSample(1, 99.0, None, None, None, None, reasons=reasons, xids=xids)
    return NodeSampled(1, 1.0, (rank,), (quiet, odd))


def told(*events: ev.Event) -> list[ev.Event]:
    found: list[ev.Event] = []
    sink = GpuNotes(found.append)
    for event in events:
        sink.event(Entry(1, 1.0, event))
    return found


def test_each_is_told_once_an_attempt() -> None:
    twice = [sample(0x41, 79), sample(0x41, 79)]  # 0x1: idle, which is no trouble
    expected = [GpuTroubled(1, 1, (3,), 79, 0), GpuTroubled(1, 1, (3,), 0, 0x40)]
    assert told(*twice) == expected
    assert told(*twice, ev.RanksPlaced(8, "a", 1), *twice) == expected * 2
    assert told(sample(0x5), sample(None), sample(0)) == []


@cases(
    ("event", "text"),
    [
        (GpuTroubled(1, 1, (3,), 79, 0),
         "GPU 1 of n1 (rank 3): Xid 79 (GPU has fallen off the bus)"),
        (GpuTroubled(0, 2, (), 999, 0), "GPU 2 of n0: Xid 999"),
        (GpuTroubled(1, 1, (3,), 0, 0x40), "GPU 1 of n1 (rank 3): slowed down: hardware thermal"),
    ],
)  # fmt: skip
def test_its_words(event: GpuTroubled, text: str) -> None:
    assert gpu_text(event, ["n0", "n1"]) == text
