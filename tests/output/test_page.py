"""The page of a run: its bounds, its pictures, and that no text leaves its place."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from cases import cases
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.page import Told, escaped, heat_cells, run_page
from dispatcher.output.timeline import MOST_COLUMNS, MOST_ROWS, Heat, History, phases

FACTS = ev.Facts("h", 1, "3.11", 4, 2, ("10.0.0.1",), "m")
#: the rank that is busier than the others
BUSY = 2
#: the only rank that writes, as in most jobs
WRITES = 0


def a_run(text: str = "plain") -> Iterator[Entry]:
    """Two hosts of four ranks; rank 5 is killed, then all succeed. text: in all names and words."""
    hosts = (f"a{text}", f"b{text}")
    happened: list[tuple[float, ev.Event]] = [(0.0, mon.RunBegan(f"id{text}", 1.0e9, hosts))]
    for node in (0, 1):
        happened += [
            (0.1, ev.NodeConnecting(node)),
            (0.3, ev.NodeConnected(node, None, "ssh", ((f"kex{text}", 0.1),))),
            (0.4, ev.NodeBooted(node, 0)), (0.5, ev.NodeReady(node, FACTS)),
            (0.6, ev.NodeNoticed(node, text)),
        ]  # fmt: skip
    for restart, (begin, end) in enumerate([(1.0, 8.0), (12.0, 20.0)]):
        happened.append((begin, ev.RanksPlaced(8, "10.0.0.1", 29500, restart)))
        happened += [(begin, ev.RankSpawned(rank // 4, rank, 100 + rank)) for rank in range(8)]
        for step in range(1, int(end - begin)):
            for node in (0, 1):
                ranks = tuple(
                    mon.RankSample(r, "R", step * (0.9 if r == BUSY else 0.1), 1 << 30, 1, 1,
                                   (r % 4,), None, 0.0 if r == WRITES else float(step))
                    for r in range(4 * node, 4 * node + 4)
                )  # fmt: skip
                gpus = tuple(mon.GpuSample(g, 50.0, 2.0**30, 2.0**34, 1, 1) for g in range(4))
                sample = mon.NodeSampled(node, begin + step, ranks, gpus)
                happened.append((begin + step, sample))
        if restart == 0:
            cause = verdicts.RankFailed(1, 5, -9)
            happened += [
                (end, ev.RankExited(1, 5, -9)), (end, ev.JobStopping(f"rank 5 {text}")),
                *((end + 1, ev.RankExited(r // 4, r, -15)) for r in range(8) if r != 5),
                (end + 2, ev.RunRestarting(cause, 1, 3, 0.0)), (end + 2, ev.HostLeftOut(1, text)),
            ]  # fmt: skip
        else:
            happened += [(end, ev.RankExited(rank // 4, rank, 0)) for rank in range(8)]
    nodes = tuple(mon.PlacedNode(h, tuple(range(4 * n, 4 * n + 4))) for n, h in enumerate(hosts))
    ended = verdicts.Verdict(None, 0, 8, dict.fromkeys(range(8), 0))
    happened += [(21.0, ev.RunFinished(0, text)), (22.0, mon.RunClosed(ended, 22.0, nodes))]
    return (Entry(seq, at, event) for seq, (at, event) in enumerate(happened, 1))


def history(text: str = "plain") -> History:
    found = History()
    for entry in a_run(text):
        found.event(entry)
    return found


def page(text: str = "plain") -> str:
    told = Told(
        f"state{text}", False, [f"error: {text}", text], [(1.0, f"note: {text}")],
        [(f"whose {text}", [text, text])], f"python {text}", [(f"what{text}", f"value{text}")], "1",
    )  # fmt: skip
    return run_page(history(text), told)


class Skeleton(HTMLParser):
    """Tags and attributes of a page with the values of those that are ours; not its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.bones: list[object] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.bones.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.bones.append(tag)

    def handle_comment(self, data: str) -> None:
        self.bones.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.bones.append(("declaration", decl))

    def handle_pi(self, data: str) -> None:
        self.bones.append(("instruction", data))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


PLAIN = Skeleton(page())


@given(
    st.text(max_size=40)
    | st.binary(max_size=40).map(lambda b: b.decode("utf-8", "surrogateescape"))
)
@example("</title><script>alert(1)</script>")
@example("'><img src=x onerror=alert(1)><b a='")
@example("]]></svg></style></pre></table><!-- --><?php &lt;")
@example("\x1b[31m\x1b]0;title\x07\u202e\u2028\ud800\0\n")
def test_no_text_leaves_its_place(text: str) -> None:
    found = page(text)
    assert Skeleton(found).bones == PLAIN.bones
    found.encode("utf-8")  # a lone surrogate could not be written


