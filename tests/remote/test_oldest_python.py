"""What travels to hosts uses only what the oldest Python has that is promised to do there."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from dispatcher.bootstrap.payload import OLDEST_PYTHON

from .driver import interpreters

REMOTE = Path(__file__).parents[2] / "dispatcher/remote"
#: prints which of (module, name) pairs are not there
LOOK = """
import importlib, json, sys
for module, name in json.loads(sys.argv[1]):
    try:
        if not hasattr(importlib.import_module(module), name):
            print(module, name)
    except ImportError:
        print(module)
"""

#: what only later ones have, and the code goes without
TRIED = {"_sha2"}


def names_used(tree: ast.AST) -> set[tuple[str, str]]:
    """(standard module, name of it) wherever the text takes one."""
    modules: dict[str, str] = {}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update((one.asname or one.name, one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("dispatcher"):
            found |= {(node.module or "", one.name) for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and not module.startswith("dispatcher"):
                found.add((module, node.attr))
    return found


def test_every_name_of_the_standard_library_is_there() -> None:
    used: set[tuple[str, str]] = set()
    for path in REMOTE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, feature_version=OLDEST_PYTHON)
        if path.parent.name != "rank":  # that runs in the job's own Python
            used |= names_used(tree)
    assert len(used) > 100
    python = interpreters().get(OLDEST_PYTHON)
    if python is None:
        pytest.skip(f"no Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} here")
    done = subprocess.run(
        [python, "-c", LOOK, json.dumps(sorted(used))], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert set(done.stdout.splitlines()) == TRIED
