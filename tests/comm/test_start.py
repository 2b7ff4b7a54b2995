"""Starting NCCL over MPI: with the real library as far as a GPU, then with one that needs none."""

from __future__ import annotations

import socket

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.comm.nccl.start import how_many, roots

from .conftest import MpiExec

HOST = socket.gethostname()

FAKE = """
from mpi4py import MPI
import numpy as np
import dispatcher.comm as comm
from dispatcher.comm import Buffer
from fake_nccl import FakeNccl
job = comm.init(timeout=20, device="cpu")

def buffer(array):
    name = str(array.dtype)
    return Buffer(array.ctypes.data, array.size, name)
"""


@given(st.integers(1, 600), st.integers(1, 40))
def test_makers_of_ids_are_those_nccl_expects(size: int, count: int) -> None:
    count = min(count, size)
    rest, each = size % count, size // count
    limit = rest * (each + 1)
    expected = [
        rank
        for rank in range(size)
        if (rank % (each + 1) == 0 if rank < limit else (rank - limit) % each == 0)
    ]
    assert roots(size, count) == expected
    assert roots(7, 3) == [0, 3, 5]


def test_several_ids_only_for_many_ranks_and_a_new_library() -> None:
    assert [how_many(size, 23007) for size in (1, 128, 129, 1024)] == [1, 1, 2, 8]
    assert [how_many(1024, version) for version in (22200, 22299, 22300)] == [1, 1, 8]


@pytest.mark.usefixtures("nccl")
class TestReal:
    def test_the_id_reaches_every_rank_and_is_not_shown(self, mpiexec: MpiExec) -> None:
        ended = mpiexec(
            3,
            """
            import logging, sys
            import dispatcher.comm as comm
            from dispatcher.comm.nccl import library, start
            logging.basicConfig(level="DEBUG", stream=sys.stderr, format="%(message)s")
            job = comm.init()
            nccl = library.load_library()
            (one,) = start.share_ids(job._exchange, nccl, 1, 20)
            many = start.share_ids(job._exchange, nccl, 2, 20)
            assert job.nccl_id() != one
            print(one.digest, *(each.digest for each in many), flush=True)
            assert bytes(one).hex()[:16] not in repr(one)
            """,
        )
        assert ended.code == 0, ended.err
        assert len(ended.lines) == 3
        assert len(set(ended.lines)) == 1
        assert len(set(ended.lines[0].split())) == 3
        assert f"rank 1 on {HOST}: nccl ids {ended.lines[0].split()[0]}" in ended.err

    def test_a_wrong_interface_on_rank_0_ends_all_with_nccls_reason(self, mpiexec: MpiExec) -> None:
        ended = mpiexec(
            3,
            """
            import os
            if os.environ["PMI_RANK"] == "0":
                os.environ["NCCL_SOCKET_IFNAME"] = "=nosuch0"
            import dispatcher.comm as comm
            comm.mpi._TOGETHER = 20
            comm.init().nccl_communicator()
            """,
        )
        assert ended.code == 1
        said = [
            line for line in ended.err.splitlines() if "Bootstrap : no socket interface" in line
        ]
        assert len(said) == 3, ended.err
        assert all(f"rank 0 on {HOST}: nccl: ncclGetUniqueId" in line for line in said)

    def test_without_a_gpu_all_ranks_say_cudas_reason(self, mpiexec: MpiExec) -> None:
        ended = mpiexec(
            2,
            """
            import dispatcher.comm as comm
            comm.mpi._TOGETHER = 20
            job = comm.init(device="cpu")
            job.nccl_communicator(ranks_per_id=1)
            """,
            CUDA_VISIBLE_DEVICES="",
        )
        assert ended.code == 1
        assert ended.err.count("nccl: ncclCommInitRank: unhandled cuda error") == 2, ended.err
        assert "hint: no rank sees a gpu: job.init_torch() then uses gloo" in ended.err


@pytest.fixture
def fake(mpi: str) -> str:
    pytest.importorskip("numpy", reason="needs numpy in the ranks")
    return FAKE


