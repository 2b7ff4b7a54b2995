"""What the ranks of ``scripts/gpu`` run: ``ranks.py NAME``, a function of this file.

Each says what it saw; ``scripts/gpu`` judges. On the machine of a rehearsal two ranks share a GPU.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any


def versions() -> None:
    """The GPU, and the libraries that would be used, as JSON; without MPI."""
    from dispatcher.comm.nccl import library

    gpu, nccl = library.find_gpu(None, 0), library.load_library()
    assert gpu is not None, "cuda.find sees no GPU"
    found = {"nccl": library.version_text(nccl.version), "path": nccl.path, "uuid": gpu.uuid}
    found["driver"] = f"CUDA {gpu.driver // 1000}.{gpu.driver % 1000 // 10}"
    import torch

    found["torch"] = torch.__version__
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name(0)
    print(json.dumps(found))


def soname() -> None:
    """Whether torch, imported after ``comm.init()``, has the libnccl that we use."""
    import dispatcher.comm as comm
    from dispatcher.comm.nccl import library

    job = comm.init()
    import torch

    ours = library.version_text(job.me.nccl or 0)
    job.nccl_communicator()
    job.close()
    if not torch.cuda.is_available():
        print(f"torch has no CUDA, ours is {ours}")
        return
    nccl: Any = torch.cuda.nccl
    theirs = ".".join(map(str, nccl.version()[:3]))
    assert theirs == ours, f"torch has {theirs}, ours is {ours}"
    print(f"torch has {theirs}, ours is {ours}")


def pair() -> None:
    """Two all-reduces, and a split; torch comes only when the ranks have agreed."""
    import dispatcher.comm as comm

    with comm.init(timeout=30) as job:
        nccl = job.nccl_communicator()
        values = [_sum(job, nccl) for _ in range(2)]
        half = nccl.split(0)
        assert half is not None
        print(f"{values[0]} {values[1]}, split of {half.size}", flush=True)


def nonblocking() -> None:
    """The same without blocking, and ``check``."""
    import dispatcher.comm as comm

    with comm.init(timeout=30) as job:
        nccl = job.nccl_communicator(blocking=False)
        values = [_sum(job, nccl) for _ in range(2)]
        nccl.check()
        half = nccl.split(0)
        assert half is not None
        print(f"{values[0]} {values[1]}, split of {half.size}", flush=True)


def with_cupy() -> None:
    """An all-reduce of CuPy's memory."""
    try:
        import cupy  # type: ignore[import-not-found]
    except ImportError:
        print("unseen: no cupy here")
        return
    import dispatcher.comm as comm

    with comm.init(timeout=30) as job:
        data = cupy.ones(4, dtype=cupy.float32)
        job.nccl_communicator().all_reduce(data)
        print(f"sum {float(data[0])}", flush=True)


def unstarted() -> None:
    """Rank 1 has come to the roll call, and does not start NCCL."""
    import dispatcher.comm as comm

    job = comm.init(timeout=60)
    if job.rank == 1:
        time.sleep(50)
    job.nccl_communicator(timeout=10)


def ends() -> None:
    """Rank 1 ends between two all-reduces in one of ``ENDINGS``, by the word on its line."""
    import dispatcher.comm as comm

    how = sys.argv[2]
    job = comm.init()
    nccl = job.nccl_communicator()
    _sum(job, nccl)
    if job.rank == 1:
        if how.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[how])
        if how == "exit":
            sys.exit(3)
        if how == "os._exit":
            os._exit(4)
        raise RuntimeError(how)
    _sum(job, nccl)
    time.sleep(50)


def begins() -> None:
    """Seconds until the first sum by ``comm``, and by torch's own start in the same process."""
    import torch
    import torch.distributed as dist

    import dispatcher.comm as comm

    began = time.monotonic()
    job = comm.init()
    _sum(job, job.nccl_communicator())
    backend = job.backend if dist.is_nccl_available() else "gloo"
    ours, began = time.monotonic() - began, time.monotonic()
    dist.init_process_group(backend)
    data = torch.ones(4, device=job.device)
    dist.all_reduce(data)
    data[0].item()
    theirs = time.monotonic() - began
    dist.destroy_process_group()
    job.close()
    print(f"to the first sum: comm {ours:.2f} s, torch {theirs:.2f} s", flush=True)


