"""Where the agent begins: descriptors made safe, the sync marker said, the loop run.

An agent may wait for its run first: booted ahead of it, over a connection that is kept (``wait``).
All that takes time is done then: Python has started, the code is loaded. Nothing of any run is here
yet: no second process, no folder, no port, no variable. What it has of its login (environment,
folder, umask, limits) is what an agent would have that started now: where a file has changed that
a login reads, it ends instead of serving a run. It also ends with its connection, and when nobody
wants it for so long that the connection would be closed::

    it reads    a line: for how many seconds it may wait
    it says     WAITING
    it reads    a line: the id of its run; then frames, as any agent
    it says     SYNC, and then frames; or it ends, having said nothing
"""

from __future__ import annotations

import os
import select
import sys

from dispatcher.remote.agent import guardian
from dispatcher.remote.host import proctree
from dispatcher.remote.protocol.frames import SYNC, WAITING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: bytes of a line at most
_LINE = 64
#: by which the processes of a run are found
_TAG = b"DISPATCH_RUN_ID"


def main(ahead: tuple[str, ...] = ()) -> NoReturn:
    """Serve the link on descriptors 0 and 1 until the job is over; exits.

    The link is moved to other descriptors first, so that a stray print (of a
    library, of an interpreter warning) lands on standard error and can never
    stand between two frames. ahead: files that a login reads, from the home folder where they are
    not absolute; with them it waits for a run first.
    """
    link_in = os.dup(0)
    link_out = os.dup(1)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    _keep_inherited()
    if ahead:
        wait(link_in, link_out, ahead)
    proctree.become_subreaper()
    os.write(link_out, SYNC)
    pipe = guardian.fork_guardian(link_in)
    from dispatcher.remote.agent.agent_loop import (
        Loop,  # only now: the guardian needs none of it, and shares no page with it
    )

    code = Loop(link_in, link_out, pipe).run()
    os._exit(code)  # the interpreter has nothing to tidy up, and would take 2 ms for it


def _keep_inherited() -> None:
    """Keep descriptors that were left open by who started us from the ranks."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:
            pass  # the one that listed the folder


# -- ahead of a run -----------------------------------------------------------------------


def wait(link_in: int, link_out: int, ahead: tuple[str, ...]) -> None:
    """Load what a run is about to need, and return when one has come; exits if none does."""
    from dispatcher.remote.agent import agent_loop, rendezvous_port  # noqa: F401
    from dispatcher.remote.host import failure_info, shm, ssh_peer  # noqa: F401
    from dispatcher.remote.pmi import pmi_connections, pmi_replies  # noqa: F401

    seconds, before = float(_line(link_in)), _states(ahead)
    os.write(link_out, WAITING)
    poll = select.poll()
    poll.register(link_in, select.POLLIN)
    if not poll.poll(min(seconds * 1000, 2e9)):  # it takes no more
        os._exit(0)
    run_id = _line(link_in)
    if _states(ahead) != before or not put_tag(run_id):
        os._exit(0)


def _line(fd: int) -> bytes:
    """The next line, a byte at a time: what follows is not ours. Exits at the end of the input."""
    line = b""
    while len(line) < _LINE:
        byte = os.read(fd, 1)
        if byte == b"\n":
            return line
        if not byte:
            break
        line += byte
    os._exit(0)


def _states(names: tuple[str, ...]) -> list[tuple[int, ...]]:
    """What those files, and Python, are now; the same as before if none of them has changed."""
    home = os.environ.get("HOME", "/")
    states: list[tuple[int, ...]] = []
    for name in (*names, sys.executable):
        try:
            found = os.stat(os.path.join(home, name))
            states.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        except OSError:
            states.append(())
    return states


def put_tag(run_id: bytes) -> bool:
    """Be of the run for whoever looks for its processes by /proc/PID/environ; False if we cannot.

    That shows the memory in which our environment lay when we began, with a word of this length.
    """
    with open("/proc/self/environ", "rb") as file:
        at = file.read().find(_TAG + b"=" + b"_" * len(run_id) + b"\0")
    with open("/proc/self/stat", "rb") as file:
        begin = int(file.read().rpartition(b")")[2].split()[47])  # env_start: proc(5)
    if at < 0:
        return False
    try:
        memory = os.open("/proc/self/mem", os.O_WRONLY)
        try:
            os.pwrite(memory, run_id, begin + at + len(_TAG) + 1)
        finally:
            os.close(memory)
    except OSError:
        return False
    os.environb[_TAG] = run_id
    return True
