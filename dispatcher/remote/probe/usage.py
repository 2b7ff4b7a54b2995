"""Reads how much of their host the ranks' processes use, from one look at /proc, and its GPUs.

A rank's figures are of its whole tree: the descendants of its process, and processes that stay in
its session after their parent died. The state is of the rank's own process. CPU time only
counts up; RSS counts pages that processes share once for each.

NVML, else ``nvidia-smi``, reports for each GPU: index, utilisation in %, bytes used, all bytes,
watts, degrees Celsius, watts at most, utilisation of its memory in %, UUID, bits for the reasons of
low clocks, Xids since the last reading; None for values that it lacks. Either may hang in the
driver, so ``read_gpus`` runs in its own process (``sampler``).
"""

from __future__ import annotations

import os
from time import monotonic, sleep

from dispatcher.remote.host.child import start_child
from dispatcher.remote.protocol.frames import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Dict, List, NoReturn, Tuple

    #: state, parent, session, CPU ticks, threads, RSS in pages, when born (ticks)
    Stat = Tuple[str, int, int, int, int, int, int]
    Table = Dict[int, Stat]
    #: CUDA_VISIBLE_DEVICES, number on this host, ranks on this host
    Place = Tuple["str | None", int, int]
    Reading = List[List[Any]]

#: processes of a host that are looked at
MOST = 1 << 16
#: bytes of a process's environment
MOST_ENVIRON = 1 << 20
LIBRARY = "libnvidia-ml.so.1"
QUERY = (
    "--query-gpu=index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,"
    "enforced.power.limit,utilization.memory,uuid",
    "--format=csv,noheader,nounits",
)
#: GPUs of one host; bytes of what nvidia-smi says
MOST_GPUS, MOST_TEXT = 64, 64 << 10
MIB = 1 << 20
#: nvmlEventTypeXidCriticalError
XID_EVENT = 8


def parse_stat(text: bytes) -> Stat | None:
    """Parse the contents of /proc/PID/stat; None for anything else. Source: proc(5)."""
    # the command name in parentheses may itself hold spaces and parentheses
    words = text.rpartition(b")")[2].split()
    try:
        state = words[0].decode("ascii")
        numbers = [int(word) for word in words[1:22]]
    except (IndexError, ValueError):
        return None
    if len(state) != 1 or not state.isalpha() or len(numbers) < 21 or min(numbers[10:14]) < 0:
        return None
    return (
        state, numbers[0], numbers[2], sum(numbers[10:14]), max(0, numbers[16]),
        max(0, numbers[20]), numbers[18],
    )  # fmt: skip


def process_table() -> Table:
    """pid -> state of each process that exists now."""
    found: Table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or len(found) >= MOST:
            continue
        stat = stat_of(int(name))
        if stat is not None:
            found[int(name)] = stat
    return found


def stat_of(pid: int) -> Stat | None:
    """The state of process ``pid``; None when it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return parse_stat(file.read(4096))
    except OSError:
        return None


def environ(pid: int) -> dict[str, str]:
    """The variables that the process was started with, as far as we may see."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = file.read(MOST_ENVIRON).decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(pair.partition("=")[::2] for pair in pairs)


