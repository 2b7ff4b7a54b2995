"""A rank loads nothing of the launcher, and the third-party modules only when it needs them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import dispatcher.comm

FOLDER = Path(dispatcher.comm.__file__).parent


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            found.add(node.module or "")
    return found


def test_only_itself_and_the_standard_library() -> None:
    for path in FOLDER.glob("*.py"):
        for name in imported(path):
            own = name == "dispatcher.comm" or name.startswith("dispatcher.comm.")
            assert own or name.split(".")[0] in sys.stdlib_module_names, f"{path.name}: {name}"


def test_importing_it_starts_nothing() -> None:
    program = (
        "import sys, dispatcher.comm\n"
        "print(*sorted(sys.modules.keys() & {'mpi4py', 'torch', 'numpy', 'paramiko', 'click'}))\n"
        "print(*(name for name in sys.modules if name.startswith('dispatcher.')\n"
        "        and not name.startswith('dispatcher.comm')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.returncode) == ("\n\n", 0), ended.stderr
