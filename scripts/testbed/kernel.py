"""The system calls that Python's ``os`` lacks: namespaces, mounts, the parent-death signal.

Thin and literal: same names and arguments as the manual pages (unshare(2), setns(2), mount(2),
prctl(2)); a failure is an OSError with the call's target in it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int = 0) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def new_user_namespace(uid: int, gid: int) -> None:
    """Be ``uid`` and ``gid``, and nobody else, in a user namespace of our own.

    To everybody outside we stay who we were. Inside we may do all, until we execute a program as
    another than user 0.
    """
    maps = (
        ("setgroups", "deny"),  # the price of a gid_map that needs no root
        ("uid_map", f"{uid} {os.geteuid()} 1"),
        ("gid_map", f"{gid} {os.getegid()} 1"),
    )
    unshare(CLONE_NEWUSER)
    for name, text in maps:
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"{name}: {error.strerror}") from None


def join(pid: int, names: Sequence[str]) -> None:
    """Enter these namespaces of process ``pid``, first its user namespace if that is another.

    Raises: OSError, when there is no such process or it is not ours.
    """
    where = f"/proc/{pid}/ns/"
    if not os.path.samefile(where + "user", "/proc/self/ns/user"):
        names = ("user", *names)
    handles = [os.open(where + name, os.O_RDONLY | os.O_CLOEXEC) for name in names]
    for handle in handles:
        setns(handle)
        os.close(handle)


def mount(
    source: str | None, target: str, kind: str | None, flags: int = 0, data: str = ""
) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _check(
        _libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(data) if data else None),
        f"mount {kind or source} on {target}",
    )


def sethostname(name: str) -> None:
    raw = name.encode()
    _check(_libc.sethostname(raw, len(raw)), "sethostname")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send us ``number`` when the thread that forked us ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl")


def set_name(name: str) -> None:
    """What ``ps -o comm`` shows for this process; at most 15 bytes."""
    _libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
