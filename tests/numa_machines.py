"""Machines with several NUMA nodes, as their kernels show them: trees of sysfs and proc.

Of public records: ``NDV5`` of Azure's topology file for H100 hosts (azhpc-images,
topology/ndv5-topo.xml: CPU masks, NUMA nodes, PCI addresses; a virtual machine shows no switches),
``DGX_A100`` of nvidia-smi and NCCL's own dump (NVIDIA/nccl, issues 2157 and 1505; switches left
out but for one level).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dispatcher.model.names import fold_numbers


@dataclass(frozen=True)
class Machine:
    """nodes: NUMA node -> CPUs. gpus, nics: address or name -> NUMA node, path in sys/devices."""

    nodes: dict[int, str]
    gpus: dict[str, tuple[int, str]]
    nics: dict[str, tuple[int, str]]
    allowed: str

    def write(self, root: Path) -> None:
        """Make its files below ``root``."""

        def put(path: str, text: str) -> None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)

        put("proc/self/status", f"Name:\tx\nCpus_allowed_list:\t{self.allowed}\n")
        put("sys/devices/system/node/online", "0-7\n")
        for node, cpus in self.nodes.items():
            put(f"sys/devices/system/node/node{node}/cpulist", f"{cpus}\n")
        for at, (address, (node, path)) in enumerate(self.gpus.items()):
            about = f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{at}aa\nDevice Minor: \t {at}\n"
            put(f"proc/driver/nvidia/gpus/{address}/information", about)
            put(f"dev/nvidia{at}", "")
            self._device(root, f"sys/bus/pci/devices/{address}", node, path)
        for name, (node, path) in self.nics.items():
            self._device(root, f"sys/class/infiniband/{name}/device", node, path)

    @staticmethod
    def _device(root: Path, link: str, node: int, path: str) -> None:
        folder = root / "sys/devices" / path
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(folder)


_VM = "LNXSYSTM:00/VMBUS:00/pci{0}:00/{0}:00:00.0"
NDV5 = Machine(
    nodes={0: "48-95", 1: "0-47"},
    gpus={
        f"{domain}:00:00.0": (node, _VM.format(domain))
        for node, domains in ((0, "0001 0002 0003 0008"), (1, "0009 000a 000b 000c"))
        for domain in domains.split()
    },
    nics={f"mlx5_{n}": (n // 4, _VM.format(f"010{n + 1}")) for n in range(8)},
    allowed="0-95",
)

_A100 = {3: ("07", "0f"), 1: ("47", "4e"), 7: ("87", "90"), 5: ("b7", "bd")}
DGX_A100 = Machine(
    nodes={n: f"{16 * n}-{16 * n + 15},{128 + 16 * n}-{143 + 16 * n}" for n in range(8)},
    gpus={
        f"0000:{bus}:00.0": (node, f"pci0000:{node}0/0000:{node}0:01.1/0000:{bus}:00.0")
        for node, buses in _A100.items()
        for bus in buses
    },
    nics={
        f"mlx5_{n}": (node, f"pci0000:{node}0/0000:{node}0:{bridge}/0000:1{n}:00.0")
        for n, (node, bridge) in enumerate(
            [(3, "01.1"), (3, "02.1"), (1, "01.1"), (7, "01.1"), (5, "01.1"), (0, "01.1")]
        )
    },
    allowed="0-255",
)

#: of a desk: two CPUs, each a NUMA node, with a GPU
SMALL = Machine(
    nodes={0: "0", 1: "1"},
    gpus={f"0000:0{n}:00.0": (n, f"pci0000:0{n}/0000:0{n}:00.0") for n in (0, 1)},
    nics={},
    allowed="0-1",
)


def with_idle_node(machine: Machine) -> Machine:
    """The same with all GPUs at NUMA node 0."""
    return replace(machine, gpus={name: (0, path) for name, (_, path) in machine.gpus.items()})


@dataclass(frozen=True)
class Cpus:
    """CPU -> its socket and core; NUMA node -> its CPUs; CPUs that are switched off."""

    places: Mapping[int, tuple[int, int]]
    nodes: Mapping[int, Collection[int]]
    off: Collection[int] = ()

    @property
    def on(self) -> list[int]:
        """The CPUs that run."""
        return sorted(set(self.places) - set(self.off))

    def write(self, root: Path) -> None:
        """Make what a kernel tells of them below ``root``, as much as hwloc wants."""

        def put(path: str, text: object) -> None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"{text}\n")

        def put_cpus(mask: str, numbers: str, cpus: Collection[int]) -> None:
            bits = f"{sum(1 << cpu for cpu in cpus):0{8 * (max(self.places) // 32 + 1)}x}"
            put(mask, ",".join(bits[at : at + 8] for at in range(0, len(bits), 8)))
            put(numbers, fold_numbers(sorted(cpus)))

        put("proc/self/status", f"Cpus_allowed_list:\t{fold_numbers(self.on)}")
        put("sys/devices/system/cpu/online", fold_numbers(self.on))
        put("sys/devices/system/cpu/possible", fold_numbers(sorted(self.places)))
        for cpu in self.on:
            folder = f"sys/devices/system/cpu/cpu{cpu}/topology/"
            socket, core = self.places[cpu]
            put(folder + "physical_package_id", socket)
            put(folder + "core_id", core)
            beside = [one for one in self.on if self.places[one][0] == socket]
            threads = [one for one in beside if self.places[one][1] == core]
            for of, cpus in (("thread_siblings", threads), ("core_siblings", beside)):
                put_cpus(folder + of, f"{folder}{of}_list", cpus)
        if self.nodes:
            put("sys/devices/system/node/online", fold_numbers(sorted(self.nodes)))
        for node, own in self.nodes.items():
            folder = f"sys/devices/system/node/node{node}/"
            put_cpus(folder + "cpumap", folder + "cpulist", set(own) & set(self.on))
            put(folder + "meminfo", f"Node {node} MemTotal: 1000000 kB")
