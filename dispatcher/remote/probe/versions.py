"""Reports versions of software as a rank's Python finds them, from the sampler's process."""

from __future__ import annotations

import os
import select
from _signal import SIGKILL  # type: ignore[import-not-found]
from time import monotonic

from dispatcher.remote.host import proctree
from dispatcher.remote.host.child import start_child
from dispatcher.remote.protocol.frames import control

#: seconds for that Python to start and to print; bytes that it may print
SECONDS, MOST = 10.0, 4 << 10


def gather(code: bytes, ranks: dict[int, int]) -> bytes:
    """The frame ``node.versions``: the output of ``code`` in the Python of the first rank.

    It is empty where no rank runs Python, or only in a container. ``ranks`` maps ranks to pids.
    """
    for _, leader in sorted(ranks.items()):
        for pid in (leader, *sorted(proctree.descendants(leader))):
            try:
                if proctree.is_python(pid) and _mounts(pid) == _mounts(os.getpid()):
                    return control("node.versions", found=_output(pid, code))
            except OSError:
                continue  # it has just ended
    return control("node.versions", found="")


def _mounts(pid: int) -> str:
    return os.readlink("/proc/%d/ns/mnt" % pid)


def _output(pid: int, code: bytes) -> str:
    """The output of ``code`` in a new process like ``pid``. Raises: OSError."""
    texts = []
    for name in ("cmdline", "environ"):
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            texts.append(file.read().split(b"\0"))
    python, folder = texts[0][0], os.readlink("/proc/%d/cwd" % pid)
    pairs = (pair.partition(b"=")[::2] for pair in texts[1] if b"=" in pair[1:])

    def work(into: int) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd, at in ((null, 0), (into, 1), (null, 2)):
            os.dup2(fd, at)
        os.chdir(folder)
        os.execvpe(python, [python, b"-c", code], env)  # noqa: S606

    env = dict(pairs)
    for one in (b"DISPATCH_STACKS", b"LD_PRELOAD"):  # it shows no stacks, and is in no profile
        env.pop(one, None)
    child, fd = start_child(work, "versions")
    data, end = b"", monotonic() + SECONDS
    while len(data) < MOST and select.select([fd], [], [], max(0.0, end - monotonic()))[0]:
        more = os.read(fd, MOST)
        if not more:
            break
        data += more
    proctree.send_signal(child, SIGKILL)
    os.close(fd)
    os.waitpid(child, 0)
    return data[:MOST].decode("ascii", "replace")
