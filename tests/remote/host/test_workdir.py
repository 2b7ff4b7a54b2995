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
    shared = Path(workdir.shared(made))
    shared.mkdir()
    (shared / "segment").touch()
    workdir.remove(made)
    assert not os.path.lexists(made)
    assert not shared.exists()
    assert (kept / "file").exists()
    workdir.remove(made)  # what is not there is no error


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


def test_a_file_in_its_place_goes_as_well(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    workdir.remove(str(tmp_path / "file"))
    assert os.listdir(tmp_path) == []
