"""Signs of life: heartbeats, output and lines of progress, by a clock that the test moves."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.bootstrap import payload
from dispatcher.core.events.actions import GatherStacks
from dispatcher.core.events.run_events import HostsSilent, NodesHeard
from dispatcher.remote.protocol.frames import Decoder
from dispatcher.remote.protocol.packing import unpack
from dispatcher.runner.run import liveness


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(liveness, "time", clock)
    return clock


CUT = HostsSilent((1, 2), 5.5, 15.0)


@cases(
    ("heard", "told"),
    [
        # (time, host, since when it is not heard) -> (time, event), looked for every half second
        ([(2.0, 1, 0.5), (3.0, 1, None)], []),  # too short for a word
        ([(2.0, 1, 0.5)], [(6.5, HostsSilent((1,), 6.0, 15.0))]),  # once
        # who follows within a second is told of with the first
        ([(2.0, 1, 0.5), (6.0, 2, 1.0)], [(6.5, CUT)]),
        ([(2.0, 1, 0.5), (6.0, 2, 1.0), (9.0, 1, None), (9.5, 2, None)],
         [(6.5, CUT), (10.0, HostsSilent((1, 2), 8.5, 0.0))]),
        # each silence anew
        ([(2.0, 1, 0.5), (7.0, 1, None), (9.0, 1, 8.5)],
         [(6.5, HostsSilent((1,), 6.0, 15.0)), (8.0, HostsSilent((1,), 6.5, 0.0)),
          (14.5, HostsSilent((1,), 6.0, 15.0))]),
        # who is given up is not heard again
        ([(2.0, 1, 0.5), (7.0, 1, "lost")], [(6.5, HostsSilent((1,), 6.0, 15.0))]),
    ],
)  # fmt: skip
def test_hosts_that_fall_silent_together_are_one_event(
    heard: list[tuple[float, int, Any]], told: list[tuple[float, object]]
) -> None:
    silences, left, found = liveness.Silences(5.0, 15.0), list(heard), list[tuple[float, object]]()
    for now in (half / 2 for half in range(40)):
        while left and left[0][0] <= now:
            _, host, since = left.pop(0)
            if since == "lost":
                silences.forget(host)
            else:
                silences.note(host, since)
        found += [(now, event) for event in silences.news(now)]
    assert found == told


def test_output_is_told_once_with_its_age(clock: Clock) -> None:
    seen = liveness.Flow()
    assert seen.news(clock.now) == []
    seen.given(0, 5)
    seen.taken(5)
    clock.now += 3
    seen.progressed()
    clock.now += 1
    assert seen.news(clock.now) == [(4.0, False), (1.0, True)]
    assert seen.news(clock.now) == []


def test_what_nobody_takes_counts_as_written_now(clock: Clock) -> None:
    """A paused reader holds the ranks back: their silence is ours."""
    seen = liveness.Flow()
    seen.given(0, 5)
    seen.given(1, 5)
    seen.taken(5)
    for _ in range(3):
        clock.now += 60
        assert seen.news(clock.now) == [(0.0, False)]
    clock.now += 1
    seen.taken(5)
    clock.now += 7
    assert seen.news(clock.now) == [(7.0, False)]
    assert seen.news(clock.now) == []


def test_each_heartbeat_is_told_once_with_its_age(clock: Clock) -> None:
    noted = liveness.Heartbeats()
    for node, clock.now in ((3, 10.0), (1, 11.0), (3, 12.0)):
        noted.note(node)
    assert noted.news(14.0) == NodesHeard((3, 1), (2.0, 3.0))
    assert noted.news(15.0) is None
    clock.now = 15.0
    noted.note(1)
    assert noted.news(15.0) == NodesHeard((1,), (0.0,))


@given(st.lists(st.integers(0, 40), max_size=8))
def test_a_line_of_progress_in_any_pieces(cuts: list[int]) -> None:
    text = b"loss 3\nsaved step 12 of 40\r\nloss 2\n"
    seen: list[Any] = []
    watcher = liveness.ProgressLine(r"step \d+ of", lambda *what: seen.append(what))
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        watcher.feed(1, 5, 1, text[start:end])
        watcher.feed(1, 6, 2, b"step by")  # another stream between the pieces
    assert seen == [(1, 5, "step 12 of", "step 12 of", (12.0, 40.0))]


def test_the_first_and_the_last_of_a_piece_are_told_and_cut() -> None:
    seen: list[Any] = []
    watcher = liveness.ProgressLine(r"(?:step|epoch) .*", lambda *what: seen.append(what))
    watcher.feed(
        0, 3, 1, b"step 1\nno\nstep 2\nepoch \xff" + b"x" * 2 * liveness.MOST_SHOWN + b"\n"
    )
    assert seen == [(0, 3, "step 1", "epoch \ufffd" + "x" * (liveness.MOST_SHOWN - 7), None)]


def test_lines_of_other_words_and_unfinished_ones_are_none() -> None:
    seen: list[tuple[int, int]] = []
    watcher = liveness.ProgressLine("^step", lambda node, rank, *_: seen.append((node, rank)))
    watcher.feed(0, 0, 1, b"no step\nstep 1")
    assert seen == []
    watcher.feed(0, 0, 1, b"\n")
    assert seen == [(0, 0)]


def test_memory_is_bounded() -> None:
    watcher = liveness.ProgressLine("x", lambda *_: None)
    for _ in range(10):
        watcher.feed(0, 0, 1, b"." * (liveness.MOST_PENDING // 2))
    assert len(watcher._rests[0, 1]) <= liveness.MOST_PENDING


class Asked:
    """A host's thread of which only the orders are looked at."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.orders: list[dict[str, Any]] = []
        self.ras: list[bool] = []
        turns = SimpleNamespace(asked_for_stacks=lambda *, ras: self.ras.append(ras))
        self.intake = SimpleNamespace(turns=turns)

    def send(self, frame: bytes) -> None:
        (one,) = Decoder().feed(frame)
        order = unpack(one.body)
        assert isinstance(order, dict)
        self.orders.append(order)

    def seconds(self) -> list[float]:
        return [order["seconds"] for order in self.orders]


