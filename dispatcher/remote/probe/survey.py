"""Takes the readings that checks need from this host: a process and a deadline for each.

A read may hang in the kernel, so each is a child with a pipe, which is killed at its deadline and
not waited for. A reading is a list: name, kind, argument, seconds, bytes at most. Kinds:

=====  ==========================================================================
run    a command's output and errors; argument: argv (bytes), or a dict of them by
       the host's name, with "" for all others
file   the files of glob patterns; argument: list of bytes; packed list of [path, content]
call   what a function of ``CALLS`` returns, packed; argument: [name, its arguments]
site   a folder: each executable in it becomes a reading ``NAME/FILE`` of its own
=====  ==========================================================================

It runs alone: ``main`` writes a line with this host's time (s since 1970) at once, and at the end a
packed dict: name -> [exit status (None at the deadline), output, whether more was there].
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import os
import select
from time import monotonic, time

from dispatcher.remote.protocol.packing import pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: of one reading's files: how many, and how much of each
FILES, FILE_LIMIT = 512, 16 << 10
#: executables of one site folder at most
SITES = 64
#: statuses as a shell gives them
NOT_FOUND, NOT_EXECUTABLE, CRASHED = 127, 126, 125


class Reading:
    """One child and its output so far."""

    def __init__(self, seconds: float, most: int) -> None:
        self.until = monotonic() + seconds
        self.most = most
        self.output = b""
        self.cut = False
        self.pid = 0
        self.status: int | None = None

    def take(self, fd: int) -> bool:
        """Read on; whether that was all, or all that is wanted."""
        data = os.read(fd, 65536)
        left = self.most - len(self.output)
        self.output += data[:left]
        self.cut = len(data) > left
        return self.cut or not data


def main(packed: bytes) -> int:
    """Take the readings and write their results to standard output."""
    write(b"%r\n" % time())
    write(pack(survey(unpack(packed))))
    return 0


def survey(requests: list[list[Any]]) -> dict[str, list[Any]]:
    """name -> [status, output, cut] of each of ``requests``."""
    poll = select.poll()
    open_ones: dict[int, Reading] = {}
    found: dict[str, Reading] = {}
    null = os.open("/dev/null", os.O_RDWR)

    def stop(*_: object) -> None:  # the launcher ends us, so end the children
        for reading in found.values():
            kill(reading.pid)
        os._exit(1)

    signal.signal(signal.SIGTERM, stop)
    if any(request[1] == "call" for request in requests):
        from dispatcher.remote.probe import probes  # noqa: F401 - compiled once, not in each child
    for name, kind, argument, seconds, most in spread(requests):
        found[name] = reading = Reading(seconds, most)
        out, into = os.pipe()
        # ``stop`` must find every child in ``found``
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        reading.pid = os.fork()
        if reading.pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            child(kind, argument, into, null, most)
        try:
            os.setpgid(reading.pid, reading.pid)
        except OSError:
            pass  # it did so itself, or is over
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.close(into)
        poll.register(out, select.POLLIN | select.POLLHUP)
        open_ones[out] = reading
    while open_ones:
        wait = min(reading.until for reading in open_ones.values()) - monotonic()
        ready = {fd for fd, _ in poll.poll(max(0.0, wait * 1000))}
        for fd, reading in list(open_ones.items()):
            if (fd in ready and reading.take(fd)) or monotonic() >= reading.until:
                poll.unregister(fd)
                os.close(fd)
                del open_ones[fd]
    for reading in found.values():
        end(reading)
    return {name: [r.status, r.output, r.cut] for name, r in found.items()}


def spread(requests: list[list[Any]]) -> list[list[Any]]:
    """``requests`` with each ``site`` followed by a ``run`` for each of its executables."""
    found = []
    for request in requests:
        name, kind, folder, seconds, most = request
        if kind != "site":
            found.append(request)
            continue
        found.append([name, "file", [folder.rstrip(b"/") + b"/"], seconds, most])
        try:
            there = sorted(os.listdir(folder))[:SITES]
        except OSError:
            continue
        for file in there:
            path = os.path.join(folder, file)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                text = file.decode("utf-8", "backslashreplace")
                found.append(["%s/%s" % (name, text), "run", [path], seconds, most])
    return found


def end(reading: Reading) -> None:
    """Wait for the child until its time is up; then kill its group, and wait no more."""
    delay = 0.001
    while True:
        pid, status = os.waitpid(reading.pid, os.WNOHANG)
        if pid:
            killed = os.WIFSIGNALED(status)
            reading.status = 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
            break
        if monotonic() >= reading.until or reading.cut:
            break
        select.select([], [], [], delay)
        delay = min(0.05, delay * 2)
    kill(reading.pid)
    if reading.cut and reading.status is None:
        reading.status = 0  # it said more than we wanted to hear


def kill(group: int) -> None:
    """Kill a child's group; 0, which would be our own, is a child that was never started."""
    try:
        if group > 0:
            os.killpg(group, signal.SIGKILL)
    except OSError:
        pass


# -- in the child -------------------------------------------------------------------


def child(kind: str, argument: Any, into: int, null: int, most: int) -> None:
    """Do one reading with its result going to ``into``; never returns."""
    status = CRASHED
    try:
        os.setpgid(0, 0)
        os.dup2(null, 0)
        os.dup2(into, 1)
        os.dup2(into, 2)
        if kind == "run":
            status = execute(argument)
        else:
            write(pack(files(argument) if kind == "file" else called(argument)))
            status = 0
    except BaseException as error:  # noqa: BLE001 - a child must end here whatever happens
        write(str(error).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(status)


def write(data: bytes) -> None:
    """Write all of ``data`` to standard output."""
    while data:
        data = data[os.write(1, data) :]


def execute(argument: list[bytes] | dict[str, list[bytes]]) -> int:
    """Become the argv meant for us, found in PATH and in the folders of system tools."""
    argv: Any = argument
    if isinstance(argv, dict):
        argv = argv.get(os.environ.get("DISPATCH_HOST", ""), argv[""])
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    env = dict(os.environ, PATH=path, LC_ALL="C")
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - the launcher's fixed words, no shell
    except FileNotFoundError:
        return NOT_FOUND
    except OSError as error:
        write(str(error).encode())
        return NOT_EXECUTABLE


def files(patterns: list[bytes]) -> list[list[bytes]]:
    """[path, content] of files that ``patterns`` fit; with ``/`` at its end: names in a folder."""
    found: list[list[bytes]] = []
    for pattern in patterns:
        for path in expand(pattern)[: FILES - len(found)]:
            try:
                if path.endswith(b"/"):
                    content = b"\n".join(sorted(os.listdir(path)))
                else:
                    with open(path, "rb") as file:
                        content = file.read(FILE_LIMIT)
            except OSError:
                continue
            found.append([path, content])
    return found


def expand(pattern: bytes) -> list[bytes]:
    """Paths for a pattern with ``*`` as whole parts; ``~`` at its start is the home folder."""
    paths = [b""]
    for part in os.path.expanduser(pattern).split(b"/")[1:]:
        if part != b"*":
            paths = [path + b"/" + part for path in paths]
            continue
        grown: list[bytes] = []
        for path in paths:
            try:
                grown += [path + b"/" + name for name in sorted(os.listdir(path or b"/"))]
            except OSError:
                pass
        paths = grown[:FILES]
    return paths


def called(argument: list[Any]) -> Any:
    """Call the function of ``CALLS`` in [name, its arguments]; returns its result."""
    from dispatcher.remote.probe import probes

    return probes.CALLS[argument[0]](*argument[1:])
