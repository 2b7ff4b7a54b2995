"""``init`` over a played MPI: what each rank is, which GPU it gets, and why all are refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from dispatcher.comm import CommError, CommWarning, EnvironmentMissing, Refused, bootstrap, init
from dispatcher.comm import exchange as exchange_module
from dispatcher.comm.nccl import library

from .fake_mpi import Mpi, threads

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that nobody launched, on a host without GPUs and NCCL."""
    for name in list(os.environ):
        if name.startswith(("DISPATCH_", "NCCL_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    for name in (*bootstrap._LOCAL_RANK, *bootstrap._LOCAL_SIZE, "WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(library, "find_gpu", lambda index, local_rank, required: None)
    monkeypatch.setattr(bootstrap, "_nccl", lambda: None)
    monkeypatch.setattr(exchange_module, "_SETTLE", 0.1)


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the ends of the process are told, in order."""
    told: list[Any] = []
    monkeypatch.setattr(bootstrap, "arm_mpi", told.append)
    monkeypatch.setattr(
        bootstrap, "take_others_along", lambda mpi, exchange: told.append(exchange.who)
    )
    return told


class Ranks:
    """``count`` ranks that call ``init``; each has its own view of MPI."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.mpi = count, Mpi(count)
        self.levels: list[str] = []
        self.turn = iter(range(count))

        def open_mpi(level: str) -> Any:
            self.levels.append(level)
            view = Mpi.__new__(Mpi)
            view.__dict__.update(self.mpi.__dict__)
            with self.mpi.lock:
                view.COMM_WORLD = self.mpi.rank(next(self.turn))
            return view

        monkeypatch.setattr(bootstrap, "open_mpi", open_mpi)

    def init(self, **options: Any) -> list[Any]:
        """The jobs, or what was raised, in the order of ranks."""
        found = threads(self.count, lambda _: init(timeout=20, **options))
        return sorted(found, key=lambda job: getattr(job, "rank", -1))


def test_each_rank_knows_its_place(hooks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(3, monkeypatch)
    jobs = ranks.init(thread_level="serialized")
    assert [(job.rank, job.size, job.local_rank, job.local_size) for job in jobs] == [
        (rank, 3, rank, 3) for rank in range(3)
    ]
    assert [info.name for info in jobs[0].ranks] == [f"rank {rank} on {HOST}" for rank in range(3)]
    assert jobs[1]._exchange.hosts == dict.fromkeys(range(3), HOST)
    assert jobs[1]._exchange.who == f"rank 1 on {HOST}"
    assert jobs[1].mpi.number  # a duplicate, so no message can meet the user's
    assert ranks.levels == ["serialized"] * 3
    assert sorted(hooks) == [f"a rank on {HOST}"] * 3 + [
        f"rank {rank} on {HOST}" for rank in range(3)
    ]


def test_what_the_launcher_says_of_it(hooks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_HOST", "gpu07")
    monkeypatch.setenv("MPI_LOCALRANKID", "2")
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    (job,) = Ranks(1, monkeypatch).init(abort_on_exception=False)
    assert (job.host, job.me.local_rank, job.me.local_size) == ("gpu07", 2, 4)
    assert hooks == []


@pytest.mark.usefixtures("hooks")
def test_who_shares_a_gpu_is_refused_with_all_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(index: int | None, local: int, *, required: bool) -> library.Gpu:
        return library.Gpu(0, "GPU-1", 12080 + 10 * local)

    monkeypatch.setattr(library, "find_gpu", find)
    versions = iter([23007, 22907])
    monkeypatch.setattr(bootstrap, "_nccl", lambda: next(versions))
    errors = Ranks(2, monkeypatch).init()
    for error in errors:
        assert isinstance(error, Refused)
        first, second = error.message.splitlines()
        assert first.startswith("comm: gpu GPU-1: chosen by rank 0 on")
        assert second.startswith("comm: nccl: versions differ: ")
        assert "CUDA_VISIBLE_DEVICES" in (error.hint or "")
        assert error.shared


@pytest.mark.usefixtures("hooks")
def test_a_rank_alone_is_warned_by_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_GPUS", "8")
    with pytest.warns(CommWarning, match="no rank sees one"):
        Ranks(1, monkeypatch).init()


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    ("device", "asked"), [(None, [(None, 3)]), (1, [(1, 3)]), ("cuda:2", [(2, 3)]), ("cpu", [])]
)
def test_which_gpu_is_asked_for(
    device: int | str | None, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def find(index: int | None, local_rank: int, *, required: bool) -> library.Gpu:
        assert not required
        found.append((index, local_rank))
        return library.Gpu(5, "GPU-5", 12080)

    monkeypatch.setattr(library, "find_gpu", find)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("DISPATCH_GPUS", "8")  # which are not missed where none is wanted
    (job,) = Ranks(1, monkeypatch).init(device=device)
    assert found == asked
    assert job.device == ("cuda:5" if asked else "cpu")


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:", "cuda:x", "cpu:0", "3"])
def test_a_device_that_is_none(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (error,) = Ranks(1, monkeypatch).init(device=device)
    assert isinstance(error, CommError)
    assert f"device {device!r}: is neither 'cpu', a number nor 'cuda:0'" in error.message


@pytest.mark.usefixtures("hooks")
def test_all_ranks_end_where_one_has_not_the_gpu_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(index: int | None, local_rank: int, *, required: bool) -> library.Gpu | None:
        if required and local_rank == 1:
            raise CommError("comm: gpu: no cuda driver here")
        return None

    monkeypatch.setattr(library, "find_gpu", find)
    for error in Ranks(2, monkeypatch).init(require_gpu=True):
        assert isinstance(error, CommError)
        assert error.shared
        assert error.message == f"rank 1 on {HOST}: gpu: no cuda driver here"
    with pytest.raises(CommError, match="require_gpu goes with no device='cpu'"):
        init(require_gpu=True, device="cpu")


def test_nccl_is_looked_for_and_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    class Some:
        version = 23007

    monkeypatch.setattr(library, "load_library", Some)
    assert bootstrap._nccl() == 23007

    def fail() -> None:
        raise EnvironmentMissing("none")

    monkeypatch.setattr(library, "load_library", fail)
    assert bootstrap._nccl() is None


def test_a_host_is_known_by_its_kernel_and_its_network(monkeypatch: pytest.MonkeyPatch) -> None:
    name, boot, network = bootstrap._host_key().split("|")
    assert name == HOST
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert network == os.readlink("/proc/self/ns/net")

    def refused(path: str) -> str:
        raise OSError

    monkeypatch.setattr(os, "readlink", refused)
    assert bootstrap._host_key() == f"{HOST}|{boot}"


class TestStacks:
    def test_all_threads_are_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Any] = []

        def register(signal: int, file: Any, *, all_threads: bool) -> None:
            asked.append((signal, file.name, all_threads))
            file.close()

        monkeypatch.setattr("faulthandler.register", register)
        folder = tmp_path / "dispatch-1"
        folder.mkdir()
        bootstrap.show_stacks({"TORCHELASTIC_ERROR_FILE": str(folder / "rank-0.json")})
        assert asked == [(bootstrap.SIGNAL, str(folder / f"stack-{os.getpid()}"), True)]