def started_with(pid: int) -> Place | None:
    """The place of the rank whose process is ``pid``; None if its environment cannot be read."""
    words = environ(pid)
    try:
        local, count = (int(words[name]) for name in ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
    except (KeyError, ValueError):
        return None
    return words.get("CUDA_VISIBLE_DEVICES"), local, count


class Usage:
    """Reads CPU time and memory of ``ranks`` (rank -> pid of its process, a session leader)."""

    def __init__(self, ranks: dict[int, int]) -> None:
        self.ranks = ranks
        self.tick = float(os.sysconf("SC_CLK_TCK"))
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.born: dict[int, int] = {}
        self.places: dict[int, Place | None] = {}

    def place(self, rank: int) -> Place | None:
        """The first argument of ``gpus_of`` for ``rank``, from the variables at its start."""
        if rank not in self.places:
            self.places[rank] = started_with(self.ranks[rank])
        return self.places[rank]

    def of(self, table: Table) -> list[list[Any]]:
        """[rank, state, CPU seconds, RSS in bytes, threads, processes] of each that lives."""
        leaders = {}
        for rank, pid in self.ranks.items():
            stat = table.get(pid)
            if stat is not None and self.born.setdefault(pid, stat[6]) == stat[6]:
                leaders[pid] = rank
        sums = {pid: [0, 0, 0, 0] for pid in leaders}
        known: dict[int, int] = {}
        for pid, stat in table.items():
            leader = owner(pid, table, sums, known)
            if leader and stat[0] not in "ZX":
                for at, value in enumerate((stat[3], stat[5], stat[4], 1)):
                    sums[leader][at] += value
        return [
            [
                rank, table[pid][0], sums[pid][0] / self.tick, sums[pid][1] * self.page,
                sums[pid][2], sums[pid][3],
            ]
            for pid, rank in leaders.items()
        ]  # fmt: skip


def owner(pid: int, table: Table, leaders: Any, known: dict[int, int]) -> int:
    """The process of ``leaders`` whose tree has ``pid``, 0 if none has; ``known`` grows."""
    path: list[int] = []
    found = 0
    while pid in table and pid not in known and len(path) < len(table):
        path.append(pid)
        if pid in leaders or table[pid][2] in leaders:
            found = pid if pid in leaders else table[pid][2]
            break
        pid = table[pid][1]
    else:
        found = known.get(pid, 0)
    for passed in path:
        known[passed] = found
    return found


# -- GPUs --------------------------------------------------------------------------------


def read_gpus(out: int, seconds: float) -> NoReturn:
    """Write a reading to ``out`` every ``seconds``, until the reader is gone or there is no GPU."""
    read = library() or program()
    while read is not None:
        began = monotonic()
        found = read()
        if not found:
            break
        os.write(out, control("gpus", gpus=found))
        sleep(max(0.1, seconds - (monotonic() - began)))
    os._exit(0)


def library() -> Callable[[], Reading] | None:
    """A function that reads through NVML; None if it is not available. Source: nvml.h."""
    import ctypes as c

    try:
        nvml = c.CDLL(LIBRARY)
        if nvml.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None

    def ask(name: str, answer: Any, *before: Any) -> Any:
        """The value that the function puts into ``answer``; None if it does not work."""
        try:
            return answer if getattr(nvml, name)(*before, c.byref(answer)) == 0 else None
        except AttributeError:  # an older library
            return None

    class Event(c.Structure):
        """nvmlEventData_t."""

        _fields_ = (
            ("device", c.c_void_p), ("kind", c.c_ulonglong), ("data", c.c_ulonglong),
            ("gpu_instance", c.c_uint), ("compute_instance", c.c_uint),
        )  # fmt: skip

    errors = ask("nvmlEventSetCreate", c.c_void_p())
    heard: set[int] = set()  # the GPUs whose errors come, by handle

    def xids() -> dict[int, list[int]]:
        """Handle -> Xids that have come since the last call."""
        found: dict[int, list[int]] = {}
        for _ in range(MOST_GPUS if errors is not None else 0):
            event = Event()
            if nvml.nvmlEventSetWait_v2(errors, c.byref(event), 0) != 0:
                break
            found.setdefault(event.device or 0, []).append(min(event.data, 1 << 10))
        return found

    def listen(gpu: Any) -> None:
        if errors is not None and gpu.value not in heard:
            heard.add(gpu.value)
            nvml.nvmlDeviceRegisterEvents(gpu, c.c_ulonglong(XID_EVENT), errors)

    def figure(name: str, unit: float, *before: Any) -> float | None:
        answer = ask(name, c.c_uint(), *before)
        return None if answer is None else answer.value * unit

    def read() -> Reading:
        count = ask("nvmlDeviceGetCount_v2", c.c_uint())
        found: Reading = []
        came = xids()
        for index in range(min(MOST_GPUS, 0 if count is None else count.value)):
            gpu = ask("nvmlDeviceGetHandleByIndex_v2", c.c_void_p(), index)
            if gpu is None:
                found.append([index] + [None] * 9 + [[]])  # fallen off the bus
                continue
            listen(gpu)
            reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", c.c_ulonglong(), gpu) or ask(
                "nvmlDeviceGetCurrentClocksThrottleReasons", c.c_ulonglong(), gpu
            )
            rates = ask("nvmlDeviceGetUtilizationRates", (c.c_uint * 2)(), gpu)
            memory = ask("nvmlDeviceGetMemoryInfo", (c.c_ulonglong * 3)(), gpu)
            name = c.create_string_buffer(96)
            is_named = nvml.nvmlDeviceGetUUID(gpu, name, 96) == 0
            found.append([
                index,
                None if rates is None else float(rates[0]),
                None if memory is None else memory[2],  # total, free, used
                None if memory is None else memory[0],
                figure("nvmlDeviceGetPowerUsage", 0.001, gpu),
                figure("nvmlDeviceGetTemperature", 1.0, gpu, 0),
                figure("nvmlDeviceGetEnforcedPowerLimit", 0.001, gpu),
                None if rates is None else float(rates[1]),
                name.value.decode("ascii", "replace") if is_named else None,
                None if reasons is None else reasons.value,
                came.get(gpu.value, []),
            ])  # fmt: skip
        return found

    return read


