"""A device mesh of CPUs, a sharded model (FSDP2) and one step of it."""

import os
import sys

import torch
from torch import nn
from torch.distributed import barrier
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
first = last = 0.0
for _ in range(3):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    first, last = first or loss.item(), loss.item()
sys.stdout.write(f"learnt {last < first} on {mesh.size()}\n")
sys.stdout.flush()
barrier()
os._exit(0)  # on an orderly way out one of the threads below FSDP2 aborts at times
