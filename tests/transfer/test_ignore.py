"""Rules that leave files out: as git reads them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.transfer.ignore_rules import Rules
from dispatcher.transfer.working_folder import listed


@cases(
    ("text", "path", "folder", "ignored"),
    [
        (b"*.pyc", b"a/b.pyc", False, True),
        (b"build/", b"build", False, None),
        (b"build/", b"a/build", True, True),
        (b"/build", b"a/build", True, None),
        (b"/build", b"build", False, True),
        (b"a/b", b"x/a/b", False, None),
        (b"*.log\n!keep.log", b"keep.log", False, False),
        (b"!keep.log\n*.log", b"keep.log", False, True),
        (b"# no\n\\#yes", b"#yes", False, True),
        (b"\\!x ", b"!x", False, True),
        (b"x\\ ", b"x ", False, True),
        (b"a/**/b", b"a/b", False, True),
        (b"a/**/b", b"a/x/y/b", False, True),
        (b"a/**", b"a/x/y", False, True),
        (b"**/x", b"x", False, True),
        (b"a/*", b"a/x/y", False, None),
        (b"\xef\xbb\xbfx\r\n", b"x", False, True),
        (b"[!a-c]?", b"dx", False, True),
        (b"[[:digit:]]", b"7", False, True),
        (b"[[:nothing:]]", b"7", False, None),
        (b"a[", b"a[", False, None),
        (b"a\\", b"a\\", False, None),
        (b"", b"a", False, None),
    ],
)
def test_a_rule(text: bytes, path: bytes, folder: bool, ignored: bool | None) -> None:
    assert Rules(text).ignored(path, folder=folder) is ignored


@cases(
    ("text", "path"),
    [
        (b"*a*a*a*a*a*a*a*a*a*b", b"a" * 200),
        (b"*?*?*?*?*?*?*?*[x]", b"a" * 250),
        (b"**/**/**/**/**/**/**/**/x/y", b"/".join([b"d"] * 40)),
        (b"/**/a*/**/a*/**/a*/**/b", b"/".join([b"a" * 50] * 60)),
    ],
)
def test_no_rule_is_slow(text: bytes, path: bytes) -> None:
    """A line of a .gitignore froze the launcher: it looked at each way to match for hours."""
    began = time.process_time()
    assert Rules(text).ignored(path, folder=False) is None
    assert time.process_time() - began < 1


def test_the_second_text_comes_behind_the_first() -> None:
    assert Rules(b"*.bin", b"!a.bin").ignored(b"a.bin", folder=False) is False
    assert not Rules(b"# nothing\n\n")
    assert Rules(b"x")


#: a tree with names that patterns can meet in many ways
TREE = ["a", "ab", "b.c", "[a]", "a b", "é", "-", "a\\b", "x/a", "x/y/a", "x/y/ab", "a.c/b.c",
        "x/a.c/b", "x/ab/y/b.c", "y/x/a", "ab b/x", "y/a*"]  # fmt: skip
PIECES = ["a", "b", "x", "y", "*", "**", "?", "/", "/**/", "**/", "/**", "*.c", ".c", "[ab]",
          "[!a]", "[^x]", "[a-y]", "[]a]", "[[:alpha:]]", "[[:x:]]", "[", "]", "\\", "\\*", "!",
          "#", " ", "é", "-", "[\\a-b]", "[a", "[/]", "***", "[[:", "[b-a]", "[a-]"]  # fmt: skip
PATTERN = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)
LINES = st.lists(PATTERN, min_size=1, max_size=4).map("\n".join)


#: trees that are asked about in one call of git
TREES = 8


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for number in range(TREES):
        for name in TREE:
            path = folder / f"t{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    return folder


def ignored_by_git(folder: Path, paths: list[bytes]) -> set[bytes]:
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", "-z", "--stdin"],
        cwd=folder, input=b"\0".join(paths) + b"\0", capture_output=True, check=False,
        env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return set(done.stdout.split(b"\0")) - {b""}


@given(st.lists(st.tuples(LINES, LINES), min_size=TREES, max_size=TREES), LINES)
@settings(max_examples=12)
def test_files_are_left_out_as_git_does(
    repository: Path, trees: list[tuple[str, str]], exclude: str
) -> None:
    (repository / ".git" / "info" / "exclude").write_text(exclude)
    for number, (outer, inner) in enumerate(trees):
        (repository / f"t{number}" / ".gitignore").write_text(outer)
        (repository / f"t{number}" / "x" / ".gitignore").write_text(inner)
    paths = [f"t{number}/{name}".encode() for number in range(TREES) for name in TREE]
    kept = {os.fsencode(entry.path[2:]) for entry, _ in listed(str(repository))}
    wrong = (set(paths) - kept) ^ ignored_by_git(repository, paths)
    rules = [trees[int(path[1:2])] for path in wrong]
    assert not wrong, (exclude, rules)
    within = {os.fsencode(entry.path[2:]) for entry, _ in listed(str(repository / "t0"))}
    assert within == {path[3:] for path in kept if path.startswith(b"t0/")} or not any(
        path == b"t0" for path in kept
    )


def git(folder: Path, *words: str) -> str:
    settings = ("user.name=x", "user.email=x", "protocol.file.allow=always")
    flags = [flag for setting in settings for flag in ("-c", setting)]
    done = subprocess.run(
        ["git", *flags, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("kind", ["worktree", "submodule", "separate"])
def test_a_repository_whose_folder_is_elsewhere(tmp_path: Path, kind: str) -> None:
    """Its ``.git`` is a file. The rules that git itself reads there are the ones that hold."""
    main, other = tmp_path / "main", tmp_path / "main" / "other"
    for folder in (main, tmp_path / "source"):
        git(tmp_path, "init", "-q", str(folder))
        git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    if kind == "worktree":
        git(main, "worktree", "add", "-q", "other")
    elif kind == "submodule":
        git(main, "submodule", "add", "-q", str(tmp_path / "source"), "other")
    else:
        git(main, "init", "-q", f"--separate-git-dir={tmp_path}/elsewhere", "other")
    assert (other / ".git").is_file()
    (main / ".git" / "info" / "exclude").write_text("*.main\n")
    rules = Path(other, git(other, "rev-parse", "--git-path", "info/exclude"))
    with open(rules, "a") as file:
        file.write("*.key\n/in/x\n")
    paths = [b"in/a", b"in/a.key", b"in/b.main", b"in/x", b"x"]
    (other / "in").mkdir()
    for path in paths:
        Path(other, os.fsdecode(path)).touch()
    kept = {os.fsencode(entry.path[2:]) for entry, _ in listed(str(other))}
    assert set(paths) - kept == ignored_by_git(other, paths) >= {b"in/a.key", b"in/x"}
    within = {entry.path[2:] for entry, _ in listed(str(other / "in"))}
    assert within == {os.fsdecode(path[3:]) for path in kept if path.startswith(b"in/")}
