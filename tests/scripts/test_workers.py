"""Several workers at once do not meet, and leave nothing: see ``workers``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rig import wait_for

HERE = Path(__file__).parents[1]
#: seconds that only the process of this test sleeps
SLEEP = f"{os.getpid()}.77"

BESIDE = """
import os, socket, time
import pytest

@pytest.mark.parametrize("number", range(6))
def test_beside(number):
    with open({trail!r}, "a", buffering=1) as trail:
        trail.write("begin\\n")
        time.sleep(0.1)
        trail.write("end\\n")

@pytest.mark.alone
def test_alone():
    with open({trail!r}, "a", buffering=1) as trail:
        trail.write("alone begins\\n")
        time.sleep(0.3)
        trail.write("alone ends\\n")
"""

SAME_PORT = """
import os, pathlib, socket, time
import pytest

@pytest.mark.parametrize("number", range(2))
def test_same(number):
    meeting = pathlib.Path({trail!r}).parent
    with socket.create_server(("127.0.0.1", 7501)):
        (meeting / f"there-{{number}}").write_text(os.environ["TMPDIR"])
        while not (meeting / f"there-{{1 - number}}").exists():
            time.sleep(0.01)
"""

LEAVES = """
import subprocess, time

def test_leaves():
    subprocess.run(["sh", "-c", "setsid sleep {sleep} >/dev/null 2>&1 &"])
    time.sleep(60)
"""


def start(folder: Path, text: str) -> subprocess.Popen[str]:
    """Two workers on the tests of ``text``, which are dealt out one by one."""
    place = folder / "tests" / "runs"
    place.mkdir(parents=True)
    (folder / "tests" / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (place / "test_it.py").write_text(text.format(trail=str(folder / "trail"), sleep=SLEEP))
    options = ["-c", str(HERE.parent / "pyproject.toml"), "--rootdir", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", "-n", "2", "tests"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(HERE)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], code: int = 0) -> None:
    said, _ = process.communicate(timeout=100)
    assert process.returncode == code, said


def test_who_wants_to_be_alone_is(tmp_path: Path) -> None:
    ended(start(tmp_path, BESIDE))
    lines = (tmp_path / "trail").read_text().splitlines()
    assert lines.count("begin") == lines.count("end") == 6
    assert lines.index("alone ends") == lines.index("alone begins") + 1
    before = lines[: lines.index("alone begins")]
    assert before.count("begin") == before.count("end")


root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces for a worker")


@root
def test_two_workers_have_the_same_port_and_folders_of_their_own(tmp_path: Path) -> None:
    ended(start(tmp_path, SAME_PORT))
    assert len({(tmp_path / f"there-{number}").read_text() for number in range(2)}) == 2


@root
@pytest.mark.parametrize("whom", ["all", "worker"])
def test_what_a_killed_run_started_is_gone(tmp_path: Path, whom: str) -> None:
    def sleepers() -> list[int]:
        return having(f"sleep\0{SLEEP}\0")

    run = start(tmp_path, LEAVES)
    try:
        wait_for(sleepers, 60, "the test has begun")
        if whom == "all":
            run.kill()
        else:
            for worker in having("import sys;exec(eval(sys.stdin.readline()))", parent=True):
                with suppress(ProcessLookupError):  # one may have been the other's parent
                    os.kill(worker, signal.SIGKILL)
        wait_for(lambda: not sleepers(), 30, lambda: f"they are gone: {sleepers()}")
    finally:
        run.kill()
        run.communicate()


def having(text: str, *, parent: bool = False) -> list[int]:
    """Processes with ``text`` in their command line; parent: and that ``start`` started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in command and (not parent or f"PYTHONPATH={HERE}\0" in environ + "\0"):
            found.append(int(pid))
    return found
