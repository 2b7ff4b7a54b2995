"""One end of a pair of hosts measured by ranks of torch, over NCCL or gloo: a rank's whole program.

Latency is the median time of an all-reduce of 8 bytes. Bandwidth is busbw as nccl-tests have it,
of a round that takes long enough for the slowest rank. A wrong sum is a failure. Where a host has
several ranks, it measures three things: all of them together, the ranks of each host by themselves,
and all *rails* at once: a rail is one local rank on both hosts. When time is up a thread reports
the current step, and ends the process.

The result is a line of standard output, ``MARK`` and JSON: latency (s, there and back), rate
(bytes/s that this end sent), why (what went wrong), lack (what this host itself lacks), node,
local (which rank this is there), gpu (its name), gpus (ranks of this host), inside and rail
(bytes/s). argv: nccl or gloo, seconds for a direction, seconds for all once MPI is up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "dispatch pair: "
PINGS = 20
#: bytes of the first round
FIRST = 1 << 16
#: bytes of the largest tensor, and how many such tensors are in a round at most
LARGEST, REPEATS = 1 << 28, 64
#: inside a host, where GPUs have four times as much free
HUGE = 1 << 33
#: how a training environment gets ``dispatcher.comm``, and nothing that only a launcher needs
_INSTALL = "pip install --no-deps dispatch-launcher there"


class Result:
    """This rank's result; it is printed once, in time."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"latency": None, "rate": None, "why": "", "lack": ""}
        self.doing = ""
        self._once = threading.Lock()

    def tell(self) -> None:
        """Write the line, unless it was written before."""
        if self._once.acquire(blocking=False):
            print(MARK + json.dumps(self.found), flush=True)

    def until(self, limit: float) -> None:
        """This process ends in ``limit`` seconds, whatever it then waits for."""
        late = threading.Timer(limit, self._late)
        late.daemon = True
        late.start()

    def _late(self) -> None:
        self.found["why"] = f"no answer in time: {self.doing}"
        self.tell()
        os._exit(1)


def lack(backend: str) -> str:
    """The first thing that ``backend`` needs and this host lacks, with a remedy; else ""."""
    for name in ("torch", "torch.distributed", "mpi4py", "dispatcher.comm"):
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken library raises what it likes
            remedy = f"{_INSTALL}, or " if name.startswith("dispatcher") else ""
            why = f"{name}: {_line(error)}"
            return f"{sys.executable}: {why}; {remedy}--python PATH names another"
    if backend != "nccl":
        return ""
    torch: Any = sys.modules["torch"]
    if not torch.cuda.is_available():
        built = "is built for the CPU alone" if torch.version.cuda is None else "sees no GPU"
        remedy = "a torch for CUDA" if torch.version.cuda is None else "ask nvidia-smi why"
        return f"torch {torch.__version__} {built}; {remedy}, or --backend gloo"
    if not torch.distributed.is_nccl_available():
        return f"torch {torch.__version__} is built without NCCL; another torch, or --backend gloo"
    return ""


