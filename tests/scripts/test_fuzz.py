"""``scripts/fuzz``: what each target has had is kept on the page."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The tool, whose page is one of ours: two targets have been searched."""
    loader = importlib.machinery.SourceFileLoader("fuzz", str(ROOT / "scripts" / "fuzz"))
    spec = importlib.util.spec_from_loader("fuzz", loader)
    assert spec is not None
    tool = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fuzz", tool)
    monkeypatch.setattr(sys, "path", [*sys.path])
    loader.exec_module(tool)
    page = tmp_path / "page.md"
    text = tool.PAGE.read_text().partition("|---|")[0]
    page.write_text(
        f"{text}|---|---|---|---|---|\n"
        "| hostset | 29.5 | 1,234,567 | 1 | 2026-01-02 |\n| wire | 3.0 | 10 | 0 | 2026-01-03 |\n"
    )
    monkeypatch.setattr(tool, "PAGE", page)
    return tool


def test_what_is_spent_is_added_to_the_page(fuzz: Any) -> None:
    head = fuzz.PAGE.read_text().partition("| hostset")[0]
    fuzz.add("wire", fuzz.Spent(1.25, 90, 2))
    fuzz.add("hostfile", fuzz.Spent(0.5, 7, 0))
    assert fuzz.PAGE.read_text() == (
        f"{head}| hostfile | 0.5 | 7 | 0 | {date.today()} |\n"
        "| hostset | 29.5 | 1,234,567 | 1 | 2026-01-02 |\n"
        f"| wire | 4.2 | 100 | 2 | {date.today()} |\n"
    )
    assert fuzz.on_page()["hostset"] == fuzz.Spent(29.5, 1234567, 1)


def test_those_come_first_that_have_had_least(fuzz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []
    monkeypatch.setitem(sys.modules, "atheris", fuzz)

    def process(name: str, most: float) -> tuple[Any, str]:
        asked.append((name, most))
        return fuzz.Spent(most), ""

    monkeypatch.setattr(fuzz, "_process", process)
    monkeypatch.setattr(fuzz, "kept", lambda name: fuzz.PAGE.parent)
    words = ["fuzz", "--up-to", "30", "--minutes", "10", "hostset", "wire", "xid"]
    monkeypatch.setattr(sys, "argv", words)
    assert fuzz.main() == 0
    assert asked == [("xid", 10.0), ("wire", 10.0), ("hostset", 0.5)]
    assert {name: spent.minutes for name, spent in fuzz.on_page().items()} == {
        "hostset": 30.0, "wire": 13.0, "xid": 10.0,
    }  # fmt: skip
    monkeypatch.setattr(sys, "argv", [*words[:5], "hostset"])
    assert fuzz.main() == 0
    assert len(asked) == 3


def test_the_page_names_targets_that_there_are(fuzz: Any) -> None:
    page = (ROOT / "docs" / "design" / "fuzzing.md").read_text()
    rows = fuzz._ROW.findall(page)
    assert len(rows) == len(re.findall(r"^\| ", page, re.M)) - 1
    assert {row[0] for row in rows} <= set(fuzz.targets())
