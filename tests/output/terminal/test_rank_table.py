"""The table of ranks on the whole screen: its cells, its keys, and the terminal given back."""

from __future__ import annotations

import dataclasses
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fcntl import ioctl
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.output.monitor.run_picture import Picture, Snapshot, TopRank, snapshot_of
from dispatcher.output.run_state import RUNNING, RunState
from dispatcher.output.terminal import rank_table
from dispatcher.output.terminal.rank_table import (
    ENTER,
    EVERY,
    LEAVE,
    MOST_FILTER,
    AltScreen,
    TableView,
    ViewState,
    WatchTable,
    keys,
    selected,
    table,
)

GIB = 1 << 30
ROW = TopRank("0", "n0", 0, 77, "runs", True, 12.4, GIB, silence=3.0, last_line="step 1")

GPU = {"gpu_used": 97.4, "gpu_memory": 40.0 * GIB, "gpu_watts": 612.4}


def cells(**fields: Any) -> dict[str, str]:
    """Title -> cell of a row."""
    row = replace(ROW, **{**GPU, **fields})
    head, line = table([row], [row])
    found, at = {}, 0
    for title in head.plain.split():
        if title in ("LAST", "LINE"):
            continue
        end = head.plain.index(title, at) + len(title)
        found[title] = line.plain[at : max(end, at)].strip()
        at = end
    return found


@cases(
    ("fields", "title", "cell"),
    [
        ({"rank": "1.0"}, "RANK", "1.0"), ({"pid": None}, "PID", "-"), ({"cpu": None}, "CPU", "-"),
        ({"cpu": 99.6}, "CPU", "100%"), ({"rss": None}, "RSS", "-"), ({"rss": 0}, "RSS", "0"),
        ({"rss": 999}, "RSS", "999"), ({"rss": 1000}, "RSS", "1.0K"),
        ({"rss": 10240}, "RSS", "10K"), ({"rss": 1000 << 10}, "RSS", "1.0M"),
        ({"rss": 1 << 40}, "RSS", "1.0T"), ({"rss": 2000 << 40}, "RSS", "2000T"),
        ({}, "GPU", "97%"), ({}, "GMEM", "40G"), ({}, "POWER", "612W"),
        ({"gpu_used": None}, "GPU", "-"), ({"gpu_memory": None}, "GMEM", "-"),
        ({"gpu_watts": None}, "POWER", "-"), ({"silence": None}, "SILENCE", "-"),
        ({"silence": 3.4}, "SILENCE", "3 s"), ({"silence": 0.2}, "SILENCE", "0 s"),
        ({"silence": 130.0}, "SILENCE", "2 min"),
    ],
)  # fmt: skip
def test_one_cell(fields: dict[str, Any], title: str, cell: str) -> None:
    (found,) = [one for one in rank_table._COLUMNS if one[0] == title]
    assert found[2](replace(ROW, **{**GPU, **fields})) == cell
    assert title in cells(**fields)


def test_columns_are_as_wide_as_everyone_needs() -> None:
    wide = replace(ROW, rank="12345", host="a-long-name", last_line="x")
    rows = [ROW, replace(ROW, rank="2", state="stopped", last_line="y")]
    head, first, second = table(rows, [*rows, wide])
    assert head.plain.index("HOST") == len("12345  ")
    assert first.plain.startswith("    0  n0         ")  # numbers stand to the right
    assert first.plain.index("step 1") == second.plain.index("y") == head.plain.index("LAST LINE")
    assert "GPU" not in head.plain  # nobody has one
    assert "GPU" in table([ROW], [replace(ROW, gpu_used=1.0)])[0].plain


def style_of(row: TopRank, title: str, sort: str = "") -> str:
    """The style of the cell below ``title``."""
    head, line = table([row], [row], sort)
    at = head.plain.index(title)
    at += len(title) - 1 if title not in ("HOST", "STATE", "LAST") else 0
    return " ".join(str(span.style) for span in line.spans if span.start <= at < span.end)


@cases(
    ("fields", "title", "style"),
    [
        ({}, "RANK", "cyan"), ({}, "STATE", ""), ({}, "HOST", ""),
        ({"state": "in disk wait"}, "STATE", "red"),
        ({"silence": 59.9}, "SILENCE", ""), ({"silence": 60.0}, "SILENCE", "yellow"),
        ({"silence": None}, "SILENCE", ""),
        ({"silence": 60.0, "cpu": 0.9}, "CPU", "bold yellow"),
        ({"silence": 60.0, "cpu": 1.0}, "CPU", ""), ({"silence": 60.0, "cpu": None}, "CPU", ""),
        ({"silence": 5.0, "cpu": 0.0}, "CPU", ""),
        ({"alive": False, "state": "done"}, "STATE", "dim"),
        ({"alive": False, "state": "done"}, "RANK", "dim"),
        ({"alive": False, "state": "exit 1"}, "STATE", "red"),
        ({"alive": False, "state": "exit 1"}, "RANK", "dim"),
        ({"alive": False, "state": "exit 1"}, "LAST", "dim"), ({}, "LAST", ""),
    ],
)  # fmt: skip
def test_what_stands_out(fields: dict[str, Any], title: str, style: str) -> None:
    assert style_of(replace(ROW, **fields), title) == style


