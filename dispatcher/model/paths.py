"""Every file name of a run, and what ``{host}`` and ``{rank}`` mean in paths of put and get::

    DIR/latest -> 20260131-142501-k3f9               a folder a run, mode 0700
    DIR/20260131-142501-k3f9/rank-00012.out, .err    what that rank wrote, exactly
                             rank-00012.out.1, .2    its first pieces, with --log-size
                             merged.log              instead of these, with --log-merge
                             restart-1/rank-...      the same of ranks started again
                             dispatch.jsonl, plan.json, report.json, launcher.log

Files that only this user may change are made here: folders (``private_folder``) and files
(``create_file``). ``keep_memory_ours`` protects a process's memory that holds a secret.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from dispatcher.model.errors import FileUnusable, UnsafeFolder, UsageError, reason
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host


def new_run_id() -> str:
    """A run id that sorts by time and is unique: ``20260131-142501-k3f9x2``."""
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 letters, none like another
    tail = "".join(alphabet[byte % 32] for byte in os.urandom(6))
    return time.strftime("%Y%m%d-%H%M%S-") + tail


@value
class RunPaths(Value):
    """The folder of one run."""

    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "dispatch.jsonl"

    @property
    def merged(self) -> Path:
        return self.folder / "merged.log"

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    @property
    def launcher(self) -> Path:
        return self.folder / "launcher.log"

    @classmethod
    def create(cls, log_dir: str, run_id: str) -> RunPaths:
        """Make the run's folder below ``log_dir`` and point ``latest`` at it.

        Raises: UsageError when that cannot be done.
        """
        base = Path(log_dir)
        folder = base / run_id
        try:
            make_folders(base)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise FileUnusable(f"--log-dir {log_dir}: {reason(error)}") from None
        link = base / f".latest-{run_id}"
        with contextlib.suppress(OSError):  # a file system without links still has the folder
            link.symlink_to(run_id)
            try:
                os.replace(link, base / "latest")
            except OSError:  # another user's, in a folder where each may remove but the own
                link.unlink()
        return cls(folder)


_WORD = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")

HOST, RANK = "host", "rank"

#: (destination, sources)
Group = tuple[str, tuple[str, ...]]


def check(text: str, what: str) -> None:
    """Raises: UsageError when ``text``, called ``what``, has a placeholder we do not know."""
    for found in _WORD.finditer(text):
        if found[2] not in (None, HOST, RANK):
            raise UsageError(
                f"{what}: unknown placeholder: {found[0]}",
                hint=f"{{host}} and {{rank}} are known; {{{found[0]}}} is the text itself",
            )


def uses(text: str, name: str) -> bool:
    """Whether the placeholder ``name`` is in ``text``."""
    return any(found[2] == name for found in _WORD.finditer(text))


def fill(text: str, host: str, rank: int | None = None) -> str:
    """``text`` with the placeholders filled in. Raises: UsageError for a name unfit for a path."""
    if host in ("", ".", "..") or "/" in host or "\0" in host:
        raise UsageError(f"host {host!r}: cannot be part of a path")
    values = {HOST: host, RANK: str(rank)}
    return _WORD.sub(lambda found: f"{{{found[1]}}}" if found[1] else values[found[2]], text)


def ranks_of(hosts: Sequence[Host]) -> list[range]:
    """The ranks of each host. Raises: UsageError when a host does not say how many it has."""
    ranges, next_rank = [], 0
    for host in hosts:
        if host.slots is None:
            raise UsageError(
                f"{{rank}}: how many ranks has {host.name}?",
                hint=f"slots in the hostfile, or -H {host.name}:1",
            )
        ranges.append(range(next_rank, next_rank + host.slots))
        next_rank += host.slots
    return ranges


def groups(sources: Sequence[str], dest: str, hosts: Sequence[Host]) -> list[tuple[Group, ...]]:
    """The sources and destinations of a copy, a tuple of groups a host.

    Raises: UsageError for an unknown placeholder, and for ``{rank}`` without slots.
    """
    for text in (*sources, dest):
        check(text, text)
    ranked = any(uses(text, RANK) for text in (*sources, dest))
    ranges = ranks_of(hosts) if ranked else [range(1)] * len(hosts)
    filled = []
    for host, ranks in zip(hosts, ranges, strict=True):
        if uses(dest, RANK):
            each = [
                (fill(dest, host.name, rank), _fill_all(sources, host.name, [rank]))
                for rank in ranks
            ]
        else:
            each = [(fill(dest, host.name), _fill_all(sources, host.name, ranks))]
        filled.append(tuple(each))
    return filled


def _fill_all(texts: Iterable[str], host: str, ranks: Iterable[int]) -> tuple[str, ...]:
    """The texts filled in; texts with ``{rank}`` once a rank."""
    ranks = list(ranks)
    return tuple(
        fill(text, host, rank)
        for text in texts
        for rank in (ranks if uses(text, RANK) else ranks[:1])
    )


_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z0-9]{6}")


def is_run_id(text: str) -> bool:
    """Whether ``text`` has the form of a run id, and so may be part of a path or a script."""
    return _RUN_ID.fullmatch(text) is not None


def state_folder() -> Path:
    """The folder of all that dispatch keeps for this user."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):  # the standard says to ignore a relative path
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "dispatch")