def late() -> None:
    """Rank 1 comes long after the other has given up."""
    from mpi4py import MPI  # MPI's own start waits for all ranks, and without an end

    import dispatcher.comm as comm

    if MPI.COMM_WORLD.rank == 1:
        time.sleep(50)
    comm.init(timeout=10)


def killed() -> None:
    """Rank 1 dies between two all-reduces."""
    import dispatcher.comm as comm

    job = comm.init()
    nccl = job.nccl_communicator()
    _sum(job, nccl)
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _sum(job, nccl)
    time.sleep(50)  # with NCCL over MPI a sum may end without it


def timeouts() -> None:
    """The timeouts of torch's world and of a group of two."""
    import torch
    import torch.distributed as dist

    import dispatcher.comm as comm

    with comm.init() as job:
        job.init_torch(timeout=77)
        group = job.parallel(tp=2).tp.process_group
        device = torch.device(job.device)

        def limit(one: Any) -> Any:
            return one._get_backend(device).options._timeout

        print(f"world {limit(dist.group.WORLD)}, tp {limit(group)}", flush=True)


def hang() -> None:
    """Rank 1 never calls the second all-reduce."""
    import dispatcher.comm as comm

    job = comm.init()
    nccl = job.nccl_communicator()
    _sum(job, nccl)
    print("the first is done", flush=True)
    if job.rank == 1:
        prepare_data()
    _sum(job, nccl)


def beats() -> None:
    """The same hang, while a thread of each rank writes a line a second."""
    import threading

    def beat() -> None:
        while True:
            print("still training", flush=True)
            time.sleep(1)

    threading.Thread(target=beat, daemon=True).start()
    torch_hang()


def torch_hang() -> None:
    """Rank 1 never calls torch's second all-reduce."""
    import torch
    import torch.distributed as dist

    import dispatcher.comm as comm

    job = comm.init()
    job.init_torch()
    data = torch.ones(8, device=job.device)
    dist.all_reduce(data)
    print(f"the first gave {data[0].item()}", flush=True)
    if job.rank == 1:
        prepare_data()
    dist.all_reduce(data)
    print(data[0].item(), flush=True)


def prepare_data() -> None:
    """Where rank 1 must be found."""
    time.sleep(1000)


def _sum(job: Any, nccl: Any) -> float:
    """The sum over all ranks of their number and 1."""
    import torch

    data = torch.full((4,), job.rank + 1.0, device=job.device)
    nccl.all_reduce(data)
    return float(data[0].item())


def nvml() -> None:
    """What NVML and nvidia-smi say of the same GPUs at about the same time."""
    from dispatcher.remote.probe import usage

    library, program = usage.library(), usage.program()
    if library is None or program is None:
        print(f"unseen: {'no NVML' if library is None else 'no nvidia-smi'} here")
        return
    wrong = []
    names = ("index", "%", "bytes", "of", "W", "C", "limit", "memory %", "uuid")
    noise = (0, 30, 64 << 20, 1 << 20, 40, 5, 1, 30)
    for mine, theirs in zip(library(), program(), strict=True):
        for name, a, b, most in zip(names, mine, theirs, (*noise, None), strict=True):
            same = a == b if most is None or None in (a, b) else abs(a - b) <= most
            wrong += [] if same else [f"gpu {mine[0]}: {name}: {a} and {b}"]
        text = ", ".join(f"{name} {value}" for name, value in zip(names, mine, strict=True))
    print("; ".join(wrong) or f"equal: {text}")


if __name__ == "__main__":
    if os.environ.get("GPU_TWO_HOSTS"):
        os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
    globals()[sys.argv[1]]()
