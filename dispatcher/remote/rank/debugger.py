"""pdb of a rank that runs, on the terminal of ``dispatch debug``, or samples of its stacks.

::

    terminal == ssh == main() on the host -- unix socket in the rank's folder -- talk() in the rank

``main`` finds the rank by its variables, puts this file into the private folder of the rank's agent
and sends the rank a signal; ``sitecustomize`` there waits at a socket in that folder and loads
this file to talk. It opens no port and needs only Python 3.7 and the standard library. The first
byte that the rank gets is the samples a second for ``profiler``, 0 for pdb.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from types import FrameType
    from typing import Any

#: the signal that asks a rank; see ``sitecustomize.await_debugger``
SIGNAL = 61
#: seconds for a rank to answer
ANSWER = 5.0
#: exit codes: the rank is not on this host; it does not answer
NOT_HERE, NO_ANSWER = 3, 4
_MOST = 1 << 20
#: words about a stack that is sampled, three a frame
DEEPEST = 600


# -- in the rank ------------------------------------------------------------------------------


def talk(frame: FrameType, link: socket) -> None:
    """Serve the caller at the other end of ``link``; return when the rank may go on."""
    from _thread import get_ident, start_new_thread

    rate = ord(link.recv(1) or b"\0")
    if rate:
        start_new_thread(sample, (link, rate, get_ident()))
    else:
        debug(frame, link)


def sample(link: socket, rate: int, main_thread: int) -> None:
    """Send the caller the stacks that changed, ``rate`` times a second, until it ends.

    A line is a thread, seconds, its name, then function, file and line of each frame, innermost
    first, with NULs between them; no name if it has ended. It takes a tenth of the time at most.
    """
    from _thread import get_ident
    from time import monotonic, sleep

    begin, before = monotonic(), {}  # type: ignore[var-annotated]
    try:
        while True:
            now, found = monotonic(), {}
            names = getattr(sys.modules.get("threading"), "_active", {})
            for thread, top in sys._current_frames().items():
                frame: Any = None if thread == get_ident() else top
                name = "MainThread" if thread == main_thread else "thread"
                words = [getattr(names.get(thread), "name", name)]
                while frame is not None and len(words) < DEEPEST:
                    code = frame.f_code
                    words += code.co_name, code.co_filename, str(frame.f_lineno or 0)
                    frame = frame.f_back
                if words[1:]:
                    found[thread] = "\0".join(words).replace("\n", " ")
            frame = top = None  # type: ignore[assignment]  # these would keep objects alive
            lines = [
                "%d\0%.4f\0%s" % (thread, now - begin, found.get(thread, ""))
                for thread in {**before, **found}
                if before.get(thread) != found.get(thread)
            ]
            before = found
            text = "\n".join([*lines, ""]) or "\n"
            link.sendall(text.encode("utf-8", "replace"), 0x4000)  # without SIGPIPE
            sleep(max(1 / rate, 10 * (monotonic() - now)))
    except OSError:
        link.close()


def debug(frame: FrameType, link: socket) -> None:
    """Let the user at the other end of ``link`` look into ``frame``; returns when it may go on."""
    from pdb import Pdb

    words = link.makefile("w", encoding="utf-8", errors="backslashreplace")

    class Remote(Pdb):
        """Ends with its caller; the rank goes on."""

        def do_continue(self, arg: str) -> bool | None:
            if not self.get_all_breaks():
                self.leave()
            return super().do_continue(arg)

        def do_quit(self, arg: str) -> bool | None:
            self.clear_all_breaks()
            return self.do_continue(arg)

        def leave(self) -> None:
            try:
                self.message("the rank goes on")
                words.flush()
                link.shutdown(2)
            except (OSError, ValueError):
                pass  # the caller has hung up

        do_c = do_cont = do_continue
        do_q = do_exit = do_EOF = do_quit

    link.settimeout(None)
    # without .pdbrc: pdb would run the rank's folder's, where another user may have put it
    one = Remote(stdin=link.makefile("r", encoding="utf-8", errors="replace"), stdout=words,
                 nosigint=True, readrc=False)  # fmt: skip
    one.prompt = "(Pdb rank %s) " % os.environ.get("RANK", "?")
    try:
        one.reset()
        # as Bdb.set_trace, but the caller looks before the next line: that may take hours to come
        inner: Any = frame
        while inner is not None:
            inner.f_trace = one.trace_dispatch
            one.botframe = inner
            inner = inner.f_back
        one.set_continue()
        one.interaction(frame, None)
        keep_locals(frame)
        goes_on = one.stopframe is one.botframe and one.stoplineno == -1
        if not goes_on or one.get_all_breaks():  # next, step, a breakpoint
            inner = frame
            while inner is not None:
                inner.f_trace = one.trace_dispatch
                inner = inner.f_back
            sys.settrace(one.trace_dispatch)
    except (OSError, ValueError):
        sys.settrace(None)  # the caller has hung up


def keep_locals(frame: FrameType) -> None:
    """Keep assignments to variables of ``frame``; from Python 3.13 on they stay anyway."""
    if sys.version_info >= (3, 13):
        return
    try:
        from ctypes import c_int, py_object, pythonapi

        pythonapi.PyFrame_LocalsToFast(py_object(frame), c_int(0))
    except (ImportError, AttributeError):
        pass  # another Python than CPython


# -- on the rank's host -----------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """``find`` or ``attach``, a run id and a rank; the exit code."""
    do, run_id, rank = argv
    folders = ranks_here(run_id.encode(), rank.encode())
    if not folders:
        return NOT_HERE
    if do == "find":
        return 0
    from signal import SIG_IGN, SIGINT, signal

    signal(SIGINT, SIG_IGN)  # Ctrl-C in our terminal must not end the rank
    pid = next((pid for pid in folders if os.path.exists(door(folders[pid], pid))), 0)
    if not pid:
        pid = next(pid for pid in folders if parent(pid) not in folders)
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read(_MOST).split(b"\0")
    source = words[words.index(b"-c") + 1]
    link = called(folders[pid], pid, source, 0)
    if link is None:
        sys.stderr.write(
            "error: rank %s (pid %d) does not answer: it is in C, or has replaced the signal\n"
            "  hint: dispatch stacks shows where it is\n" % (rank, pid)
        )
        return NO_ANSWER
    relay(link)
    return 0


def ranks_here(run_id: bytes, rank: bytes) -> dict[int, str]:
    """pid -> private folder, of our processes of that rank that can be asked."""
    found = {}
    for pid, variables in processes_of(run_id).items():
        try:
            folder = os.fsdecode(variables.get(b"PYTHONPATH", b"").split(b":")[0])
            is_ours = os.path.basename(folder).startswith("dispatch-%s-" % run_id.decode())
            if not os.path.isdir(folder):  # the rank's container has it
                folder = "/proc/%d/root%s" % (pid, folder)
            if variables.get(b"RANK") == rank and is_ours and catches(pid) and is_private(folder):
                found[pid] = folder
        except OSError:
            continue  # it has ended
    return found


def processes_of(run_id: bytes) -> dict[int, dict[bytes, bytes]]:
    """pid -> variables, of our processes of the run."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat("/proc/" + name).st_uid != os.geteuid():
                continue
            with open("/proc/%s/environ" % name, "rb") as file:
                variables = dict(
                    item.split(b"=", 1) for item in file.read(_MOST).split(b"\0") if b"=" in item
                )
            if variables.get(b"DISPATCH_RUN_ID") == run_id:
                found[int(name)] = variables
        except (OSError, ValueError):
            continue  # it has ended
    return found


