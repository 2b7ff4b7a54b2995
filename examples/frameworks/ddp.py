"""Data-parallel training with torch alone.

dispatch -H n1:2,n2:2 examples/frameworks/ddp.py
dispatch -H n1:2,n2:2 --launcher torchrun examples/frameworks/ddp.py
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

gpus = torch.cuda.is_available()
dist.init_process_group("nccl" if gpus else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
first = last = 0.0
for _ in range(5):
    loss = model(torch.ones(4, 8, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    first, last = first or loss.item(), loss.item()
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: learnt {last < first}\n")
sys.stdout.flush()
dist.barrier()
os._exit(0)  # on an orderly way out one of gloo's threads aborts at times
