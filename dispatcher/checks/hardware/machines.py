"""Known GPUs that are joined by NVSwitches: how many links, how fast, and what NCCL reaches.

A link's speed is what ``nvidia-smi nvlink -s`` prints of it on healthy machines. The floor is busbw
of an all-reduce over all GPUs of one host, for large tensors. Sources, as read in 2026:

======  =====================================================================================
links   A100: gpud, ``nvidia-smi.nvlink.status.a100``. H100, H200: 26.562 GB/s, NVIDIA's data
        sheets (18 links, 900 GB/s both ways). Blackwell: NVIDIA/k8s-test-infra#371 (GB200)
floors  Azure/azurehpc-health-checks, ``conf/``, at 16 GiB: nd96asr_v4 and nd96amsr_a100_v4 228,
        nd96isr_h100_v5 460, nd96isr_h200_v5 431. B200: nobody has published a floor; 8 of them
        reached "830+" (NVIDIA/nccl#1807), of which this is nine tenths
======  =====================================================================================

What NVIDIA itself expects of 8 H100 is about 480 (NVIDIA/nccl-tests#212), for tensors larger than
256 MB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """GPUs of one kind. links: NVLinks of each; link_rate: GB/s of one, one way.

    floor: GB/s of busbw that an all-reduce over ``gpus`` of them in one host should reach.
    """

    kind: str
    links: int
    link_rate: float
    floor: float
    gpus: int = 8


_KNOWN = (
    (re.compile(r"A100-SXM"), Machine("A100", 12, 25.0, 228.0)),
    (re.compile(r"H100 80GB HBM3$"), Machine("H100", 18, 26.562, 460.0)),
    (re.compile(r"H200$"), Machine("H200", 18, 26.562, 431.0)),
    (re.compile(r"\bB200$"), Machine("B200", 18, 53.125, 747.0)),
)


def machine(name: str) -> Machine | None:
    """What is known of the GPU that nvidia-smi or CUDA calls ``name``; None for nothing.

    Cards for PCIe (``H100 PCIe``, ``H100 NVL``) are joined by bridges or not at all: not known.
    """
    return next((one for pattern, one in _KNOWN if pattern.search(name)), None)


def floor(name: str, gpus: int) -> float | None:
    """GB/s of busbw that an all-reduce over ``gpus`` GPUs ``name`` of one host should reach."""
    known = machine(name)
    return known.floor if known is not None and known.gpus == gpus else None
