"""Commands as an inner host's relay starts them: words in, pipes and a pid out.

Host keys are those the root knows: its lines are in memory, behind a name that only this
process's user can open (/proc/PID/fd), for as long as the command runs.

It travels with ``tree_relay``, and imports as little.
"""

from __future__ import annotations

import os
from _signal import SIG_DFL, SIGKILL, SIGPIPE  # type: ignore[import-not-found]
from _signal import signal as on_signal

from dispatcher.remote.protocol.mux import (
    ERRORS_WINDOW,
    INPUT_WINDOW,
    OUTPUT,
    OUTPUT_WINDOW,
    Credit,
)

_PR_SET_PDEATHSIG = 1


class Output:
    """One output of a command: the descriptor it is read from, and the credit it has."""

    def __init__(self, fd: int, kind: int, end: int) -> None:
        self.fd, self.kind, self.end = fd, kind, end
        self.credit = Credit(OUTPUT_WINDOW if kind == OUTPUT else ERRORS_WINDOW)


class Command:
    """One command: its pipes, and what waits to be written to it.

    number: of its stream. known: the descriptor of its known hosts, or -1.
    """

    def __init__(self, number: int, pid: int, stdin: int, known: int, *outputs: Output) -> None:
        self.number = number
        self.pid = pid
        self.input = stdin
        self.waiting = b""  # for its input
        self.room = Credit(INPUT_WINDOW)  # of its input
        self.input_ends = False
        self.outputs = outputs
        self.known = known
        self.beats = False  # a NUL as an error is a sign of life

    @property
    def over(self) -> bool:
        """Whether nothing more can be told of it."""
        return self.pid < 0 and all(output.fd < 0 for output in self.outputs)

    def kill(self) -> None:
        """Kill what leads to another host; other commands see the end of their input."""
        if self.known >= 0 and self.pid > 0:
            try:
                os.killpg(self.pid, SIGKILL)
            except OSError:
                os.kill(self.pid, SIGKILL)  # it has no group yet; it was not waited for


def read(fd: int, size: int) -> bytes | None:
    """What is there; None: nothing now; b"": the end."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def in_memory(lines: bytes) -> tuple[int, bytes]:
    """A descriptor of a file without a place that holds ``lines``, and the name that opens it."""
    try:
        fd = os.memfd_create("known_hosts")
    except (AttributeError, OSError):  # Linux before 3.17
        fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)  # noqa: S108 - it has no name
    while lines:
        lines = lines[os.write(fd, lines) :]
    return fd, b"/proc/%d/fd/%d" % (os.getpid(), fd)


def start(words: list[bytes]) -> tuple[int, tuple[int, int, int]]:
    """Run ``words`` in a session of its own; its pid and our ends of its three pipes.

    Raises: OSError when there is no room for one more.
    """
    near: list[int] = []
    far: list[int] = []
    try:
        for number in range(3):
            read, write = os.pipe()
            near.append(read if number else write)
            far.append(write if number else read)
        pid = os.fork()
    except OSError:
        for fd in near + far:
            os.close(fd)
        raise
    if not pid:
        try:
            os.setsid()
            for number, fd in enumerate(far):
                os.dup2(fd, number)
            on_signal(SIGPIPE, SIG_DFL)  # Python ignores it, and what is ignored stays so
            os.execvp(words[0], words)  # noqa: S606 - which would be one more process
        except BaseException as error:  # noqa: BLE001 - nobody else would tell of it
            os.write(2, os.fsencode("%s: %s\n" % (words[0].decode("utf-8", "replace"), error)))
        finally:
            os._exit(127)
    for fd in far:
        os.close(fd)
    for fd in near:
        os.set_blocking(fd, False)
    return pid, (near[0], near[1], near[2])


def die_with_parent() -> None:
    """Ask for SIGKILL when sshd's session ends: whoever is stopped then sees no end of input."""
    try:
        from ctypes import CDLL

        CDLL(None).prctl(_PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # a Python without it: who stops a relay has to continue it
