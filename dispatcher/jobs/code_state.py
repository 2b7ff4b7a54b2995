"""The code of a job as git sees it: the commit of its folder, uncommitted changes, later changes.

The folder may be a stranger's, so nothing runs that its own configuration names. Where that has
filters, it stays unknown whether files have changed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from dispatcher.jobs.registry import PATCH, Job, patch_of, write
from dispatcher.model.names import plural
from dispatcher.model.paths import replace_file

#: seconds for git to find the commit, and for the changes; bytes of these that are kept
SECONDS, PATCH_SECONDS, MOST = 1.0, 10.0, 256 << 10

_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all")
_SAFE = ("--no-optional-locks", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")


class Git:
    """Runs git in ``folder``, for ``seconds`` in all."""

    def __init__(self, folder: str | Path, seconds: float) -> None:
        self._folder = folder
        self._until = time.monotonic() + seconds

    def __call__(self, *words: str, codes: tuple[int, ...] = (0,), most: int = 1 << 20) -> bytes:
        """The output of git, cut after ``most`` bytes. Raises: OSError, ValueError."""
        env = {**os.environ, "GIT_ALLOW_PROTOCOL": "none"}  # a missing object is not fetched
        with subprocess.Popen(
            ["git", *_SAFE, *words], cwd=self._folder, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as child:  # fmt: skip
            late = threading.Timer(max(0.0, self._until - time.monotonic()), child.kill)
            late.start()
            try:
                assert child.stdout is not None
                data = child.stdout.read(most)
                if is_cut := bool(child.stdout.read(1)):
                    child.kill()
            finally:
                code = child.wait()
                late.cancel()
        if not is_cut and code not in codes:
            raise ValueError("git refuses, or takes too long")
        return data

    def commit(self) -> str:
        """The commit of the folder. Raises: OSError, ValueError."""
        return self("rev-parse", "--verify", "HEAD").decode("ascii").strip()

    def check_filters(self) -> None:
        """Raises: ValueError if the repository names filters, which git would run; OSError."""
        found = self("config", "--show-scope", "--get-regexp", r"^filter\.", codes=(0, 1))
        if any(line.startswith((b"local", b"worktree")) for line in found.splitlines()):
            raise ValueError("filters")

    def changes(self, commit: str, *more: str) -> bytes:
        """The changes of files since ``commit``, cut. Raises: OSError, ValueError."""
        return self(*_DIFF, *more, commit, "--", most=MOST + 1)


def note_commit(record: Path, folder: str = ".") -> None:
    """Write down the commit of ``folder`` and its uncommitted changes, if it is of git."""
    found: dict[str, Any] = {"commit": None, "dirty": None, "cut": False}
    patch = b""
    with contextlib.suppress(OSError, ValueError):
        git = Git(folder, SECONDS)
        found["commit"] = git.commit()
        git.check_filters()
        told = git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
        found["dirty"] = bool(told)
        if told:
            patch = Git(folder, PATCH_SECONDS).changes("HEAD")
            found["cut"] = len(patch) > MOST
    with contextlib.suppress(OSError):  # in place of an earlier start's
        (record / PATCH).unlink(missing_ok=True)
        if patch:
            replace_file(record / PATCH, patch[:MOST])
        write(record / "commit.json", found)


def changed_since(job: Job) -> str:
    """A line on changes of the code in the folder of ``job`` since it ran; "" for none known."""
    if job.commit is None or job.typed is None:
        return ""
    git, then = Git(job.typed.folder, PATCH_SECONDS), job.commit
    try:
        now = git.commit()
    except (OSError, ValueError):
        return "the code has changed since: its folder has no commit now"
    count = ""
    with contextlib.suppress(OSError, ValueError):
        git.check_filters()
        if now == then and git.changes("HEAD")[:MOST] == (patch_of(job) or b""):
            return ""
        names = git.changes(then, "--name-only").splitlines()
        count = f", {plural(len(names), 'file')}"
    if now != then:
        return f"the code has changed since: commit {then[:12]} → {now[:12]}{count}"
    return f"the code has changed since: other uncommitted changes{count}" if count else ""
