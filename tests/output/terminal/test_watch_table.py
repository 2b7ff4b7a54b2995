"""The table of ranks cell by cell: widths, colours, order, what a filter and keys leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import cases

from dispatcher.output.monitor.live_table import Row, Snapshot
from dispatcher.output.monitor.run_progress import RUNNING, Picture
from dispatcher.output.terminal.watch_table import (
    MOST_FILTER,
    NOTES_SHOWN,
    ViewState,
    WatchTable,
    keys,
    selected,
    table,
)
from dispatcher.plan.job.placement import FIRST

GIB = 1 << 30
ROW = Row(0, "n0", 0, 77, "runs", 12.4, GIB, None, 3.0, "step 1", alive=True)


def cells(**fields: Any) -> dict[str, str]:
    """Title -> cell of a row."""
    row = replace(ROW, **{"gpu": (97.4, 40.0 * GIB, 612.4), **fields})
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
        ({"rank": FIRST}, "RANK", "1.0"), ({"pid": None}, "PID", "-"), ({"cpu": None}, "CPU", "-"),
        ({"cpu": 99.6}, "CPU", "100%"), ({"rss": None}, "RSS", "-"), ({"rss": 0}, "RSS", "0"),
        ({"rss": 999}, "RSS", "999"), ({"rss": 1000}, "RSS", "1.0K"),
        ({"rss": 10240}, "RSS", "10K"), ({"rss": 1000 << 10}, "RSS", "1.0M"),
        ({"rss": 1 << 40}, "RSS", "1.0T"), ({"rss": 2000 << 40}, "RSS", "2000T"),
        ({}, "GPU", "97%"), ({}, "GMEM", "40G"), ({}, "POWER", "612W"),
        ({"gpu": (None, None, None)}, "GPU", "-"), ({"gpu": (None, None, None)}, "GMEM", "-"),
        ({"gpu": (None, None, None)}, "POWER", "-"), ({"silence": None}, "SILENCE", "-"),
        ({"silence": 3.4}, "SILENCE", "3 s"), ({"silence": 0.2}, "SILENCE", "0 s"),
        ({"silence": 130.0}, "SILENCE", "2 min"),
    ],
)  # fmt: skip
def test_one_cell(fields: dict[str, Any], title: str, cell: str) -> None:
    from dispatcher.output.terminal import watch_table

    (found,) = [one for one in watch_table._COLUMNS if one[0] == title]
    assert found[2](replace(ROW, **{"gpu": (97.4, 40.0 * GIB, 612.4), **fields})) == cell
    assert title in cells(**fields)


def test_columns_are_as_wide_as_everyone_needs() -> None:
    wide = replace(ROW, rank=12345, host="a-long-name", last="x")
    rows = [ROW, replace(ROW, rank=2, state="stopped", last="y")]
    head, first, second = table(rows, [*rows, wide])
    assert head.plain.index("HOST") == len("12345  ")
    assert first.plain.startswith("    0  n0         ")  # numbers stand to the right
    assert first.plain.index("step 1") == second.plain.index("y") == head.plain.index("LAST LINE")
    assert "GPU" not in head.plain  # nobody has one
    assert "GPU" in table([ROW], [replace(ROW, gpu=(1.0, 2.0, 3.0))])[0].plain


def style_of(row: Row, title: str, sort: str = "") -> str:
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
    assert table([replace(ROW, last="\x1b[31ma\tb")], [ROW])[1].plain.endswith("a       b")


ROWS = [
    replace(ROW, rank=0, host="n0", cpu=5.0, rss=None, silence=1.0),
    replace(ROW, rank=1, host="n1", cpu=None, rss=20, silence=None),
    replace(ROW, rank=11, host="n2", cpu=9.0, rss=10, silence=7.0),
]


@cases(
    ("sort", "ranks"),
    [("rank", [0, 1, 11]), ("cpu", [11, 0, 1]), ("rss", [1, 11, 0]), ("silence", [11, 0, 1])],
)
def test_who_comes_first(sort: str, ranks: list[int]) -> None:
    assert [row.rank for row in selected(ROWS, ViewState(sort))] == ranks


@cases(
    ("wanted", "ranks"),
    [("", [0, 1, 11]), ("n", [0, 1, 11]), ("n2", [11]), ("1", [1]), ("11", [11])],
)
def test_who_passes_a_filter(wanted: str, ranks: list[int]) -> None:
    """A part of a host's name, or a whole rank."""
    assert [row.rank for row in selected(ROWS, ViewState(filter=wanted))] == ranks


PICTURE = Picture({RUNNING: 1}, (), {"running": 3}, 0, 5.0, None)


def lines(
    view: ViewState | None = None, count: int = 9, height: int = 8, **fields: Any
) -> tuple[list[str], ViewState, int]:
    rows = tuple(replace(ROW, rank=rank) for rank in range(count))
    notes = fields.pop("notes", ())
    watch = WatchTable(["n0"])
    shot = Snapshot(PICTURE, rows, **fields)
    found, view = watch.lines(shot, view or ViewState(), notes, 120, height)
    return [line.plain.rstrip() for line in found], view, watch.page


def test_the_rows_fill_what_is_left_of_the_window() -> None:
    shown, _, page = lines()
    assert (len(shown), page) == (8, 5)
    assert [line.split()[0] for line in shown[2:7]] == ["0", "1", "2", "3", "4"]
    assert shown[-1].startswith("1-5 of 9, by rank   q lines  s sort")
    shown, _, page = lines(count=2)
    assert shown[4:7] == ["", "", ""]  # the status stays at the end
    assert shown[-1].startswith("1-2 of 2, by rank")
    shown, _, page = lines(slow=("a", "b"), late=("n0",), notes=[str(n) for n in range(9)])
    assert page == 1
    assert shown[1:4] == ["GPUs do not answer: n0", "a", "b"]
    shown, _, page = lines(height=12, notes=[str(n) for n in range(9)])
    assert page == 12 - 1 - 2 - NOTES_SHOWN
    assert shown[-4:-1] == ["6", "7", "8"]


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
     (b"\x1b[A\x1b", ["up", "escape"]), (b" ~", [" ", "~"])],
)  # fmt: skip
def test_keys_of_other_terminals(data: bytes, names: list[str]) -> None:
    assert keys(data) == names
