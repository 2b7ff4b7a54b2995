"""The progress of ``dispatch exec`` on a terminal: there while hosts are at work, gone after."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typist import Typist

LINES = {"": ["localhost: quick", "127.0.0.1: slow"], "-b": ["quick", "slow"]}


@pytest.mark.parametrize("flag", ["", "-b", "-q"])
def test_progress(tmp_path: Path, flag: str) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = f"[ $DISPATCH_INDEX = 0 ]&&echo quick||cat {gate}"
    words = ["exec", *filter(None, [flag]), "-w", "localhost,127.0.0.1", "--shell", text]
    unset = ["env", "-u", "CI", "-u", "NO_COLOR"]
    one = Typist([*unset, sys.executable, "-m", "dispatcher", *words])
    try:
        if flag == "-q":
            one.until("quick")
        else:
            one.until("1 of 2 hosts")
        gate.write_text("slow\n")  # waits for its reader
        assert one.wait() == 0
        left = [line.strip() for line in one.screen.lines() if line.strip()]
        assert [line for line in left if "of 2 hosts" in line] == []
        assert {line for line in left if line in LINES.get(flag, LINES[""])} == set(
            LINES.get(flag, LINES[""])
        ), left
        assert flag != "-q" or b"of 2 hosts" not in one.seen
    finally:
        one.close()
