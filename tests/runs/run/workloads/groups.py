"""Tensor, pipeline and data parallel groups in Megatron's order, made by new_group."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    dist.init_process_group("gloo")
    rank, world, tp = dist.get_rank(), dist.get_world_size(), 2
    sums = []
    for stride, count in ((1, tp), (tp, world // tp)):  # tensor parallel, then data parallel
        for first in range(0, world, stride * count):
            for offset in range(stride):
                members = [first + offset + i * stride for i in range(count)]
                group = dist.new_group(members)
                if rank in members:
                    total = torch.tensor([float(rank)])
                    dist.all_reduce(total, group=group)
                    sums.append(int(total.item()))
    sys.stdout.write(f"rank {rank}: tp {sums[0]} dp {sums[1]}\n")
    sys.stdout.flush()
    dist.barrier()
    if sys.argv[1:] == ["fail"] and rank == 3:
        raise ValueError("planted in rank 3")
    dist.destroy_process_group()


main()
