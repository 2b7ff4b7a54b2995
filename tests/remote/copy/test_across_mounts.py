"""A copy into a folder with a mount point in it: what comes there goes on as it came."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dispatcher.remote.copy.disk import merge


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    really, far = os.rename, f"{tmp_path}/final/data/"

    def over(path: str, target: str) -> None:
        if path.startswith(far) != target.startswith(far):
            raise OSError(errno.EXDEV, "cross-device")
        really(path, target)

    monkeypatch.setattr(os, "rename", over)
    Path(far).mkdir(parents=True)
    return Path(far)


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A tree, of which ``data`` belongs on the other file system."""
    new = tmp_path / "staged" / "data" / "new"
    new.mkdir(parents=True)
    (new / "key").write_text("x")
    (new / "link").symlink_to("key")
    with open(new / "hole", "wb") as file:
        file.truncate(4 << 20)
    (new / "key").chmod(0o400)
    os.utime(new / "key", ns=(1, 1_000_000_007))
    new.chmod(0o750)
    os.utime(new, ns=(1, 2_000_000_007))
    return tmp_path / "staged"


def test_a_new_folder_goes_there_as_it_came(tmp_path: Path, far: Path, staged: Path) -> None:
    merge(str(staged), str(tmp_path / "final"))
    assert names(far) == ["new", "new/hole", "new/key", "new/link"]
    assert [
        (path.stat().st_mode & 0o7777, path.stat().st_mtime_ns)
        for path in (far / "new", far / "new" / "key")
    ] == [(0o750, 2_000_000_007), (0o400, 1_000_000_007)]
    assert os.readlink(far / "new" / "link") == "key"
    hole = (far / "new" / "hole").stat()
    assert (hole.st_size, hole.st_blocks) == (4 << 20, 0)


def test_its_owner_comes_before_anybody_else_may_read_it(
    tmp_path: Path, far: Path, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {}

    def change(path: int | str, uid: int, gid: int) -> None:
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
        kind = "file" if os.path.isfile(name) else "folder"
        kind = "link" if os.path.islink(name) else kind
        given[kind] = (os.lstat(name).st_mode & 0o777, uid, gid)

    monkeypatch.setattr(os, "fchown", change)
    monkeypatch.setattr(os, "lchown", change)
    before = os.umask(0)
    try:
        merge(str(staged), str(tmp_path / "final"), (12345, 678))
    finally:
        os.umask(before)
    assert given == {
        "file": (0o600, 12345, 678), "folder": (0o700, 12345, 678),
        "link": (0o777, 12345, 678),
    }  # fmt: skip


def test_what_cannot_go_there_is_told_by_its_name(
    tmp_path: Path, far: Path, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left") as error:
        merge(str(staged), str(tmp_path / "final"))
    assert error.value.filename == f"{tmp_path}/final/data/new/key"