@cases("blocking", [True, False])
def test_collectives_bring_the_right_data(mpiexec: MpiExec, fake: str, blocking: bool) -> None:
    ended = mpiexec(
        4,
        fake
        + f"blocking = {blocking}"
        + """
job._library = FakeNccl(MPI)
nccl = job.nccl_communicator(blocking=blocking)
assert nccl is job.nccl_communicator()
rank, size = nccl.rank, nccl.size
assert (rank, size) == (job.rank, 4)

x = np.full(5, rank + 1, dtype=np.float32)
nccl.all_reduce(buffer(x))
assert (x == 10).all(), x
y = np.array([rank], dtype=np.int64)
z = np.zeros(1, dtype=np.int64)
nccl.all_reduce(buffer(y), buffer(z), op="max")
assert (y[0], z[0]) == (rank, 3)
half = nccl.split(rank % 2, key=-rank)
assert (half.size, half.rank) == (2, 1 - rank // 2)
assert (nccl.split(None if rank == 3 else 0) is None) == (rank == 3)
job.close()
assert nccl.closed
print("all", flush=True)
""",
    )
    assert (ended.code, ended.lines) == (0, ["all"] * 4), ended.err


def test_several_ids_come_in_the_order_of_their_makers(mpiexec: MpiExec, fake: str) -> None:
    ended = mpiexec(
        5,
        fake
        + """
job._library = fake = FakeNccl(MPI)
job.nccl_communicator(ranks_per_id=2)
print([bytes(each)[0] for each in fake.ids], fake.calls.count("unique_id"), flush=True)
""",
    )
    assert ended.code == 0, ended.err
    assert ended.lines == ["[0, 2, 4] 0"] * 2 + ["[0, 2, 4] 1"] * 3


@cases("blocking", [True, False])
def test_a_rank_whose_start_fails_ends_it_for_all(
    mpiexec: MpiExec, fake: str, blocking: bool
) -> None:
    ended = mpiexec(
        3,
        fake
        + f"blocking = {blocking}"
        + """
import time
job._library = fake = FakeNccl(MPI, hang=job.rank != 2, fail=job.rank == 2)
began = time.monotonic()
try:
    job.nccl_communicator(timeout=60, blocking=blocking)
except comm.NcclError as error:
    took = time.monotonic() - began
    print(error.message, error.code, "ncclCommAbort" in fake.calls, took < 30, flush=True)
""",
    )
    assert ended.code == 0, ended.err
    why = "nccl: ncclCommInitRank: unhandled system error: a cable is out"
    assert ended.lines == [f"rank 2 on {HOST}: {why} 2 True True"] * 3


def test_groups_are_communicators_too(mpiexec: MpiExec, fake: str) -> None:
    ended = mpiexec(
        4,
        fake
        + """
job._library = fake = FakeNccl(MPI)
job.nccl_communicator()
groups = job.parallel(tp=2, also=["tp-dp"])
assert (fake.calls.count("init_rank"), fake.calls.count("split")) == (1, 4)
for group in (groups.tp, groups.dp, groups.pp, groups["tp-dp"], groups.ep):
    x = np.array([2.0 ** job.rank], dtype=np.float32)
    group.nccl.all_reduce(buffer(x))
    assert x[0] == sum(2.0 ** rank for rank in group.ranks), (group, x)
    assert (group.nccl.rank, group.nccl.size) == (group.rank, group.size)
assert groups.dp.nccl is groups["dp-cp"].nccl
print(groups.tp.ranks, groups.dp.ranks, groups.pp.ranks, flush=True)
job.close()
assert groups.tp.nccl.closed
""",
    )
    assert ended.code == 0, ended.err
    assert ended.lines == [
        "(0, 1) (0, 2) (0,)",
        "(0, 1) (1, 3) (1,)",
        "(2, 3) (0, 2) (2,)",
        "(2, 3) (1, 3) (3,)",
    ]
