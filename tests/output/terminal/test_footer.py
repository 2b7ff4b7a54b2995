"""The footer's words, one picture at a time, and the panel at the end."""

from __future__ import annotations

import re
from typing import Any

from cases import cases
from rich.text import Text

from dispatcher.output.monitor.run_picture import Picture
from dispatcher.output.run_state import (
    CHECKED,
    CONNECTED,
    CONNECTING,
    LOST,
    RUNNING,
    WAITING,
)
from dispatcher.output.terminal.footer import (
    BAR,
    MOST_BARS,
    RATE,
    Footer,
    closing_panel,
    drawn,
    progress_bar,
)

HOSTS = ["n1", "n2", "n3", "n4"]
ALL_RUN: dict[str, Any] = {
    "hosts": {RUNNING: 4}, "pending": (), "ranks": {"running": 8}, "lines": 0, "seconds": 5.0,
    "since_line": None,
}  # fmt: skip


def picture(**fields: Any) -> Picture:
    return Picture(**{**ALL_RUN, **fields})


def shown(*bars: tuple[str, bytes], columns: int = 200, **fields: Any) -> list[str]:
    lines = Footer(HOSTS).lines(picture(**fields), bars, columns)
    assert all(line.cell_len <= columns for line in lines)
    return [line.plain for line in lines]


HEAD = "\N{BLACK RIGHT-POINTING SMALL TRIANGLE} "


@cases(
    ("fields", "status"),
    [
        ({}, "4 hosts: 4 running · 8 ranks: 8 running · 0:00:05"),
        ({"ranks": {}}, "4 hosts: 4 running · 0:00:05"),
        ({"ranks": {"failed": 1, "running": 2, "done": 3}},
         "4 hosts: 4 running · 6 ranks: 2 running, 3 done, 1 failed · 0:00:05"),
        ({"hosts": {RUNNING: 2, LOST: 1, CHECKED: 1}},
         "4 hosts: 1 lost, 2 running, 1 checked · 8 ranks: 8 running · 0:00:05"),
        ({"stopping": "why"}, "ending · 4 hosts: 4 running · 8 ranks: 8 running · 0:00:05"),
        ({"hosts": {RUNNING: 2, WAITING: 2}, "pending": (2, 3), "stopping": "why"},
         "ending · 4 hosts: 2 running · 8 ranks: 8 running · 0:00:05"),
        ({"since_line": 1.9, "lines": 10},
         "4 hosts: 4 running · 8 ranks: 8 running · 0:00:05 · 0 lines/s"),
        ({"reached": "step 3"}, "4 hosts: 4 running · 8 ranks: 8 running · 0:00:05 · step 3"),
        ({"reached": "\x1b[31mstep 3"},
         "4 hosts: 4 running · 8 ranks: 8 running · 0:00:05 · step 3"),
        ({"reached": "3/9\x1b", "left": 61.2},
         "4 hosts: 4 running · 8 ranks: 8 running · 0:00:05 · 3/9\\x1b, 61 s left"),
        ({"since_line": 2.0}, "4 hosts: 4 running · 8 ranks: 8 running · 0:00:05 · 0 lines/s · "
         "last line 2 s ago"),
    ],
)  # fmt: skip
def test_the_status(fields: dict[str, Any], status: str) -> None:
    assert shown(**fields) == [HEAD + status]


