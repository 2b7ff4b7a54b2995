"""What is removed of a folder of our own: all that is in it, and nothing elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from open_files import open_files

from dispatcher.remote.host.own_folder import FOR_LISTING, clear


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[int]:
    """``tree`` with a folder ``in`` below it, open; beside it a file of somebody, ``kept/f``."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "f").touch()
    (tmp_path / "tree" / "in").mkdir(parents=True)
    fd = os.open(tmp_path / "tree", FOR_LISTING)
    yield fd
    os.close(fd)


def test_all_goes_and_what_links_lead_to_stays(tmp_path: Path, tree: int) -> None:
    for name in ("link", "in/link"):
        (tmp_path / "tree" / name).symlink_to(tmp_path / "kept")
    os.mkfifo(tmp_path / "tree" / "fifo")
    (tmp_path / "tree" / "in" / "file").touch()
    (tmp_path / "tree" / "in").chmod(0o400)
    before = open_files()
    clear(tree)
    assert open_files() == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["f", "kept", "tree"]


@pytest.mark.parametrize("mode", [0, 0o300, 0o500])
def test_folders_that_are_shut_to_us_go(mode: int, tmp_path: Path) -> None:
    """Of a rank that tried what it may not: no mode keeps root out, so this is another user."""
    (tmp_path / "tree" / "in" / "deep").mkdir(parents=True)
    shut = [tmp_path / "tree" / "in" / "deep", tmp_path / "tree" / "in"]
    as_root = os.geteuid() == 0
    for folder in (tmp_path, tmp_path / "tree", *shut):
        os.chown(folder, 4711 if as_root else -1, -1)
    for folder in shut:
        folder.chmod(mode)
    fd = os.open(tmp_path / "tree", FOR_LISTING)
    if not (child := os.fork()):
        try:
            if as_root:
                os.setuid(4711)
            clear(fd)
        finally:
            os._exit(int(os.path.exists(f"/proc/self/fd/{fd}/in")))
    os.close(fd)
    assert os.waitpid(child, 0)[1] == 0
    assert not list((tmp_path / "tree").iterdir())


def test_a_folder_whose_name_becomes_a_link_leads_nowhere(
    tmp_path: Path, tree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, really = tmp_path / "tree" / "in", os.listdir

    def exchanged(at: int) -> list[str]:
        if os.path.samefile(at, inner):
            inner.rename(tmp_path / "aside")
            inner.symlink_to(tmp_path / "kept")
        return really(at)

    monkeypatch.setattr(os, "listdir", exchanged)
    with pytest.raises(NotADirectoryError):
        clear(tree)
    assert really(tmp_path / "kept") == ["f"]


def test_what_another_has_removed_meanwhile_is_gone(
    tmp_path: Path, tree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agent and guardian may both be at it, and neither must take it for the other's."""
    for name in ("a", "b", "in/c"):
        (tmp_path / "tree" / name).touch()
    really, others = os.listdir, [tree]

    def other_first(at: int) -> list[str]:
        names = really(at)
        if others:
            clear(others.pop())
        return names

    monkeypatch.setattr(os, "listdir", other_first)
    clear(tree)
    assert really(tree) == []


def test_what_does_not_go_keeps_nothing_else(
    tmp_path: Path, tree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / "tree" / name).touch()
    really = os.unlink

    def refused(name: str, dir_fd: int) -> None:
        if name == "b":
            raise PermissionError(name)
        really(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(PermissionError, match="b"):
        clear(tree)
    assert os.listdir(tree) == ["b"]
