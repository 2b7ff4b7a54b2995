"""A run below a notebook's cell, with a display that stands in for IPython's."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import cases

import dispatcher
from dispatcher.api import notebook
from dispatcher.output.run_state import RunState


class Display:
    """Keeps what was shown, as a front end that knows HTML would and one that knows text."""

    def __init__(self) -> None:
        self.html: list[str] = []
        self.text: list[str] = []
        self.seen: Callable[[str], None] = lambda text: None

    def __call__(self, shown: Any, *, display_id: bool) -> Display:
        assert display_id
        self.update(shown)
        return self

    def update(self, shown: Any) -> None:
        self.html.append(shown._repr_html_())
        self.text.append(repr(shown))
        self.seen(self.text[-1])


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Display:
    """That of a kernel in whose process we are."""
    display = Display()
    shell = types.SimpleNamespace(kernel=object())
    for name, module in {
        "ipykernel": {},
        "IPython": {"get_ipython": lambda: shell},
        "IPython.display": {"display": display},
    }.items():
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**module))  # type: ignore[arg-type]
    return display


def job(text: str) -> dispatcher.Request:
    return dispatcher.request("localhost:2", ["sh", "-c", text], kind="command")


def test_the_cell_shows_how_far_it_is_and_then_the_verdict(
    display: Display, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(notebook, "EVERY", 0.0)
    shown = tmp_path / "shown"
    display.seen = lambda text: shown.touch() if "1 host: 1 running" in text else None
    waits = f"n=0; until test -e {shown} || test $n = 600; do n=$((n+1)); sleep 0.1; done"
    report = dispatcher.run(job(f"echo '<b>' >&2; {waits}; exit $RANK"))
    assert report.exit_code == 1
    assert shown.exists()
    assert display.text[-1].startswith("error: rank 1 on localhost, pid ")
    end = r"exit code 1 \N{MIDDLE DOT} 2 ranks on 1 host, 0:0\d:\d\d"
    assert re.search(end, display.text[-1])
    assert "&lt;b&gt;" in display.html[-1]
    assert "<b>" not in display.html[-1]
    assert report._repr_html_() == display.html[-1]


def test_nothing_is_shown_to_who_wants_nothing(display: Display) -> None:
    assert dispatcher.run(job("true"), progress=False).ok
    assert display.text == []


@cases("where", ["no kernel", "no shell", "a terminal"])
def test_elsewhere_nothing_is_shown(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "no kernel":
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    else:
        shell = None if where == "no shell" else types.SimpleNamespace()
        fake: Any = types.SimpleNamespace(get_ipython=lambda: shell)
        monkeypatch.setitem(sys.modules, "ipykernel", fake)
        monkeypatch.setitem(sys.modules, "IPython", fake)
    assert notebook.display_here() is None


def test_notes_are_shown_until_the_end(display: Display) -> None:
    cell = notebook.Cell(display)
    cell.begin(RunState(["n1"]))
    for number in range(notebook.MOST_NOTES + 1):
        cell.say(f"note: {number}")
    assert cell.tick(10.0)
    assert display.text[-1].splitlines()[:2] == ["note: 1", "note: 2"]
    assert "font-weight" not in display.html[-1]
    assert '">note:</span> 1' in display.html[-1]
    count = len(display.text)
    assert cell.tick(10.0 + notebook.EVERY / 2)
    assert len(display.text) == count  # not so soon again
    report = dispatcher.Report("r", 0, None, (), 0.0, 61.0, 2)
    cell.conclude(report.closing())
    assert display.text[-1].splitlines()[-1] == "\N{CHECK MARK} 2 ranks on 0 hosts, 0:01:01"
    assert not cell.tick(99.0)


@cases(
    ("line", "shown"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("\x1b[31mred\x1b[2J", "red\\x1b[2J"),
        ("  hint: x", '  <span style="color:#0598bc">hint:</span> x'),
        ("<script>error:", "&lt;script&gt;error:"),
    ],
)
def test_text_stays_text(line: str, shown: str) -> None:
    assert notebook.as_html([line]).partition(">")[2].removesuffix("</pre>") == shown
