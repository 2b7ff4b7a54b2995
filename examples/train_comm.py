"""Train the model of train_topics.py, with the ranks brought together by ``comm.bootstrap``.

The launcher's variables are not read: MPI says who is there, rank 0's store takes a free
port, and a rank that is missing or sees another NCCL is named before anything hangs.

    dispatch -H hostfile examples/train_comm.py --steps 60
"""

import argparse
import gc

import torch
import train_topics

import dispatcher.comm as comm

parser = argparse.ArgumentParser(description="train a small GPT through dispatcher.comm")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--out", default="")
parser.add_argument("--save-every", type=int, default=20)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

with comm.init() as job:
    if options.batch < job.size:
        raise SystemExit(f"--batch {options.batch}: {job.size} ranks need a row each")
    job.init_torch()
    if job.gpu is None:
        torch.set_num_threads(max(1, torch.get_num_threads() // job.local_size))
    print(f"rank {job.rank} of {job.size} on {job.host}: {job.backend} on {job.device}", flush=True)
    train_topics.train(options, torch.device(job.device))
    gc.collect()  # the model holds on to the process group, which goes first
