"""The table of ranks over the lines: when it is drawn, what is kept meanwhile, who may leave it."""

from __future__ import annotations

import dataclasses
import termios
from collections.abc import Callable, Sequence
from typing import Any

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Counts, Entry, Sink
from dispatcher.output.monitor.live_table import Table
from dispatcher.output.terminal.alt_screen import (
    EVERY,
    MOST_NOTES,
    STOPPED,
    AltScreen,
    TableView,
    WatchScreen,
)


def snapshot() -> Any:
    table = Table(["n0"], lambda: 100.0)
    table.event(Entry(1, 0.0, ev.RanksPlaced(30, "n0", 1)))
    for rank in range(30):
        table.event(Entry(1, 0.0, ev.RankSpawned(0, rank, 1000 + rank)))
    return table.snapshot()


class Looked(AltScreen):
    """A screen of 40 by 10 that is drawn on in memory."""

    def __init__(self) -> None:
        self.drawn: list[list[bytes]] = []
        self.keys: list[bytes] = []
        self.entered = self.left = 0
        self.ours = True

    @property
    def taken(self) -> bool:
        return self.entered > self.left

    @property
    def is_ours(self) -> bool:
        return self.ours

    @property
    def size(self) -> tuple[int, int]:
        return 40, 10

    def enter(self) -> bool:
        self.entered += 1
        return True

    def leave(self) -> None:
        self.left = self.entered

    def close(self) -> None:
        self.leave()

    def typed(self) -> bytes:
        return self.keys.pop(0) if self.keys else b""

    def draw(self, lines: Sequence[bytes]) -> None:
        self.drawn.append(list(lines))


def test_pictures_come_by_the_clock_and_by_keys() -> None:
    screen = Looked()
    view = TableView(screen, ["n0"], snapshot)
    assert view.turn(100.0, ["note: hello"])
    assert (screen.entered, len(screen.drawn)) == (1, 1)
    first = screen.drawn[0]
    assert len(first) == 10
    assert any(b"note: hello" in line for line in first)
    assert view.turn(100.0 + EVERY - 0.01, [])
    assert len(screen.drawn) == 1
    view.turn(100.0 + EVERY, [])
    assert (screen.entered, len(screen.drawn)) == (1, 2)
    screen.keys = [b"\x1b[B"]
    view.turn(100.0 + EVERY + 0.01, [])
    assert len(screen.drawn) == 3
    assert any(b"2-" in line and b"of 30" in line for line in screen.drawn[2])
    view.turn(100.0 + EVERY + 0.02, [])
    assert len(screen.drawn) == 3
    view.turn(100.6 + EVERY, [])
    assert screen.drawn[3] == screen.drawn[2]  # as it was scrolled
    screen.keys = [b"q"]
    assert not view.turn(101.2, [])
    assert len(screen.drawn) == 4


def test_large_tables_are_drawn_less_often() -> None:
    screen, large = Looked(), dataclasses.replace(snapshot(), rows=snapshot().rows * 18)
    view = TableView(screen, ["n0"], lambda: large)
    for at, drawn in ((0.0, 1), (EVERY, 1), (3 * EVERY - 0.01, 1), (3 * EVERY, 2)):
        view.turn(100.0 + at, [])
        assert len(screen.drawn) == drawn


def test_in_the_background_the_table_waits() -> None:
    screen = Looked()
    view = TableView(screen, ["n0"], snapshot)
    screen.ours = False
    screen.keys = [b"q"]
    assert view.turn(100.0, [])
    assert (screen.entered, screen.drawn) == (0, [])
    screen.keys, screen.ours = [], True
    view.turn(100.1, [])
    screen.leave()  # as when we were stopped
    view.turn(100.2, [])
    assert (screen.entered, len(screen.drawn)) == (2, 2)  # it is taken again, and drawn at once


