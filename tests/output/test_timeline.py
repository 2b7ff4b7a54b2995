"""A trace read back and drawn: whole, broken off, hostile."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import cli
from dispatcher.model.errors import UsageError
from dispatcher.output.files.trace import read
from dispatcher.output.page import trace_page as page
from dispatcher.output.timeline import owner, phases


def trace(*records: dict[str, object], end: str = "\n]\n") -> str:
    return "[\n" + ",\n".join(map(json.dumps, records)) + end


def host(process: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def rank(process: int, number: int) -> dict[str, object]:
    said = {"name": f"rank {number}"}
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": number + 1, "args": said}


def span(process: int, line: int, name: str, since: float, seconds: float) -> dict[str, object]:
    return {
        "ph": "X", "name": name, "pid": process, "tid": line, "ts": since * 1e6,
        "dur": seconds * 1e6, "args": {},
    }  # fmt: skip


def moment(process: int, name: str, at: float) -> dict[str, object]:
    return {"ph": "i", "s": "p", "name": name, "pid": process, "tid": 0, "ts": at * 1e6, "args": {}}


RECORDS = (
    host(0, "dispatch"), host(1, "n1"), host(2, "n2"), rank(1, 0), rank(2, 1),
    span(0, 0, "load and plan", 0, 0.1),
    span(1, 0, "connect", 0.1, 0.2), span(2, 0, "connect", 0.1, 0.6),
    span(1, 1, "start", 0.8, 0.1), span(2, 2, "start", 0.8, 0.2),
    span(1, 1, "run", 0.9, 60), span(2, 2, "run", 1.0, 61),
    moment(0, "run.finished", 62),
)  # fmt: skip


def test_phases_name_the_slowest() -> None:
    timeline = read(trace(*RECORDS), "t")
    assert timeline.ended
    assert timeline.start == pytest.approx(1.0)
    assert timeline.seconds == pytest.approx(62.0)
    found = {phase.name: phase for phase in phases(timeline)}
    assert list(found) == ["load and plan", "connect", "start", "run"]
    assert (found["connect"].count, found["connect"].slowest) == (2, "n2")
    assert found["connect"].median == pytest.approx(0.4)
    assert found["run"].slowest == "rank 1 on n2"


class Balance(HTMLParser):
    """Every svg, table, title and rect is closed, and nothing asks for a script."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        if tag in ("svg", "table", "rect", "text"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("svg", "table", "rect", "text"):
            assert self.open.pop() == tag


def drawn(text: str) -> Balance:
    balance = Balance()
    balance.feed(page(read(text, "t"), "run.json"))
    balance.close()
    assert not balance.open
    assert "script" not in balance.seen
    return balance


def test_a_long_run_has_its_start_drawn_alone() -> None:
    balance = drawn(trace(*RECORDS))
    assert balance.seen.count("svg") == 2
    assert balance.seen.count("rect") == 7 + 7  # all of them begin within the start


def test_names_are_text() -> None:
    balance = drawn(
        trace(host(1, "<script>alert(1)</script>\x1b]0;x\x07"), span(1, 0, "<b onclick=x>", 0, 1))
    )
    assert "b" not in balance.seen


@cases("cut", range(1, 40))
def test_a_trace_that_breaks_off(cut: int) -> None:
    whole = trace(*RECORDS, end="")
    timeline = read(whole[:-cut], "t")
    assert not timeline.ended
    assert "breaks off" in page(timeline, "t")


@cases(
    ("text", "said"),
    [
        ("", "t: no trace in it"),
        ("[\n]\n", "t: no trace in it"),
        ("hello\nworld\n]\n", "t:1: not a line of a trace"),
        (trace({"ph": "X"}), "t:2: not a line of a trace"),
        (trace(RECORDS[5]).replace('"ph"', '"hp"'), "t:2:"),
        ("[\n1,\n2\n]\n", "t:2:"),
        ("[\n" + "[" * 100_000 + "\n]\n", "t:2:"),
    ],
)
def test_no_trace(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text, "t")
    assert caught.value.message.startswith(said)


