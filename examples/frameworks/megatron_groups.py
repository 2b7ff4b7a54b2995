"""Megatron-core's parallel state: tensor 2, pipeline 2, and the rest of the ranks data parallel.

dispatch -H n1:4,n2:4 examples/frameworks/megatron_groups.py
"""

import os
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state

gpus = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
if gpus:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if gpus else "gloo")
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=2, pipeline_model_parallel_size=2
)
mine = [
    parallel_state.get_tensor_model_parallel_rank(),
    parallel_state.get_pipeline_model_parallel_rank(),
    parallel_state.get_data_parallel_rank(),
]
total = torch.tensor([float(dist.get_rank())], device=device)
dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
where = " ".join(f"{name} {at}" for name, at in zip(("tp", "pp", "dp"), mine, strict=True))
sys.stdout.write(f"rank {dist.get_rank()}: {where}, sum in tp {total.item():.0f}\n")
dist.barrier()
dist.destroy_process_group()
