"""What the host's NVIDIA GPUs do: by NVML where its library is, else by ``nvidia-smi``.

A reading is a list for each GPU: index, utilisation in %, bytes used, bytes there are, watts,
degrees Celsius, watts at most, utilisation of its memory in %, UUID; None for what a GPU does
not tell.

Either way may hang in a driver that is stuck, in a place where no deadline reaches. So ``main``
is a process of its own (see ``sampler``), which whoever waits for it kills when it is late.
No GPU is no error: then it ends without a word.
"""

from __future__ import annotations

import os
from time import monotonic, sleep

from dispatcher.remote.protocol.packing import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, List, NoReturn

    Reading = List[List[Any]]

LIBRARY = "libnvidia-ml.so.1"
QUERY = (
    "--query-gpu=index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,"
    "enforced.power.limit,utilization.memory,uuid",
    "--format=csv,noheader,nounits",
)
#: GPUs of one host; bytes of what nvidia-smi says
MOST, MOST_TEXT = 64, 64 << 10
MIB = 1 << 20


def main(out: int, seconds: float) -> NoReturn:
    """Write a reading to ``out`` every ``seconds``, until nobody reads or there is no GPU."""
    read = library() or program()
    while read is not None:
        began = monotonic()
        found = read()
        if not found:
            break
        data = pack(found)
        os.write(out, b"%08d" % len(data) + data)
        sleep(max(0.1, seconds - (monotonic() - began)))
    os._exit(0)


def library() -> Callable[[], Reading] | None:
    """What reads through NVML; None where that is not to be had. Source: nvml.h."""
    import ctypes as c

    try:
        nvml = c.CDLL(LIBRARY)
        if nvml.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None

    def ask(name: str, answer: Any, *before: Any) -> Any:
        """What the function puts into ``answer``; None if it does not work here."""
        try:
            return answer if getattr(nvml, name)(*before, c.byref(answer)) == 0 else None
        except AttributeError:  # an older library
            return None

    def first(answer: Any, unit: float = 1) -> Any:
        return None if answer is None else answer.value * unit

    def read() -> Reading:
        count = ask("nvmlDeviceGetCount_v2", c.c_uint())
        found: Reading = []
        for index in range(min(MOST, 0 if count is None else count.value)):
            gpu = ask("nvmlDeviceGetHandleByIndex_v2", c.c_void_p(), index)
            if gpu is None:
                found.append([index] + [None] * 8)  # fallen off the bus
                continue
            rates = ask("nvmlDeviceGetUtilizationRates", (c.c_uint * 2)(), gpu)
            memory = ask("nvmlDeviceGetMemoryInfo", (c.c_ulonglong * 3)(), gpu)
            watts = ask("nvmlDeviceGetPowerUsage", c.c_uint(), gpu)
            degrees = ask("nvmlDeviceGetTemperature", c.c_uint(), gpu, 0)
            limit = ask("nvmlDeviceGetEnforcedPowerLimit", c.c_uint(), gpu)
            name = c.create_string_buffer(96)
            is_named = nvml.nvmlDeviceGetUUID(gpu, name, 96) == 0
            found.append([
                index,
                None if rates is None else float(rates[0]),
                None if memory is None else memory[2],  # total, free, used
                None if memory is None else memory[0],
                first(watts, 0.001),
                None if degrees is None else float(degrees.value),
                first(limit, 0.001),
                None if rates is None else float(rates[1]),
                name.value.decode("ascii", "replace") if is_named else None,
            ])  # fmt: skip
        return found

    return read


def program() -> Callable[[], Reading] | None:
    """What reads through ``nvidia-smi``; None where there is none."""
    for folder in os.environ.get("PATH", "").split(":") + ["/usr/bin"]:
        path = os.path.join(folder, "nvidia-smi")
        if folder and os.access(path, os.X_OK):
            return lambda: parse(output([path, *QUERY]))
    return None


def output(argv: list[str]) -> bytes:
    """What ``argv`` writes to its standard output, bounded; waits for its end."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 2)
            os.dup2(into, 1)
            os.execv(argv[0], argv)  # noqa: S606 - our own words, no shell
        finally:
            os._exit(127)
    os.close(into)
    data = b""
    while len(data) < MOST_TEXT:
        more = os.read(out, MOST_TEXT)
        if not more:
            break
        data += more
    os.close(out)
    os.waitpid(pid, 0)
    return data


def parse(text: bytes) -> Reading:
    """The reading in nvidia-smi's answer to ``QUERY``; lines that are not whole are left out."""
    found: Reading = []
    for line in text.split(b"\n")[:MOST]:
        words = [word.strip() for word in line.split(b",")]
        index = number(words[0])
        if len(words) != 9 or index is None or index != int(index) or index >= 1 << 10:
            continue
        rest = [number(word) for word in words[1:8]]
        found.append([
            int(index), rest[0], *(None if n is None else int(n * MIB) for n in rest[1:3]),
            *rest[3:], words[8].decode("ascii", "replace"),
        ])  # fmt: skip
    return found


def given(place: tuple[str | None, int, int] | None, gpus: Reading) -> list[list[int] | None]:
    """Indices of the GPUs that a rank is taken to use, and of all that it may use.

    place: its CUDA_VISIBLE_DEVICES, its number on this host, and how many ranks there are.
    By number they are NVML's, as CUDA's are among equal GPUs. None where nobody can tell.
    """
    if place is None or not gpus:
        return [None, None]
    text, local, count = place
    every = [gpu[0] for gpu in gpus]
    if text is not None:
        every = []
        for word in text.split(","):
            word = word.strip()
            if word in ("", "-1", "NoDevFiles"):
                break  # what follows is not seen by CUDA either
            if word[:8] == "MIG-GPU-":
                word = word[4:].split("/")[0]
            found = [
                gpu[0]
                for gpu in gpus
                if word == str(gpu[0]) or (word[:4] == "GPU-" and (gpu[8] or "").startswith(word))
            ]
            if len(found) != 1:
                return [None, None]
            every += found
    own = every if count < 2 or not every else [every[local % len(every)]]
    return [own, every]


def number(word: bytes) -> float | None:
    """The number in ``word``, 0 to 10 million; None for ``[N/A]``, ``ERR!`` and all else."""
    if not word.replace(b".", b"", 1).isdigit() or len(word) > 16:
        return None
    value = float(word)
    return value if value <= 1e7 else None
