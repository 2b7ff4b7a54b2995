"""One meaning a word: the glossary, and the words of the code that stand in none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
#: names that one word may be part of without being explained anywhere
MOST_NAMES = 60


def test_each_word_stands_in_the_glossary_once() -> None:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("* ")]
    terms = [term for line in lines for term in re.findall(r"\*\*(.+?)\*\*", line)]
    assert len(terms) == len(set(terms))
    assert 50 <= len(terms) <= 80
    # a meaning, in a sentence
    assert [line for line in lines if not re.search(r"\*\*: .+\.$", line)] == []


def test_readers_find_the_glossary() -> None:
    assert "docs/glossary.md" in (ROOT / "README.md").read_text()
    assert "../glossary.md" in (ROOT / "docs" / "design" / "README.md").read_text()


def test_no_word_of_ours_is_used_without_end() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "words")],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert len(rows) == 20
    assert [word for count, word, _ in rows if int(count) > MOST_NAMES] == []