def is_private(folder: str) -> bool:
    """Whether it is a folder, not a link, where only our user may make files."""
    about = os.lstat(folder)
    return about.st_uid == os.geteuid() and about.st_mode & 0o170077 == 0o040000


def catches(pid: int) -> bool:
    """Whether the process has a handler for the signal, which would end it otherwise."""
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> SIGNAL - 1 & 1)
    return False


def parent(pid: int) -> int:
    """The pid of its parent, 0 if it has ended."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def door(folder: str, pid: int) -> str:
    """The path of the socket at which a rank waits for a caller."""
    return os.path.join(folder, "debug-%d" % pid)


def called(folder: str, pid: int, source: bytes, rate: int) -> socket | None:
    """A connection to the rank, which is asked for one unless it waits already.

    The rank loads ``source``, this file's, and gets ``rate``: samples a second, 0 for pdb.
    """
    from socket import AF_UNIX, socket
    from time import monotonic, sleep

    new = os.path.join(folder, "debugger.%d" % os.getpid())
    with open(new, "xb") as file:
        file.write(source)
    os.rename(new, os.path.join(folder, "debugger.py"))
    until, asked = monotonic() + ANSWER, False
    while True:
        link = socket(AF_UNIX)
        try:
            link.connect(door(folder, pid))
            link.sendall(bytes([rate]))
        except OSError:
            link.close()
        else:
            return link
        if monotonic() > until:
            return None
        if not asked:
            os.kill(pid, SIGNAL)
            asked = True
        sleep(0.02)


def relay(link: socket) -> None:
    """Pass on the user's input and the rank's output, until the rank closes the connection."""
    from select import select

    typed = [0]
    while True:
        ready = select([link.fileno(), *typed], [], [])[0]
        if link.fileno() in ready:
            data = link.recv(65536)
            if not data:
                return
            while data:
                data = data[os.write(1, data) :]
        elif ready:
            data = os.read(0, 65536)
            if data:
                link.sendall(data)
            else:
                link.shutdown(1)
                typed = []


if __name__ == "__main__" and len(sys.argv) == 4:
    sys.exit(main(sys.argv[1:]))
