"""Measure all-reduce, with the NCCL communicator built over MPI.

Rank 0 makes NCCL's unique id, MPI brings it to all ranks, each joins: no address and no
port is agreed on beforehand. Where there is no GPU, gloo takes NCCL's place.

    dispatch -H hostfile examples/nccl_over_mpi.py --largest 256M

algbw is bytes / time; busbw is what each link carries, 2 (n-1) / n of that for n ranks, so
it can be compared with the hardware whatever the number of ranks (the formulas of nccl-tests).
"""

import argparse
import time

import torch

import dispatcher.comm as comm

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def size(text: str) -> int:
    """Bytes, from 1024, 64K, 8M or 1G."""
    unit = UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


parser = argparse.ArgumentParser(description="all-reduce bandwidth over all ranks")
parser.add_argument("--smallest", type=size, default="64K")
parser.add_argument("--largest", type=size, default="16M")
parser.add_argument("--repeat", type=int, default=20)
options = parser.parse_args()

job = comm.init()
started = time.perf_counter()
if job.backend == "nccl":
    nccl = job.nccl_communicator()
    all_reduce, wait = nccl.all_reduce, torch.cuda.synchronize
else:
    job.init_torch()
    all_reduce, wait = torch.distributed.all_reduce, lambda: None
built = time.perf_counter() - started
if job.rank == 0:
    hosts = len({rank.host_key for rank in job.ranks})
    print(f"# ranks {job.size}, hosts {hosts}, {job.backend} built in {built:.2f} s")
    print(f"# {'bytes':>12} {'us':>10} {'algbw GB/s':>11} {'busbw GB/s':>11}")

wrong = 0
count = options.smallest
while count <= options.largest:
    data = torch.full((count // 4,), float(job.rank + 1), device=job.device)
    all_reduce(data)
    wait()
    wrong += int((data != job.size * (job.size + 1) / 2).sum())
    data.zero_()
    began = time.perf_counter()
    for _ in range(options.repeat):
        all_reduce(data)
    wait()
    seconds = (time.perf_counter() - began) / options.repeat
    if job.rank == 0:
        algbw = count / seconds / 1e9
        busbw = algbw * 2 * (job.size - 1) / job.size
        print(f"  {count:12d} {seconds * 1e6:10.1f} {algbw:11.3f} {busbw:11.3f}", flush=True)
    count *= 2

job.close()
if wrong:
    raise SystemExit(f"rank {job.rank}: {wrong} wrong values")
if job.rank == 0:
    print("# all values right")
