"""Several tests at once: ``pytest -n 6``, where each worker has a machine of its own.

As root a worker is in namespaces of its own, for network, processes and mounts: it meets nobody's
ports, processes and shared memory, and whatever it started ends with it, however it ends. As an
ordinary user it has its own folders for temporary files and sockets; ports are those that the
kernel says are free.

Tests that take long are dealt out one by one, the others by file, the long ones first. A test with
the mark ``alone`` measures time or memory: none of another worker runs beside it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

#: folders whose tests take seconds each, the longest first
LONG = (
    "tests/faults", "tests/scripts", "tests/runs", "tests/comm", "tests/transport",
    "tests/test_assertions.py", "tests/plan/test_hostile_inputs.py",
)  # fmt: skip
#: files whose tests read all of the product, which is parsed once for one worker
RULES = tuple(f"tests/test_{name}.py" for name in ("layers", "docstrings", "imports", "references"))
#: long ones that go to one worker, because to make their images takes it ten seconds
TOGETHER = ("tests/runs/run/test_containers.py",)
#: files with tests that wait for a clock: at the end nobody would compute beside them
WAITING = ("tests/runner",)
#: what a worker's Python is started by: its shell is the namespace's process 1, which reaps
APART = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
BEGIN = 'ip link set lo up && mount -t tmpfs -o mode=1777 shm /dev/shm && "$0" "$@"; exit $?'


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def may_be_apart() -> bool:
    """Whether a worker can have namespaces of its own."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))):
        return False
    tried = [*APART, BEGIN, "true"]
    return subprocess.run(tried, stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if may_be_apart():
        for spec in specs:
            spec.python = shlex.join([*APART, BEGIN, sys.executable])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Dealt(LoadScopeScheduling):  # type: ignore[misc]
        """In the order of collection, which is the same in all workers."""

        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(RULES):
                return "rules"
            is_alone = nodeid.startswith(LONG) and not nodeid.startswith(TOGETHER)
            return nodeid if is_alone else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return Dealt(config, log)


def settle_in(config: pytest.Config) -> None:
    """Give this worker its own folder for temporary files, beside that of its tests."""
    place = f"{config.option.basetemp}-tmp"
    os.makedirs(place, mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = place  # not that of the test which first asks for it
    if "coverage" not in sys.modules:  # which writes what it saw later than this is called
        atexit.register(os._exit, 0)  # to free all that a worker has takes Python seconds


def order(items: list[pytest.Item]) -> None:
    """Put the long ones first, and last those that want to be alone."""

    def key(item: pytest.Item) -> tuple[bool, int]:
        first = (*LONG, *RULES, *WAITING)
        places = [n for n, folder in enumerate(first) if item.nodeid.startswith(folder)]
        return item.get_closest_marker("alone") is not None, (places or [len(first)])[0]

    items.sort(key=key)


class OneAlone:
    """Keeps tests of other workers away from one that is to be alone."""

    def __init__(self, config: pytest.Config) -> None:
        place = os.path.dirname(config.option.basetemp)  # the folder of all workers
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        self._gate = os.open(os.path.join(place, "gate"), flags)
        self._room = os.open(os.path.join(place, "room"), flags)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        alone = item.get_closest_marker("alone")
        fcntl.flock(self._gate, fcntl.LOCK_EX)  # so that nobody begins while one waits to be alone
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
