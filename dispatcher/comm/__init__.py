"""For inside a rank: MPI, NCCL and torch from one bootstrap, that ends with a reason or works.

``init`` (``bootstrap``) gives a ``Job``, and that builds the rest (``docs/guides/comm.md``). All
of it goes over ``exchange`` (messages with a deadline and one verdict) over ``mpi``. It works
under any MPI launcher, imports nothing of dispatch's launcher, and opens no port.
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