def program() -> Callable[[], Reading] | None:
    """A function that reads through ``nvidia-smi``; None if it is not installed."""
    for folder in os.environ.get("PATH", "").split(":") + ["/usr/bin"]:
        path = os.path.join(folder, "nvidia-smi")
        if folder and os.access(path, os.X_OK):
            return lambda: parse(output([path, *QUERY]))
    return None


def start_program(argv: list[str]) -> tuple[int, int]:
    """Run ``argv``, with an absolute path; its pid, and a pipe with its standard output."""

    def run(into: int) -> None:
        null = os.open("/dev/null", os.O_RDWR)
        for fd, here in ((null, 0), (into, 1), (null, 2)):
            os.dup2(fd, here)
        os.execv(argv[0], argv)  # noqa: S606 - our own words, no shell

    return start_child(run, argv[0])


def output(argv: list[str]) -> bytes:
    """The standard output of ``argv``, bounded; waits for its end."""
    pid, out = start_program(argv)
    data = b""
    while len(data) < MOST_TEXT and (more := os.read(out, MOST_TEXT)):
        data += more
    os.close(out)
    os.waitpid(pid, 0)
    return data


def parse(text: bytes) -> Reading:
    """The reading in nvidia-smi's answer to ``QUERY``; lines that are not whole are left out."""
    found: Reading = []
    for line in text.split(b"\n")[:MOST_GPUS]:
        words = [word.strip() for word in line.split(b",")]
        index = number(words[0])
        if len(words) != 9 or index is None or index != int(index) or index >= 1 << 10:
            continue
        rest = [number(word) for word in words[1:8]]
        found.append([
            int(index), rest[0], *(None if n is None else int(n * MIB) for n in rest[1:3]),
            *rest[3:], words[8].decode("ascii", "replace"), None, [],
        ])  # fmt: skip
    return found


def gpus_of(place: tuple[str | None, int, int] | None, gpus: Reading) -> list[list[int] | None]:
    """Indices of the GPUs that a rank is taken to use, and of all that it may use.

    place: its CUDA_VISIBLE_DEVICES, its number on this host, and how many ranks there are.
    By number they are NVML's, as CUDA's are among equal GPUs. None if it is unknown.
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
                break  # CUDA does not see later entries either
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