def test_the_column_that_is_sorted_by_is_underlined() -> None:
    head = table([ROW], [ROW], "rss")[0]
    (span,) = [span for span in head.spans if span.style == "underline"]
    assert head.plain[span.start : span.end].strip() == "RSS"


def test_tabs_and_colours_of_a_last_line() -> None:
    assert table([replace(ROW, last_line="\x1b[31ma\tb")], [ROW])[1].plain.endswith("a       b")


ROWS = [
    replace(ROW, rank="0", host="n0", cpu=5.0, rss=None, silence=1.0),
    replace(ROW, rank="1", host="n1", cpu=None, rss=20, silence=None),
    replace(ROW, rank="11", host="n2", cpu=9.0, rss=10, silence=7.0),
]


@cases(
    ("sort", "ranks"),
    [("rank", [0, 1, 11]), ("cpu", [11, 0, 1]), ("rss", [1, 11, 0]), ("silence", [11, 0, 1])],
)
def test_who_comes_first(sort: str, ranks: list[int]) -> None:
    assert [int(row.rank) for row in selected(ROWS, ViewState(sort))] == ranks


@cases(
    ("wanted", "ranks"),
    [("", [0, 1, 11]), ("n", [0, 1, 11]), ("n2", [11]), ("1", [1]), ("11", [11])],
)
def test_who_passes_a_filter(wanted: str, ranks: list[int]) -> None:
    """A part of a host's name, or a whole rank."""
    assert [int(row.rank) for row in selected(ROWS, ViewState(filter=wanted))] == ranks


PICTURE = Picture({RUNNING: 1}, (), {"running": 3}, 0, 5.0, None)


def lines(
    view: ViewState | None = None, count: int = 9, height: int = 8, **fields: Any
) -> tuple[list[str], ViewState, int]:
    rows = tuple(replace(ROW, rank=str(rank)) for rank in range(count))
    watch = WatchTable(["n0"])
    shot = Snapshot(PICTURE, rows, **fields)
    found, view = watch.lines(shot, view or ViewState(), 120, height)
    return [line.plain.rstrip() for line in found], view, watch.page


def test_the_rows_fill_what_is_left_of_the_window() -> None:
    shown, _, page = lines()
    assert (len(shown), page) == (8, 5)
    assert [line.split()[0] for line in shown[2:7]] == ["0", "1", "2", "3", "4"]
    assert shown[-1].startswith("1-5 of 9, by rank   q quit  s sort")
    shown, _, page = lines(count=2)
    assert shown[4:7] == ["", "", ""]  # the status stays at the end
    assert shown[-1].startswith("1-2 of 2, by rank")
    shown, _, page = lines(slow=("a", "b"), late_gpus=("n0",))
    assert page == 2
    assert shown[1:4] == ["GPUs do not answer: n0", "a", "b"]


def test_one_may_scroll_to_the_last_row_and_no_further() -> None:
    shown, view, _ = lines(ViewState(top=2))
    assert (view.top, shown[2].split()[0]) == (2, "2")
    shown, view, _ = lines(ViewState(top=99))
    assert (view.top, shown[6].split()[0]) == (4, "8")
    assert shown[-1].startswith("5-9 of 9")
    assert lines(ViewState(top=3), count=2)[1].top == 0


@cases(
    ("view", "status"),
    [
        (ViewState(filter="n0"), "1-5 of 9 with 'n0', by rank"),
        (ViewState(filter="x"), "no ranks with 'x', by rank"),
        (ViewState("cpu"), "1-5 of 9, by cpu"),
        (ViewState(typing="n"), "host or rank: n\N{LOWER ONE EIGHTH BLOCK}"),
    ],
)
def test_the_status(view: ViewState, status: str) -> None:
    assert lines(view)[0][-1].startswith(status)