def make_folders(path: str | Path, mode: int = 0o775) -> None:
    """Make the folder ``path``, with the missing folders above it.

    Other users may not write in new folders, for any umask: they could put another folder in
    its place. Raises: OSError; an existing folder is not an error.
    """
    above = os.path.dirname(os.path.abspath(path))
    if not os.path.lexists(above):
        make_folders(above)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def private_folder(folder: Path) -> Path:
    """``folder``, made with mode 0700 where it is missing.

    Raises: UsageError if it cannot be made, or belongs to others or is open to them.
    """
    try:
        make_folders(folder, 0o700)
        found = folder.lstat()
    except OSError as error:
        raise FileUnusable(f"{folder}: {reason(error)}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UnsafeFolder(f"{folder}: is not your own folder")
    if found.st_mode & 0o022:
        raise UnsafeFolder(f"{folder}: others may write to it", hint=f"chmod 700 {folder}")
    return folder


def create_file(path: str | Path, mode: int = 0o600) -> int:
    """A descriptor of the new file ``path``. An existing file is never touched.

    Raises: OSError, also when something of that name exists, be it a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode)


def open_anew(path: str, mode: int = 0o600) -> int:
    """A descriptor of the file ``path``, which the user has named: emptied, or made with ``mode``.

    Where another user may write, it is neither a file that they have put there nor one that a link
    leads to: they could read it, or choose which file is written over. Raises: OSError.
    """
    is_open = not is_ours(os.path.dirname(path) or ".")
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_NOFOLLOW if is_open else 0)
    fd = os.open(path, flags, mode)
    try:
        found = os.fstat(fd)
        if is_open and found.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "It is another user's")
        if stat.S_ISREG(found.st_mode):
            os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def is_ours(folder: str | Path) -> bool:
    """Whether ``folder`` is ours or root's, and closed to other users. Raises: OSError.

    A group that may write there works together, and is trusted.
    """
    found = os.stat(folder)
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & stat.S_IWOTH


def open_regular(path: str | Path, flags: int = 0) -> int:
    """A descriptor to read the file ``path``; opening it does not wait for a pipe's writer.

    Raises: OSError, also if it is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "Not a regular file")


def open_owned(path: str | Path) -> int:
    """A descriptor to read the file ``path``, which the owner of its folder must have put in it.

    Raises: OSError, also for a link, another user's file, or anything but a regular file.
    """
    fd = open_regular(path, os.O_NOFOLLOW)
    found = os.fstat(fd)
    owner, us = os.stat(os.path.dirname(path) or ".").st_uid, os.geteuid()
    is_named_once = found.st_nlink == 1 or owner == us  # a hard link may lead to our own file
    if found.st_uid in (owner, us) and is_named_once:
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "It is another user's")


def write_new(path: Path, data: bytes) -> None:
    """Make the new file ``path``, as ``create`` does, of ``data``. Raises: OSError."""
    fd = create_file(path)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def replace_file(path: str | Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the contents of the file ``path`` by ``data`` at once, as it may have readers.

    Raises: OSError; nothing is left behind then, as a full disk has less room with each that is.
    """
    beside = f"{path}.{os.urandom(6).hex()}.new"
    fd = create_file(beside, mode)
    try:
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; one write(2) where the descriptor takes it whole.

    It waits also where others who share the descriptor, as ssh and node do, made it non-blocking.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await_room(fd)


def in_front(fd: int) -> bool:
    """Whether we are in the foreground of the terminal ``fd``; one that rules no job is our own."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True


def await_room(fd: int) -> None:
    """Wait until ``fd``, which does not block, takes something, or its reader has gone."""
    import select  # which few need

    room = select.poll()
    room.register(fd, select.POLLOUT)
    room.poll()


def stream_error(error: OSError, stream: int = 1) -> str:
    """The error of standard output (``stream`` 1) or standard error, as a text for the user."""
    return f"standard {'output' if stream == 1 else 'error'}: {reason(error)}"


@value
class Rotation(Value):
    """size: bytes of a piece at most, None for one file. keep: full pieces kept, None for all."""

    size: int | None = None
    keep: int | None = None


_PR_SET_DUMPABLE = 4


def keep_memory_ours() -> None:
    """Protect our memory from core dumps and from users other than root: prctl(2), as ssh-agent.

    For a process that holds a secret. Its children are not protected, because exec ends that.
    On a system without prctl it does nothing.
    """
    import ctypes  # only the few processes with a secret need it

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
