"""A rank for test_over_hosts: all that init, torch and the groups do, then one line."""

import os
import sys
import time
import warnings

from mpi4py import MPI

import dispatcher.comm as comm

warnings.simplefilter("default")
absent = [int(word) for word in sys.argv[1:]]
comm.mpi._TOGETHER = 6  # who gives up first ends the others, which are to say why, too
if MPI.COMM_WORLD.Get_rank() in absent:
    time.sleep(600)
job = comm.init(timeout=8 if absent else 60, device="cpu")
job.init_torch(timeout=120)
import torch  # noqa: E402 - after the bootstrap, as a script may do

groups = job.parallel(tp=2)
number = torch.tensor([2.0**job.rank])
torch.distributed.all_reduce(number, group=groups.dp.process_group)
assert number.item() == sum(2.0**rank for rank in groups.dp.ranks)
gloo = os.environ["GLOO_SOCKET_IFNAME"]
place = f"{job.rank} {job.host} {job.local_rank} {job.local_size}"
# one write, so that lines of ranks do not mix
line = f"{place} {gloo} tp {','.join(groups.tp.hosts)} dp {','.join(groups.dp.hosts)}\n"
os.write(1, line.encode())
job.close()
