"""Training in which rank 2 sleeps inside its third step, while all others wait for it."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def load_batch(step: int) -> torch.Tensor:
    if rank == 2 and step == 2:
        time.sleep(1000)
    return torch.ones(4)


for step in range(5):
    batch = load_batch(step)
    dist.all_reduce(batch)
    print("step", step, flush=True)
