"""Fixtures for everybody: the cluster of hosts.

``cluster`` is one for the whole test run; a test that cuts, breaks or fills a host makes its own
with ``new_cluster``, or mends what it broke.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import promises
import pytest
import tiers
import workers
from hypothesis import HealthCheck, settings
from rig import Cluster, hear_signals, wait_for, why_not

# A busy machine is slow, not wrong; and one tree must get one verdict, so examples are found
# from the test itself. To look for new ones: HYPOTHESIS_PROFILE=search scripts/test -k ...
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fast", settings.get_profile("steady"), max_examples=15)
settings.register_profile("search", deadline=None, max_examples=2000)


pytest_addoption = tiers.pytest_addoption


def pytest_configure(config: pytest.Config) -> None:
    # Thousands of tests, once read, are there for good: to look through them for cycles as often
    # as Python usually does is a sixth of the processor time of --fast.
    gc.set_threshold(100_000, 50, 100)
    hear_signals()
    tiers.configure(config)
    usual = "fast" if config.getoption("--fast") else "steady"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", usual))
    if workers.is_worker(config):
        workers.settle_in(config)
        config.pluginmanager.register(workers.OneAlone(config))
    else:
        config.pluginmanager.register(tiers.Skips(config.getoption("--complete")))
        config.pluginmanager.register(workers)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return tiers.ignores(collection_path, config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever asks for a cluster carries the mark, so ``-m 'not cluster'`` is always right."""
    for item in items:
        if {"cluster", "new_cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)
    tiers.leave_out(config, items)
    if workers.is_worker(config):
        workers.order(items)
    tiers.shuffle(config, items)


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_sessionfinish() -> None:
    # pytest then looks for cycles five times, which is a second in each worker. The first look
    # finds those of CPython, also where a finalizer fails; the others need not see all again.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _environment_is_given_back() -> Iterator[None]:
    """What a test, or the product in its process, sets in the environment reaches no other test.

    ``init_torch`` names the interface for gloo there, and ranks of later tests would get it.
    """
    before = os.environ.copy()
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def _files_are_as_promised(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each run of a test that kept its files keeps to the schemas, and says the same again when its
    journal is replayed.
    """
    yield
    # an item that was interrupted has none any more
    folder = (getattr(request.node, "funcargs", None) or {}).get("tmp_path")
    # folders may go while we look, with what a test has ended
    for place, _, files in () if folder is None else os.walk(folder):
        if "report.json" in files:
            promises.keep_run(Path(place))


@pytest.fixture(scope="session")
def rig() -> None:
    """Skips, with the reason, where no cluster can be made."""
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def _session_cluster(rig: None) -> Iterator[Cluster]:
    with Cluster(4) as cluster:
        yield cluster


@pytest.fixture
def cluster(_session_cluster: Cluster) -> Iterator[Cluster]:
    """Four hosts and ``login``, shared by all tests, with nothing of this test left on them."""
    yield _session_cluster
    wait_for(
        lambda: not _session_cluster.processes(),
        30,
        lambda: f"the hosts are idle again; there are {_session_cluster.processes()}",
    )


@pytest.fixture
def new_cluster(rig: None) -> Iterator[Callable[..., Cluster]]:
    """``new_cluster(count, *options)`` gives a cluster of one's own, gone after the test."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(Cluster(*arguments, **options))


def mpi_library(**environ: str) -> str:
    """What the MPI library says it is that mpi4py loads; "" if there is none."""
    program = "from mpi4py import MPI; print(MPI.Get_library_version())"
    env = {**os.environ, **environ}
    tried = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    return tried.stdout


@pytest.fixture(scope="session")
def mpich() -> None:
    """Skips where ranks find no MPICH."""
    if "MPICH" not in mpi_library():
        pytest.skip("mpi4py finds no MPICH: scripts/setup --dev")


@pytest.fixture(scope="session")
def openmpi() -> None:
    """Skips where ranks find no Open MPI."""
    if "Open MPI" not in mpi_library(MPI4PY_MPIABI="openmpi"):
        pytest.skip("mpi4py finds no Open MPI: apt install libpmix2")


@pytest.fixture(autouse=True)
def _no_host_has_failed_yet(request: pytest.FixtureRequest, _own_records: None) -> None:
    """A test that loses a host leaves no note for the next, which may have that host again."""
    if base := os.environ.get("XDG_STATE_HOME"):
        Path(base, "dispatch", "left.json").unlink(missing_ok=True)
        if request.node.get_closest_marker("cluster"):
            for end in Path(base, "dispatch", "jobs").glob("*/end.json"):
                if b'"blamed"' in end.read_bytes():
                    shutil.rmtree(end.parent)


@pytest.fixture(scope="session", autouse=True)
def _own_records(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Runs of tests are written down in a folder of the tests, not among the user's jobs, and the
    user's own defaults are not theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("DISPATCH_CONFIG", "")
        if workers.is_worker(request.config):
            patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield
