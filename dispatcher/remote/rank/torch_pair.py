"""One end of a pair of hosts measured by all-reduces of torch: the whole program of a rank.

NCCL on GPU 0 of each host, or gloo on the CPU: apart from the device it is one path, that of a
training job, started by ``dispatcher.comm``; nothing else of dispatch is loaded. Latency is the
median time of an all-reduce of 8 bytes. Bandwidth is busbw as nccl-tests have it: tensors double
in size, then the number of all-reduces does, until a round takes long enough for the slower of the
two ranks, whose time counts. The sums are looked at: a wrong one is a failure.

Nothing is waited for beyond the deadline, whoever waits, torch or CUDA: then a thread of its own
tells what was being done, and ends the process. MPI_Init has the deadline of the job.

The result is a line of standard output, ``MARK`` and JSON: latency (s), rate (bytes/s), why
(what went wrong), lack (what this host itself lacks). argv: nccl or gloo, seconds for the
bandwidth, seconds for all once MPI is up.
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

#: as in ``mpi_pair``, which is not there where this runs
MARK = "dispatch pair: "
PINGS = 20
#: bytes of the first tensor and of the largest, and how many of those in a round at most
FIRST, LARGEST, MOST = 1 << 16, 1 << 28, 64


def lack(backend: str) -> str:
    """What ``backend`` needs and this host has not, with a remedy; "" if all is there."""
    for name in ("torch", "torch.distributed", "mpi4py", "dispatcher.comm.bandwidth"):
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken library raises what it likes
            return f"{sys.executable}: {name}: {_line(error)}; --python PATH names another"
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


class End:
    """This end of the pair, in ``job``, whose process group is up."""

    def __init__(self, torch: Any, job: Any) -> None:
        self._torch = torch
        self._distributed = torch.distributed
        self._job = job
        self._sync = torch.cuda.synchronize if job.backend == "nccl" else lambda: None

    def latency(self) -> float:
        """Seconds of a small all-reduce."""
        data = self._torch.zeros(2, device=self._job.device)
        self._timed(data, 1)  # the first one builds what the others use
        return sorted(self._timed(data, 1) for _ in range(PINGS))[PINGS // 2]

    def rate(self, seconds: float) -> float:
        """busbw, bytes/s. Raises: ArithmeticError."""
        bandwidth: Any = import_module("dispatcher.comm.bandwidth")
        size, times = FIRST, 1
        while True:
            data = self._torch.full((size // 4,), self._job.rank + 1.0, device=self._job.device)
            self._distributed.all_reduce(data)
            if not bool((data == 3).all()):
                raise ArithmeticError(f"wrong sums in an all-reduce of {size} bytes")
            data.zero_()
            took = self._slower(self._timed(data, times))
            if took * times > seconds / 2 or times >= MOST:
                return float(bandwidth.all_reduce_rates(size, took, self._job.size)[1])
            if size < LARGEST:
                size *= 2
            else:
                times *= 2

    def _timed(self, data: Any, times: int) -> float:
        """Seconds of one of ``times`` all-reduces."""
        self._sync()
        began = time.perf_counter()
        for _ in range(times):
            self._distributed.all_reduce(data)
        self._sync()
        return max(time.perf_counter() - began, 1e-9) / times

    def _slower(self, seconds: float) -> float:
        """The larger figure of both ranks: so they decide alike."""
        figure = self._torch.tensor([seconds], dtype=self._torch.float64, device=self._job.device)
        self._distributed.all_reduce(figure, op=self._distributed.ReduceOp.MAX)
        return float(figure.item())


class Told:
    """What this rank has found; it says it once, in time."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"latency": None, "rate": None, "why": "", "lack": ""}
        self.doing = ""
        self._once = threading.Lock()

    def tell(self) -> None:
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


def measure(told: Told, backend: str, seconds: float, limit: float) -> None:
    """Fill ``told``, and leave the job in good order if nothing went wrong."""
    found = told.found
    # two hosts that lack something are both told, not only the one that knows it first
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    found["lack"] = lack(backend)[:400]
    if found["lack"]:
        told.tell()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if found["lack"]:
        return
    comm: Any = import_module("dispatcher.comm")
    try:
        device = 0 if backend == "nccl" else "cpu"
        job = comm.init(timeout=limit, device=device, abort_on_exception=False)
        told.doing = f"starting {backend}"
        told.until(limit)
        if job.size != 2 or job.backend != backend:
            found["lack"] = f"{job.size} ranks have met for {job.backend}, not 2 for {backend}"
            return
        job.init_torch(timeout=limit)
        end = End(sys.modules["torch"], job)
        told.doing = "small all-reduces"
        found["latency"] = end.latency()
        told.doing = "large all-reduces"
        found["rate"] = end.rate(seconds)
        told.tell()
        job.close()
    except comm.EnvironmentMissing as error:
        found["why" if error.shared else "lack"] = _line(error)
    except Exception as error:  # noqa: BLE001 - torch raises what it likes
        found["why"] = _line(error)


def _line(error: Exception) -> str:
    """The first line of what ``error`` says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


if __name__ == "__main__":
    told = Told()
    measure(told, sys.argv[1], *map(float, sys.argv[2:4]))
    told.tell()
    if told.found["why"] or told.found["lack"]:
        os._exit(1)  # not by MPI_Finalize, which would wait for the other end
