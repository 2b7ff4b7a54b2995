"""A copy into a folder with a mount point in it: what comes there goes on as it came."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dispatcher.remote.copy.receiver import Receiver
from dispatcher.remote.protocol.copy_frames import CHUNK, DATA, END, HOLE

from .test_receiver_places import file, folder, link, names, receiver

TREE = [
    folder("t"), folder("t/data"), folder("t/data/new", 0o550),
    file("t/data/new/hole", bytes(CHUNK)), folder("t/data/new/in"),
    file("t/data/new/in/key", b"x", 0o400), link("t/data/new/l", "in/key"),
]  # fmt: skip
TREE[2].mtime = 2_000_000_007


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is below it is on another file system than the rest."""
    really, far = os.rename, tmp_path / "t" / "data"

    def over(name: str, to: str, **folders: int) -> None:
        places = {
            os.readlink(f"/proc/self/fd/{fd}").startswith(str(far)) for fd in folders.values()
        }
        if len(places) > 1:
            raise OSError(errno.EXDEV, "cross-device")
        really(name, to, **folders)

    monkeypatch.setattr(os, "rename", over)
    far.mkdir(parents=True)
    return far


@pytest.fixture
def arrived(tmp_path: Path, far: Path) -> Receiver:
    """It has all of ``TREE``, and wants only to give the names."""
    one = receiver(f"{tmp_path}/", TREE, owner=f"{os.getuid()}:{os.getgid()}")
    one.needs()
    for kind, body, data in ((HOLE, CHUNK.to_bytes(8, "big"), bytes(CHUNK)), (DATA, b"x", b"x")):
        one.take(kind, body)
        one.take(END, hashlib.sha256(data).digest())
    return one


def test_a_new_folder_goes_there_as_it_came(far: Path, arrived: Receiver) -> None:
    arrived.commit()
    arrived.close(keep=False)
    assert names(far) == ["new", "new/hole", "new/in", "new/in/key", "new/l"]
    found = [(far / name).stat() for name in ("new", "new/in/key")]
    assert [(about.st_mode & 0o7777, about.st_mtime_ns) for about in found] == [
        (0o550, 2_000_000_007), (0o400, 1_000_000_007),
    ]  # fmt: skip
    assert os.readlink(far / "new" / "l") == "in/key"
    hole = (far / "new" / "hole").stat()
    assert (hole.st_size, hole.st_blocks) == (CHUNK, 0)


def test_its_owner_comes_before_anybody_else_may_read_it(
    far: Path, arrived: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = set()

    def change(file: Any, uid: int, gid: int, **how: Any) -> None:
        if os.readlink(f"/proc/self/fd/{how.get('dir_fd', file)}").startswith(str(far)):
            given.add((oct(os.stat(file, **how).st_mode), uid, gid))

    monkeypatch.setattr(os, "fchown", change)
    monkeypatch.setattr(os, "chown", change)
    before = os.umask(0)
    arrived.commit()
    os.umask(before)
    arrived.close(keep=False)
    ours = os.getuid(), os.getgid()
    assert given == {("0o100600", *ours), ("0o40700", *ours), ("0o120777", *ours)}


def test_what_cannot_go_there_is_told_by_its_name(
    far: Path, arrived: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left") as error:
        arrived.commit()
    arrived.close(keep=False)
    assert error.value.filename == f"{far}/new/in/key"
    assert names(far) == ["new", "new/hole", "new/in"]
