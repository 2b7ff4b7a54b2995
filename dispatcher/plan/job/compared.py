"""Finds what hosts are compared in before a start: files that arguments name, imports of a script.

It looks at this machine's disk; ``remote.probe.compared`` looks at the hosts'.
"""

from __future__ import annotations

import ast
import os
import stat
import sys
import warnings
from collections.abc import Collection, Iterator

from dispatcher.model.frozen import Value, value

#: named files, and modules, at most; bytes of a script that is read for its imports
MOST_FILES, MOST_MODULES, MOST_SCRIPT = 256, 64, 256 << 10
#: errors by which a program goes on without a module
_EXPECTED = ("ImportError", "ModuleNotFoundError", "Exception")


@value
class NamedFile(Value):
    """A file, or a ``folder``, that an argument names. sent: ``--sync`` has just sent it."""

    name: str
    folder: bool = False
    sent: bool = False


def named_files(word: str, here: str, sent: Collection[str]) -> Iterator[NamedFile]:
    """The files that ``word`` names, alone or after ``=``; of a folder those that were sent too."""
    for name in (word, word.partition("=")[2]):
        path = os.path.normpath(os.path.join(here, name))
        inside = os.path.relpath(path, here)
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(mode):
            yield NamedFile(name, sent=inside in sent)
        elif stat.S_ISDIR(mode) and not mode & stat.S_ISVTX and inside.strip("./"):
            # hosts have their own /tmp; a folder around ours is no input
            yield NamedFile(name, folder=True)
            below = sorted(one for one in sent if one.startswith(inside + "/"))
            for one in below[:MOST_FILES]:
                yield NamedFile(os.path.join(name, one[len(inside) + 1 :]), sent=True)


def imported(script: str) -> tuple[str, ...]:
    """Modules that the top level of ``script`` needs, without the standard library's.

    Without imports in ``if``, and in ``try`` with ``except ImportError``. () for an unreadable one.
    """
    try:
        with open(script, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks print them
            tree = ast.parse(file.read(MOST_SCRIPT))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    own = {"__main__", "__future__", *sys.stdlib_module_names}
    names = dict.fromkeys(name.partition(".")[0] for name in _imports(tree.body))
    return tuple(name for name in names if name not in own)[:MOST_MODULES]


def _imports(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(str(module), level=0):
                yield module
            case ast.If(ast.Compare(ast.Name("__name__")), inner) | ast.With(body=inner):
                yield from _imports(inner)
            case ast.Try(inner, handlers):
                caught = [ast.unparse(one.type) if one.type else "Exception" for one in handlers]
                if not any(name in words for words in caught for name in _EXPECTED):
                    yield from _imports(inner)
