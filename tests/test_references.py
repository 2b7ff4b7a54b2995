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
#: files that docs/design/README.md promises, and a page that scripts/docs writes
ABSENT = frozenset({
    "api/exec_session.py", "output/run_state.py", "docs/reference/exit-codes.md",
})  # fmt: skip

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


class Scope:
    """The names in a module or class, and the scopes of its classes."""

    def __init__(self, node: ast.Module | ast.ClassDef) -> None:
        self.names: set[str] = set()
        self.classes: dict[str, Scope] = {}
        bases = [ast.unparse(base) for base in getattr(node, "bases", ())]
        self.bases = [base.partition("[")[0].rpartition(".")[2] for base in bases]
        outer = isinstance(node, ast.Module)  # of a class also the attributes of its values
        for inner in statements(node, inner=not outer):
            match inner:
                case ast.ClassDef(name):
                    self.classes[name] = Scope(inner)
                    self.names.add(name)
                case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                    self.names.add(name)
                case ast.Import(names) | ast.ImportFrom(_, names):
                    self.names.update((one.asname or one.name).split(".")[0] for one in names)
                case ast.Assign(targets) | ast.For(ast.Tuple(targets)):
                    self.names.update(name for one in targets for name in stored(one))
                case ast.AnnAssign(target) | ast.For(target) | ast.AugAssign(target):
                    self.names.update(stored(target))


def stored(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


class Names:
    """All names of the house."""

    def __init__(self) -> None:
        self.modules: dict[str, Scope] = {}
        self.classes: dict[str, list[Scope]] = defaultdict(list)
        self.words: set[str] = set()
        for path in sorted(HOUSE.rglob("*.py")):
            tree = tree_of(path)
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            scope = self.modules[name] = Scope(tree)
            for one, inner in scope.classes.items():
                self.classes[one].append(inner)
            self.words.update(name.split("."), words_of(tree))
        self.words.update(path.stem for path in (ROOT / "tests").rglob("*.py"))
        self.first = {part for name in self.modules for part in name.split(".")}

    def scopes(self, name: str) -> list[Scope]:
        """Modules that ``name`` may mean: its last parts are enough."""
        return [scope for full, scope in self.modules.items() if f".{full}".endswith(f".{name}")]

    def has(self, scope: Scope, rest: list[str]) -> bool:
        """Whether ``scope`` or a base of it has the first of ``rest``, and so on."""
        name, *more = rest
        if name in scope.classes and more:
            return self.has(scope.classes[name], more)
        bases = (one for base in scope.bases for one in self.classes[base] if one is not scope)
        return name in scope.names or any(self.has(one, rest) for one in bases)

    def exists(self, name: str) -> bool:
        """Whether the dotted ``name`` is one of the house, or of another house altogether."""
        parts = name.split(".")
        if parts[0] not in self.first and parts[0] not in self.classes:
            return True
        if self.scopes(name) or "".join(map(str.capitalize, parts)) in self.classes:
            return True  # a module, or the name of an event in the journal
        if name in self.words:
            return True  # a text, as the name of a decision
        owners = [*self.classes[parts[0]], *self.classes[parts[0].capitalize()]]
        if any(self.has(one, parts[1:]) for one in owners):
            return True  # of a class, or of a value that has the name of its class
        return any(
            self.has(scope, parts[at:])
            for at in range(1, len(parts))
            for scope in self.scopes(".".join(parts[:at]))
        )


def words_of(tree: ast.Module) -> Iterator[str]:
    """All identifiers of a module, the words of its strings, and its dotted strings."""
    docs = {id(node.body[0].value) for node in documented(tree)}  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            if id(node) not in docs:
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                yield from re.findall(r"\w+", text)
                yield text
            continue
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
            "base.Link.nothing", "Link.nothing", "base.nothing", "transport.gone", "rank.gone",
            "NoSuchClass", "no_such_word",
        )),
        ("core/run/gone.py", ["core/run/gone.py"]),
        ("docs/design/gone.md", ["docs/design/gone.md"]),
    ],
)  # fmt: skip
def test_what_does_not_exist(text: str, found: list[str]) -> None:
    assert list(wrong(text, ".py")) == found
