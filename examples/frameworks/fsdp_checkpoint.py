"""FSDP2 that goes on from its last distributed checkpoint when it is started again.

dispatch -H n1:2,n2:2,n3:2 --nnodes 2 --spares 1 --max-restarts 3 \
    examples/frameworks/fsdp_checkpoint.py /shared/ckpt
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0  # seconds a step, to have time to fail in
gpus = torch.cuda.is_available()
if gpus:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda" if gpus else "cpu", (int(os.environ["WORLD_SIZE"]),))
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).to(mesh.device_type)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)

done = 0
whole = [int(path.name[5:]) for path in folder.glob("step-*") if (path / ".metadata").exists()]
if whole:  # a checkpoint is whole once its metadata is there, which is written last
    done = max(whole)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=str(folder / f"step-{done}"))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    if rank == 0:
        sys.stdout.write(f"goes on after step {done}\n")
        sys.stdout.flush()
for step in range(done + 1, steps + 1):
    loss = model(torch.ones(4, 8, device=mesh.device_type)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(pause)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id=str(folder / f"step-{step}"))
    if rank == 0:
        sys.stdout.write(f"step {step} of {steps}\n")
        sys.stdout.flush()
dist.barrier()
sys.stdout.write(f"rank {rank} of {dist.get_world_size()} done\n")
sys.stdout.flush()
os._exit(0)  # on an orderly way out one of gloo's threads aborts at times