def test_the_page_runs_and_loads_nothing() -> None:
    text = page()
    assert "default-src 'none'" in text
    tags = {bone[0] for bone in PLAIN.bones if isinstance(bone, tuple)}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "base", "a"}
    assert not re.search(r"(?:src|href)=", text)
    assert not re.search(r"url\(|@import| on[a-z]+=", text)


@cases(
    ("text", "want"),
    [
        ("a < b & 'c' \"d\"", "a &lt; b &amp; &#x27;c&#x27; &quot;d&quot;"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\tb\0\u202ec\n", "a    b\ufffd\ufffdc\ufffd"),
    ],
)
def test_what_a_text_becomes(text: str, want: str) -> None:
    assert escaped(text) == want


def test_attempts_and_who_failed_first() -> None:
    found = history()
    assert [(one.restart, one.since, one.until, one.first) for one in found.tries] == [
        (0, 1.0, 10.0, 5), (1, 12.0, 21.0, None),
    ]  # fmt: skip
    assert found.tries[0].hosts(99.0) == [(0, 1.0, 9.0), (1, 1.0, 9.0)]
    text = page()
    assert (
        "<title>attempt 1 of 8 ranks: rank 5 on bplain: killed by SIGKILL (signal 9)</title>"
        in text
    )
    assert "<title>rank 5: killed by SIGKILL (signal 9), at 8 s</title>" in text
    assert "2 hosts, 8 ranks, 2 attempts, began 2001-09-09 01:46:40 UTC, took 22 s" in text
    drawn = re.findall(r"<rect class='try.*?' x='(.*?)' y='19' width='(.*?)'", text)
    ((first, wide), (second, as_wide)) = (tuple(map(float, one)) for one in drawn)
    assert wide == as_wide == pytest.approx(9 * (second - first) / 11, abs=0.2)


@cases("at", [1e17, 1e30, float("nan")])
def test_a_time_that_is_none(at: float) -> None:
    found = History()
    found.event(Entry(1, 0.0, mon.RunBegan("id", at, ("a",))))
    assert ", began no time, took 0 ms" in run_page(found, Told("succeeded", True))


def test_a_host_that_is_lost_without_a_word() -> None:
    """Its ranks were not seen to end; it is drawn until it was given up, and not in the next."""
    found = History()
    events: list[tuple[float, ev.Event]] = [
        (0.0, mon.RunBegan("id", 1.0, ("a", "b", "c"))), (1.0, ev.RanksPlaced(2, "", 1)),
        (1.0, ev.RankSpawned(0, 0, 7)), (1.0, ev.RankSpawned(1, 1, 7)),
        (9.0, ev.RankExited(0, 0, -15)),
        (10.0, ev.RunRestarting(verdicts.NodeFailed(1, Failure(Kind.LOST, "silent")), 1, 1, 5.0)),
        (20.0, ev.HostReplaced(1, 2, (1,), "silent")), (20.0, ev.RanksPlaced(2, "", 1, 1)),
        (30.0, ev.RunFinished(0, "")),
    ]  # fmt: skip
    for seq, (at, event) in enumerate(events, 1):
        found.event(Entry(seq, at, event))
    assert found.lost == [(10.0, 1)]
    assert [one.hosts(99.0) for one in found.tries] == [[(0, 1.0, 9.0), (1, 1.0, 10.0)], []]
    assert not [one for one in found.spans() if (one.node, one.rank) == (1, -1)]
    text = run_page(found, Told("succeeded", True))
    assert "attempt 1 of 2 ranks: b: host lost: silent</title>" in text
    assert "<title>host lost, at 10 s</title>" in text


def test_a_rank_unlike_the_others_is_told() -> None:
    ((figure, one),) = history().apart()
    assert (figure, one.rank, round(one.value), round(one.usual)) == ("CPU", BUSY, 90, 10)
    assert "<tr><td>2<td>aplain<td>CPU<td>90<td>10" in page()


def test_silence_is_drawn_and_blames_nobody() -> None:
    """Samples of older journals do not tell it; then there is no such picture."""
    heat = history().heats["silence"]
    assert [max(heat.row(rank).values()) for rank in (WRITES, 1)] == [0.0, 7.0]
    assert "<h3>silence <span class=dim>(seconds since it wrote anything)</span></h3>" in page()
    old = History()
    for entry in a_run():
        if isinstance(entry.event, mon.NodeSampled):
            ranks = tuple(replace(rank, silent=None) for rank in entry.event.ranks)
            entry = Entry(entry.seq, entry.t, replace(entry.event, ranks=ranks))
        old.event(entry)
    assert "<h3>silence" not in run_page(old, Told("ok", True))


def test_a_run_that_goes_on_is_drawn_to_what_is_known() -> None:
    found = History()
    for entry in list(a_run())[:40]:
        found.event(entry)
    text = run_page(found, Told("still runs", None))
    assert "<span class='badge dim'>still runs</span>" in text
    assert "</html>" in text
    assert {one.name for one in phases(found.spans(), found.hosts)} >= {"boot", "run"}


def test_nothing_at_all_is_a_page() -> None:
    assert run_page(History(), Told("nothing", None)).endswith("</html>\n")


@cases(
    ("spans", "width", "row"),
    [
        ([(0.0, 0.1, 4.0)], 0.125, {0: 4.0}),
        ([(0.0, 0.25, 4.0), (0.25, 0.374, 8.0)], 0.125, {0: 4.0, 1: 4.0, 2: 8.0}),
        ([(0.0, 20.0, 2.0), (20.0, 29.9, 6.0)], 0.25, {0: 2.0, 79: 2.0, 81: 6.0, 119: 6.0}),
        ([(0.0, 1.0, 1.0), (3599.0, 3600.0, 9.0)], 32.0, {0: 1.0, 112: 9.0}),
    ],
)
def test_columns_are_joined_when_the_run_is_long(
    spans: list[tuple[float, float, float]], width: float, row: dict[int, float]
) -> None:
    heat = Heat()
    for since, until, value in spans:
        heat.add(3, since, until, value)
    found = heat.row(3)
    assert heat.width == width
    assert heat.columns <= MOST_COLUMNS
    assert {at: round(found[at], 6) for at in row} == row


def test_more_ranks_than_rows_show_the_odd_one() -> None:
    heat = Heat()
    heat.cells = {rank: {0: (50.0 + 40 * (rank == 300), 1.0)} for rank in range(2 * MOST_ROWS)}
    members, rows = heat.rows()
    assert len(rows) == MOST_ROWS
    assert members[150] == [300, 301]
    assert [at for at, row in enumerate(rows) if row[0] == 90.0] == [150]


def strokes(rows: list[dict[int, float]], columns: int) -> dict[tuple[int, int], str]:
    """(column, row) -> the colour that a viewer draws there, of 100 at most."""
    found: dict[tuple[int, int], str] = {}
    for path in heat_cells(rows, columns, 100.0):
        colour, drawn = re.findall(r"<path stroke='(#\w{6})' d='((?:M\d+ \d+h\d+)+)'/>", path)[0]
        for x, y, wide in re.findall(r"M(\d+) (\d+)h(\d+)", drawn):
            found |= {(int(x) + at, int(y)): colour for at in range(int(wide))}
    return found


@given(st.lists(st.dictionaries(st.integers(0, 8), st.floats(-1, 101)), min_size=1, max_size=5))
def test_a_picture_is_what_was_drawn(rows: list[dict[int, float]]) -> None:
    """Each figure that is known has its colour, in order; of the others nothing is drawn."""
    found = strokes(rows, 9)
    assert set(found) == {(at, y) for y, row in enumerate(rows) for at in row}
    assert all(
        found[at, y] == strokes([{0: value}], 1)[0, 0]
        for y, row in enumerate(rows) for at, value in row.items()
    )  # fmt: skip


@cases(
    ("low", "high", "alike"),
    [(0.0, 6.6, True), (6.6, 6.7, False), (99.9, 100.0, True), (-3.0, 0.0, True), (93, 94, False)],
)
def test_levels(low: float, high: float, alike: bool) -> None:
    drawn = strokes([{0: low, 1: high}], 2)
    assert (drawn[0, 0] == drawn[1, 0]) is alike


def test_a_large_page_is_small() -> None:
    """512 ranks on 64 hosts, every figure noise, so that no two cells are alike: the worst."""
    chance = random.Random(1)
    found = History()
    found.event(Entry(1, 0.0, mon.RunBegan("id", 0.0, tuple(f"gpu{n:03}" for n in range(64)))))
    found.event(Entry(2, 1.0, ev.RanksPlaced(512, "", 1)))
    for rank in range(512):
        found.event(Entry(3, 1.0, ev.RankSpawned(rank // 8, rank, rank)))
    cells = {
        rank: {at: (chance.random() * 100, 1.0) for at in range(MOST_COLUMNS)}
        for rank in range(512)
    }
    found.seconds = 30.0
    for heat in found.heats.values():
        heat.cells = cells
    assert len(run_page(found, Told("still runs", None))) < 1_800_000
