"""Reports where the ranks of this host are in their programs, with data of NCCL and torch.

Taken by the sampler's process, bounded in time and bytes (``docs/design/hangs.md``). A rank's
Python is the first Python below its process: the program may be a script that starts it.
"""

from __future__ import annotations

import os
import select
from _signal import SIGCONT, SIGKILL  # type: ignore[import-not-found]
from time import monotonic, sleep

from dispatcher.remote.host.proctree import where_stuck
from dispatcher.remote.probe import nccl_state, usage
from dispatcher.remote.protocol.frames import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dispatcher.remote.probe.nccl_state import Trees

#: the signal at which a rank writes its stacks to our folder: far from signals that others use
SIGNAL = 62
#: bytes of all texts, of one at most, and of frames of C
TEXTS, TEXT, NATIVE = 512 << 10, 64 << 10, 16 << 10
#: most threads of a rank in a report, and ranks that are asked for their frames of C
THREADS, NATIVES = 64, 8


def gather(order: dict[str, Any], ranks: dict[int, int], folder: str | None) -> bytes:
    """The frame ``stacks`` that answers ``order``. ranks: rank -> pid. folder: the ranks' own."""
    end = monotonic() + order["seconds"]
    trees = trees_of(ranks, folder)
    nccl_state.ask_flights(trees)
    asked = nccl_state.ask_recorders(trees, folder)
    most = min(TEXT, TEXTS // max(1, len(trees)))
    texts = {rank: ("py-spy", text) for rank, text in by_spy(trees, end - 2.5, most).items()}
    rest = {rank: tree for rank, tree in trees.items() if rank not in texts}
    for rank, text in by_signal(rest, folder, end - 1.0, most).items():
        texts[rank] = ("faulthandler", text)
    found = []
    for rank, (pid, tree) in trees.items():
        how, text = texts.get(rank) or ("proc", by_kernel(pid, tree)[:most])
        found.append([rank, pid, where_stuck(pid)[:1], how, text])
    pids = [pid for pid, _ in trees.values()]
    until = min(end, monotonic() + 2.0)
    return control(
        "node.stacks",
        number=order["number"],
        ranks=found,
        recorders=nccl_state.recorders(asked, until),
        ras=nccl_state.ask_ras(pids, until) if order.get("ras", True) else b"",
        natives=by_native(trees, end) if order.get("hung") else [],
        flights=nccl_state.flights(trees),
    )


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
    """rank -> py-spy's report, for ranks where it ends before ``end``."""
    asked = ["dump", "--nonblocking", "--full-filenames", "--pid"]
    spies = {rank: (spy_of(pid), pid) for rank, (pid, _) in trees.items()}
    found = outputs(
        {r: [spy, *asked, str(pid)] for r, (spy, pid) in spies.items() if spy}, end, most
    )
    return {rank: text for rank, text in found.items() if b"Thread " in text}


def by_native(trees: Trees, end: float) -> list[list[Any]]:
    """[rank, its main thread's frames, C included], from gdb or py-spy, before ``end``."""
    gdb = next(filter(lambda path: os.access(path, os.X_OK), _on_path("gdb")), None)
    programs = {}
    for rank, (pid, _) in sorted(trees.items())[: min(NATIVES, os.cpu_count() or 1)]:
        spy = spy_of(pid)
        if where_stuck(pid)[:1] in "Tt":
            continue
        if spy:
            programs[rank] = [spy, "dump", "--native", "--pid", str(pid)]
        elif gdb:
            quiet = ["set debuginfod enabled off", "set print frame-arguments none"]
            words = [word for each in quiet for word in ("-iex", each)]
            programs[rank] = [gdb, "-nx", "-batch", *words, "-p", str(pid), "-ex", "bt 32"]
    found = outputs(programs, end, NATIVE)
    for rank in programs.keys() - found.keys():
        try:
            os.kill(trees[rank][0], SIGCONT)  # who died over it may have left it stopped
        except OSError:
            pass
    return [[rank, text] for rank, text in sorted(found.items())]


def outputs(programs: dict[int, list[str]], end: float, most: int) -> dict[int, bytes]:
    """rank -> what its program writes, where it ends well until ``end``."""
    running: dict[int, tuple[int, int]] = {}  # fd -> (rank, pid)
    output: dict[int, bytes] = {}
    for rank, argv in programs.items():
        child, out = usage.start_program(argv)
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
    for fd, (rank, child) in running.items():  # late, so its output is not complete
        output.pop(rank, None)
        os.kill(child, SIGKILL)
        os.close(fd)
    return output


def spy_of(pid: int) -> str | None:
    """A py-spy that can be run: on our PATH, else beside the Python that ``pid`` runs.

    Where that is, the process itself says: one of another user's is not believed.
    """
    if not is_python(pid, None):
        return None
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            own = os.path.dirname(os.fsdecode(file.read(4096).split(b"\0")[0]))
    except OSError:
        return None
    places = _on_path("py-spy")
    if own.startswith("/") and is_ours(pid):
        places.append(own + "/py-spy")
    return next((path for path in places if os.access(path, os.X_OK)), None)


def is_ours(pid: int) -> bool:
    """Whether our own user runs the process: a rank may have become another, as by sudo."""
    users = read("/proc", pid, "status").partition("\nUid:")[2].split()
    return users[1:2] == [str(os.geteuid())]


def _on_path(name: str) -> list[str]:
    folders = os.environ.get("PATH", "").split(":")
    return [os.path.join(folder, name) for folder in folders if folder.startswith("/")]


# -- faulthandler -------------------------------------------------------------------------


def by_signal(trees: Trees, folder: str | None, end: float, most: int) -> dict[int, bytes]:
    """rank -> what its own faulthandler wrote; of a stopped process it would do so too late."""
    asked: dict[int, tuple[int, int]] = {}  # rank -> (fd, bytes that were there)
    found: dict[int, bytes] = {}
    for rank, (pid, _) in trees.items() if folder is not None else ():
        path = "%s/stack-%d" % (folder, pid)
        if where_stuck(pid)[:1] in "Tt" or not listens(pid, path):
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
            lines.append("%s %s" % (where_stuck(thread, folder), read(folder, thread, "comm")))
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
