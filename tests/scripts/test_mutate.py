"""scripts/mutate: what faults are made, which are taken, what is said of them."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import rig  # noqa: F401 - puts scripts/ on the path
from mutants import ROOT, equivalents, mutants, of_room, rooms, sample

MUTATE = ROOT / "scripts" / "mutate"


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("mutate", str(MUTATE))
    spec = importlib.util.spec_from_loader("mutate", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def made(body: str) -> list[tuple[str, str]]:
    """(was, now) of the mutants of a function of ``body``."""
    lines = "\n".join("    " + line for line in body.splitlines())
    return [(one.was, one.now) for one in mutants("m.py", f"def f(a, b):\n{lines}\n")]


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ("a < b", [("a < b", "a <= b")]),
        ("a == 1", [("a == 1", "a != 1"), ("1", "2")]),
        ("a in b", [("a in b", "a not in b")]),
        ("x = a and b", [("a and b", "b"), ("a and b", "a")]),
        ("x = not a", [("not a", "a")]),
        ("x = a + b", [("a + b", "(a - b)")]),
        ("a += b", [("a += b", "pass")]),
        ("a.b = True", [("a.b = True", "pass"), ("True", "False")]),
        ("x = min(a, b)", [("min(a, b)", "max(a, b)")]),
        ("f(a, key=b)", [("f(a, key=b)", "pass"), ("f(a, key=b)", "f(a)")]),
        ("return a", [("a", "None")]),
        ("if a:\n    return", [("a", "False"), ("a", "True"), ("return", "pass")]),
        ("raise ValueError", [("raise ValueError", "pass")]),
        ("x = a[1:]", [("a[1:]", "a[:]"), ("1", "2")]),
        (
            "try:\n    x = a\nexcept (OSError, ValueError):\n    raise",
            [("(OSError, ValueError)", "(ValueError,)"), ("(OSError, ValueError)", "(OSError,)"),
             ("raise", "pass")],
        ),
        ("assert a < b", []),
        ("x = zip(a, b, strict=True)", []),
        ('"""Words."""', []),
        ("x: int = 'a'", []),
        ("x = f'{a + b} words'", []),
        ("x = 2.5", []),
        ("x = 16 << 10", [("16 << 10", "(16 >> 10)")]),
    ],
)  # fmt: skip
def test_faults(body: str, faults: list[tuple[str, str]]) -> None:
    assert made(body) == faults


def test_tables_of_a_module_and_decorators_stay() -> None:
    text = "X = 5\nY: int = 3\n@value(frozen=True)\nclass C:\n    z = 1\n"
    assert [(one.where, one.was, one.now) for one in mutants("m.py", text)] == [("C", "1", "2")]


def test_each_is_python_with_one_change() -> None:
    path = "dispatcher/core/connect.py"
    source = (ROOT / path).read_text()
    found = mutants(path, source)
    assert len(found) > 30
    assert len({one.key for one in found}) == len(found)
    for one in found:
        ast.parse(one.source)
        assert one.source != source
        before, after = source.splitlines(), one.source.splitlines()
        assert before[: one.line - 1] == after[: one.line - 1]
        assert before[one.line - 1] != after[one.line - 1]


def test_a_fault_keeps_its_name_when_lines_move() -> None:
    text = "def f(a):\n    return a < 1\n"
    moved = mutants("m.py", "import os\n\n\n" + text)
    assert [one.key for one in moved] == [one.key for one in mutants("m.py", text)]
    assert [one.line for one in moved] == [5, 5, 5]


def test_a_larger_sample_has_the_smaller_one_in_it() -> None:
    found = of_room("core", ["core"])
    few = sample(found, 5, "1")
    assert sample(found, 9, "1")[:5] == few
    assert sample(reversed(found), 5, "1") == few
    assert sample(found, 5, "2") != few


def test_the_nearest_tests_go_first(mutate: ModuleType) -> None:
    found = mutate.near("dispatcher/transport/process/pump.py")
    assert found.index("tests/transport/test_contract.py") > 0  # of the folder above
    assert found[0].startswith("tests/transport/process/")
    assert mutate.near("dispatcher/core/connect.py")[0] == "tests/core/test_connect.py"
    assert "tests/core/run/test_attempt.py" in mutate.near("dispatcher/core/connect.py")
    # its own tests stand with the other end of the wire
    assert "tests/transport/tree/test_stream.py" in mutate.near("dispatcher/remote/tree_relay.py")
    assert not [one for one in mutate.near("dispatcher/api/run.py") if "/runs/" in one]
    assert mutate.real("dispatcher/cli/exec/get.py") == ["tests/runs/exec"]
    assert mutate.real("dispatcher/cli/hints.py") == ["tests/runs/cli"]


def test_other_pythons_are_tried_last(mutate: ModuleType) -> None:
    """They seldom see what the newest does not, and take as long."""
    ran = ["tests/remote/agent/test_loop.py::test_it"]
    known, new, old = mutate.stages("dispatcher/remote/agent/agent_loop.py", ran)
    assert known == [*ran, "-m", "not other_python"]
    assert new[0] == "tests/remote/agent/test_agent_loop.py"
    assert new[:-1] == old[:-1]
    assert [*new[-2:], *old[-2:]] == ["-m", "not other_python", "-m", "other_python"]
    assert len(mutate.stages("dispatcher/bootstrap/shell.py", [])) == 2
    elsewhere = mutate.stages("dispatcher/core/connect.py", ran)
    assert elsewhere == [ran, mutate.near("dispatcher/core/connect.py")]


@pytest.mark.parametrize(
    ("output", "by"),
    [
        ("0\n1 passed", None),
        ("5\nno tests ran", None),
        ("1\nFAILED tests/a.py::test_b[c d] - assert 1 == 2\n", "tests/a.py::test_b[c d]"),
        ("1\nERROR tests/a.py::test_b - OSError\n", "tests/a.py::test_b"),
        ("1\n1 passed, 1 skipped, which no list allows", None),
        ("2\nERROR tests/a.py - NameError: x\n", "import"),
        ("4\nImportError while loading conftest\n", "import"),
        ("4\nERROR: not found: tests/a.py::test_b\n", None),
        ("32\nmount: permission denied\n", None),
        ("late", "late"),
    ],
)
def test_who_noticed(mutate: ModuleType, tmp_path: Path, output: str, by: str | None) -> None:
    copy = mutate.Copy.__new__(mutate.Copy)
    copy.folder, copy._fails, copy._ends = tmp_path, {}, {}
    (tmp_path / "m.py").write_text("x = 1\n")

    def pytest_says(words: list[str], limit: float) -> str:
        faulty = (tmp_path / "m.py").read_text() != "x = 1\n"
        return output if faulty else "0\n1 passed"

    copy.pytest = pytest_says
    (one,) = mutants("m.py", "def f():\n    return x\n")
    assert copy.notices(one, ["tests/a.py"], 10.0) == by
    assert (tmp_path / "m.py").read_text() == "x = 1\n"


def test_each_file_is_in_one_room() -> None:
    """But for the three that stand in no folder of the product."""
    names = rooms()
    assert {"core", "remote", "remote/agent"} <= set(names)
    files = {room: {one.path for one in of_room(room, names)} for room in names}
    for path in ("dispatcher/remote/tree_relay.py", "dispatcher/remote/agent/agent_loop.py"):
        assert len([room for room in names if path in files[room]]) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--room", "cor"], "no code in room 'cor'; the rooms: api "),
        (["--room", "jobs", "--where", "nowhere"], "no code in room 'jobs' where 'nowhere' stands"),
    ],
)
def test_a_room_that_is_not_there_is_no_success(words: list[str], told: str) -> None:
    argv = [sys.executable, str(MUTATE), "--list", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_what_no_test_can_notice_is_still_there_and_says_why() -> None:
    """An entry whose code has gone goes, too."""
    there = {
        (one.path, one.where, one.was, one.now)
        for path in {path for path, *_ in equivalents()}
        for one in mutants(path, (ROOT / path).read_text())
    }
    for fault, why in equivalents().items():
        assert fault in there
        assert len(why) > 15


def test_one_that_is_noticed_and_one_that_is_not(tmp_path: Path) -> None:
    """A whole turn over a product of one file, and the next, which has nothing left to do."""
    for name, text in {
        "scripts/mutate": MUTATE.read_text(),
        "scripts/mutants.py": MUTATE.with_name("mutants.py").read_text(),
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "dispatcher/__init__.py": "",
        "dispatcher/core/__init__.py": "",
        "dispatcher/core/adult.py": "def adult(age):\n    return age >= 18\n",
        "tests/core/test_adult.py": (
            "from dispatcher.core.adult import adult\n\n\n"
            "def test_it():\n    assert adult(30)\n    assert not adult(3)\n"
        ),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    argv = [sys.executable, "scripts/mutate", "--room", "core"]
    env = {**os.environ, "PYTHONPATH": ""}

    def again(*words: str) -> str:
        done = subprocess.run(
            [*argv, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110
        )
        assert done.returncode == 1, done.stderr
        return done.stdout

    first = again()
    assert "+    return age > 18" in first  # nobody is 18 in the test
    assert "+    return age >= 19" in first
    assert first.count("LIVES") == 2
    assert first.splitlines()[-1].split() == ["core", "3", "3", "0", "1", "33", "%"]
    kept = (tmp_path / ".cache/mutate/results.jsonl").read_text().splitlines()
    noticed = [json.loads(line)["by"] for line in kept]
    assert sorted(filter(None, noticed)) == ["tests/core/test_adult.py::test_it"]
    assert "left" not in again()

    test = tmp_path / "tests/core/test_adult.py"
    test.write_text(test.read_text() + "    assert adult(18)\n")
    reason = 'path = "dispatcher/core/adult.py"\nwhere = "adult"\nwas = "18"\nnow = "19"\nwhy = "x"'
    (tmp_path / "scripts/equivalent_mutants.toml").write_text(f"[[mutant]]\n{reason}\n")
    done = subprocess.run(
        [*argv, "--again"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].split() == ["core", "3", "3", "1", "2", "100", "%"]