class Lines(Sink):
    """What the screen of lines is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.told.append((rank, stream, data))

    def event(self, entry: Entry) -> None:
        self.told.append(type(entry.event).__name__)

    def gap(self, missing: Counts) -> None:
        self.told.append(dict(missing))

    def say(self, line: str) -> None:
        self.told.append(line)

    def tick(self, now: float) -> bool:
        self.told.append(now)
        return False

    def hide(self) -> None:
        self.told.append("hide")

    def close(self) -> None:
        self.told.append("close")


class View:
    """A table that is looked at until ``over``."""

    def __init__(self) -> None:
        self.alt_screen = Looked()
        self.turns: list[tuple[float, list[str]]] = []
        self.answer: Callable[[], bool] = lambda: True

    def turn(self, now: float, notes: Sequence[str]) -> bool:
        self.turns.append((now, list(notes)))
        self.alt_screen.enter()
        return self.answer()


class Watching:
    def __init__(self) -> None:
        self.view, self.lines = View(), Lines()
        self.screen = WatchScreen(self.view, self.lines)  # type: ignore[arg-type]

    def begin(self) -> Watching:
        self.screen.event(Entry(1, 0.0, ev.RanksPlaced(1, "n0", 1)))
        self.lines.told.clear()
        return self


def test_before_the_ranks_start_lines_are_shown() -> None:
    watching = Watching()
    screen = watching.screen
    screen.output(0, 1, b"x")
    screen.say("note: a")
    screen.gap({(0, 1): 3})
    assert not screen.tick(7.0)
    screen.event(Entry(1, 0.0, ev.NodeBooted(0, 0)))
    screen.event(Entry(1, 0.0, ev.RanksPlaced(1, "n0", 1)))
    assert watching.lines.told == [
        (0, 1, b"x"), "note: a", {(0, 1): 3}, 7.0, "NodeBooted", "RanksPlaced", "hide",
    ]  # fmt: skip
    assert watching.view.turns == []


def test_while_the_table_stands_lines_are_counted_and_notes_kept() -> None:
    watching = Watching().begin()
    screen, told = watching.screen, watching.lines.told
    screen.output(0, 1, b"abc")
    screen.gap({(0, 1): 2, (1, 2): 4})
    screen.say("note: a")
    assert screen.tick(100.0)
    assert told == []
    assert watching.view.turns == [(100.0, ["note: a"])]
    watching.view.answer = lambda: False
    assert screen.tick(100.1)
    assert told == [{(0, 1): 5, (1, 2): 4}, "note: a"]
    assert not watching.view.alt_screen.taken
    screen.output(0, 1, b"line")
    screen.event(Entry(1, 0.0, ev.RanksPlaced(1, "n0", 1, 1)))  # who has left stays away
    screen.output(0, 1, b"more")
    assert told[2:] == [(0, 1, b"line"), "RanksPlaced", (0, 1, b"more")]
    screen.close()
    assert told[5:] == ["close"]


@cases("error", [OSError("gone"), termios.error("gone")])
def test_a_terminal_that_goes_away_leaves_lines(error: Exception) -> None:
    watching = Watching().begin()

    def gone() -> bool:
        raise error

    watching.view.answer = gone
    watching.screen.tick(100.0)
    watching.screen.say("note: x")
    assert watching.lines.told == ["note: x"]


def test_after_a_stop_the_terminal_is_taken_anew() -> None:
    watching = Watching().begin()
    alt = watching.view.alt_screen
    watching.screen.tick(100.0)
    watching.screen.tick(100.0 + STOPPED)
    assert alt.left == 0
    watching.screen.tick(100.0 + STOPPED + STOPPED + 0.1)
    assert alt.left == 2


def test_the_shell_has_the_terminal_while_it_is_lent() -> None:
    watching = Watching().begin()
    watching.screen.tick(100.0)
    with watching.screen.lent():
        assert not watching.view.alt_screen.taken
        assert watching.screen.tick(100.1)
        assert len(watching.view.turns) == 1
    watching.screen.tick(100.2)
    assert len(watching.view.turns) == 2
    watching.screen.give_back()
    assert not watching.view.alt_screen.taken
    watching.screen.tick(100.3)
    assert len(watching.view.turns) == 2


def test_what_dispatch_said_meanwhile_is_bounded_and_said_at_the_end() -> None:
    watching = Watching().begin()
    for number in range(MOST_NOTES + 5):
        watching.screen.say(str(number))
    watching.screen.close()
    assert watching.lines.told == [*(str(n) for n in range(5, MOST_NOTES + 5)), "close"]
    assert not watching.view.alt_screen.taken
