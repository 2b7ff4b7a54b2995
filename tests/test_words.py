"""One meaning a word: the glossary."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"


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
