"""No test without an assertion: its own, or one of a helper that is named here.

An assertion is an ``assert``, a raised ``AssertionError``, ``pytest.raises``, ``pytest.warns`` or
``pytest.fail``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from trees import statements, tree_of

TESTS = Path(__file__).parent
TESTBED = TESTS.parent / "scripts" / "testbed"

#: functions and methods that assert for those who call them, or fail after their limit, and where
HELPERS = {
    "accepted": ["transport/conftest.py"],
    "clean": ["faults/conftest.py"],
    "compare": ["transport/ssh_config/test_same_as_ssh.py"],
    "ends": ["faults/conftest.py", "runs/run/test_ignored_signals.py"],
    "finish": ["remote/driver.py"],
    "is_gone": ["remote/driver.py"],
    "refused": ["transport/conftest.py"],
    "until": [
        "remote/driver.py",
        "remote/relay_driver.py",
        "runs/seat.py",
        "transport/conftest.py",
        "typist.py",
    ],
    "wait_for": ["cluster.py"],
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    return (node for node in statements(tree_of(path)) if isinstance(node, Function))


def dotted(node: ast.AST) -> str:
    """``pytest.raises`` of the node that says so; of other expressions their last words."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def asserts(function: Function) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Raise) and node.exc and "AssertionError" in ast.unparse(node.exc):
            return True
        if isinstance(node, ast.Call) and dotted(node.func) in (
            "pytest.raises", "pytest.warns", "pytest.fail",
        ):  # fmt: skip
            return True
    return False


def called(function: Function) -> set[str]:
    """The last words of what it calls: ``wait_for``; ``until`` of ``agent.until(...)``."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {dotted(one).split(".")[-1] for one in calls}


def helped(path: Path, function: Function, own: set[str]) -> bool:
    """Whether it calls a helper, and none that its own file has under that name."""
    name = str(path.relative_to(TESTS))
    words = HELPERS.keys() & called(function)
    return any(word not in own or name in HELPERS[word] for word in words)


def test_each_test_asserts() -> None:
    silent = []
    for path in sorted(TESTS.rglob("test_*.py")):
        there = list(functions(path))
        own = {function.name for function in there}
        for function in there:
            if not function.name.startswith("test_") or asserts(function):
                continue
            if not helped(path, function, own):
                silent.append(f"{path.relative_to(TESTS)}:{function.lineno} {function.name}")
    assert silent == []


def test_helpers_assert() -> None:
    """By themselves, or by calling another of them."""
    for name, places in HELPERS.items():
        for place in places:
            path = (TESTBED if place == "cluster.py" else TESTS) / place
            there = [function for function in functions(path) if function.name == name]
            assert there, f"{place} has no {name}"
            for function in there:
                assert asserts(function) or called(function) & (HELPERS.keys() - {name}), name
