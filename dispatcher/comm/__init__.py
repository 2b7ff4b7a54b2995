"""For inside a rank: MPI, NCCL and torch from one bootstrap, that ends with a reason or works.

::

    import dispatcher.comm as comm

    job = comm.init()                   # all ranks are there and fit together
    nccl = job.nccl_communicator()      # the id crosses MPI; every rank is in
    job.init_torch()                    # torch.distributed, nccl or gloo
    groups = job.parallel(tp=2, pp=2)   # Megatron's groups, for torch and for nccl

Needs mpi4py and an MPI library (``pip install mpi4py mpich``); torch and NCCL only
for what they do. Works under any MPI launcher. It imports nothing of dispatch's
launcher, opens no port of its own, and is not needed by scripts written for
torchrun: those run as they are.

From the outside in: ``bootstrap`` (init), ``job`` (what a rank builds), ``nccl``,
``torch_bridge``, ``groups``, all over ``exchange`` (messages with a deadline and one verdict)
over ``mpi``.
"""

from dispatcher.comm.bootstrap import init
from dispatcher.comm.errors import (
    CommError,
    CommWarning,
    EnvironmentMissing,
    GroupError,
    NcclError,
    Refused,
    RollCallError,
    Unreachable,
)
from dispatcher.comm.groups import Group, Groups
from dispatcher.comm.job import Job
from dispatcher.comm.nccl.communicator import Buffer, Communicator
from dispatcher.comm.nccl.library import UniqueId

__all__ = [
    "Buffer",
    "CommError",
    "CommWarning",
    "Communicator",
    "EnvironmentMissing",
    "Group",
    "GroupError",
    "Groups",
    "Job",
    "NcclError",
    "Refused",
    "RollCallError",
    "UniqueId",
    "Unreachable",
    "init",
]
