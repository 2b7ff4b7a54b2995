"""What tools of hosts print, for the fuzzer to begin with: the samples of the checks' tests."""

from __future__ import annotations

from checks import samples
from checks import test_full as full
from checks import test_gpu as gpu
from checks import test_nccl_model as nccl_model
from checks import test_network as network
from checks.hardware import test_dcgm as dcgm
from checks.hardware import test_nvlink as nvlink
from checks.hardware import test_topology as topology

#: a seed is longer than what the fuzzer makes, and would be cut
_MOST = 4000

NVIDIA_SMI = (
    full.gpu_lines(full.CORE + full.MORE, {}, 3),
    full.gpu_lines(full.CORE, {"reasons": "0x48"}, 3),
    b"GPU-1, 0, 1, Yes, No\nGPU-2, 3, 0, No, [Unknown Error]\n",
    gpu.ACTIONS % b"GPU Reset Required",
    "".join(nvlink.GOOD)[:1200].encode(),
    nvlink.V100.encode(),
    "".join(nvlink.A6000).encode(),
    nvlink.HOPPER.format(1, 2).encode(),
    nvlink.BLACKWELL.format(1, 2).encode(),
    *(text.encode()[:_MOST] for text in (topology.THREE, topology.EIGHT, topology.OLD)),
    *gpu.REFUSED,
)

KERNEL_LOG = tuple(
    text.encode() for text in (
        full.XID_94 + full.XID_64 + full.NONFATAL + full.AFTER_149,
        full.NVLINK5 + full.DRAIN + full.RESET,
        full.FATAL_SXID + full.BOOT_SXID + full.SXID,
        full.NARROW + full.HINT,
        "79 critical\n# c\n94 ignore\n",
    )
)  # fmt: skip

NETWORK = (nccl_model.HOST.encode(), b"== login\nSSH_CONNECTION=10.0.0.9 50000 10.0.0.5 22\n")

#: reading -> what it may be
CHECKS = {
    **{name: reading.output for name, reading in samples.READINGS.items()},
    "meet": samples.LATER["meet"].output,
    "smi": NVIDIA_SMI[0],
    "dmesg": KERNEL_LOG[0],
    "dcgm": dcgm.four("Fail", dcgm.ECC).output,
    "gpudirect": topology.way(b"6.8.0-45-generic\n", topology.OPEN).output,
    "lspci": (topology.PORT + topology.ENDPOINT).encode(),
    "rdma": network.rdma_of(("mlx5_0", "4: ACTIVE", "5: LinkUp", network.NDR, "InfiniBand")).output,
    "ib counters": network.risen(link_downed=(3, 3)).readings["ib counters"].output,
}
