"""The agent's private folder: gone with all that is below it, and with nothing else."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from dispatcher.remote.host import workdir


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
