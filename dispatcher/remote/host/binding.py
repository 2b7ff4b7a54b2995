"""Where this host's CPUs, GPUs and RDMA devices sit, and binding a rank to some of them.

CUDA's GPU 0 is the first by PCI address of the GPUs that we may open, if all are of one model. The
driver's files, which may be slow, are read only if not all GPUs are ours or they are named by UUID.
"""

from __future__ import annotations

import _ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: set_mempolicy(2) and get_mempolicy(2), by machine: the C library has no function for them
POLICY_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236), "riscv64": (237, 236)}
MPOL_BIND = 2
#: words of 64 bits of a set of NUMA nodes; the kernel knows at most 1024
WORDS = 16


def topology(wanted: list[bytes], gpus: int, root: str = "") -> dict[str, Any] | None:
    """The place of this host's CPUs and GPUs; None if there is nothing to choose.

    wanted: words; ``auto``: None unless there are GPUs and several NUMA nodes; ``core``: cores as
    well; ``uuid``: GPUs by UUID, too; ``nics``: RDMA devices as well. gpus: how many we may open.

    CPUs are texts: ``0-3,8``. allowed: those that we may run on. nodes: [number, CPUs]; cores: the
    CPUs of each; gpus, nics: [UUID or name, NUMA node or -1, PCI addresses, host bridge first], no
    GPUs where CUDA's order of them is not known.
    """
    sys = root + "/sys/devices/system/"
    nodes = []
    for number in sorted(_numbers(_names(sys + "node"), "node")):
        cpus = _read(sys + "node/node%d/cpulist" % number)
        if cpus:
            nodes.append([number, cpus])
    if b"auto" in wanted and b"nics" not in wanted and (len(nodes) < 2 or not gpus):
        return None
    cores = set()
    if b"core" in wanted:
        for cpu in os.sched_getaffinity(0):
            path = sys + "cpu/cpu%d/topology/thread_siblings_list" % cpu
            cores.add(_read(path) or str(cpu))
    sockets = set()
    if b"socket" in wanted:
        for cpu in os.sched_getaffinity(0):
            path = sys + "cpu/cpu%d/topology/" % cpu
            sockets.add(_read(path + "package_cpus_list") or _read(path + "core_siblings_list"))
    nics = []
    if b"nics" in wanted:
        for name in sorted(_names(root + "/sys/class/infiniband")):
            device = root + "/sys/class/infiniband/%s/device" % name
            nics.append([name, _node_of(device), _path(device)])
    return {
        "allowed": _field(root + "/proc/self/status", "Cpus_allowed_list"),
        "nodes": nodes,
        "cores": sorted(cores),
        "sockets": sorted(sockets - {""}),
        "gpus": _gpus(root, gpus, b"uuid" in wanted),
        "nics": nics,
    }


def _gpus(root: str, count: int, by_uuid: bool) -> list[list[Any]]:
    folder = root + "/proc/driver/nvidia/gpus"
    addresses = sorted(_names(folder))
    ask = by_uuid or len(addresses) != count
    ask = ask or os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("GPU-")
    found = []
    for address in addresses:
        uuid = ""
        if ask:
            about = "%s/%s/information" % (folder, address)
            device = root + "/dev/nvidia" + _field(about, "Device Minor")
            if not os.access(device, os.R_OK | os.W_OK):
                continue
            uuid = _field(about, "GPU UUID")
        device = root + "/sys/bus/pci/devices/" + address.lower()
        found.append([uuid, _node_of(device), _path(device)])
    return found if len(found) == count else []


def _node_of(device: str) -> int:
    try:
        return int(_read(device + "/numa_node"))
    except ValueError:
        return -1


def _path(device: str) -> str:
    _, found, rest = os.path.realpath(device).partition("/pci")
    return found[1:] + rest


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _numbers(names: list[str], prefix: str) -> list[int]:
    size = len(prefix)
    return [int(name[size:]) for name in names if name[:size] == prefix and name[size:].isdigit()]


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(4096).strip()
    except OSError:
        return ""


def _field(path: str, name: str) -> str:
    """The value of a line ``name: value``; "" for none."""
    for line in _read(path).splitlines():
        if line.partition(":")[0] == name:
            return line.partition(":")[2].strip()
    return ""


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Word(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "L"


class _Call(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | 0x8  # ctypes keeps errno
    _restype_ = _Long
    _argtypes_ = (_Long,) * 6


def _policy(which: int, mode: int, mask: Any) -> None:
    """set_mempolicy (0), mode a value, or get_mempolicy (1), mode an address. Raises: OSError."""
    numbers = POLICY_CALLS.get(os.uname().machine)
    if numbers is None:
        raise OSError(38, "no memory policy is known for this kind of machine")
    program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    call = _Call(_ctypes.dlsym(program, "syscall"))
    if call(numbers[which], mode, _ctypes.addressof(mask), 64 * WORDS, 0, 0) < 0:
        number = _ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Bound:
    """While entered, new processes run on ``cpus`` only, with memory of NUMA ``nodes`` only.

    nodes: none for our own policy. If the kernel refuses a change, it is left out and ``refused``
    holds a text about it.
    """

    def __init__(self, cpus: list[int], nodes: list[int]) -> None:
        self.cpus = cpus
        self.nodes = nodes
        self.refused = ""

    def __enter__(self) -> Bound:
        self.before = os.sched_getaffinity(0)
        self.mode = self.mask = None
        try:
            os.sched_setaffinity(0, self.cpus)
            if self.nodes:
                mode, mask, wanted = _Long(), (_Word * WORDS)(), (_Word * WORDS)()
                for node in self.nodes:
                    wanted[node // 64] |= 1 << node % 64
                _policy(1, _ctypes.addressof(mode), mask)
                _policy(0, MPOL_BIND, wanted)
                self.mode, self.mask = mode, mask
        except (OSError, ValueError) as error:
            what = "memory" if os.sched_getaffinity(0) == set(self.cpus) and self.nodes else "CPUs"
            self.refused = "%s: %s" % (what, getattr(error, "strerror", None) or error)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.mode is not None:
                _policy(0, self.mode.value, self.mask)
            os.sched_setaffinity(0, self.before)
        except OSError:
            pass  # we were moved in between, to a set without these CPUs
