"""The agent's private folder: gone with all that is below it, and with nothing else."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import pytest
from cases import cases

from dispatcher.remote.host import workdir
from remote.driver import Os


def test_it_goes_with_all_below_it_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    told: list[str] = []
    made = workdir.make(uuid.uuid4().hex, told.append)
    assert made is not None
    assert told == [made]
    assert os.stat(made).st_mode & 0o777 == 0o700
    inside = Path(made) / "__pycache__"
    inside.mkdir()
    (inside / "module.pyc").touch()
    (Path(made) / "rank-0.json").touch()
    (Path(made) / "link").symlink_to(kept)
    workdir.make_shared(made)
    place = Path(os.readlink(workdir.shared(made)))
    assert place.stat().st_mode & 0o777 == 0o700
    assert str(place).startswith(f"/dev/shm/{os.path.basename(made)[:-8]}")
    assert place.name != os.path.basename(made)  # which anybody can see before it is there
    (Path(workdir.shared(made)) / "segment").touch()
    workdir.remove(made)
    assert not os.path.lexists(made)
    assert not place.exists()
    assert (kept / "file").exists()
    workdir.remove(made)  # what is not there is no error


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
    assert workdir.is_safe(str(folder)) is safe
    monkeypatch.setenv("TMPDIR", str(folder))
    made = workdir.make(uuid.uuid4().hex, lambda path: None)
    assert made is not None
    assert (Path(made).parent == folder) is safe
    workdir.remove(made)


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
    monkeypatch.setattr(workdir, "os", Os(mkdir=mkdir))
    monkeypatch.setattr(workdir, "is_safe", lambda folder: True)
    found = workdir.make("run-1", lambda path: steps.append(("told", path)))
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
    path = workdir.make(uuid.uuid4().hex, lambda path: None)
    assert path is not None
    (Path(path) / "file").touch()
    return path


def test_what_another_user_has_put_there_stays(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    with monkeypatch.context() as theirs:
        theirs.setattr(os, "geteuid", lambda: user + 1)
        workdir.remove(made)
    assert os.listdir(made) == ["file"]


def test_in_shared_memory_only_what_was_made_goes(made: str) -> None:
    """Anybody can read the name of our folder, and make the same in /dev/shm."""
    theirs = Path("/dev/shm", os.path.basename(made))
    theirs.mkdir()
    try:
        workdir.remove(made)
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
            workdir.make_shared(made)
    finally:
        theirs.rmdir()


def test_a_link_to_elsewhere_takes_nothing_there(made: str, tmp_path: Path) -> None:
    kept = tmp_path / "dispatch-kept"
    kept.mkdir()
    os.symlink(kept, workdir.shared(made))
    workdir.remove(made)
    assert not os.path.exists(made)
    assert kept.exists()
