"""Files as syntax trees, each parsed once, and their statements: several rules read them all."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(tree: ast.AST, *, types: bool = True, inner: bool = True) -> Iterator[ast.stmt]:
    """Every statement in it. ``ast.walk`` looks into expressions too, and takes ten times as long.

    types: also those that only a type checker runs. inner: also those of functions and classes.
    """
    left = deque[ast.stmt](getattr(tree, "body", ()))
    while left:
        node = left.popleft()
        yield node
        if isinstance(node, ast.If) and not types:
            name = getattr(node.test, "attr", getattr(node.test, "id", ""))
            if name == "TYPE_CHECKING":
                left += node.orelse
                continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not inner:
            continue
        for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            for block in ("body", "orelse", "finalbody"):
                left += getattr(part, block, ())
