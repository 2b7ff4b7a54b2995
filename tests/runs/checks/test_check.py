"""``dispatch check`` as users call it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import promises
import pytest

#: seconds of which a loaded machine may need some
ENOUGH = "--check-timeout", "80"


def check(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dispatcher", "check", *words],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "error: no hosts given"),
        (["-w", "n1", "--full", "--xid-table", "b1.txt"], "--xid-table b1.txt:1: not a number"),
        (["--nccl", "-w", "n1", "--apply", "no/where"], "error: --apply no/where: no such"),
        (["--nccl", "--from", "b1.txt"], "error: --from was removed: dispatch check had it"),
        (["--pairs", "--backend", "mpi"], "error: --backend=mpi was removed: --backend tcp"),
    ],
)
def test_usage(tmp_path: Path, words: list[str], error: str) -> None:
    (tmp_path / "b1.txt").write_text("no table\n")
    done = check(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert error in done.stderr


def test_what_nccl_does_here(tmp_path: Path) -> None:
    done = check("--nccl", "-w", "localhost", cwd=tmp_path)
    assert "now: localhost: NET/" in done.stdout, done.stderr


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    done = check("-w", "localhost", "train.py", "--json", *ENOUGH, cwd=tmp_path)
    said = promises.told(done.stdout)
    here = said["hosts"]["localhost"]
    assert set(said) == {"schema", "format", "fit", "seconds", "checks", "hosts"}
    assert set(here) == {"level", "problem", "lost", "checks"}
    assert set(here["checks"]["script"]) == {"level", "text", "value", "remedy"}
    assert list(here["checks"]) == said["checks"]
    for name in ("python", "script", "cwd", "clock"):
        assert here["checks"][name]["level"] == "OK", here["checks"][name]
    assert done.returncode == (0 if said["fit"] else 1)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    done = check("-w", "localhost", "no.py", *ENOUGH, cwd=tmp_path)
    assert done.returncode == 1
    assert f"critical: localhost: script: {tmp_path}/no.py: no such file" in done.stdout
    assert "  hint: copy it to the host" in done.stdout


def test_a_site_s_own_check(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "fw").write_text('#!/bin/sh\necho \'{"level": "CRITICAL", "text": "old"}\'\n')
    (mine / "fw").chmod(0o755)
    words = ("-w", "localhost", "--full", "--site-checks", str(mine), "--json", *ENOUGH)
    done = check(*words, cwd=tmp_path)
    found = promises.told(done.stdout)["hosts"]["localhost"]["checks"]["site"]
    assert (done.returncode, found["level"], found["text"]) == (1, "CRITICAL", "fw: old")


def test_a_host_that_is_not_reached(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host nowhere\n  HostName 127.0.0.1\n  Port 1\n")
    done = check("-w", "nowhere", "-F", str(config), "--json", cwd=tmp_path)
    found = promises.told(done.stdout)["hosts"]["nowhere"]
    assert (done.returncode, found["lost"], found["level"]) == (125, True, "CRITICAL")
    assert "connection refused" in found["problem"]
