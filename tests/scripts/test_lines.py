"""The lines of pdsh, clush and parallel-ssh that ``scripts/bench/lines.py`` compares with dsx's."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from cases import cases
from rig import Cluster

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "lines.py"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("lines", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_line_takes_more_than_a_letter_more(lines: ModuleType) -> None:
    assert len(lines.ROWS) == 27
    for row in lines.ROWS:
        peer = len(re.sub(r"pdsh|clush|parallel-ssh|ansible", "", row.peer))
        assert len(row.ours.replace("dsx", "")) <= peer + 1, row


def test_a_row_of_a_peer_that_is_not_here_says_so(
    lines: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible is looked for in PATH, and at ANSIBLE=."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("ANSIBLE", raising=False)
    assert [lines.compare(str(tmp_path), [number])[0]["output"] for number in (1, 27)] == [
        "not run: there is no pdsh in PATH", "not run: there is no ansible in PATH",
    ]  # fmt: skip
    here = tmp_path / "venv-ansible"
    monkeypatch.setenv("ANSIBLE", str(here))
    assert lines.program("ansible") == (None, f"not run: there is no ansible at ANSIBLE={here}")
    here.write_text("#!/bin/sh\n")
    here.chmod(0o755)
    assert lines.program("ansible")[0] == str(here)
    assert lines.program("clush")[0] is None


@cases(
    ("row", "theirs", "ours"),
    [
        (25, "n1 | CHANGED | rc=0 >>\n/dev/sda 1\nn2 | CHANGED | rc=0 >>\n/dev/sdb 2\n",
         "n2: /dev/sdb 2\nn1: /dev/sda 1\n"),
        (26, 'n1 | CHANGED => {\n    "rc": 0,\n    "stdout": "motd\\r\\r\\nfrom Linux\\r\\n",\n'
             '    "stdout_lines": [\n        "from Linux"\n    ]\n}\n', "n1: from Linux\n"),
    ],
)  # fmt: skip
def test_what_ansible_prints_is_compared_by_its_lines(
    lines: ModuleType, row: int, theirs: str, ours: str
) -> None:
    told = lines.judge(lines.ROWS[row - 1], lines.Ended(theirs, 0), lines.Ended(ours, 0))
    assert lines.is_good(told), told


@pytest.mark.nightly
def test_they_print_the_same(
    lines: ModuleType, new_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    missing = [name for name in ("pdsh", "clush", "parallel-ssh") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    cluster = new_cluster(lines.HOSTS)
    argv = [sys.executable, str(SCRIPT), "--inside", cluster.shared]
    found = json.loads(cluster.run(argv, timeout=300, check=True).stdout)
    assert [line for line in found if line["codes"] and not lines.is_good(line)] == []
    assert sum(bool(line["codes"]) for line in found) >= 24
