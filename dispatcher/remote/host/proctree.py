"""Every process below the agent, and how to end them all.

The agent is a *subreaper* (prctl(2)): a process whose parent dies becomes its child, so the
descendants in /proc are complete. Each rank also asks for SIGKILL when the agent dies
(PR_SET_PDEATHSIG), which holds because the agent has one thread only.
"""

from __future__ import annotations

import _ctypes
import os
from _signal import SIGKILL  # type: ignore[import-not-found]
from time import monotonic, sleep

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


def kill_all(reap: Callable[[], None], limit: float = 5.0) -> tuple[set[int], list[int]]:
    """Kill every descendant until none is left or ``limit`` seconds have passed.

    reap: called between rounds. Returns: (set of pids killed, list of pids that would not die).
    """
    me = os.getpid()
    killed: set[int] = set()
    end = monotonic() + limit
    pause = 0.001
    while True:
        left = descendants(me)
        if not left:
            reap()
            return killed, []
        killed.update(pid for pid in left if send_signal(pid, SIGKILL))
        reap()
        if monotonic() > end:
            return killed, descendants(me)
        sleep(pause)
        pause = min(pause * 2, 0.05)


def where(pid: int, proc: str = "/proc") -> str:
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
