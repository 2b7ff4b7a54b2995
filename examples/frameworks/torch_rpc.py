"""A teacher that its students call: torch.distributed.rpc."""

import os
import sys

import torch
import torch.distributed.rpc as rpc


def advise(value: torch.Tensor) -> torch.Tensor:
    return value * 2


rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc("teacher" if rank == 0 else f"student{rank}", rank=rank, world_size=world)
if rank:
    answer = rpc.rpc_sync("teacher", advise, args=(torch.tensor(rank),))
    sys.stdout.write(f"student {rank} heard {answer.item()}\n")
rpc.shutdown()
