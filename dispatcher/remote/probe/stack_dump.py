"""Where the ranks of this host are in their programs, and what NCCL and torch know: one report.

Taken by the sampler's process, so that the agent never waits, and bounded in time and bytes. All
ranks are asked at once: by py-spy, else by faulthandler at ``SIGNAL``, which is sent only to a
process that catches it and has the file for it open, else /proc (``docs/design/hangs.md``).
A rank's Python is the first one below its process: the program may be a script that starts it.
"""

from __future__ import annotations

import os
import select
from _signal import SIGKILL  # type: ignore[import-not-found]
from _socket import AF_INET, SOCK_STREAM, socket
from time import CLOCK_BOOTTIME, clock_gettime, monotonic, sleep, time

from dispatcher.remote.host.proctree import where
from dispatcher.remote.probe import usage
from dispatcher.remote.protocol.frames import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    #: rank -> (pid, its tree)
    Trees = Dict[int, Tuple[int, List[int]]]

#: what makes a rank that knows our folder write its stacks there: far from those that others use
SIGNAL = 62
#: bytes of all texts, of one at most, and of all dumps of torch's
TEXTS, TEXT, FLIGHTS = 512 << 10, 64 << 10, 256 << 10
#: threads of a rank, and bytes of what RAS says, that are told
THREADS, RAS = 64, 64 << 10
RAS_ADDRESS = "localhost:28028"
#: where torch dumps, by variables old and new, else there
FLIGHT_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
FLIGHT = "/tmp/nccl_trace_rank_"  # noqa: S108 - torch's own choice
FLIGHT_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


def gather(order: dict[str, Any], ranks: dict[int, int], folder: str | None) -> bytes:
    """The frame ``stacks`` that answers ``order``. ranks: rank -> pid. folder: the ranks' own."""
    end = monotonic() + order["seconds"]
    trees = trees_of(ranks, folder)
    ask_flights(trees)
    most = min(TEXT, TEXTS // max(1, len(trees)))
    texts = {rank: ("py-spy", text) for rank, text in by_spy(trees, end - 2.5, most).items()}
    rest = {rank: tree for rank, tree in trees.items() if rank not in texts}
    for rank, text in by_signal(rest, folder, end - 1.0, most).items():
        texts[rank] = ("faulthandler", text)
    found = []
    for rank, (pid, tree) in trees.items():
        how, text = texts.get(rank) or ("proc", by_kernel(pid, tree)[:most])
        found.append([rank, pid, where(pid)[:1], how, text])
    ras = ask_ras(trees, min(end, monotonic() + 2.0))
    return control("stacks", number=order["number"], ranks=found, ras=ras, flights=flights(trees))


# -- which process ------------------------------------------------------------------------


def trees_of(ranks: dict[int, int], folder: str | None) -> Trees:
    """The process that stands for each living rank, and all of its tree, it first."""
    table = usage.process_table()
    alive = {pid for pid, stat in table.items() if stat[0] not in "ZX"}
    leaders = {pid: rank for rank, pid in ranks.items() if pid in alive}
    members: dict[int, list[int]] = {pid: [] for pid in leaders}
    known: dict[int, int] = {}
    for pid in sorted(table, key=lambda pid: table[pid][6]):  # parents are older
        leader = usage.owner(pid, table, leaders, known)
        if leader and pid in alive:
            members[leader].append(pid)
    trees = {}
    for leader, rank in leaders.items():
        tree = members[leader]
        main = next((pid for pid in tree if is_python(pid, folder)), leader)
        trees[rank] = (main, [main, *(pid for pid in tree if pid != main)])
    return trees


def is_python(pid: int, folder: str | None) -> bool:
    """Whether the process runs Python, or writes its stacks to ``folder``."""
    if folder is not None and os.path.exists("%s/stack-%d" % (folder, pid)):
        return True
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)).startswith("python")
    except OSError:
        return False


# -- py-spy -------------------------------------------------------------------------------


