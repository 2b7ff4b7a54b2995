"""A host's look at named files, and for modules in the folders of a Python."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import cases

from dispatcher.remote.probe import compared as probe

FOREVER = float("inf")


def look(path: Path, until: float = FOREVER) -> list[object]:
    return probe.look(os.fsencode(path), until)


@cases(
    ("change", "is_seen"),
    [
        (lambda folder: None, False),
        (lambda folder: (folder / "a/b").write_text("tw0"), True),
        (lambda folder: (folder / "a/new").write_text(""), True),
        (lambda folder: (folder / "a/b").unlink(), True),
        (lambda folder: (folder / ".git").mkdir(), False),
        (lambda folder: (folder / "__pycache__").mkdir(), False),
        (lambda folder: os.mkfifo(folder / "pipe"), True),
    ],
)
def test_two_folders(tmp_path: Path, change: Callable[[Path], object], is_seen: bool) -> None:
    (tmp_path / "one/a").mkdir(parents=True)
    (tmp_path / "one/a/b").write_text("two")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    change(tmp_path / "two")
    (one, itself, whole), two = look(tmp_path / "one"), look(tmp_path / "two")
    assert (one != two[0], whole, two[2]) == (is_seen, True, True)
    assert itself != two[1]


def test_files(tmp_path: Path) -> None:
    for name, text in (("a", "1" * 9), ("b", "1" * 9), ("c", "1" * 8), ("d", "1" * 8 + "2")):
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "pipe")
    a, b, c, d = (look(tmp_path / name)[0] for name in "abcd")
    assert (a == b, a == c, a == d) == (True, False, False)
    assert look(tmp_path / "none") == [None, None, True]
    assert look(tmp_path / "pipe")[::2] == [1, True]


def test_a_large_folder_is_compared_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "MOST_FILES", 3)
    for folder in ("one", "two"):
        for n in range(4):
            (tmp_path / folder / "big").mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "big" / str(n)).write_text("")
        (tmp_path / folder / "a").write_text("")
    one, two = look(tmp_path / "one"), look(tmp_path / "two")
    assert (one[0], one[2]) == (two[0], two[2])
    assert not one[2]
    (tmp_path / "two/a").write_text("1")
    assert look(tmp_path / "two")[0] != one[0]


@cases("name", ["a", "."])
def test_no_time(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_text("")
    row = look(tmp_path / name, time.monotonic() - 1)
    assert row[::2] == [None, False]
    assert row[1] is not None


def test_modules_of_this_python(tmp_path: Path) -> None:
    for name in ("own", "linked/inside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "script.py").write_text("")
    (tmp_path / "links.pth").write_text(f"import sys; sys.path\n{tmp_path / 'linked'}\n")
    (tmp_path / "__editable___far_finder.py").write_text("MAPPING = {'far': '/far'}")
    python = os.fsencode(sys.executable)
    names = b"pytest yaml_none own inside script far dispatch"
    check = {"program": python, "modules": names, "code": b""}
    told: list[bytes] = []
    found = probe.compared(check, os.fsencode(tmp_path), None, told.append)
    assert found == ([], [True, False, True, True, True, True, False])
    assert told == [os.fsencode(tmp_path)]


def test_a_python_that_is_a_script_is_not_looked_into(tmp_path: Path) -> None:
    shim = tmp_path / "python3"
    shim.write_text("#!/bin/sh\n")
    shim.chmod(0o755)
    check = {"program": b"./python3", "modules": b"os", "named": b"python3\0none"}
    found = probe.compared(check, os.fsencode(tmp_path), None, len)
    assert found == ([look(shim), [None, None, True]], [])


@cases(("system", "found"), [("true", [b"pkg", b"base"]), ("false", [b"pkg"])])
def test_a_virtual_environment(tmp_path: Path, system: str, found: list[bytes]) -> None:
    base, own = tmp_path / "base", tmp_path / "venv"
    for root, module in ((base, "base"), (own, "pkg")):
        (root / "bin").mkdir(parents=True)
        (root / "lib/python3.11/site-packages" / module).mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), base / "bin/python3.11")
    (own / "bin/python").symlink_to(base / "bin/python3.11")
    (own / "pyvenv.cfg").write_text(f"home = x\ninclude-system-site-packages = {system}\n")
    folders = probe.searched(os.fsencode(own / "bin/python"))
    there = probe.present([b"pkg", b"base"], folders)
    assert [name for name, has in zip([b"pkg", b"base"], there, strict=True) if has] == found
