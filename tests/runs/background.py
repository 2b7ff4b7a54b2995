"""Jobs in the background, started and asked for as a user would."""

from __future__ import annotations

import contextlib
import io
import subprocess
from pathlib import Path
from typing import Any

import promises
from rig import wait_for

from dispatcher import cli

from . import conftest
from .conftest import Desk

#: Says a line, then waits for the file "go", four minutes at most. The last rank ends with the
#: code given: were it the first, the others might be ended before they have said their last.
WAITS = """
import os, sys, time
rank = os.environ["RANK"]
print("up", rank, flush=True)
end = time.monotonic() + 240
while not os.path.exists("go") and time.monotonic() < end:
    time.sleep(0.02)
print("done", rank, flush=True)
sys.exit(int(sys.argv[1]) if rank == str(int(os.environ["WORLD_SIZE"]) - 1) else 0)
"""


def dispatch(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*conftest.PROGRAM, *words], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=100, check=False, **options,
    )  # fmt: skip


def jobs() -> list[dict[str, Any]]:
    """As ``dispatch jobs --json`` lists them, in this process: it is asked again and again."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert cli.main(["jobs", "--json"]) == 0
    found: list[dict[str, Any]] = promises.told(said.getvalue())
    return found


def detach(desk: Desk, *words: str) -> dict[str, Any]:
    """Start a job in the background; its row."""
    done = desk.run("--detach", *words)
    assert done.returncode == 0, done.stderr
    row = jobs()[-1]
    assert row["id"] in done.stdout
    assert row["logs"] in done.stdout
    return row


def up(row: dict[str, Any], ranks: int = 2) -> None:
    """Wait until each rank of the job has said its first line."""
    files = [Path(row["logs"], f"rank-{rank:05d}.out") for rank in range(ranks)]
    wait_for(lambda: all(file.exists() and file.stat().st_size for file in files), 60, "all are up")


def go(desk: Desk) -> None:
    (desk.folder / "go").touch()
