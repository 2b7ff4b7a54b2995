"""Public functions say what their names do not: units, errors raised, sources.

Counted is every function of a module and every method of a public class, without a leading
underscore. Left out, since their meaning stands elsewhere or in the name alone: methods that
override one of another class, properties of one ``return``, overloads, and what a protocol only
lists.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from trees import statements, tree_of

HOUSE = Path(__file__).parents[1] / "dispatcher"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(HOUSE).with_suffix("")): tree_of(path)
        for path in sorted(HOUSE.rglob("*.py"))
    }


@cache
def classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for tree in trees().values()
        for node in statements(tree)
        if isinstance(node, ast.ClassDef)
    }


def overrides(cls: ast.ClassDef, name: str) -> bool:
    """Whether a class above has the method; one that is not ours may well have it."""
    for base in cls.bases:
        above = classes().get(ast.unparse(base).split("[")[0].split(".")[-1])
        if above is None:
            continue
        if any(isinstance(n, Function) and n.name == name for n in above.body):
            return True
        if overrides(above, name):
            return True
    return False


def says_all_by_its_name(function: Function) -> bool:
    words = [ast.unparse(one) for one in function.decorator_list]
    if any(word.endswith("overload") for word in words):
        return True
    if ast.unparse(function.body[0]) == "...":
        return True
    one_return = len(function.body) == 1 and isinstance(function.body[0], ast.Return)
    return one_return and any(word.endswith("property") for word in words)


def bare(tree: ast.Module) -> Iterator[str]:
    """The public functions of a module that have no docstring and need one."""
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        cls = node if isinstance(node, ast.ClassDef) else None
        if cls is not None and cls.name.startswith("_"):
            continue
        for function in inside:
            if not isinstance(function, Function) or function.name.startswith("_"):
                continue
            if ast.get_docstring(function) or says_all_by_its_name(function):
                continue
            if cls is None or not overrides(cls, function.name):
                yield f"{cls.name}.{function.name}" if cls else function.name


def test_every_public_function_has_a_docstring() -> None:
    assert [f"{name}: {one}" for name, tree in trees().items() for one in bare(tree)] == []
