"""What git knows of a job's code: the commit, changes on record, what has changed since."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dispatcher.jobs import code_state, registry

WHO = "-c user.name=a -c user.email=a@b"


def sh(script: str) -> None:
    subprocess.run(["sh", "-ec", script], check=True)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where ``file`` is committed."""
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setattr(code_state, "SECONDS", 30.0)
    for name in ("HOME", "GIT_CEILING_DIRECTORIES", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    sh(f"git init -q; echo old > file; git add file; git {WHO} commit -qm x")
    return tmp_path / "clone"


def record(folder: Path) -> Path:
    """A record with the code as it is now."""
    typed = registry.Typed((), ("a",), str(folder))
    made = registry.enroll(
        "20260131-142501-k3f9x2", program=["a"], hosts=[], ranks=1, logs=None, detached=True,
        reach={}, typed=typed,
    )  # fmt: skip
    code_state.note_commit(made)
    return made


@pytest.mark.parametrize(
    ("prepare", "dirty"),
    [
        ("", False), ("echo new > file; touch other", True), ("touch other", False),
        # what the folder's configuration names does not run, whatever git would have it do
        ("git config core.fsmonitor 'touch ran; false'; echo new > file", True),
        ("git config diff.external 'touch ran'; git config diff.x.textconv 'touch ran; cat';"
         "git config diff.x.command 'touch ran'; echo '* diff=x' > .git/info/attributes;"
         "echo new > file", True),
        ("git config filter.x.clean 'touch ran; cat'; echo '* filter=x' > .git/info/attributes; "
         "touch -d 2001-01-01 file", None),
        ("rm -rf .git; git init -q", "no commit"), ("rm -rf .git", "no commit"),
    ],
)  # fmt: skip
def test_the_commit_of_the_folder(clone: Path, prepare: str, dirty: object) -> None:
    sh(prepare)
    folder = record(clone)
    job = registry.find(None)
    if dirty == "no commit":
        assert (job.commit, job.is_dirty) == (None, None)
    else:
        assert job.commit is not None
        assert (len(job.commit), job.is_dirty) == (40, dirty)
    patch = registry.patch_of(job)
    assert (patch is not None) == (dirty is True)
    if patch is not None:
        assert patch.endswith(b"\n-old\n+new\n")
        assert (folder / registry.PATCH).stat().st_mode & 0o777 == 0o600
    assert not os.path.exists("ran")


def test_changes_are_cut_and_an_earlier_starts_are_gone(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_state, "MOST", 1000)
    (clone / "file").write_text("x" * 2000)
    folder = record(clone)
    job = registry.find(None)
    assert (len(registry.patch_of(job) or b""), job.is_cut) == (1000, True)
    assert code_state.changed_since(job) == ""
    (clone / "file").write_text("old\n")
    code_state.note_commit(folder)
    job = registry.find(None)
    assert (registry.patch_of(job), job.is_cut, job.is_dirty) == (None, False, False)


@pytest.mark.parametrize(
    ("then", "now", "line"),
    [
        ("", "", ""),
        ("echo 1 > file", "", ""),
        ("echo 1 > file", "echo 2 > file", "other uncommitted changes, 1 file"),
        ("", "echo 1 > file", "other uncommitted changes, 1 file"),
        ("", f"echo 1 > file; echo > b; git add b; git {WHO} commit -qm y", ", 2 files"),
        ("", "git config filter.x.clean 'touch ran'; echo 1 > file", ""),
        ("", "rm -rf .git", "its folder has no commit now"),
        ("", f"rm -rf .git; git init -q; git add file; git {WHO} commit -qm z", ""),
        ("rm -rf .git", "", ""),
    ],
)
def test_what_has_changed_since(clone: Path, then: str, now: str, line: str) -> None:
    sh(then)
    record(clone)
    job = registry.find(None)
    sh(now)
    told = code_state.changed_since(job)
    if line.startswith(",") or "commit -qm z" in now:
        assert job.commit is not None
        new = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True)
        line = f"commit {job.commit[:12]} → {new[:12]}{line}"
    assert told == (line and f"the code has changed since: {line}")
    assert not os.path.exists("ran")
