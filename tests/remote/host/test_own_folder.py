"""A folder of our own: made in private, gone with all that is below it, and with nothing else."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import cases
from open_files import open_files

from dispatcher.remote.host import own_folder
from dispatcher.remote.host.own_folder import FOR_LISTING, clear_folder
from remote.driver import Os


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
    clear_folder(tree)
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
            clear_folder(fd)
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
        clear_folder(tree)
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
            clear_folder(others.pop())
        return names

    monkeypatch.setattr(os, "listdir", other_first)
    clear_folder(tree)
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
        clear_folder(tree)
    assert os.listdir(tree) == ["b"]


def test_it_goes_with_all_below_it_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    told: list[str] = []
    made = own_folder.make(uuid.uuid4().hex, told.append)
    assert made is not None
    assert told == [made]
    assert os.stat(made).st_mode & 0o777 == 0o700
    inside = Path(made) / "__pycache__"
    inside.mkdir()
    (inside / "module.pyc").touch()
    (Path(made) / "rank-0.json").touch()
    (Path(made) / "link").symlink_to(kept)
    own_folder.make_shared(made)
    place = Path(os.readlink(own_folder.shm_link(made)))
    assert place.stat().st_mode & 0o777 == 0o700
    assert str(place).startswith(f"/dev/shm/{os.path.basename(made)[:-8]}")
    assert place.name != os.path.basename(made)  # which anybody can see before it is there
    (Path(own_folder.shm_link(made)) / "segment").touch()
    own_folder.remove(made)
    assert not os.path.lexists(made)
    assert not place.exists()
    assert (kept / "file").exists()
    own_folder.remove(made)  # what is not there is no error


@cases(
    ("mode", "uid", "safe"),
    [
        (0o700, None, True), (0o755, None, True), (0o1777, None, True), (0o1777, 1, True),
        (0o777, None, False), (0o770, None, False), (0o700, 1, False), (0o777, 1, False),
    ],
)  # fmt: skip
def test_another_user_cannot_exchange_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, uid: int | None, safe: bool
) -> None:
    """They put a folder with a sitecustomize in its place, which every rank's Python ran."""
    if uid is not None and os.geteuid() != 0:
        return
    folder = tmp_path / f"{mode:o}-{uid}"
    folder.mkdir()
    folder.chmod(mode)
    if uid is not None:
        os.chown(folder, uid, uid)
    assert own_folder.is_safe(str(folder)) is safe
    monkeypatch.setenv("TMPDIR", str(folder))
    made = own_folder.make(uuid.uuid4().hex, lambda path: None)
    assert made is not None
    assert (Path(made).parent == folder) is safe
    own_folder.remove(made)


@cases(
    ("temporary", "refused", "made"),
    [
        ("/scratch", (), "/scratch"),
        ("", (), "/tmp"),
        ("relative", (), "/tmp"),
        ("/scratch", ("/scratch",), "/tmp"),
        ("/scratch", ("/scratch", "/tmp"), "/dev/shm"),
        ("", ("/tmp", "/dev/shm"), None),
    ],
)
def test_where_it_is_made(
    monkeypatch: pytest.MonkeyPatch, temporary: str, refused: tuple[str, ...], made: str | None
) -> None:
    """Each place is told before it is tried, since we may be killed right then."""
    steps: list[tuple[str, str]] = []

    def mkdir(path: str, mode: int) -> None:
        steps.append(("made", path))
        assert mode == 0o700
        if path.startswith(refused):
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setattr(own_folder, "os", Os(mkdir=mkdir))
    monkeypatch.setattr(own_folder, "is_safe", lambda folder: True)
    found = own_folder.make("run-1", lambda path: steps.append(("told", path)))
    assert [what for what, _ in steps] == ["told", "made"] * (len(refused) + (made is not None))
    assert all(told[1] == tried[1] for told, tried in zip(steps[::2], steps[1::2], strict=True))
    if made is None:
        assert found is None
    else:
        assert found == steps[-1][1]
        assert found is not None
        assert os.path.dirname(found) == made
        assert os.path.basename(found).startswith("dispatch-run-1-")
        # as what is left behind is found by: eight hexadecimal digits at its end
        assert len(bytes.fromhex(found[-8:])) == 4


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Our folder, with a file in it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = own_folder.make(uuid.uuid4().hex, lambda path: None)
    assert path is not None
    (Path(path) / "file").touch()
    return path


def test_what_another_user_has_put_there_stays(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    with monkeypatch.context() as theirs:
        theirs.setattr(os, "geteuid", lambda: user + 1)
        own_folder.remove(made)
    assert os.listdir(made) == ["file"]


def test_in_shared_memory_only_what_was_made_goes(made: str) -> None:
    """Anybody can read the name of our folder, and make the same in /dev/shm."""
    theirs = Path("/dev/shm", os.path.basename(made))
    theirs.mkdir()
    try:
        own_folder.remove(made)
        assert not os.path.exists(made)
        assert theirs.exists()
    finally:
        theirs.rmdir()


def test_where_shared_memory_is_there_already_it_is_not_used(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Path("/dev/shm", os.path.basename(made)[:-8] + "00" * 4)
    theirs.mkdir()
    try:
        monkeypatch.setattr(os, "urandom", bytes)
        with pytest.raises(FileExistsError):
            own_folder.make_shared(made)
    finally:
        theirs.rmdir()


def test_a_link_to_elsewhere_takes_nothing_there(made: str, tmp_path: Path) -> None:
    kept = tmp_path / "dispatch-kept"
    kept.mkdir()
    os.symlink(kept, own_folder.shm_link(made))
    own_folder.remove(made)
    assert not os.path.exists(made)
    assert kept.exists()
