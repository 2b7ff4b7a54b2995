"""Mutants: the product with one small fault each, made from its source. Pure, but for reading it.

A comparison or a condition is changed, a statement, a keyword, an exception or an end of a slice
left out, a value off by one. Left alone are words, annotations, decorators, asserts, and numbers
that tune: floats, sizes such as 16 << 10, and the constants of modules. Those that no test can
notice stand in equivalent_mutants.toml, each with its reason.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = "dispatcher"
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.toml"

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip
CALLS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list",
    "startswith": "endswith", "endswith": "startswith",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One fault. path: from the root; where: the function; was, now: source, spaces folded."""

    path: str
    where: str
    was: str
    now: str
    nth: int  # of those that read alike, since lines move and texts seldom do
    line: int
    source: str  # the whole file, with the fault

    @property
    def key(self) -> str:
        parts = (self.path, self.where, self.was, self.now, str(self.nth))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

    def diff(self) -> str:
        old = (ROOT / self.path).read_text().splitlines()
        lines = list(difflib.unified_diff(old, self.source.splitlines(), lineterm="", n=1))[3:]
        return "\n".join("    " + line for line in lines)


def _without(items: Sequence[ast.expr], index: int) -> list[ast.expr]:
    return [item for place, item in enumerate(items) if place != index]


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """What may stand in the place of an expression."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            ops = [*node.ops[:index], COMPARE[type(operator)](), *node.ops[index + 1 :]]
            yield ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = _without(node.values, index)
            yield ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Name) and called.id in CALLS:
            yield ast.Call(ast.Name(CALLS[called.id]), node.args, node.keywords)
        elif isinstance(called, ast.Attribute) and called.attr in CALLS:
            other = ast.Attribute(called.value, CALLS[called.attr])
            yield ast.Call(other, node.args, node.keywords)
        for keyword in node.keywords:
            if keyword.arg not in (None, "strict"):
                yield ast.Call(called, node.args, [k for k in node.keywords if k is not keyword])
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        ends = node.slice
        for lower, upper in ((None, ends.upper), (ends.lower, None)):
            if (lower, upper) != (ends.lower, ends.upper):
                yield ast.Subscript(node.value, ast.Slice(lower, upper, ends.step))


def _statements(node: ast.stmt) -> bool:
    """Whether the statement may be left out, and the rest still be Python that runs."""
    if isinstance(node, (ast.Raise, ast.Continue, ast.Break, ast.Delete)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Return):
        return node.value is None
    if isinstance(node, ast.AugAssign):
        return True
    return isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple))


class _Finder(ast.NodeVisitor):
    """(node, its replacement, function) of every mutant of a module."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.AST, str, str]] = []
        self._where: list[str] = []

    def _note(self, node: ast.AST, new: ast.AST | str) -> None:
        text = new if isinstance(new, str) else ast.unparse(ast.fix_missing_locations(new))
        self.found.append((node, text, ".".join(self._where)))

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._where.append(node.name)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.visit(default)
        for child in node.body:
            self.visit(child)
        self._where.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _inside

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and self._where:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._where:  # a module's own are tables and tuning
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            return
        if isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
            self._note(node.test, "False")
            self._note(node.test, "True")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._note(node.value, "None")
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if isinstance(node.type, ast.Tuple):
            for index in range(len(node.type.elts)):
                self._note(node.type, ast.Tuple(_without(node.type.elts, index), ast.Load()))
        for child in node.body:
            self.visit(child)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.LShift) and isinstance(node.right, ast.Constant):
            for new in _expressions(node):
                self._note(node, f"({ast.unparse(new)})")  # 16 << 10 is a size, and tunes
        else:
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Words; and before Python 3.12 what stands inside has no place of its own."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """What is always so anyway."""

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # zip's, which asserts as well
            self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and self._where and _statements(node):
            self._note(node, "pass")
        for new in _expressions(node):
            # what binds as the old one did needs no brackets
            loose = isinstance(new, (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare))
            loose = loose and not isinstance(node, ast.Compare)
            self._note(node, f"({ast.unparse(ast.fix_missing_locations(new))})" if loose else new)
        super().generic_visit(node)


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of one file's source."""
    finder = _Finder()
    finder.visit(ast.parse(source))
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    alike: dict[tuple[str, str, str], int] = {}
    made = []
    for node, text, where in finder.found:
        assert isinstance(node, (ast.expr, ast.stmt))
        assert node.end_lineno
        assert node.end_col_offset
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        was = " ".join(data[begin:end].decode().split())
        same = (where, was, text)
        alike[same] = alike.get(same, 0) + 1
        changed = (data[:begin] + text.encode() + data[end:]).decode()
        made.append(Mutant(path, where, was, text, alike[same], node.lineno, changed))
    return made


def rooms(root: Path = ROOT) -> list[str]:
    """Folders of the product; what travels to hosts by its own folders."""
    tops = sorted(p.name for p in (root / PRODUCT).iterdir() if (p / "__init__.py").exists())
    inner = sorted((root / PRODUCT).glob("remote/*/__init__.py"))
    return [*tops, *(str(p.parent.relative_to(root / PRODUCT)) for p in inner)]


def of_room(room: str, every: Sequence[str], root: Path = ROOT) -> list[Mutant]:
    """The mutants of the files of a room, without those of rooms inside it that are listed too."""
    inside = [other for other in every if other.startswith(room + "/")]
    found = []
    for file in sorted((root / PRODUCT / room).rglob("*.py")):
        name = str(file.relative_to(root / PRODUCT))
        if not any(name.startswith(other + "/") for other in inside):
            found += mutants(f"{PRODUCT}/{name}", file.read_text())
    return found


def sample(found: Iterable[Mutant], count: int, seed: str) -> list[Mutant]:
    """The first ``count`` in the seed's order, which does not depend on the others."""
    return sorted(found, key=lambda m: hashlib.sha256((seed + m.key).encode()).digest())[:count]


def equivalents(file: Path = EQUIVALENT) -> dict[tuple[str, str, str, str], str]:
    """(path, where, was, now) -> why no test can notice it."""
    entries = tomllib.loads(file.read_text()).get("mutant", []) if file.exists() else []
    return {(e["path"], e["where"], e["was"], e["now"]): e["why"] for e in entries}
