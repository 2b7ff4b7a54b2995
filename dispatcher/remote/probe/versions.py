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


class Answer:
    """The output of ``code`` in the Python of the first rank, in a process of its own.

    It is empty where no rank runs Python, or only in a container. ``ranks`` maps ranks to pids.
    """

    def __init__(self, code: bytes, ranks: dict[int, int]) -> None:
        self.data = b""
        self.pid, self.fd, self.end = 0, -1, monotonic() + SECONDS
        for _, leader in sorted(ranks.items()):
            for pid in (leader, *sorted(proctree.descendants(leader))):
                try:
                    if proctree.is_python(pid) and _mounts(pid) == _mounts(os.getpid()):
                        self.pid, self.fd = _begin(pid, code)
                        return
                except OSError:
                    continue  # it has just ended

    def frame(self, wait: bool) -> bytes | None:
        """The frame ``node.versions``; None while the process goes on, without ``wait``."""
        while self.fd >= 0:
            left = max(0.0, self.end - monotonic())
            late = not select.select([self.fd], [], [], left if wait else 0.0)[0]
            if late and left and not wait:
                return None
            more = b"" if late else os.read(self.fd, MOST)
            self.data += more
            if not more or len(self.data) >= MOST:
                proctree.send_signal(self.pid, SIGKILL)
                os.close(self.fd)
                os.waitpid(self.pid, 0)
                self.fd = -1
        return control("node.versions", found=self.data[:MOST].decode("ascii", "replace"))


def _mounts(pid: int) -> str:
    return os.readlink("/proc/%d/ns/mnt" % pid)


def _begin(pid: int, code: bytes) -> tuple[int, int]:
    """Run ``code`` in a new process like ``pid``; its pid, and its output. Raises: OSError."""
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
    return start_child(work, "versions")
