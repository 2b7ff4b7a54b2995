"""Measure all-reduce as nccl-tests do, with the NCCL communicator built over MPI.

Rank 0 makes NCCL's unique id, MPI brings it to all ranks, each joins: no address and no
port is agreed on beforehand. Where there is no GPU, gloo takes NCCL's place.

    dispatch -H hostfile examples/nccl_over_mpi.py                  # to 8 GB on GPUs, 16 MB else
    dispatch -H hostfile examples/nccl_over_mpi.py --largest 256M

Columns and formulas are those of nccl-tests 2.19: algbw is bytes / time; busbw is what each link
carries, 2 (n-1) / n of that for n ranks, so it can be compared with the hardware whatever the
number of ranks. H100s come near to what they can from 1 GB on. For eight GPUs of a known kind in
one host the busbw that they should reach is printed below; its sources are in that table's file.
"""

import argparse
import time

import torch

import dispatcher.comm as comm
from dispatcher.checks.hardware.nvlink import floors

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def size(text: str) -> int:
    """Bytes, from 1024, 64K, 8M or 1G."""
    unit = UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


parser = argparse.ArgumentParser(description="all-reduce bandwidth over all ranks")
parser.add_argument("--smallest", type=size, default="64K")
parser.add_argument("--largest", type=size, help="8G on GPUs, 16M without")
parser.add_argument("--repeat", type=int, default=20)
options = parser.parse_args()

job = comm.init()
began = time.perf_counter()
if job.backend == "nccl":
    nccl = job.nccl_communicator()
    wait = torch.cuda.synchronize
else:
    job.init_torch()
built = time.perf_counter() - began
largest = options.largest or size("8G" if job.backend == "nccl" else "16M")


def all_reduce(send: torch.Tensor, receive: torch.Tensor) -> None:
    """receive = the sum of all ranks' send; gloo knows it in place only."""
    if job.backend == "nccl":
        nccl.all_reduce(send, receive)
    elif send is not receive:
        torch.distributed.all_reduce(receive.copy_(send))
    else:
        torch.distributed.all_reduce(receive)


def measure(send: torch.Tensor, receive: torch.Tensor) -> tuple[float, float, float, int]:
    """Microseconds, algbw and busbw in GB/s as the average over all ranks, and wrong values."""
    send.fill_(job.rank + 1)
    all_reduce(send, receive)
    right = torch.tensor(job.size * (job.size + 1) / 2, device=job.device)
    wrong = int(receive.ne(right).sum())  # which waits for the device, too
    send.zero_()  # or sums would grow without end
    job.mpi.Barrier()
    began = time.perf_counter()
    for _ in range(options.repeat):
        all_reduce(send, receive)
    if job.backend == "nccl":
        wait()
    mine = (time.perf_counter() - began) / options.repeat
    seconds = job.mpi.allreduce(mine) / job.size
    algbw = send.nbytes / seconds / 1e9
    busbw = algbw * 2 * (job.size - 1) / job.size
    return seconds * 1e6, algbw, busbw, job.mpi.allreduce(wrong)


def tell(line: str) -> None:
    """From rank 0 alone."""
    if job.rank == 0:
        print(line, flush=True)


def row(*words: object) -> str:
    """Words in the columns of nccl-tests."""
    first = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}".format(*words[:5])
    halves = ["  {:>8}  {:>7}  {:>7}  {:>6}".format(*words[n : n + 4]) for n in (5, 9)]
    return first + "".join(halves)


hosts = len({rank.host_key for rank in job.ranks})
kind = torch.cuda.get_device_name(job.gpu) if job.backend == "nccl" else "CPU"
tell(f"# {job.size} ranks on {hosts} hosts, {kind}; {job.backend} built in {built:.2f} s")
tell(f"#{'':52} {'out-of-place':^34} {'in-place':^34}".rstrip())
half = ("time", "algbw", "busbw", "#wrong")
units = ("(us)", "(GB/s)", "(GB/s)", "")
tell("#" + row("size", "count", "type", "redop", "root", *half, *half)[1:])
tell("#" + row("(B)", "(elements)", "", "", "", *units, *units)[1:].rstrip())

rates: list[float] = []
wrong = 0
length = options.smallest
while length <= largest:
    data, other = (torch.empty(length // 4, device=job.device) for _ in range(2))
    words: list[object] = [length, length // 4, "float", "sum", -1]
    for receive in (other, data):
        us, algbw, busbw, bad = measure(data, receive)
        words += [f"{us:.2f}", f"{algbw:.2f}", f"{busbw:.2f}", bad]
        rates.append(busbw)
        wrong += bad
    tell(row(*words))
    del data, other, receive
    length *= 2

tell(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
if rates:
    tell(f"# Avg bus bandwidth    : {sum(rates) / len(rates):g}")
known = floors(kind, job.size) if hosts == 1 else None
least, ring = known or (0.0, 0.0)
if known is None:
    tell(f"# Floor                : none is known for {job.size} x {kind} on {hosts} hosts")
elif length <= size("8G"):
    tell(f"# Floor                : {least:g} GB/s busbw at 8G, which was not measured")
else:
    best = max(rates[-2:])
    verdict = "OK" if best >= least else f"FAILED ({ring:g} without NVLink SHARP)"
    tell(f"# Floor                : {least:g} GB/s busbw at the largest size: {verdict}")
job.close()
if wrong:
    raise SystemExit(f"rank {job.rank}: {wrong} wrong values over all ranks")