def test_hosts_that_are_awaited_are_named_and_counted() -> None:
    lines = shown(hosts={CONNECTED: 1, CONNECTING: 2, CHECKED: 1}, pending=(0, 1, 2), ranks={})
    assert lines[0] == "waiting for n[1-3]"
    full = "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * (BAR // 4)
    rest = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (BAR - BAR // 4)
    words = f"{full}{rest} 4 hosts: 1 checked, 1 connected, 2 connecting · 0:00:05"
    assert lines[1] == HEAD + words
    assert len(shown(pending=(0,), stopping="why")) == 1


@cases(
    ("silent", "idle", "words"),
    [
        ((1, 3), (), "no output for 61 s: ranks 1,3"),
        ((1, 3), (1, 3), "no output for 61 s: ranks 1,3, no CPU"),
        ((1, 3), (3,), "no output for 61 s: ranks 1,3; no CPU: rank 3"),
    ],
)
def test_silence(silent: tuple[int, ...], idle: tuple[int, ...], words: str) -> None:
    assert shown(silent=silent, idle=idle, silent_for=61.0)[0] == words


def test_bars_stand_first_and_only_so_many() -> None:
    bars = [(f"[{n}]", b"\x1b[31m%d%%\t|\x1b[2J" % n) for n in range(MOST_BARS + 2)]
    lines = shown(*bars)
    assert lines[:2] == ["[0] 0%  |\\x1b[2J", "[1] 1%  |\\x1b[2J"]
    assert lines[MOST_BARS] == "and 2 more bars"
    assert len(lines) == MOST_BARS + 2
    assert shown(*bars[: MOST_BARS + 1])[MOST_BARS] == "and 1 more bar"
    assert len(shown(*bars[:MOST_BARS])) == MOST_BARS + 1
    assert all(len(line) <= 20 for line in shown(*bars, columns=20))


def test_the_rate_is_of_the_last_seconds() -> None:
    footer = Footer(HOSTS)
    rates = []
    for second in range(12):
        lines = 1000 * min(second, 6)  # then it stops
        (line,) = footer.lines(picture(seconds=float(second), lines=lines, since_line=0.0), [], 200)
        found = re.search(r"([\d,]+) lines/s", line.plain)
        assert found
        rates.append(int(found[1].replace(",", "")))
    assert rates[:7] == [0, *[1000] * 6]
    assert rates[6 + int(RATE)] == 0
    assert rates[7] > rates[8] > 0


@cases(("part", "full"), [(0.0, 0), (0.5, BAR // 2), (0.99, BAR - 1), (1.0, BAR)])
def test_a_bar(part: float, full: int) -> None:
    text = progress_bar(part).plain
    assert text.count("\N{BOX DRAWINGS HEAVY HORIZONTAL}") == full
    assert len(text) == BAR


def styles(line: bytes) -> dict[str, bytes]:
    """word -> the SGR it is shown in."""
    found = re.findall(rb"\x1b\[([\d;]+)m([^\x1b]+)", line)
    return {text.decode().strip(): style for style, text in found if style != b"0"}


@cases(("code", "colour"), [(0, b"32"), (3, b"31")])
def test_the_end_is_as_wide_as_the_terminal_or_its_longest_line(code: int, colour: bytes) -> None:
    lines = ["error: x", "  hint: " + "y" * 50, "  note: z", "said error: no"]
    found = closing_panel(lines, exit_code=code, hosts=1, ranks=1, seconds=1.0, columns=40)
    plain = [re.sub(rb"\x1b\[[\d;]*m", b"", line).decode() for line in found]
    assert plain[1:-1] == lines  # neither wrapped nor cut
    assert plain[0].startswith(f"─── exit code {code} · 1 rank on 1 host, 0:00:01 ")
    assert plain[-1] == "─" * 40
    assert colour in found[-1]
    assert styles(found[1]) == {"error:": b"1;31"}
    assert styles(found[2])["hint:"] == b"1;36"
    assert styles(found[3])["note:"] == b"1;33"
    assert styles(found[4]) == {}


def test_a_good_end_is_one_line() -> None:
    (line,) = closing_panel([], exit_code=0, hosts=2, ranks=8, seconds=3661, columns=80)
    assert "8 ranks on 2 hosts, 1:01:01" in line.decode()
    assert styles(line) == {"\N{CHECK MARK}": b"1;32"}


def test_tabs_of_the_verdict_are_counted() -> None:
    last = "    " + "\t".join(f"col{n}" for n in range(12)) + "\tEND"
    found = closing_panel(["error: x", last], exit_code=1, hosts=1, ranks=1, seconds=3, columns=60)
    assert b"END" in found[2]


@cases(
    ("state", "cut"),
    [
        ("\N{DEVANAGARI VOWEL SIGN II}" * 500, 55),  # no column for rich, one for a terminal
        ("\N{HANGUL JUNGSEONG FILLER}" * 3000, 55),
        ("漢" * 28, 28), ("漢" * 29, 27), ("x" * 56, 56), ("x" * 57, 55),
    ],
)  # fmt: skip
def test_a_bar_is_no_wider_than_a_terminal_may_draw_it(state: str, cut: int) -> None:
    line = shown(("[3]", state.encode()), columns=60)[0]
    assert line == f"[3] {state[:cut]}" + ("…" if cut < len(state) else "")


def test_what_is_drawn_is_counted_in_columns() -> None:
    footer = Footer(["漢字"])
    ((line, columns),) = drawn(footer.lines(picture(hosts={RUNNING: 1}, ranks={}), [], 80), 80)
    assert columns == len(re.sub(rb"\x1b\[[\d;]*m", b"", line).decode())
    assert drawn([progress_bar(0.5)], 80)[0][1] == BAR


def test_what_is_grave_is_red() -> None:
    lines = Footer(HOSTS).lines(
        picture(hosts={RUNNING: 3, LOST: 1}, ranks={"running": 6, "failed": 2}, stopping="x"),
        [], 200,
    )  # fmt: skip
    ((line, _),) = drawn(lines, 200)
    found = styles(line)
    ((line, _),) = drawn(Footer(HOSTS).lines(picture(), [("[3]", b"42%")], 200)[:1], 200)
    assert styles(line) == {"[3]": b"2"}
    assert found["1 lost"] == b"31"
    assert found["3 running"] == b"32"
    assert found["2 failed"] == found["ending"] == b"1;31"


def test_nothing_of_a_line_is_taken_for_markup() -> None:
    words = "[red]7 of 9[/red] :smile: 'a' /x http://n1:80"
    ((line, _),) = drawn([Text(words)], 80)
    assert line.decode() == words


def test_a_line_is_cut_at_the_edge_and_never_wrapped() -> None:
    ((line, columns),) = drawn([Text("word " * 9)], 20)
    assert (line.decode(), columns) == ("word word word word ", 45)
