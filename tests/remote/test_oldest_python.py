"""What travels runs on the oldest Python that is promised: what it calls is there, and it loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from cases import cases

from dispatcher import remote
from dispatcher.bootstrap import payload

from .driver import interpreters, new_enough

SENT = Path(remote.__file__).parent
#: its modules, by their names below ``remote``
ALL = sorted(
    ".".join(path.relative_to(SENT).with_suffix("").parts)
    for path in SENT.rglob("[!_]*.py")
    if path.parent.name != "rank"
)


def violations(*paths: Path) -> str:
    """What vermin says of code that asks for a Python newer than the oldest; "" for none."""
    pytest.importorskip("vermin", reason="of the development extra")
    program = "from vermin import main; main()"
    wanted = f"--target={'.'.join(map(str, payload.OLDEST_PYTHON))}-"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-config-file", "--violations", wanted, *paths],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr if done.returncode else ""


def test_nothing_is_used_that_a_newer_python_brought() -> None:
    assert violations(SENT) == ""


@cases(
    "newer", ["'a'.removeprefix('b')", "import math; math.lcm(1, 2)", "zip('a', 'b', strict=True)"]
)
def test_and_it_would_be_seen(tmp_path: Path, newer: str) -> None:
    (tmp_path / "newer.py").write_text(newer + "\n")
    assert "require" in violations(tmp_path / "newer.py")


def test_it_is_in_the_words_of_the_oldest() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in SENT.rglob("*.py")}
    for path, source in sources.items():
        ast.parse(source, str(path), feature_version=payload.OLDEST_PYTHON)
    assert len(sources) > 20


@cases("python", new_enough(), ids="{0[0]}.{0[1]}".format)
def test_every_module_loads(python: tuple[int, int]) -> None:
    sources = {name: payload.source(name) for name in ALL}
    program = f"""{payload.LOADER}
import importlib, sys
load({sources!r})
for name in {ALL!r}:
    importlib.import_module("{payload.REMOTE}." + name)
"""
    done = subprocess.run(
        [interpreters()[python], "-I", "-S", "-"],
        input=program, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
