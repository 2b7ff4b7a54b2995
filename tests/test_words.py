"""The words of pages and docstrings: one meaning each, and plain English."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from cases import cases
from trees import tree_of

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


#: what the rule of CONTRIBUTING.md forbids, as far as a pattern can see it
STILTED = re.compile(
    r"^(?:What|Who|Whom)\b(?!.*\?)"  # a relative clause in the place of a noun
    r"|\b[Ww]ho(?:m)?ever\b|\b(?:[Nn]o|[Ss]ome|[Ee]very|[Aa]ny)body\b"
    r"|\b(?:stands?|stood|lies|lay) (?:in|on|at|behind|before|below|beside|there|here)\b"
    r"|\b(?:is|are|was|were) (?:said|told)\b|\b(?:said|told|tells?|knows?|known|heard) of\b",
    re.MULTILINE,
)
#: the rule's own examples
ALLOWED = frozenset({"CONTRIBUTING.md"})


def texts() -> Iterator[tuple[str, str]]:
    """File and text of each page without its blocks of code, and of each docstring."""
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        prose = re.sub(r"^(```.*?^```|    .*?$)", "", page.read_text(), flags=re.S | re.M)
        yield str(page.relative_to(ROOT)), re.sub(r"`[^`]*`", "", prose)
    for path in sorted((ROOT / "dispatcher").rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield str(path.relative_to(ROOT)), ast.get_docstring(node) or ""


def test_english_is_plain() -> None:
    found = [
        f"{name}: {hit[0]}"
        for name, text in texts()
        for hit in STILTED.finditer(text)
        if name not in ALLOWED
    ]
    assert found == []


@cases(
    ("text", "hit"),
    [
        ("What a host said.", "What"), ("Whoever asks is answered.", "Whoever"),
        ("It is told of hosts.", "is told"), ("The rule stands in a file.", "stands in"),
        ("Somebody has the port.", "Somebody"), ("What is MPI?", None),
        ("Print the hosts that failed.", None), ("A host that nobody knows", "nobody"),
    ],
)  # fmt: skip
def test_what_is_not_plain(text: str, hit: str | None) -> None:
    found = STILTED.search(text)
    assert (found and found[0]) == hit
