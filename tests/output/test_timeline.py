"""A trace read back and drawn: whole, broken off, hostile."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import cli
from dispatcher.model.errors import UsageError
from dispatcher.output.timeline import page, phases, read


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


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_trace_that_breaks_off(cut: int) -> None:
    whole = trace(*RECORDS, end="")
    timeline = read(whole[:-cut], "t")
    assert not timeline.ended
    assert "breaks off" in page(timeline, "t")


@pytest.mark.parametrize(
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
    words = ["-H", "localhost:2", "--trace", str(path), "--quiet", "--no-python", "true"]
    assert cli.main(words) == 0
    assert cli.main(["report", str(path)]) == 0
    told = capsys.readouterr()
    assert "note: wrote" in told.err
    assert re.search(r"^boot +1 +\d", told.out, re.M)
    text = (tmp_path / "run.html").read_text()
    assert "rank 1 on localhost" in text
    assert cli.main(["report", str(tmp_path / "gone.json")]) == 2
    assert "no such file" in capsys.readouterr().err
