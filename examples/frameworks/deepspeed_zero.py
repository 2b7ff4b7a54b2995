"""DeepSpeed's ZeRO 2: optimizer states and gradients are spread over the ranks.

dispatch -H n1:2,n2:2 --launcher deepspeed examples/frameworks/deepspeed_zero.py
dispatch -H n1:2,n2:2 --local-rank-arg --local_rank examples/frameworks/deepspeed_zero.py
"""

import argparse
import sys

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.parse_args()
deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
settings = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), 0.05), config=settings,
    dist_init_required=False,
)  # fmt: skip
first = last = 0.0
for _ in range(4):
    loss = engine(torch.ones(4, 8, device=engine.device)).square().mean()
    engine.backward(loss)
    engine.step()
    first, last = first or loss.item(), loss.item()
rank, size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
stage = engine.zero_optimization_stage()
sys.stdout.write(f"rank {rank} of {size}: ZeRO {stage}, learnt {last < first}\n")
deepspeed.comm.destroy_process_group()