@given(st.text() | st.lists(st.sampled_from(RECORDS)).map(lambda found: trace(*found)))
def test_any_text_is_drawn_or_refused(text: str) -> None:
    try:
        timeline = read(text, "t")
    except UsageError as refused:
        assert refused.message.startswith("t:")  # noqa: PT017 - most are refused
    else:
        assert page(timeline, "t").endswith("</html>\n")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    words = ["-H", "localhost:2", "--trace", str(path), "--log-dir", str(tmp_path / "logs")]
    sampled = f"$(grep -c node.sampled {tmp_path}/logs/latest/dispatch.jsonl)"
    words += ["--sample", "0.2", "--quiet", "--no-python", "sh", "-c"]
    words += [f"until [ {sampled} -ge 3 ]; do sleep 0.1; done"]
    assert cli.main(words) == 0
    assert cli.main(["report", str(path)]) == 0
    told = capsys.readouterr()
    assert "note: wrote" in told.err
    assert re.search(r"^boot +1 +\d", told.out, re.M)
    text = (tmp_path / "run.html").read_text()
    assert "rank 1 on localhost" in text
    assert cli.main(["report", str(tmp_path / "logs/latest")]) == 0
    text = (tmp_path / "logs/latest/report.html").read_text()
    assert "succeeded</span>" in text
    assert text.count("<image ") >= 2  # CPU and memory
    assert "<title>rank 1 on localhost: " in text
    assert cli.main(["report", str(tmp_path / "gone.json")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_what_a_trace_says_of_whom() -> None:
    timeline = read(trace(*RECORDS, {**moment(1, "probed", 0.7), "tid": 3}), "t")
    assert timeline.hosts == {0: "dispatch", 1: "n1", 2: "n2"}
    assert timeline.lines == {(1, 1): "rank 0", (2, 2): "rank 1"}
    assert [owner(timeline, *place) for place in ((0, 5), (1, 0), (2, 2), (2, 9), (7, 1))] == [
        "dispatch", "n1", "rank 1 on n2", "line 9 on n2", "line 1 on process 7",
    ]  # fmt: skip
    assert [(m.process, m.name, m.at) for m in timeline.moments] == [
        (0, "run.finished", 62.0), (1, "probed", 0.7),
    ]  # fmt: skip
    assert [s.since for s in timeline.spans[:2]] == [0.0, 0.1]
    assert [s.until for s in timeline.spans[:2]] == pytest.approx([0.1, 0.3])
    assert timeline.spans[-1].name == "run"


def test_a_phase_in_numbers() -> None:
    found = {phase.name: phase for phase in phases(read(trace(*RECORDS), "t"))}
    connect = found["connect"]
    assert [connect.shortest, connect.longest] == pytest.approx([0.2, 0.6])
    assert found["load and plan"].slowest == "dispatch"
    assert found["run"].count == 2


def test_a_run_that_never_began_starts_to_its_end() -> None:
    timeline = read(trace(span(0, 0, "load and plan", 0, 2.0), moment(0, "x", 3.0)), "t")
    assert timeline.start == timeline.seconds == 3.0
    assert page(timeline, "t").count("<svg") == 1


def picture(*records: dict[str, object]) -> str:
    return page(read(trace(host(0, "dispatch"), host(1, "n1"), *records), "t"), "title")


def test_bars_are_drawn_to_scale() -> None:
    """The whole run is 1000 pixels wide, and begins at 170."""
    text = picture(rank(1, 0), span(1, 0, "boot", 0.0, 2.0), span(1, 1, "start", 2.0, 6.0),
                   span(1, 1, "run", 8.0, 0.0001))  # fmt: skip
    rects = re.findall(r"<rect x='([\d.]+)' y='(\d+)' width='([\d.]+)' height='(\d+)'", text)
    assert [(x, width, height) for x, _, width, height in rects] == [
        ("170.0", "250.0", "13"), ("420.0", "750.0", "4"), ("1170.0", "0.5", "4"),
    ]  # fmt: skip
    assert int(rects[1][1]) - int(rects[0][1]) == 14  # a rank's row below its host's
    titles = re.findall(r"<title>([^<]*)</title></rect>", text)
    assert titles[:2] == ["n1: boot, 2 s from 0 ms", "rank 0 on n1: start, 6 s from 2 s"]


def test_moments_and_ticks_and_names() -> None:
    text = picture(span(1, 0, "boot", 0.0, 200.0), moment(1, "probed", 50.0), host(2, "x" * 30),
                   host(3, "y" * 24))  # fmt: skip
    assert "<title>probed, at 50 s</title>" in text
    assert re.search(r"<line class=mark x1='420.0' x2='420.0' y1='\d+' y2='\d+'>", text)
    ticks = re.findall(r"text-anchor='middle'>([^<]*)<", text)
    assert ticks == ["0", *(f"{n} s" for n in (20, 40, 60, 80, 100)), "2 min", "2.33 min",
                     "2.67 min", "3 min", "3.33 min"]  # fmt: skip
    assert "x" * 23 + "…<" in text
    assert "y" * 24 + "<" in text
    assert re.findall(r"<svg viewBox='0 0 (\d+)", text) == ["1200"]


def test_the_start_alone_shows_what_is_in_it() -> None:
    text = picture(rank(1, 0), span(1, 0, "boot", 0.0, 1.0), span(1, 1, "start", 1.0, 1.0),
                   span(1, 1, "run", 2.0, 8.0), span(1, 0, "sweep", 9.0, 1.0),
                   moment(1, "early", 2.0), moment(1, "late", 9.0))  # fmt: skip
    start, run = text.split("<h2>")[1:]
    assert start.startswith("The start: 2.04 s")
    assert run.startswith("The run: 10 s")
    assert (start.count("<rect"), run.count("<rect")) == (3, 4)
    assert ("early" in start, "late" in start, "late" in run) == (True, False, True)
    assert (
        picture(rank(1, 0), span(1, 1, "start", 0, 8.0), span(1, 1, "run", 8.0, 2.0)).count("<svg")
        == 1
    )


def test_the_summary_and_the_table() -> None:
    text = page(read(trace(*RECORDS), "t"), "a & b")
    assert "<title>a &amp; b</title>" in text
    assert "2 hosts, 2 ranks; the last rank ran after 1 s, the end came after 62 s</p>" in text
    row = re.search(r"</i>connect<td>2<td>200 ms<td>400 ms<td>600 ms<td>n2", text)
    assert row
    colours = re.findall(r"<tr><td><i style='background:(#\w+)'", text)
    assert len(set(colours)) == len(colours) == 4


@cases("line", ["[", "", "]"])
def test_lines_that_say_nothing(line: str) -> None:
    whole = trace(*RECORDS)
    assert read(whole.replace(",\n", f",\n{line}\n", 1), "t") == read(whole, "t")


def test_a_broken_line_in_the_middle_is_named() -> None:
    whole = trace(*RECORDS).replace(",\n", ",\n{,\n", 1)
    with pytest.raises(UsageError) as caught:
        read(whole, "t")
    assert caught.value.message == "t:3: not a line of a trace"
    assert caught.value.hint == "dispatch --trace run.json -H hostfile train.py  # writes one"
