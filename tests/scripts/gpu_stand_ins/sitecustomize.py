"""Plays a GPU for Python processes that have this folder on their path; scripts/gpu puts it there.

Each rank finds the one GPU of ``nvidia-smi`` beside this file. NCCL's calls go over MPI and CPU
memory (``tests/comm/fake_nccl.py``), torch's process groups are gloo's.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import dispatcher.comm.job
from dispatcher.comm import torch_bridge
from dispatcher.comm.nccl import library, start

UUID = "GPU-5269b708-678a-b1a8-60f0-c90406537480"


def find(*place: Any, **options: Any) -> library.Gpu:
    return library.Gpu(0, UUID, 12080)


class Known:
    """What is asked of a library before there are ranks."""

    version, path = 23007, "tests/comm/fake_nccl.py"


def load() -> Any:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized():
        return Known()
    from fake_nccl import FakeNccl  # type: ignore[import-not-found]

    if os.environ.get("NCCL_DEBUG") == "INFO":
        name = socket.gethostname().partition(".")[0]
        print(f"{name}:1:2 [0] NCCL INFO Using network Socket", flush=True)
    if torch := sys.modules.get("torch"):
        torch.cuda.set_device = torch.cuda.synchronize = lambda *_: None
        torch.cuda.get_device_name = lambda *_: "NVIDIA H100 80GB HBM3"
    return FakeNccl(mpi)


def init_torch(exchange: Any, **options: Any) -> Any:
    return real(exchange, **{**options, "backend": "gloo", "device": None})


if os.environ.get("CUDA_VISIBLE_DEVICES") == "0":
    job: Any = dispatcher.comm.job
    real: Any = torch_bridge.init_torch
    for where, name, played in (
        (library, "find_gpu", find),
        (job, "make_current", lambda index: None),
        (start, "make_current", lambda index: None),
        (library, "load", Known),
        (job, "load", load),
        (torch_bridge, "init_torch", init_torch),
        (job.Job, "device", "cpu"),
    ):
        setattr(where, name, played)
