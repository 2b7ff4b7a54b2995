"""scripts/cover: what is counted where, what is little, and that started processes are seen."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import rig  # noqa: F401 - puts scripts/ on the path
from mutants import ROOT


@pytest.fixture(scope="module")
def cover() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("cover", str(ROOT / "scripts" / "cover"))
    spec = importlib.util.spec_from_loader("cover", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


FOUND = {"a/x.py": (10, 9), "a/b/y.py": (100, 20), "z.py": (4, 4), "a/empty.py": (0, 0)}


def test_a_file_counts_in_the_innermost_room_and_in_all(cover: ModuleType) -> None:
    rows = [line.split() for line in cover.table(FOUND, ["a", "a/b", "c"]).splitlines()]
    assert rows[1:] == [
        ["a", "10", "9", "90", "%"], ["a/b", "100", "20", "20", "%"], ["c", "0", "0", "-"],
        ["all", "114", "33", "29", "%"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [({}, ""), ({"a/": "far"}, "far"), ({"a/": "far", "a/b/y.py": "why"}, "why"), ({"b": "x"}, "")],
)
def test_what_is_little_and_why(cover: ModuleType, reasons: dict[str, str], reason: str) -> None:
    assert cover.few(FOUND, reasons) == [("a/b/y.py", 20.0, reason)]


def test_reasons_are_of_files_that_are_there(cover: ModuleType) -> None:
    for name, reason in cover.tomllib.loads(cover.REASONS.read_text())["reasons"].items():
        assert (ROOT / "dispatcher" / name).exists(), name
        assert len(reason) > 15


TEST = """
import subprocess, sys
from dispatcher.m import here
def test_both():
    assert here() == 1
    code = "from dispatcher.m import there; there()"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_a_started_process_is_seen_and_its_lines_have_the_test(tmp_path: Path) -> None:
    product = "def here():\n    return 1\ndef there():\n    return 2\ndef nobody():\n    return 3\n"
    for name, text in {
        **{f"scripts/{n}": (ROOT / "scripts" / n).read_text()
           for n in ("cover", "mutants.py", "coverage_contexts.py")},
        "scripts/coverage_reasons.toml": "[reasons]\n",
        "dispatcher/__init__.py": "", "dispatcher/m.py": product, "tests/test_m.py": TEST,
        "pyproject.toml": "[tool.pytest.ini_options]\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "scripts/cover", "-p", "no:cacheprovider"], cwd=tmp_path, text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "  83 %  m.py: NO REASON IS GIVEN"
    assert "all                         6       5    83 %" in lines
    data = pytest.importorskip("coverage").CoverageData(str(tmp_path / ".cache/coverage/data"))
    data.read()
    ran = data.contexts_by_lineno(str(tmp_path / "dispatcher" / "m.py"))
    assert ran[2] == ["tests/test_m.py::test_both"]
    assert ran[4] == ["tests/test_m.py::test_both (call)"]
