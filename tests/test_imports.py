"""Programs that stand in strings and pages import what there is: mypy does not read them."""

from __future__ import annotations

import ast
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from trees import statements, tree_of

ROOT = Path(__file__).parents[1]
#: of projects that tests make up
MADE_UP = {"dispatcher.m", "dispatcher.core.adult"}
STATEMENT = re.compile(
    r"(?:\bfrom (dispatcher[\w.]*) import (\([^()]*\)|[\w, ]+)|\bimport (dispatcher[\w.]*))"
)


def texts() -> list[str]:
    """The files that may hold such a program, relative to the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs git and a checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def names_in(module: str) -> set[str]:
    """What is bound at the top level of the module, blocks such as ``if`` and ``try`` included."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # its parent is not there
        spec = None
    if spec is None or spec.origin is None:
        return set()
    found = {path.stem for path in Path(spec.origin).parent.iterdir()}
    for node in statements(tree_of(Path(spec.origin)), inner=False):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        else:
            targets = (*getattr(node, "targets", ()), getattr(node, "target", None))
            names = (name for one in targets if one is not None for name in ast.walk(one))
            found |= {name.id for name in names if isinstance(name, ast.Name)}
    return found


def test_every_import_in_a_text_finds_its_module() -> None:
    wanted: dict[str, set[tuple[str, str]]] = {}
    for file in texts():
        try:
            text = (ROOT / file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for module, several, plain in STATEMENT.findall(text):
            names = {word.split(" as ")[0].strip() for word in several.strip("()").split(",")}
            uses = wanted.setdefault((module or plain).rstrip("."), set())
            uses.update((name, file) for name in names if name.isidentifier())
    assert len(wanted) > 100
    missing = []
    for module, uses in wanted.items():
        if module in MADE_UP:
            continue
        there = names_in(module)
        missing += [(file, module, name) for name, file in uses if name not in there]
    assert not missing
