"""A DeepSpeed script: it wants --local_rank, and starts the communication itself."""

import argparse
import os
import sys

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
found = parser.parse_args()
deepspeed.init_distributed(dist_backend="gloo")
total = torch.ones(1)
deepspeed.comm.all_reduce(total)
rank, size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
note = os.environ.get("FROM_DEEPSPEED_ENV", "nothing")
sys.stdout.write(f"rank {rank} of {size}, local {found.local_rank}: {total.item():.0f}, {note}\n")
deepspeed.comm.destroy_process_group()