def test_samples_are_asked_for_once_ranks_were_started_and_as_often_as_anybody_wants() -> None:
    sampling, hosts = liveness.Sampling(None), [Asked(0), Asked(1)]
    sampling.started(hosts[0])  # type: ignore[arg-type]
    assert hosts[0].orders == []
    sampling.ask(5.0)
    sampling.ask(9.0)  # often enough
    sampling.ask(5.0)
    assert (hosts[0].seconds(), hosts[1].orders) == ([5.0], [])
    sampling.started(hosts[1])  # type: ignore[arg-type]
    assert hosts[1].seconds() == [5.0]
    sampling.ask(2.0)
    assert [host.seconds() for host in hosts] == [[5.0, 2.0]] * 2
    assert hosts[0].orders[0] == {
        "type": "sample", "seconds": 5.0,
        "parts": payload.parts(("probe.sampler", "probe.usage")),
    }  # fmt: skip


def test_hosts_with_ranks_are_asked_for_versions_and_go_on_sampling() -> None:
    sampling, host = liveness.Sampling(3.0), Asked(0)
    sampling.started(host)  # type: ignore[arg-type]
    sampling.ask_versions()
    order = host.orders[-1]
    assert order["seconds"] == 3.0
    assert b"dispatch-version" in order["versions"]
    parts = ("probe.sampler", "probe.usage", "probe.versions")
    assert order["parts"] == payload.parts(parts)
    sampling.gather(host, GatherStacks(0, 1, 5.0))  # type: ignore[arg-type]
    sampling.ask_versions()  # which would end that
    assert "stacks" in host.orders[-1]


@cases("every", [None, 3.0])
def test_who_samples_also_finds_out_where_the_ranks_are(every: float | None) -> None:
    host = Asked(0)
    order = GatherStacks(0, 7, 6.0, hung=True, ras=False)
    liveness.Sampling(every).gather(host, order)  # type: ignore[arg-type]
    more = ("host.tcp_peer", "probe.nccl_state", "probe.stack_dump")
    parts = ("probe.sampler", "probe.usage", *more)
    assert host.orders == [{
        "type": "sample", "seconds": every or 0.0, "parts": payload.parts(parts),
        "stacks": {"number": 7, "seconds": 6.0, "hung": True, "ras": False},
    }]  # fmt: skip
    liveness.Sampling(every).gather(host, GatherStacks(0, 8, 6.0, ras=True))  # type: ignore[arg-type]
    assert host.ras == [False, True]


def test_a_heartbeat_from_the_future_is_of_now(clock: Clock) -> None:
    noted, flow = liveness.Heartbeats(), liveness.Flow()
    noted.note(1)
    flow.given(0, 1)
    flow.taken(1)
    flow.progressed()
    assert noted.news(clock.now - 5) == NodesHeard((1,), (0.0,))
    assert flow.news(clock.now - 5) == [(0.0, False), (0.0, True)]


def test_a_line_longer_than_is_held_is_searched_in_pieces() -> None:
    seen: list[tuple[int, int]] = []
    watcher = liveness.ProgressLine("needle", lambda node, rank, *_: seen.append((node, rank)))
    watcher.feed(0, 3, 1, b"needle" + b"." * (liveness.MOST_PENDING - 6))
    assert seen == []  # all of it is held
    watcher.feed(0, 3, 1, b".")
    assert seen == [(0, 3)]
    watcher.feed(0, 3, 1, b"needle\rneedle\n")
    assert seen == [(0, 3)] * 2  # once a piece
    assert watcher._rests[3, 1] == b""


def test_a_pattern_sees_a_bounded_piece_at_once_and_misses_nothing_between_two() -> None:
    seen: list[tuple[int, int]] = []
    watcher = liveness.ProgressLine("needle", lambda node, rank, *_: seen.append((node, rank)))
    for at in range(liveness.MOST_PENDING - 8, liveness.MOST_PENDING + 3):
        watcher.feed(0, at, 1, b"." * at + b"needle" + b"." * 99_999 + b"\n")
    assert len(seen) == 11
    slow = liveness.ProgressLine("(x+x+)+y", lambda *_: None)
    widest = max(len(line) for line in _pieces_seen(slow, b"." * 100_000 + b"\n"))
    assert widest <= liveness.MOST_PENDING


def _pieces_seen(watcher: liveness.ProgressLine, data: bytes) -> list[bytes]:
    found: list[bytes] = []

    def search(line: bytes, start: int, end: int) -> None:
        found.append(line[start:end])

    watcher._search = search  # type: ignore[assignment]
    watcher.feed(0, 0, 1, data)
    return found
