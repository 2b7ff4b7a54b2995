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
