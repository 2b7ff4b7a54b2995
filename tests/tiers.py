"""Which tests run when, and which may be skipped: ``--fast``, ``--nightly``, ``--complete``.

And in which order, if that is to be left to chance: ``--shuffle``.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: what ``--fast`` leaves out: tests with processes, connections and clusters
REAL = (
    "api/test_exec.py", "api/test_run.py", "api/test_run_session.py", "bootstrap",
    "cli/exec/test_copies.py", "cli/exec/test_exec_output.py", "cli/exec/test_put.py",
    "cli/exec/test_run_exec.py", "cli/run/test_launch.py", "cli/test_message_codes.py", "comm",
    "faults", "remote/agent", "remote/copy", "remote/host", "remote/pmi", "remote/probe",
    "remote/rank/test_sitecustomize.py", "remote/test_oldest_python.py",
    "remote/test_tree_relay.py", "runs", "scripts", "transfer", "test_tools.py", "transport",
)  # fmt: skip

#: why a test may be skipped: what it says -> why that is no loss
ALLOWED = {
    r"needs root|only root|needs to become somebody else": "an ordinary user may run all others",
    r"needs hosts made of namespaces": "the kernel gives none to this user; root's run has them",
    r"no python3\.\d+ on this machine|no Python (older than )?3\.8": "the oldest is not packaged",
    r"cgroup can be made here": "containers keep them to themselves",
    r"no container can be run here": "the kernel, or a container around it, refuses one",
    r"no IPv6 on this machine": "the kernel's choice",
    r"kernel.dmesg_restrict": "the kernel's choice",
    r"no routes here|no traffic control here|resets nothing here": "the kernel lacks the module",
    r"the system allows no such number": "the machine's limit of open files",
    r"the kernel cannot be told": "not Linux",
    r"needs a machine without a GPU": "what is tested is its absence",
    r"an orphaned ssh": "what OpenSSH does, not we",
    r"man is left out of this image": "groff still reads the pages",
}
#: the same where nothing was installed for the tests; ``--complete`` does not take these
ALLOWED_BY_HAND = {
    r"the rig needs|needs ssh|needs OpenSSH|needs the ssh": "openssh",
    r"is not installed|no \w+ on this machine": "a shell",
    r"slurm-wlm and munge": "Slurm",
    r"needs nccl|Open MPI": "large, and none of our dependencies",
    r"needs (accelerate|deepspeed|lightning|transformers|megatron|llama|ipy)": "scripts/frameworks",
    r"gcc|C compiler|groff|needs unshare|needs git|iptables": "a tool",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--fast", action="store_true", help="only what needs no process, no network")
    group.addoption("--nightly", action="store_true", help="also what takes long")
    group.addoption(
        "--complete", action="store_true", help="a skip for what can be installed is a failure"
    )
    group.addoption("--shuffle", metavar="SEED", help="in an order of chance, the same for a seed")


def configure(config: pytest.Config) -> None:
    if config.getoption("--nightly"):
        os.environ["FLOOD_ALL"] = "1"  # the sizes that the promises are made for


def ignores(path: Path, config: pytest.Config) -> bool | None:
    """Whether collection passes by ``path``; None leaves that to others."""
    if config.getoption("--fast") and any(path == HERE / one for one in REAL):
        return True
    return None


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only the night has time for, but not what was named in full."""
    if config.getoption("--nightly") or any("::" in word for word in config.args):
        return
    long = [item for item in items if item.get_closest_marker("nightly") is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item.get_closest_marker("nightly") is None]


def shuffle(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)


class Skips:
    """Fails the run if a test was skipped for a reason that stands in no list."""

    def __init__(self, complete: bool) -> None:
        self._allowed = [*ALLOWED, *(() if complete else ALLOWED_BY_HAND)]
        self._others: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look(report)

    def _look(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        if not any(re.search(pattern, reason) for pattern in self._allowed):
            self._others.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._others and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._others:
            terminalreporter.section("skipped, which no list allows (tests/tiers.py)")
            for line in self._others:
                terminalreporter.line(line, red=True)
