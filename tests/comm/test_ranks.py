"""Real ranks under mpiexec: all come and fit together, or all leave with the same reason."""

from __future__ import annotations

import socket

import pytest

from .conftest import Ended, MpiExec

HOST = socket.gethostname()


def reasons(ended: Ended) -> list[str]:
    """What each rank said of its end, without its own name; hints and noise left out."""
    marked = [line for line in ended.err.splitlines() if line.startswith("rank ")]
    return sorted(marked)


def test_every_rank_knows_its_place(mpiexec: MpiExec) -> None:
    ended = mpiexec(
        3,
        """
        import dispatcher.comm as comm
        job = comm.init(timeout=20)
        assert job.mpi.Get_size() == 3
        print(job.rank, job.size, job.local_rank, job.local_size, len(job.ranks), job, flush=True)
        """,
    )
    assert ended.code == 0, ended.err
    assert ended.lines == [
        f"{rank} 3 {rank} 3 3 Job(rank {rank} of 3 on {HOST}, {'gloo'})" for rank in range(3)
    ]


def test_a_missing_rank_is_named_with_its_host(mpiexec: MpiExec) -> None:
    ended = mpiexec(
        3,
        """
        import time
        from mpi4py import MPI
        import dispatcher.comm as comm
        comm.mpi._TOGETHER = 6
        if MPI.COMM_WORLD.rank == 2:
            time.sleep(600)
        comm.init(timeout=8)
        """,
    )
    assert ended.code not in (0, None)  # it has ended before that
    what = f"roll call: rank 2 on {HOST} did not come within 8 s"
    assert reasons(ended) == [f"rank {rank} on {HOST}: {what}" for rank in (0, 1)], ended.err
    assert "hint: every rank must call comm.init()" in ended.err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "boot.library.find_gpu = lambda index, local, **_: library.Gpu(0, 'GPU-1', 12080)",
            f"gpu GPU-1: chosen by rank 0 on {HOST} and rank 1 on {HOST}: one rank a gpu",
        ),
        (
            "boot.library.find_gpu = lambda _, at, **__: library.Gpu(0, f'GPU-{at}', 12080)\n"
            "boot._nccl = lambda: 23007 if rank else 22907",
            "nccl: versions differ: 2.29.7",
        ),
        ("os.environ['NCCL_ALGO'] = str(rank)", "NCCL_ALGO: differs"),
        (
            "def find(*_, **__): raise comm.CommError('comm: gpu: cuInit: broken (999)')\n"
            "if rank == 1: boot.library.find_gpu = find",
            f"rank 1 on {HOST}: gpu: cuInit: broken (999)",
        ),
    ],
    ids=["one gpu", "nccl versions", "settings", "broken driver"],
)
def test_what_cannot_work_together_is_refused_by_every_rank(
    mpiexec: MpiExec, change: str, reason: str
) -> None:
    program = (
        "import os\n"
        "import dispatcher.comm as comm\n"
        "comm.mpi._TOGETHER = 20\n"
        "from dispatcher.comm import bootstrap as boot\n"
        "from dispatcher.comm.nccl import library\n"
        "rank = int(os.environ['PMI_RANK'])\n" + change + "\ncomm.init()\n"
    )
    ended = mpiexec(2, program)
    assert ended.code == 1
    said = reasons(ended)
    assert len(said) == 2, ended.err
    assert all(reason in line for line in said), said


@pytest.mark.parametrize("device", ["0", "'cuda:0'"])
def test_a_gpu_that_is_asked_for_is_never_replaced_by_the_cpu(
    mpiexec: MpiExec, device: str
) -> None:
    ended = mpiexec(
        2,
        f"""
        import ctypes
        import dispatcher.comm as comm

        load = ctypes.CDLL

        def without(name, *more, **options):
            if name == "libcuda.so.1":
                raise OSError(f"{{name}}: no such file")
            return load(name, *more, **options)

        ctypes.CDLL = without
        comm.mpi._TOGETHER = 20
        job = comm.init(device={device})
        print(job.backend)
        job.init_torch()
        """,
    )
    assert ended.code == 1
    assert ended.out == ""
    assert ended.err.count("gpu 0: no cuda driver here: libcuda.so.1: no such file") == 2, ended.err


def test_an_exception_in_one_rank_ends_the_others(mpiexec: MpiExec) -> None:
    ended = mpiexec(
        3,
        """
        import dispatcher.comm as comm
        job = comm.init()
        if job.rank == 1:
            raise ValueError("row 7 is bad")
        job.mpi.Barrier()
        """,
    )
    assert ended.code == 1
    assert "ValueError: row 7 is bad" in ended.err
    assert ended.err.count("Traceback") == 1


def test_messages_of_every_length_arrive(mpiexec: MpiExec) -> None:
    ended = mpiexec(
        3,
        """
        import dispatcher.comm as comm, hashlib
        job = comm.init()
        ranks = job._exchange
        for size in (0, 1, 100, 3_000_000):
            data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            assert ranks.share(lambda: data if ranks.rank == 0 else 1 / 0, "x", 20) == data
            mine = data + bytes([ranks.rank])
            assert ranks.gather(lambda: mine, "x", 20) == [data + bytes([r]) for r in range(3)]
            found = ranks.assemble("x", 20, step=lambda: mine, answer=lambda all: all[::-1])
            assert found == data + bytes([2 - ranks.rank])
        print("all", flush=True)
        """,
    )
    assert (ended.code, ended.lines) == (0, ["all"] * 3), ended.err


@pytest.mark.parametrize(("word", "code"), [("3", 3), ("'no data here'", 1)])
def test_an_exit_of_one_rank_ends_the_others(mpiexec: MpiExec, word: str, code: int) -> None:
    ended = mpiexec(
        3,
        f"""
        import sys
        import dispatcher.comm as comm
        with comm.init() as job:
            if job.rank == 1:
                sys.exit({word})
            job.mpi.Barrier()
        """,
    )
    assert ended.code == code, ended.err
    assert ("no data here" in ended.err) == (code == 1)


def test_an_exit_of_all_ranks_with_success_is_one(mpiexec: MpiExec) -> None:
    ended = mpiexec(
        2,
        """
        import sys
        import dispatcher.comm as comm
        with comm.init() as job:
            job.mpi.Barrier()
            sys.exit(0)
        """,
    )
    assert (ended.code, ended.err) == (0, "")
