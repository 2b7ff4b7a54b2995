"""One rank as a process: spawned in its own session, its output on two pipes.

Environment and arguments reach ``execve`` as the bytes that came: no shell, no decoding. A rank is
done when it was reaped *and* both pipes have ended, or were cut (N-4 of ``node``).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import errno
import os
from time import monotonic

from dispatcher.remote.host import proctree
from dispatcher.remote.protocol.frames import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn


class SpawnError(Exception):
    """The rank could not be started: ``step`` (fork, chdir, exec), ``errno``, ``what`` it was."""

    def __init__(self, step: str, number: int, what: str) -> None:
        Exception.__init__(self, "%s: %s: %s" % (step, what, os.strerror(number)))
        self.step = step
        self.errno = number
        self.what = what


class Process:
    """A running rank: its ``pid`` and the ``pipes`` that are still open, {stream: fd}.

    counts: bytes read from each stream so far; wrote: when the last of them were.
    """

    def __init__(self, rank: int, pid: int, out: int, err: int) -> None:
        self.rank = rank
        self.pid = pid
        self.status: int | None = None
        self.pipes = {STDOUT: out, STDERR: err}
        self.counts = {STDOUT: 0, STDERR: 0}
        self.told_alone = False  # to end, while its group was not
        self.left_out = 0  # bytes that its MPI had to say, and for which there was no room
        self.wrote = monotonic()


def spawn(
    rank: int,
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: bytes,
    keep: int = -1,
    stdin: int = -1,
) -> Process:
    """Start ``argv`` with exactly ``env`` in ``cwd``; returns after a successful execve.

    keep: one more descriptor that the rank inherits, -1 for none; stdin: the descriptor that
    becomes its standard input, -1 for /dev/null. Raises: SpawnError.
    """
    fds: list[int] = []
    parent = os.getpid()
    try:
        for _ in range(3):
            fds.extend(os.pipe())
        pid = os.fork()
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise SpawnError("fork", error.errno or errno.EIO, "rank %d" % rank) from None
    out, out_end, err, err_end, failed_in, failed_out = fds
    if pid == 0:
        _become(parent, argv, env, cwd, (stdin, out_end, err_end, failed_out, keep))
    for fd in (out_end, err_end, failed_out):
        os.close(fd)
    with open(failed_in, "rb") as file:
        failure = file.read()
    if failure:
        os.waitpid(pid, 0)
        os.close(out)
        os.close(err)
        step, number = failure.split(b" ")
        what = cwd if step == b"chdir" else argv[0]
        raise SpawnError(step.decode(), int(number), what.decode("utf-8", "surrogateescape"))
    os.set_blocking(out, False)
    os.set_blocking(err, False)
    return Process(rank, pid, out, err)


def _become(
    parent: int, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, fds: tuple[int, ...]
) -> NoReturn:
    """In the child: turn into the rank."""
    stdin, out, err, failed_out, keep = fds
    step = "exec"
    try:
        os.setsid()
        if not proctree.signal_with_parent(parent, signal.SIGKILL):
            os._exit(signal.SIGKILL)
        proctree.allow_tracing(parent)
        os.dup2(os.open("/dev/null", os.O_RDONLY) if stdin < 0 else stdin, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if keep >= 0:
            os.set_inheritable(keep, True)
        reset_signals()
        step = "chdir"
        os.chdir(cwd)
        step = "exec"
        execute(argv, env)
    except OSError as error:
        number = error.errno or errno.EIO
    except BaseException:  # noqa: BLE001 - nothing may run on in the child as a second agent
        number = errno.EINVAL
    try:
        os.write(failed_out, b"%s %d" % (step.encode(), number))
    finally:
        os._exit(127)


def reset_signals() -> None:
    """Restore default signals: Python ignores SIGPIPE and SIGXFSZ, and so would the program."""
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):  # 32, 33: glibc's own
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                pass


def locate(argv: list[bytes], path: bytes = b"") -> list[bytes]:
    """``argv``; if its program is in a folder of ``path``, with that file's full name."""
    for place in program_paths(argv[0], path) if path else ():
        if os.access(place, os.X_OK):
            return [place, *argv[1:]]
    return argv


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """execve ``argv``, looking ``argv[0]`` up in the PATH of ``env`` as a shell does.

    Raises: OSError; EACCES in preference to ENOENT when a file was found but refused.
    """
    refused: OSError | None = None
    for path in program_paths(argv[0], env.get(b"PATH")):
        try:
            os.execve(path, argv, env)  # noqa: S606 - this is what an agent is for
        except OSError as error:
            if error.errno == errno.EACCES:
                refused = error
            elif error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
    raise refused or OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def program_paths(name: bytes, path: bytes | None) -> list[bytes]:
    """The paths to try for ``name``: itself with a slash, else in each folder of ``path``."""
    if b"/" in name:
        return [name]
    folders = (b"/usr/local/bin:/usr/bin:/bin" if path is None else path).split(b":")
    return [os.path.join(folder or b".", name) for folder in folders]


def expand(value: bytes) -> bytes:
    """``value`` with this host's variables for the names between NULs."""
    parts = value.split(b"\0")
    parts[1::2] = [os.environb.get(name, b"") for name in parts[1::2]]
    return b"".join(parts)


def scrubbed(environ: Iterable[tuple[bytes, bytes]], scrub: list[bytes]) -> dict[bytes, bytes]:
    """``environ`` without the names in ``scrub``; an entry ending in ``*`` is a prefix."""
    prefixes = tuple(entry[:-1] for entry in scrub if entry.endswith(b"*"))
    return {
        name: value
        for name, value in environ
        if name not in scrub and not name.startswith(prefixes)
    }
