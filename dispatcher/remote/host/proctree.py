"""Every process below the agent, and how to end them all.

The agent is a *subreaper* (prctl(2)): a process whose parent dies becomes its child, so the
descendants in /proc are complete. Each rank also asks for SIGKILL when the agent dies
(PR_SET_PDEATHSIG), which holds because the agent has one thread only.
"""

from __future__ import annotations

import _ctypes
import os
from _signal import SIGKILL, SIGTERM  # type: ignore[import-not-found]
from time import monotonic, sleep

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator


# what ctypes.CDLL(None).prctl is; importing ctypes itself would cost the start 1 to 2 ms


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "L"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Int
    _argtypes_ = (_Int, _Long, _Long, _Long, _Long)


_program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
_prctl = _Function(_ctypes.dlsym(_program, "prctl"))


def become_subreaper() -> None:
    """Make orphans below us our children. Linux 3.4 and later always grants this."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_with_parent(parent: int, signum: int) -> bool:
    """In a fresh child: ask for ``signum`` at ``parent``'s death; False if it is dead already."""
    _prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    return os.getppid() == parent


def allow_tracing(tracer: int) -> None:
    """Let ``tracer`` and all below it look into this process, where Yama's ``ptrace_scope`` is 1.

    It outlives execve, not fork. Source: security/yama/yama_lsm.c, prctl(2).
    """
    _prctl(PR_SET_PTRACER, tracer, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Pids of all living descendants of ``root`` (zombies left out), parents before children."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open("/proc/%s/stat" % name, os.O_RDONLY)  # a host may have thousands of them
        except OSError:
            continue  # it ended while we looked
        try:
            # the command name in parentheses may itself hold spaces and parentheses: proc(5)
            fields = os.read(fd, 4096).rpartition(b")")[2].split(None, 2)
        except OSError:
            continue
        finally:
            os.close(fd)
        # a zombie that is not reaped yet may still have living children
        pid = -int(name) if fields[0] in (b"Z", b"X") else int(name)
        children.setdefault(int(fields[1]), []).append(pid)
    found = []
    front = [root]
    while front:
        pid = front.pop()
        for child in children.get(pid, ()):
            front.append(abs(child))
            if child > 0:
                found.append(child)
    return found


def signal_leftovers(group: int, signum: int) -> None:
    """Send ``signum`` to our descendants in ``group``, whose leader was reaped."""
    for pid in descendants(os.getpid()):
        try:
            if os.getpgid(pid) == group:
                os.kill(pid, signum)
        except OSError:
            pass


def send_signal(pid: int, signum: int) -> bool:
    """Send ``signum`` to ``pid``, or to the group that -``pid`` leads; False when it is gone."""
    try:
        os.kill(pid, signum)
    except OSError:
        return False
    return True


def is_python(pid: int) -> bool:
    """Whether ``pid`` runs Python, as far as /proc shows."""
    try:  # a zombie has none
        program = os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return False
    return program.startswith(("python", "pypy"))


def reaped() -> Iterator[tuple[int, int]]:
    """Collect children that have ended: pid and wait(2) status of each."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def exit_status(status: int) -> int:
    """A wait(2) status as exit code (>= 0) or minus the signal number."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


#: seconds in which a process that ends by itself shows it, and the most that it may take; the
#: manager of torch's shared memory removes it after 2 s without a user
QUIET, PATIENCE, SHM_PATIENCE, SHM_MANAGER = 0.05, 1.0, 3.0, b"torch_shm_manag"


def kill_all(
    reap: Callable[[], None], limit: float = 5.0, at_once: Container[int] = ()
) -> tuple[set[int], list[int]]:
    """End every descendant until none is left or ``limit`` seconds have passed.

    Processes of ``at_once`` get KILL. The others get it when none of them works or ends any more: a
    process that removes shared memory (torch_shm_manager, Python's resource_tracker) does so when
    all its users have ended. It ignores TERM or leads its own session, so TERM goes to processes
    whose session has lost its leader. reap: called between rounds. Returns: (set of pids that were
    sent a signal, list of pids that would not die).
    """
    me = os.getpid()
    killed: set[int] = set()
    left: set[int] = set()
    begin = monotonic()
    quiet = begin + QUIET
    pause = 0.001
    while True:
        before, left = left, set(descendants(me))
        if not left:
            reap()
            return killed, []
        looks = {pid: look(pid) for pid in left}
        worth = PATIENCE if before - left else max(seconds for seconds, _ in looks.values())
        if worth:
            quiet = min(monotonic() + QUIET, begin + worth)
        for pid in left:
            hard = pid in at_once or monotonic() >= quiet
            if (hard or (pid not in killed and looks[pid][1] not in left)) and send_signal(
                pid, SIGKILL if hard else SIGTERM
            ):
                killed.add(pid)
        reap()
        if monotonic() > begin + limit:
            return killed, descendants(me)
        sleep(pause)
        pause = min(pause * 2, 0.05)


def look(pid: int) -> tuple[float, int]:
    """(seconds to wait for ``pid`` to end by itself, 0 if it does nothing to that end; session)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            name, _, rest = file.read(4096).partition(b"(")[2].rpartition(b")")
    except OSError:
        return PATIENCE, pid  # it has ended just now
    if name == SHM_MANAGER:
        return SHM_PATIENCE, pid
    fields = rest.split()
    return PATIENCE if fields[0] in (b"R", b"D") else 0.0, int(fields[3])


def where_stuck(pid: int, proc: str = "/proc") -> str:
    """``D nfs_wait_on_request 74 x86_64``: state, kernel function, system call, machine; or "-"."""
    words = []
    for name in ("stat", "wchan", "syscall"):
        try:
            with open("%s/%d/%s" % (proc, pid, name)) as file:
                text = file.read(4096)
        except OSError:  # gone by now, or not for us to know
            text = ""
        # a command's name may hold spaces and parentheses
        text = text.rpartition(")")[2]
        words.append((text.split() or ["-"])[0][:64])
    return " ".join([*words, os.uname().machine])
