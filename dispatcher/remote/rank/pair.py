"""One end of a pair of hosts measured by two ranks, one on each: the whole program of a rank.

``mpi``: over MPI alone; any Python from 3.8 on with mpi4py can run it, nothing of dispatch is
loaded. Rank 0 plays ping-pong, then sends, then receives. A direction is measured in rounds that
double in size until one takes long enough: so a slow link needs few bytes and a fast one is not
measured by its latency, and nothing is left under way when it is over. The round is over when the
other end has all of it and said so. Nothing is waited for beyond the deadline: requests are tested.

``nccl`` or ``gloo``: by all-reduces of torch, on GPUs or on the CPU: apart from the device it is
one path, that of a training job, started by ``dispatcher.comm``. Latency is the median time of an
all-reduce of 8 bytes. Bandwidth is busbw as nccl-tests have it, bytes / time * 2 (n - 1) / n:
tensors double in size, then the number of all-reduces does, until a round takes long enough for
the slowest rank, whose time counts. The sums are looked at: a wrong one is a failure. Where a host
has several ranks, one a GPU, three things are measured: all of them together; those of each host
by themselves, with tensors up to ``HUGE`` bytes, which NVLinks need; and all *rails* at once. A
rail is one local rank on both hosts; they reach each other by the card that is near their GPUs.
Whoever waits there, torch or CUDA, cannot be asked to stop: when time is up a thread
of its own tells what was being done, and ends the process. MPI_Init has the deadline of the job.

The result is a line of standard output, ``MARK`` and JSON: latency (s, there and back), rate
(bytes/s that this end sent), why (what went wrong), lack (what this host itself lacks), and by
torch also node, local (which rank this is there), gpu (its name), gpus (ranks of this host), inside
and rail (bytes/s; left out for a host with one rank). argv: mpi, nccl or gloo, seconds for a
direction, seconds for all once MPI is up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from array import array
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "dispatch pair: "
PINGS = 20
#: bytes of the first round
FIRST = 1 << 16
#: over MPI: bytes of a message, and of the last round; messages under way
PIECE, MOST, AHEAD = 1 << 22, 1 << 30, 4
#: bytes of the largest tensor, and how many of those in a round at most
LARGEST, REPEATS = 1 << 28, 64
#: inside a host, where GPUs have four times as much free
HUGE = 1 << 33
#: how a training environment gets ``dispatcher.comm``, and nothing that only a launcher needs
_INSTALL = "pip install --no-deps dispatch-launcher there"


class Result:
    """What this rank has found; it says it once, in time."""

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


class MpiEnd:
    """This end of the pair on ``world``; ``until``: when all is late."""

    def __init__(self, world: Any, until: float) -> None:
        self._world = world
        self._until = until
        self._other = 1 - world.Get_rank()
        self._word = array("q", [0])
        self._piece = memoryview(bytearray(PIECE))

    def wait(self, request: Any) -> None:
        """Raises: TimeoutError."""
        while not request.Test():
            if time.monotonic() > self._until:
                raise TimeoutError("no answer in time")
            os.sched_yield()

    def send_number(self, number: int) -> None:
        """Send a number. Raises: TimeoutError, as all below."""
        self.wait(self._world.Isend(array("q", [number]), self._other))

    def receive_number(self) -> int:
        """The number that the other end sends."""
        self.wait(self._world.Irecv(self._word, self._other))
        return self._word[0]

    def ping(self) -> float:
        """Seconds there and back."""
        times = []
        for _ in range(PINGS):
            began = time.monotonic()
            self.send_number(1)
            self.receive_number()
            times.append(time.monotonic() - began)
        return sorted(times)[len(times) // 2]

    def pong(self) -> None:
        """The other end of ``ping``."""
        for _ in range(PINGS):
            self.receive_number()
            self.send_number(1)

    def send(self, seconds: float) -> float:
        """Bytes/s that arrived at the other end."""
        size = FIRST
        while True:
            began = time.monotonic()
            self.send_number(size)
            under_way = []
            for at in range(0, size, PIECE):
                piece = self._piece[: min(PIECE, size - at)]
                under_way.append(self._world.Isend(piece, self._other))
                if len(under_way) == AHEAD:
                    self.wait(under_way.pop(0))
            for request in under_way:
                self.wait(request)
            self.receive_number()
            took = time.monotonic() - began
            if took > seconds / 2 or size >= MOST:
                self.send_number(0)
                return size / max(took, 1e-6)
            size *= 2

    def receive(self) -> None:
        """The other end of ``send``."""
        while True:
            left = self.receive_number()
            if not 0 < left <= MOST:
                return
            while left:
                piece = self._piece[: min(PIECE, left)]
                self.wait(self._world.Irecv(piece, self._other))
                left -= len(piece)
            self.send_number(1)


def measure_mpi(found: dict[str, Any], seconds: float, limit: float) -> None:
    """Fill ``found`` over MPI alone."""
    try:
        mpi = import_module("mpi4py.MPI")
    except ImportError as error:
        found["lack"] = f"{sys.executable}: {error}; --python PATH names another"[:400]
        return
    try:
        world = mpi.COMM_WORLD
        if world.Get_size() != 2:
            found["lack"] = f"MPI has made a world of {world.Get_size()}"
            return
        end = MpiEnd(world, time.monotonic() + limit)
        if world.Get_rank() == 0:
            found["latency"] = end.ping()
            found["rate"] = end.send(seconds)
            end.receive()
        else:
            end.pong()
            end.receive()
            found["rate"] = end.send(seconds)
    except (TimeoutError, mpi.Exception) as error:
        found["why"] = (str(error).splitlines() or ["MPI failed"])[0][:400]


def lack(backend: str) -> str:
    """What ``backend`` needs and this host has not, with a remedy; "" if all is there."""
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
        self._timed(data, 1)  # the first one builds what the others use
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
        """The largest figure of the ranks: so they decide alike."""
        figure = self._torch.tensor([seconds], dtype=self._torch.float64, device=self._job.device)
        highest = self._distributed.ReduceOp.MAX
        self._distributed.all_reduce(figure, op=highest, group=self._group)
        return float(figure.item())


def place(size: int) -> tuple[int, int, list[list[int]]]:
    """Our node, our number there, and the ranks of both nodes, in a world of ``size``.

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
    """Each host by itself, and then all rails at once; ``mine``: our node and number there."""
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
    # two hosts that lack something are both told, not only the one that knows it first
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
    """The first line of what ``error`` says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


if __name__ == "__main__":
    result = Result()
    backend, figures = sys.argv[1], map(float, sys.argv[2:4])
    if backend == "mpi":
        measure_mpi(result.found, *figures)
    else:
        measure_torch(result, backend, *figures)
    result.tell()
    if result.found["why"] or result.found["lack"]:
        os._exit(1)  # not by MPI_Finalize, which would wait for the other end
