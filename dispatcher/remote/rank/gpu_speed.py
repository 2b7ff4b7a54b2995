"""Times the GPUs of this host by torch: matrix products, copies, an all-reduce among them.

It runs by itself in the ranks' Python (``python -c``). Each line that it prints is JSON and has
more than the line before, so a part that hangs costs only itself::

    {"torch": "2.8.0", "why": "", "all_reduce": GB/s of busbw, or null,
     "gpus": [{"name": "NVIDIA H100 80GB HBM3", "product": TFLOP/s, "same": true,
               "to": GB/s from the host's memory, "from": GB/s back to it}]}

product: all GPUs at once, as at work, since power and heat are shared. same: two equal products
are equal, bit by bit.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: rows of a square matrix, seconds of products, bytes of a copy and of an all-reduce; their number
SIZE, SECONDS, COPY, REDUCE, TIMES = 8192, 1.5, 256 << 20, 1 << 30, 5


def main(torch: Any, devices: list[str], size: int = SIZE) -> None:
    """Print the lines. devices: as torch names them, ``cuda:0``; small on a CPU, for tests."""
    cuda = torch.cuda
    wait = cuda.synchronize if devices[:1] == ["cuda:0"] else lambda device: None
    found: dict[str, Any] = {"torch": torch.__version__, "why": "", "all_reduce": None, "gpus": []}
    torch.manual_seed(0)
    left, right = ((torch.rand(size, size) - 0.5).to(torch.bfloat16) for _ in range(2))
    found["gpus"] = [
        {"name": cuda.get_device_name(device) if "cuda" in device else "CPU"} for device in devices
    ]
    pairs = zip(devices, found["gpus"])
    work = [
        threading.Thread(target=product, args=(torch, left.to(device), right.to(device), wait, gpu))
        for device, gpu in pairs
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    del left, right, work
    tell(found)
    for device, gpu in zip(devices, found["gpus"]):
        copies(torch, device, wait, gpu, COPY if "cuda" in device else size)
    tell(found)
    if len(devices) > 1 and "cuda" in devices[0]:
        found["all_reduce"] = reduced(torch, devices, wait)
        tell(found)


def product(torch: Any, left: Any, right: Any, wait: Any, gpu: dict[str, Any]) -> None:
    """Add to ``gpu`` its TFLOP/s, and whether it gives the same twice."""
    device, size = left.device, left.shape[0]
    first, again = left @ right, left @ right
    wait(device)
    gpu["same"] = bool((first == again).all().item())
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < SECONDS or not rounds:
        for _ in range(10):
            torch.matmul(left, right, out=again)
        wait(device)
        rounds += 10
    gpu["product"] = 2 * size**3 * rounds / (time.monotonic() - began) / 1e12


def copies(torch: Any, device: str, wait: Any, gpu: dict[str, Any], count: int) -> None:
    """Add to ``gpu`` how fast its memory and the host's reach each other, in GB/s."""
    here = torch.empty(count, dtype=torch.uint8, pin_memory="cuda" in device)
    there = here.to(device)
    wait(device)
    for key, source, target in (("to", here, there), ("from", there, here)):
        began = time.monotonic()
        for _ in range(TIMES):
            target.copy_(source, non_blocking=True)
        wait(device)
        gpu[key] = count * TIMES / max(1e-9, time.monotonic() - began) / 1e9


def reduced(torch: Any, devices: list[str], wait: Any) -> float:
    """GB/s of busbw of NCCL's all-reduce in this one process; as nccl-tests count them."""
    tensors = [torch.ones(REDUCE // 4, device=device) for device in devices]
    began = 0.0
    for number in range(2 * TIMES):
        if number == TIMES:  # the first half starts NCCL
            for device in devices:
                wait(device)
            began = time.monotonic()
        torch.cuda.nccl.all_reduce(tensors)
    for device in devices:
        wait(device)
    count = len(devices)
    return 2 * (count - 1) / count * REDUCE * TIMES / (time.monotonic() - began) / 1e9


def tell(found: dict[str, Any]) -> None:
    """Print the results so far."""
    print(json.dumps(found), flush=True)


def run() -> None:
    """Time all GPUs that torch sees; why not, in a line, where that is not possible."""
    try:
        torch = import_module("torch")
    except ImportError:
        return tell({"why": "no torch in " + sys.executable})
    try:
        count = torch.cuda.device_count()
        main(torch, ["cuda:%d" % n for n in range(count)]) if count else tell({"gpus": []})
    except RuntimeError as error:  # out of memory, a faulty GPU
        tell({"why": str(error).splitlines()[0][:200]})


if __name__ == "__main__":
    run()
