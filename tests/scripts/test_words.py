"""The words of the code that stand in no glossary are few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: names that one word may be part of without being explained anywhere
MOST_NAMES = 60


def test_no_word_of_ours_is_used_without_end() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "words")],
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert len(rows) == 20
    assert [word for count, word, _ in rows if int(count) > MOST_NAMES] == []