def by_spy(trees: Trees, end: float, most: int) -> dict[int, bytes]:
    """rank -> what py-spy says of it, where it says anything until ``end``."""
    running: dict[int, tuple[int, int]] = {}  # fd -> (rank, py-spy's pid)
    output: dict[int, bytes] = {}
    for rank, (pid, _) in trees.items():
        program = spy_of(pid)
        if program is not None:
            asked = ["dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]
            out, child = usage.start([program, *asked])
            running[out] = (rank, child)
    while running and monotonic() < end:
        ready = select.select(list(running), [], [], max(0.0, end - monotonic()))[0]
        for fd in ready:
            rank, child = running[fd]
            data = os.read(fd, 65536)
            if data:
                output[rank] = (output.get(rank, b"") + data)[:most]
                continue
            del running[fd]
            os.close(fd)
            if os.waitpid(child, 0)[1] != 0:
                output.pop(rank, None)
    for fd, (rank, child) in running.items():  # late; what it said is not whole
        output.pop(rank, None)
        os.kill(child, SIGKILL)
        os.close(fd)
    return {rank: text for rank, text in output.items() if b"Thread " in text}


def spy_of(pid: int) -> str | None:
    """A py-spy that can be run: on our PATH, else beside the Python that ``pid`` runs."""
    if not is_python(pid, None):
        return None
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            own = os.path.dirname(os.fsdecode(file.read(4096).split(b"\0")[0]))
    except OSError:
        return None
    for folder in os.environ.get("PATH", "").split(":") + [own]:
        path = os.path.join(folder, "py-spy")
        if folder.startswith("/") and os.access(path, os.X_OK):
            return path
    return None


# -- faulthandler -------------------------------------------------------------------------


def by_signal(trees: Trees, folder: str | None, end: float, most: int) -> dict[int, bytes]:
    """rank -> what its own faulthandler wrote; of a stopped process it would do so too late."""
    asked: dict[int, tuple[int, int]] = {}  # rank -> (fd, bytes that were there)
    found: dict[int, bytes] = {}
    for rank, (pid, _) in trees.items() if folder is not None else ():
        path = "%s/stack-%d" % (folder, pid)
        if where(pid)[:1] in "Tt" or not listens(pid, path):
            continue
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            asked[rank] = (fd, os.fstat(fd).st_size)
            os.kill(pid, SIGNAL)
        except OSError:
            continue
    sizes: dict[int, int] = {}
    while len(found) < len(asked) and monotonic() < end:
        sleep(0.1)
        for rank, (fd, before) in asked.items():
            size = os.fstat(fd).st_size
            # nothing marks its end; it is written without a pause
            if rank not in found and size > before and sizes.get(rank) == size:
                start_at = max(before, size - most)  # the main thread comes last
                found[rank] = os.pread(fd, size - start_at, start_at)
            sizes[rank] = size
    for fd, _ in asked.values():
        os.close(fd)
    return found


def listens(pid: int, path: str) -> bool:
    """Whether ``pid`` catches ``SIGNAL`` and has ``path`` open."""
    try:
        with open("/proc/%d/status" % pid) as file:
            for line in file:
                if line.startswith("SigCgt:") and not int(line.split()[1], 16) >> SIGNAL - 1 & 1:
                    return False
        held, path = "/proc/%d/fd" % pid, os.path.realpath(path)
        return any(os.readlink("%s/%s" % (held, fd)) == path for fd in os.listdir(held))
    except (OSError, ValueError):
        return False


# -- the kernel ---------------------------------------------------------------------------


def by_kernel(pid: int, tree: list[int]) -> bytes:
    """A line ``state wchan syscall machine command`` for each thread, and its stack if shown."""
    lines: list[str] = []
    for member in [pid, *(other for other in tree if other != pid)]:
        try:
            threads = sorted(map(int, os.listdir("/proc/%d/task" % member)))
        except OSError:
            continue
        for thread in threads:
            if len(lines) >= THREADS:
                break
            folder = "/proc/%d/task" % member
            lines.append("%s %s" % (where(thread, folder), read(folder, thread, "comm")))
            stack = read(folder, thread, "stack").split("\n")
            lines += ["    " + line.partition("] ")[2] for line in stack[:32] if "] " in line]
    return "\n".join(lines).encode("utf-8", "backslashreplace")


def read(folder: str, thread: int, name: str) -> str:
    """A file of a thread in ``folder``, "-" where we may not read it."""
    try:
        with open("%s/%d/%s" % (folder, thread, name)) as file:
            return file.read(4096).strip()
    except (OSError, UnicodeDecodeError):
        return "-"


# -- NCCL and torch -----------------------------------------------------------------------


def ask_ras(trees: Trees, end: float) -> bytes:
    """What NCCL's RAS says of all communicators, b"" where nobody listens. Source: NCCL's docs."""
    address = RAS_ADDRESS
    for pid, _ in trees.values():
        address = usage.environ(pid).get("NCCL_RAS_ADDR") or address
        break
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in ("localhost", "127.0.0.1") or not port.isdigit():
        return b""
    link = socket(AF_INET, SOCK_STREAM)
    output = b""
    try:
        link.settimeout(0.5)
        link.connect(("127.0.0.1", int(port)))
        link.send(b"client protocol 2\ntimeout 1\nverbose status\n")
        while len(output) < RAS and monotonic() < end:
            link.settimeout(max(0.01, end - monotonic()))
            data = link.recv(65536)
            if not data:
                break
            output += data
    except OSError:
        pass
    finally:
        link.close()
    return output[:RAS]


def ask_flights(trees: Trees) -> None:
    """Have torch dump its flight recorders where it listens for that."""
    for rank, (pid, _) in trees.items():
        pipe = usage.environ(pid).get(FLIGHT_PIPE)
        if pipe:
            try:
                fd = os.open("%s%d.pipe" % (pipe, rank), os.O_WRONLY | os.O_NONBLOCK)
                os.write(fd, b"1\n")
                os.close(fd)
            except OSError:
                pass


def flights(trees: Trees) -> list[list[Any]]:
    """[rank, path, size, bytes] of each rank's dump that is younger than the rank."""
    found: list[list[Any]] = []
    left = FLIGHTS
    for rank, (pid, _) in trees.items():
        known = usage.environ(pid)
        prefix = next(filter(None, map(known.get, FLIGHT_VARIABLES)), FLIGHT)
        path = "%s%d" % (prefix, rank)
        stat = usage.stat_of(pid)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            about = os.fstat(fd)
            born = 0.0 if stat is None else stat[6] / os.sysconf("SC_CLK_TCK")
            old = clock_gettime(CLOCK_BOOTTIME) - born
            if about.st_mtime >= time() - old - 1.0 and about.st_uid == os.geteuid():
                data = os.read(fd, about.st_size) if about.st_size <= left else b""
                left -= len(data)
                found.append([rank, path, about.st_size, data])
        except OSError:
            pass
        finally:
            os.close(fd)
    return found
