"""A rank that is asked where it is, without MPI and without dispatch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ASKED = """
import os, sys
from dispatcher.comm import bootstrap as stacks
stacks.show_stacks(os.environ)
stacks.show_stacks(os.environ)
def here():
    os.kill(os.getpid(), stacks.SIGNAL)
here()
"""


@pytest.mark.parametrize(
    ("name", "listens"), [("dispatch-x/rank-0.json", True), ("torchelastic/e.json", False)]
)
def test_stacks_are_written_when_asked_for(tmp_path: Path, name: str, listens: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env={"TORCHELASTIC_ERROR_FILE": str(path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == (0 if listens else -62)
    written = [file.read_text() for file in path.parent.iterdir()]
    assert [text.count("in here") for text in written] == [1] * listens