class TorchEnd:
    """This end, in ``job``, whose process group is up. ranks: those that reduce together; all."""

    def __init__(self, torch: Any, job: Any, ranks: Any = None, group: Any = None) -> None:
        self._torch = torch
        self._distributed = torch.distributed
        self._job = job
        self._group = group
        self._ranks = list(range(job.size) if ranks is None else ranks)
        self._sync = torch.cuda.synchronize if job.backend == "nccl" else lambda: None

    def latency(self) -> float:
        """Seconds of a small all-reduce."""
        data = self._torch.zeros(2, device=self._job.device)
        self._timed(data, 1)  # the first call builds what the others use
        return sorted(self._timed(data, 1) for _ in range(PINGS))[PINGS // 2]

    def rate(self, seconds: float, largest: int = 0) -> float:
        """busbw, bytes/s. largest: bytes of a tensor; 0: ``LARGEST``. Raises: ArithmeticError."""
        size, times = FIRST, 1
        n = len(self._ranks)
        total = sum(rank + 1.0 for rank in self._ranks)
        while True:
            data = self._torch.full((size // 4,), self._job.rank + 1.0, device=self._job.device)
            self._distributed.all_reduce(data, group=self._group)
            if not bool((data == total).all()):
                raise ArithmeticError(f"wrong sums in an all-reduce of {size} bytes")
            data.zero_()
            took = self._slower(self._timed(data, times))
            if took * times > seconds / 2 or times >= REPEATS:
                return size / took * 2 * (n - 1) / n
            if size * 2 <= (largest or LARGEST):
                size *= 2
            else:
                times *= 2

    def huge(self) -> int:
        """Bytes of the largest tensor inside a host."""
        if self._job.backend != "nccl":
            return LARGEST
        free = self._torch.cuda.mem_get_info()[0]
        return int(min(HUGE, max(LARGEST, free // 4)))

    def _timed(self, data: Any, times: int) -> float:
        """Seconds of one of ``times`` all-reduces."""
        self._sync()
        began = time.perf_counter()
        for _ in range(times):
            self._distributed.all_reduce(data, group=self._group)
        self._sync()
        return max(time.perf_counter() - began, 1e-9) / times

    def _slower(self, seconds: float) -> float:
        """The largest figure of the ranks, so that all decide the same."""
        figure = self._torch.tensor([seconds], dtype=self._torch.float64, device=self._job.device)
        highest = self._distributed.ReduceOp.MAX
        self._distributed.all_reduce(figure, op=highest, group=self._group)
        return float(figure.item())


def place(size: int) -> tuple[int, int, list[list[int]]]:
    """Our node, our number on it, and the ranks of both nodes, in a world of ``size``.

    As the environment of the rank has it; without one there are two ranks, on a node each.
    """
    local, here = (
        int(os.environ.get(f"LOCAL_{n}", d)) for n, d in (("RANK", 0), ("WORLD_SIZE", 1))
    )
    node = int(os.environ.get("NODE_RANK", "0"))
    first = size - here if node else here
    return node, local, [list(range(first)), list(range(first, size))]


def measure_several(
    result: Result, job: Any, nodes: list[list[int]], mine: tuple[int, int], seconds: float
) -> None:
    """Each host by itself, and then all rails at once; ``mine``: our node and number on it."""
    torch: Any = sys.modules["torch"]
    found, new_group = result.found, torch.distributed.new_group
    node, local = mine
    rails = list(zip(*nodes))
    # every rank makes all groups, in one order
    inside = [TorchEnd(torch, job, ranks, new_group(ranks)) for ranks in nodes]
    between = [TorchEnd(torch, job, ranks, new_group(list(ranks))) for ranks in rails]
    if job.backend == "nccl":
        found["gpu"] = torch.cuda.get_device_name()
    if len(nodes[node]) > 1:
        result.doing = "all-reduces inside the host"
        found["inside"] = inside[node].rate(seconds, inside[node].huge())
    result.doing = "all rails at once"
    TorchEnd(torch, job).latency()  # all begin together
    if local < len(rails):
        found["rail"] = between[local].rate(seconds)


def measure_torch(result: Result, backend: str, seconds: float, limit: float) -> None:
    """Fill ``result``, and leave the job in good order if nothing went wrong."""
    found = result.found
    # if both hosts lack something, both must report it, not only the first
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    found["lack"] = lack(backend)[:400]
    if found["lack"]:
        result.tell()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if found["lack"]:
        return
    comm: Any = import_module("dispatcher.comm")
    try:
        device = int(os.environ.get("LOCAL_RANK", "0")) if backend == "nccl" else "cpu"
        job = comm.init(timeout=limit, device=device, abort_on_exception=False)
        result.doing = f"starting {backend}"
        result.until(limit)
        node, local, nodes = place(job.size)
        if not all(nodes) or job.backend != backend:
            met = "1 rank has" if job.size == 1 else f"{job.size} ranks have"
            found["lack"] = f"{met} met for {job.backend}, not 2 for {backend}"
            return
        found.update(node=node, local=local, gpus=len(nodes[node]))
        job.init_torch(timeout=limit)
        end = TorchEnd(sys.modules["torch"], job)
        result.doing = "small all-reduces"
        found["latency"] = end.latency()
        result.doing = "large all-reduces"
        found["rate"] = end.rate(seconds)
        if job.size > 2:
            measure_several(result, job, nodes, (node, local), seconds)
        result.tell()
        job.close()
    except comm.EnvironmentMissing as error:
        found["why" if error.shared else "lack"] = _line(error)
    except Exception as error:  # noqa: BLE001 - torch raises what it likes
        found["why"] = _line(error)


def _line(error: Exception) -> str:
    """The first line of the message of ``error``."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


if __name__ == "__main__":
    result = Result()
    measure_torch(result, sys.argv[1], *map(float, sys.argv[2:4]))
    result.tell()
    if result.found["why"] or result.found["lack"]:
        os._exit(1)  # not by MPI_Finalize, which would wait for the other end