@cases(
    ("view", "key", "after"),
    [
        (ViewState(), "down", ViewState(top=1)), (ViewState(top=5), "up", ViewState(top=4)),
        (ViewState(top=5), "page up", ViewState()),
        (ViewState(top=25), "page up", ViewState(top=15)),
        (ViewState(top=5), "page down", ViewState(top=15)), (ViewState(top=5), "home", ViewState()),
        (ViewState(), "end", ViewState(top=1 << 30)), (ViewState(top=5), "x", ViewState(top=5)),
        (ViewState(top=5), "s", ViewState("silence")), (ViewState("rss"), "s", ViewState("rank")),
        (ViewState(top=5, filter="a"), "escape", ViewState()),
        (ViewState(top=5), "/", ViewState(top=5, typing="")),
        (ViewState(typing="a"), "b", ViewState(typing="ab")),
        (ViewState(typing="a"), "up", ViewState(typing="a")),
        (ViewState(typing=""), "back", ViewState(typing="")),
        (ViewState(typing="ab"), "back", ViewState(typing="a")),
        (ViewState(top=5, filter="x", typing="ab"), "enter", ViewState(filter="ab")),
        (ViewState(top=5, filter="x", typing="ab"), "escape", ViewState(top=5, filter="x")),
        (ViewState(typing="x" * MOST_FILTER), "y", ViewState(typing="x" * MOST_FILTER)),
        (ViewState(typing="x" * (MOST_FILTER - 1)), "y",
         ViewState(typing="x" * (MOST_FILTER - 1) + "y")),
    ],
)  # fmt: skip
def test_one_key(view: ViewState, key: str, after: ViewState) -> None:
    assert view.pressed(key, 10) == after


