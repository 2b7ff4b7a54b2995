"""Every pattern that reads what a host says takes time linear in it.

What a pattern goes back over is a beginning that it takes and a piece that it takes again and
again, without the end that it wants. Such beginnings and pieces are made of the pattern itself.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from trees import tree_of

import dispatcher

from .judging import MOST_GROWTH

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # before Python 3.11
    import sre_parse as parser

#: modules -> why their patterns need not be linear
MAY_GO_BACK = {
    "dispatcher.cli": "the command line of who waits for it",
    "dispatcher.model": "host lists that were typed; the fuzzer's target hostset",
    "dispatcher.plan": "files of who waits for it; the fuzzer's targets hostfile and rankfile",
    "dispatcher.transport.ssh_config": "the user's own file",
    "dispatcher.transport.process.openssh": "lines of 1 KiB at most",
    "dispatcher.output.text": "lines of 1 KiB at most",
    "dispatcher.checks.xid": "lines of 1 KiB at most",
    "dispatcher.remote.rank.sitecustomize": "has none, and does its work when it is loaded",
}
#: lengths that are compared; seconds for the first below which no growth is looked for
SHORT, LONG, LEAST = 1 << 10, 4 << 10, 0.0001
#: so often both are asked while the longer seems slow: a core that is taken from us for a
#: moment, which counts as our time on a virtual machine, makes one of them slow, not every one
TURNS = 8
#: how a pattern is asked
ASKS = {"search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn"}
#: of a set of characters the first that is in it
CHARACTERS = "x0 _-.:/,\nA" + "".join(map(chr, range(128)))
#: is repeated besides a pattern's own pieces
USUAL = ("x", "0", " ", "\n")


# -- strings from a pattern ---------------------------------------------------------------


def taken(kind: str, value: Any) -> str:
    """A string that a part of a parsed pattern takes; of alternatives the first."""
    if kind == "LITERAL":
        return chr(value)
    if kind in ("NOT_LITERAL", "ANY", "IN"):
        one = re.compile(of_one(kind, value), re.ASCII)
        return next(filter(one.match, CHARACTERS))
    if kind.endswith("REPEAT"):
        return "".join(parts(value[2])) * max(1, int(value[0]))
    if kind == "BRANCH":
        return "".join(parts(value[1][0]))
    return "".join(parts(value[-1])) if kind == "SUBPATTERN" else ""


def parts(parsed: Any) -> list[str]:
    return [taken(str(kind), value) for kind, value in parsed]


def of_one(kind: str, value: Any) -> str:
    """A pattern of one character, from its parsed form."""
    if kind == "ANY":
        return "."
    if kind in ("LITERAL", "NOT_LITERAL"):
        text = re.escape(chr(value))
        return f"[^{text}]" if kind == "NOT_LITERAL" else text
    if kind == "RANGE":
        return "-".join(re.escape(chr(end)) for end in value)
    if kind == "CATEGORY":
        *_, no, name = str(value).split("_")
        letter = name[0].lower()
        return f"\\{letter.upper() if no == 'NOT' else letter}"
    items = [(str(kind), one) for kind, one in value]
    none_of = items[0][0] == "NEGATE"
    return f"[{'^' * none_of}{''.join(of_one(*item) for item in items[none_of:])}]"


def beginnings(parsed: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """What a pattern takes, and what may be repeated behind it; also of all that is nested."""
    found = parts(parsed)
    for first, (kind, value) in enumerate([*parsed, ("", None)]):
        head = before + "".join(found[:first])
        for last in range(first + 1, min(len(found), first + 24) + 1):
            yield head, "".join(found[first:last])
        yield from ((head, piece) for piece in USUAL)
        nested = [value[-1]] if str(kind) in ("SUBPATTERN", "MAX_REPEAT", "MIN_REPEAT") else []
        for inner in value[1] if str(kind) == "BRANCH" else nested:
            yield from beginnings(inner, head)


# -- how long they take -------------------------------------------------------------------


def seconds(ask: Callable[[Any], object], text: str | bytes) -> float:
    begun = time.thread_time()
    ask(text)
    return time.thread_time() - begun


def grown(ask: Callable[[Any], object], short: str | bytes, long: str | bytes) -> float:
    """Seconds for ``long`` if that is more than linear beside ``short``; else 0.0."""
    first = then = float("inf")
    for _ in range(TURNS):
        first, then = min(first, seconds(ask, short)), min(then, seconds(ask, long))
        if first < LEAST or then <= MOST_GROWTH * first:
            return 0.0
    return then


def slow_at(pattern: re.Pattern[Any], how: set[str]) -> str:
    """What ``pattern``, asked so, takes too long for; "" if there is nothing."""
    asks: list[Callable[[Any], object]] = [
        getattr(pattern, name) for name in sorted(how & {"match", "fullmatch"})
    ]
    if how - {"match", "fullmatch"}:
        asks.append(lambda text: [*pattern.finditer(text)])
    parsed = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    for head, piece in dict.fromkeys(pair for pair in beginnings(parsed) if pair[1]):
        for tail in ("", "\0"):
            texts: list[Any] = [head + piece * (n // len(piece)) + tail for n in (SHORT, LONG)]
            if isinstance(pattern.pattern, bytes):
                texts = [text.encode("latin-1", "replace") for text in texts]
            for ask in asks:
                if seconds(ask, texts[0]) >= LEAST and (then := grown(ask, texts[0], texts[1])):
                    return f"{then:.3f} s for {head!r}, {piece!r} again and again, {tail!r}"
    return ""


# -- the patterns of the product ----------------------------------------------------------


@cache
def calls(tree: ast.Module) -> list[tuple[str, ast.Call, str]]:
    """Of whom a module asks by a method that patterns have: name, call, method."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in ASKS and isinstance(owner, (ast.Name, ast.Attribute)):
                name = owner.id if isinstance(owner, ast.Name) else owner.attr
                found.append((name, node, node.func.attr))
    return found


