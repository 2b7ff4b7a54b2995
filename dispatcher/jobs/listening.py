"""The socket of a job: where it lies, and who may call."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

#: callers at once
MOST_CALLERS = 16


def listen(folder: Path) -> socket.socket:
    """A listening socket ``folder``/control, mode 0600; nothing waits for it. Raises: OSError.

    Bound through /proc: the folder's own path may be longer than the 107 bytes of an address.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    at = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{at}/control")
        os.chmod("control", 0o600, dir_fd=at)
        listener.listen(MOST_CALLERS)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(at)
    return listener


def is_ours(link: socket.socket) -> bool:
    """Whether we ourselves, or root, are at the other end: the kernel says so."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid) in (os.geteuid(), 0)