@cases(
    ("data", "names"),
    [(b"\x1b[1~\x1b[4~\x1bOH\x1bOF", ["home", "end", "home", "end"]),
     (b"\n\x08", ["enter", "back"]),
     (b"\x1b[A\x1b", ["up", "escape"]), (b" ~", [" ", "~"]), (b"qs/", ["q", "s", "/"]),
     (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
     (b"\x1b[5~\x1b[6~\x1b[H\x1b[F", ["page up", "page down", "home", "end"]),
     (b"\r\x7f\x1b", ["enter", "back", "escape"]),
     (b"\x1b[200~\x1b[1;5C\xc3\xa4\x00", [])],  # pasting, Ctrl-Right, no ASCII
)  # fmt: skip
def test_keys_of_any_terminal(data: bytes, names: list[str]) -> None:
    assert keys(data) == names


# -- when it is drawn ----------------------------------------------------------------------


def snapshot() -> Any:
    state = RunState(["n0"], lambda: 100.0)
    state.event(Entry(1, 0.0, ev.RanksPlaced(30, "n0", 1)))
    for rank in range(30):
        state.event(Entry(1, 0.0, ev.RankSpawned(0, rank, 1000 + rank)))
    return snapshot_of(state)


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
    assert view.turn(100.0)
    assert (screen.entered, len(screen.drawn)) == (1, 1)
    first = screen.drawn[0]
    assert len(first) == 10
    assert view.turn(100.0 + EVERY - 0.01)
    assert len(screen.drawn) == 1
    view.turn(100.0 + EVERY)
    assert (screen.entered, len(screen.drawn)) == (1, 2)
    screen.keys = [b"\x1b[B"]
    view.turn(100.0 + EVERY + 0.01)
    assert len(screen.drawn) == 3
    assert any(b"2-" in line and b"of 30" in line for line in screen.drawn[2])
    view.turn(100.0 + EVERY + 0.02)
    assert len(screen.drawn) == 3
    view.turn(100.6 + EVERY)
    assert screen.drawn[3] == screen.drawn[2]  # as it was scrolled
    screen.keys = [b"q"]
    assert not view.turn(101.2)
    assert len(screen.drawn) == 4


def test_large_tables_are_drawn_less_often() -> None:
    screen, large = Looked(), dataclasses.replace(snapshot(), ranks=snapshot().ranks * 18)
    view = TableView(screen, ["n0"], lambda: large)
    for at, drawn in ((0.0, 1), (EVERY, 1), (3 * EVERY - 0.01, 1), (3 * EVERY, 2)):
        view.turn(100.0 + at)
        assert len(screen.drawn) == drawn


def test_in_the_background_the_table_waits() -> None:
    screen = Looked()
    view = TableView(screen, ["n0"], snapshot)
    screen.ours = False
    screen.keys = [b"q"]
    assert view.turn(100.0)
    assert (screen.entered, screen.drawn) == (0, [])
    screen.keys, screen.ours = [], True
    view.turn(100.1)
    screen.leave()  # as when we were stopped
    view.turn(100.2)
    assert (screen.entered, len(screen.drawn)) == (2, 2)  # it is taken again, and drawn at once


# -- the terminal --------------------------------------------------------------------------


class Desk:
    """A terminal: ``user`` is the end where somebody looks and types."""

    def __init__(self) -> None:
        self.user, self.tty = pty.openpty()
        os.set_blocking(self.user, False)
        self.resize(50, 10)
        self.before = termios.tcgetattr(self.tty)
        self.screen = AltScreen(self.tty)

    def resize(self, columns: int, rows: int) -> None:
        ioctl(self.user, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def shown(self) -> bytes:
        """All that was written since the last look."""
        data = b""
        try:
            while piece := os.read(self.user, 1 << 16):
                data += piece
        except BlockingIOError:
            pass
        return data

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.tty)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.screen.close()
    os.close(desk.user)
    os.close(desk.tty)


def test_it_is_taken_drawn_on_and_given_back(desk: Desk) -> None:
    screen = desk.screen
    screen.draw([b"too early"])
    assert (screen.typed(), desk.shown()) == (b"", b"")
    before = screen.taken
    assert screen.enter()
    assert (before, screen.taken) == (False, True)
    assert desk.shown() == ENTER
    modes = desk.modes()
    assert not modes[3] & (termios.ICANON | termios.ECHO)
    assert modes[3] & termios.ISIG  # Ctrl-C does what it always does
    screen.draw([b"one", b"two"])
    assert desk.shown() == b"\x1b[2J\x1b[Hone\x1b[K\r\r\ntwo\x1b[K\x1b[J"
    screen.draw([b"three"])
    assert desk.shown() == b"\x1b[Hthree\x1b[K\x1b[J"
    desk.resize(60, 10)
    screen.draw([b"four"])
    assert desk.shown() == b"\x1b[2J\x1b[Hfour\x1b[K\x1b[J"
    assert screen.size == (60, 10)
    screen.leave()
    assert not screen.taken
    assert desk.shown() == LEAVE
    assert desk.modes() == desk.before
    screen.leave()
    screen.draw([b"too late"])
    assert desk.shown() == b""


def test_keys_come_without_enter(desk: Desk) -> None:
    desk.screen.enter()
    assert desk.screen.typed() == b""
    os.write(desk.user, b"qs\x1b[A")
    typed = b""

    def read() -> bool:
        nonlocal typed
        typed += desk.screen.typed()
        return typed == b"qs\x1b[A"

    wait_for(read, 30, "the keys are there")
    desk.screen.leave()
    os.write(desk.user, b"ls\n")
    assert desk.screen.typed() == b""  # that is the shell's


def test_a_paused_terminal_costs_pictures_and_holds_nobody(desk: Desk) -> None:
    desk.screen.enter()
    picture = [b"x" * 1000] * 100
    for _ in range(5):
        desk.screen.draw(picture)
    left = len(desk.screen._rest)
    assert left > 0
    desk.screen.draw([b"dropped"])
    assert len(desk.screen._rest) == left
    shown = b""

    def goes_on() -> bool:
        nonlocal shown
        shown += desk.shown()
        desk.screen.draw([b"end"])
        return b"end" in shown

    wait_for(goes_on, 30, "it goes on where it was")
    assert b"dropped" not in shown
    assert shown.count(b"\x1b[J") >= 2


def test_what_is_left_of_a_picture_does_not_stand_before_the_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_table, "LAST", 60.0)  # seconds for us to read
    desk.screen.enter()
    desk.screen.draw([b"x" * 1000] * 100)
    reader = threading.Thread(target=desk.screen.leave)
    reader.start()
    shown = b""

    def is_left() -> bool:
        nonlocal shown
        shown += desk.shown()
        return not reader.is_alive()

    wait_for(is_left, 60, "it is given back")
    shown += desk.shown()
    assert shown.endswith(b"\x18" + LEAVE)
    assert desk.modes() == desk.before


def test_in_the_background_nobody_draws(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.screen.enter()
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: 1)
    desk.shown()
    os.write(desk.user, b"ls\n")
    ours = [desk.screen.is_ours]
    assert desk.screen.typed() == b""
    modes = desk.modes()
    desk.screen.leave()
    assert desk.modes() == modes  # who is in the foreground has set them
    assert not desk.screen.enter()
    assert not desk.screen.taken
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
    ours.append(desk.screen.is_ours)
    assert ours == [False, True]
    assert desk.screen.enter()


def test_a_terminal_that_tells_no_size(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.resize(0, 0)
    assert desk.screen.size == (1, 1)

    def none(fd: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", none)
    assert desk.screen.size == (80, 24)


def test_what_is_no_terminal_is_refused(tmp_path: Any) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError):
        AltScreen(fd)
    os.close(fd)


def test_a_terminal_that_cannot_be_opened_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "ttyname", lambda fd: "/dev/nowhere")
    desk = Desk()
    assert desk.screen.enter()
    assert desk.shown() == ENTER
    desk.screen.close()
    os.write(desk.tty, b"ours")  # the descriptor that was given is still open
    assert desk.shown() == LEAVE + b"ours"
    os.close(desk.user)
    os.close(desk.tty)
