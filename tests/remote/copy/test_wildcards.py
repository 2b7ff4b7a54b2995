"""Which files a path with wildcards stands for: as shells have it, and the same at both ends."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.copy.disk import asked_for, expand, has_wildcards, matches, split_wildcards

TREE = (
    "a/log",
    "b/log",
    "b/x/log",
    "x.log",
    "y.log",
    ".hid/log",
    ".z.log",
    "[1].log",
    "plain",
    "é",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "to-a").symlink_to("a")
    (root / "broken.log").symlink_to("nowhere")
    return root


@cases(
    ("path", "folder", "parts"),
    [
        ("*.log", "", ["*.log"]), ("/var/log/*.log", "/var/log", ["*.log"]), ("/*", "/", ["*"]),
        ("~/a*/b", "~", ["a*", "b"]), ("x/[ab]//./c/?", "x", ["[ab]", "c", "?"]),
    ],
)  # fmt: skip
def test_where_the_wildcards_begin(path: str, folder: str, parts: list[str]) -> None:
    assert has_wildcards(path)
    assert split_wildcards(path) == (folder, parts)


@cases(
    ("pattern", "found"),
    [
        ("*.log", "[1].log broken.log x.log y.log"), ("*/log", "a/log b/log to-a/log"),
        ("?", "a b é"), ("[xy].log", "x.log y.log"), ("[!x].log", "y.log"), (".*", ".hid .z.log"),
        (".*/log", ".hid/log"), ("*/*/log", "b/x/log"), ("[[]1].log", "[1].log"),
        ("*.txt", ""), ("plain/*", ""), ("no*/x", ""), ("b/*", "b/log b/x"), ("*/none", ""),
        ("**/log", "a/log b/log to-a/log"),
    ],
)  # fmt: skip
def test_what_they_stand_for(tree: Path, pattern: str, found: str) -> None:
    folder, parts = split_wildcards(f"{tree}/{pattern}")
    listed = list(expand(folder, parts))
    fixed = len(os.path.relpath(folder, tree) + "/") if folder != str(tree) else 0
    assert [path for _, path in listed] == [path[fixed:] for path in found.split()]
    for place, path in listed:
        assert place == os.path.join(folder, path)
        assert os.path.lexists(place)
        assert asked_for(path.split("/"), parts)
        assert asked_for([*path.split("/"), "within"], parts)
    assert {place for place, _ in listed} == set(glob.glob(f"{tree}/{pattern}"))


@cases(
    ("names", "parts"),
    [
        ("a", "*.log"), (".x.log", "*.log"), ("x.log", ".*"), ("a", "*/log"), ("a/other", "*/log"),
        ("x", "[ab]"), (".hid/log", "*/log"), ("a/.log", "*/*"),
    ],
)  # fmt: skip
def test_what_nobody_asked_for(names: str, parts: str) -> None:
    assert not asked_for(names.split("/"), parts.split("/"))


@given(st.text("ab.*?[]!-", min_size=1), st.text("ab.[-", min_size=1))
def test_no_pattern_takes_what_a_literal_name_would_not(part: str, name: str) -> None:
    if not has_wildcards(part):
        assert matches(name, part) == (name == part)
    assert matches(name, "*") == (not name.startswith("."))
    assert matches(name, glob.escape(name))
