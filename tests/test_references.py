"""Names of modules, classes, functions and files in prose exist: docstrings, comments and pages.

A name of the house is a dotted name that begins with a module or a class of it, a path that begins
with a folder of it, or, in the source, one word in CamelCase or with underscores.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cases import cases
from trees import statements, tree_of

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "dispatcher"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

#: names of other projects that look like ours, and prefixes of such names
FOREIGN = frozenset({
    "Accelerator", "Communicator.init", "Dup", "find_coalesced_group", "fr_trace",
    "gil_scoped_release", "mlx5_0", "valid_hostname", "valid_ruser",
})  # fmt: skip
PREFIXES = ("DCGM_", "MPI_", "NCCL_", "PMIx_")
#: a page that scripts/docs writes
ABSENT = frozenset({"docs/reference/exit-codes.md"})

QUOTED = {".py": re.compile(r"``([^`]+)``"), ".md": re.compile(r"(?<!`)`([^`\n]+)`(?!`)")}
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
#: files that a run writes or a user has, and other programs' sources
FILE = re.compile(r"\.(?:json|jsonl|html|log|toml|conf|py|md|c|h)$")
WORD = re.compile(r"_?[A-Za-z]\w*_\w+|[A-Z][a-z]\w*")
PATH = re.compile(r"(?<![\w./~$*-])(?:[\w-]+/)+[\w-]+\.(?:py|md)\b")


def text_of(path: Path) -> str:
    """The prose of a file: of a module its docstrings and comments."""
    if path.suffix == ".md":
        return path.read_text()
    with tokenize.open(path) as file:
        tokens = [*tokenize.generate_tokens(file.readline)]
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    docstrings = [ast.get_docstring(node) or "" for node in documented(tree_of(path))]
    return "\n".join([*docstrings, *comments])


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(tree: ast.AST) -> Iterator[Documented]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and ast.get_docstring(node):
            yield node


class Names:
    """The modules of the house with the words of their code, and where its classes are."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {}
        self.classes: dict[str, list[str]] = defaultdict(list)
        for path in sorted(HOUSE.rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = {*words_of(tree_of(path))}
            for node in statements(tree_of(path)):
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name].append(name)
        self.parts = {part for name in self.modules for part in name.split(".")}
        self.words = self.parts.union(*self.modules.values())
        self.words.update(path.stem for path in (ROOT / "tests").rglob("*.py"))

    def exists(self, name: str) -> bool:
        """Whether the dotted ``name`` is one of the house, or of another house altogether."""
        parts = name.split(".")
        if parts[0] not in self.parts and parts[0] not in self.classes:
            return True
        if name in self.words or "".join(map(str.capitalize, parts)) in self.classes:
            return True  # a text of the code, or the name of an event in the journal
        places = [*self.classes[parts[0]], *self.classes[parts[0].capitalize()]]
        for at in range(1, len(parts) + 1):
            end = "." + ".".join(parts[:at])
            found = [one for one in self.modules if f".{one}".endswith(end)]
            if any(self.modules[one].issuperset(parts[at:]) for one in found):
                return True
        return any(self.modules[place].issuperset(parts[1:]) for place in places)


def words_of(tree: ast.Module) -> Iterator[str]:
    """All identifiers of a module, the words of its strings, and its dotted strings."""
    docs = {id(node.body[0].value) for node in documented(tree)}  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            yield from [] if id(node) in docs else [text, *re.findall(r"\w+", text)]
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield from value.split(".")


@cache
def names() -> Names:
    return Names()


def wrong(text: str, suffix: str) -> Iterator[str]:
    """References in ``text`` to things that do not exist."""
    for quoted in QUOTED[suffix].findall(text):
        name = quoted.removesuffix("()")
        if name in FOREIGN or FILE.search(name):
            continue
        if DOTTED.fullmatch(name) and not names().exists(name):
            yield name
        is_ours = suffix == ".py" and WORD.fullmatch(name) and not name.startswith(PREFIXES)
        if is_ours and name not in names().words:
            yield name
    folders = {path.name for path in (*ROOT.iterdir(), *HOUSE.iterdir()) if path.is_dir()}
    for path in {*PATH.findall(text)} - ABSENT:
        places = (ROOT / path, HOUSE / path, ROOT / "tests" / path)
        if path.split("/")[0] in folders and not any(place.exists() for place in places):
            yield path


def test_names_in_prose_exist() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*sorted(HOUSE.rglob("*.py")), *PAGES)
        for name in wrong(text_of(path), path.suffix)
    ]
    assert found == []


@cases(
    ("text", "found"),
    [
        ("see ``transport.base.Link.failure``", []), ("``Link.read()``", []), ("``os.path``", []),
        ("``rank.exited``", []), ("``report.json``", []), ("core/run/attempt.py", []),
        ("tests/cases.py", []), ("remote/host/test_shm.py", []), ("/usr/core/gone.py", []),
        *((f"``{gone}``", [gone]) for gone in (
            "base.Link.nothing", "Link.nothing", "base.nothing", "rank.vanished",
            "transport.vanished", "NoSuchClass", "no_such_word",
        )),
        ("core/run/gone.py", ["core/run/gone.py"]),
        ("docs/design/gone.md", ["docs/design/gone.md"]),
    ],
)  # fmt: skip
def test_what_does_not_exist(text: str, found: list[str]) -> None:
    assert list(wrong(text, ".py")) == found