def written(tree: ast.Module) -> Iterator[tuple[re.Pattern[Any], set[str]]]:
    """Patterns that stand where they are asked, and how they are."""
    for owner, call, how in calls(tree):
        if owner == "re" and isinstance(call.args[0], ast.Constant):
            others = (*call.args[1:], *(keyword.value for keyword in call.keywords))
            flags = re.RegexFlag(0)
            for node in (node for other in others for node in ast.walk(other)):
                if isinstance(node, ast.Attribute):
                    flags |= re.RegexFlag.__members__.get(node.attr, flags)
            yield re.compile(call.args[0].value, flags), {how}


def held(value: Any) -> Iterator[re.Pattern[Any]]:
    """The patterns that are, or are in, a value of a module."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from held(item)
    elif isinstance(value, dict):
        yield from held((*value, *value.values()))


def of_module(
    module: ModuleType, tree: ast.Module, everywhere: dict[str, set[str]]
) -> Iterator[tuple[re.Pattern[Any], set[str]]]:
    yield from written(tree)
    own: dict[str, set[str]] = {}
    for name, _, how in calls(tree):
        own.setdefault(name, set()).add(how)
    for name, value in vars(module).items():
        for pattern in held(value):
            yield pattern, own.get(name) or everywhere.get(name) or ASKS


def test_patterns_are_linear() -> None:
    modules, everywhere = [], dict[str, set[str]]()
    for info in pkgutil.walk_packages(dispatcher.__path__, "dispatcher."):
        if info.name.startswith(tuple(MAY_GO_BACK)) or info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        tree = tree_of(Path(str(module.__file__)))
        modules.append((module, tree))
        for name, _, method in calls(tree):
            everywhere.setdefault(name, set()).add(method)
    wrong, looked_at = [], set()
    for module, tree in modules:
        for pattern, how in of_module(module, tree, everywhere):
            key = pattern, frozenset(how)
            if key not in looked_at and (slow := slow_at(pattern, how)):
                wrong.append(f"{module.__name__}: {pattern.pattern!r}: {slow}")
            looked_at.add(key)
    assert not wrong, "\n".join(wrong)
    assert len(looked_at) > 50


def test_patterns_that_go_back_are_noticed() -> None:
    for text in (r"^# (\S*nccl\S*\.conf)\s*$", r"^(Max [a-z ]+?)  +(\S+)", r"<[^>]*>"):
        assert slow_at(re.compile(text, re.M), {"search"}), text
    assert not slow_at(re.compile(r"\s*x"), {"match"})
