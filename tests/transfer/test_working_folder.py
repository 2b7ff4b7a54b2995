"""What ``--sync`` sends of a folder, and when it reads it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dispatcher.model.errors import CannotCopy
from dispatcher.remote.copy.disk import DEEPEST
from dispatcher.remote.protocol import copy_frames
from dispatcher.transfer.put_files import SMALL
from dispatcher.transfer.working_folder import MOST_RULES, WorkingFolder, listed


def made(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    return [entry.path[2:] for entry, _ in listed(str(folder))]


def test_what_is_listed(tmp_path: Path) -> None:
    made(
        tmp_path, train_dot_py="x", data__big="x", lib__a_dot_py="x", lib__a_dot_pyc="x",
        lib__keep_dot_pyc="x", _dot_git__config="x", _dot_gitignore="data/\n*.pyc\n",
        lib___dot_gitignore="!keep.pyc\n", _dot_dispatchignore="*.md\n!data/\n", README_dot_md="x",
    )  # fmt: skip
    (tmp_path / "link").symlink_to("train.py")
    (tmp_path / ".dispatch-put-12").mkdir()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
    os.chmod(tmp_path / "train.py", 0o751)
    assert names(tmp_path) == [
        ".dispatchignore", ".gitignore", "data", "data/big", "lib", "lib/.gitignore", "lib/a.py",
        "lib/keep.pyc", "link", "train.py",
    ]  # fmt: skip
    found = {entry.path[2:]: entry for entry, _ in listed(str(tmp_path))}
    assert (found["link"].kind, found["link"].more) == ("l", "train.py")
    assert (found["train.py"].mode, found["train.py"].size) == (0o751, 1)
    assert (found["data"].kind, found["data"].size) == ("d", 0)


def test_rules_of_the_folders_above_hold_as_far_as_the_repository_goes(tmp_path: Path) -> None:
    made(tmp_path, _dot_gitignore="*", é__r___dot_git__info__exclude="*.tmp\n")
    root = made(tmp_path / "é" / "r", _dot_gitignore="/a/b/no\n*.log\n", a___dot_gitignore="!x.log",
                a__b__no="", a__b__x_dot_log="", a__b__y_dot_log="", a__b__z_dot_tmp="",
                a__b__yes="")  # fmt: skip
    assert names(root / "a" / "b") == ["x.log", "yes"]
    assert names(root) == [".gitignore", "a", "a/.gitignore", "a/b", "a/b/x.log", "a/b/yes"]


def test_a_folder_that_is_too_deep(tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * DEEPEST)).mkdir(parents=True)
    assert len(names(tmp_path)) == DEEPEST
    (tmp_path / "/".join("d" * (DEEPEST + 1))).mkdir()
    with pytest.raises(CannotCopy, match=rf"--sync: .*\.\.\.: more than {DEEPEST} folders deep"):
        names(tmp_path)


def test_rules_that_cannot_be_rules(tmp_path: Path) -> None:
    made(tmp_path, a="", rules="a\n")
    (tmp_path / ".gitignore").symlink_to("rules")  # as for git, a link is no rules
    assert names(tmp_path) == [".gitignore", "a", "rules"]
    (tmp_path / ".gitignore").unlink()
    os.mkfifo(tmp_path / ".gitignore")
    assert names(tmp_path) == ["a", "rules"]
    (tmp_path / ".gitignore").unlink()
    (tmp_path / ".gitignore").mkdir()
    assert names(tmp_path) == [".gitignore", "a", "rules"]
    (tmp_path / ".gitignore").rmdir()
    (tmp_path / ".git").write_bytes(b"gitdir: a\0b\n")
    assert names(tmp_path) == ["a", "rules"]
    (tmp_path / ".gitignore").write_bytes(b"\n" * (MOST_RULES + 1))
    with pytest.raises(CannotCopy, match="more than 1 MiB of rules"):
        names(tmp_path)


def test_nothing_to_send(tmp_path: Path) -> None:
    made(tmp_path, a="")
    (tmp_path / ".gitignore").write_text("*\n")
    with pytest.raises(CannotCopy, match="nothing to send"):
        WorkingFolder(str(tmp_path), "/there")
    with pytest.raises(CannotCopy, match="no such file"):
        WorkingFolder(str(tmp_path / "none"), "/there")


def test_files_are_read_when_they_are_wanted_and_once(tmp_path: Path) -> None:
    made(tmp_path, a="one", b="two", sub__c="three", large="x" * (SMALL + 1))
    folder = WorkingFolder(str(tmp_path), "/there")
    assert folder.groups == [("/there/", ("a", "b", "large", "sub"))]
    assert (folder.files, folder.size) == (4, 11 + SMALL + 1)
    (order,) = copy_frames.frames(1 << 20).feed(folder.order([], checksum=False, resume=True))
    assert copy_frames.value_of(*order[1:])["alone"] is True  # nobody else may exchange what is run
    indexes = {entry.path: index for index, entry in enumerate(folder.entries)}
    (tmp_path / "b").unlink()  # nobody wants it
    wanted = sorted(indexes[name] for name in ("0/a", "0/large", "0/sub/c"))

    def sent() -> list[bytes]:
        found = copy_frames.frames(1 << 20).feed(b"".join(folder.pieces(wanted, {})))
        return [body for _, kind, body in found if kind == copy_frames.DATA]

    first = sent()
    assert b"".join(first) == b"one" + b"x" * (SMALL + 1) + b"three"
    (tmp_path / "a").unlink()  # it has been kept
    assert sent() == first
    with pytest.raises(CannotCopy, match="python3"):
        folder.tar()
    folder.close()
