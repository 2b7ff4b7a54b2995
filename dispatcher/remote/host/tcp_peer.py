"""Which user the other end of a TCP connection on this machine belongs to.

Any user can reach a port of 127.0.0.1, and nothing that comes from there says who speaks; the
kernel's table of sockets does. Source: proc(5), tcp(7).
"""

from __future__ import annotations

import _socket
import os
from _struct import unpack

#: the state of a connection whose both ends are open, in the table and in tcp_info
ESTABLISHED = 1


def user_of(fd: int) -> int:
    """User id of the process at the other end of connection ``fd``; -1: unknown, or it has left.

    A socket without an owner is user 0's in the table, and its address may be given to another, so
    the table counts only while our own end is still joined with it.
    """
    link = _socket.socket(fileno=fd)
    try:
        ends = [_in_table(*end[:2]) for end in (link.getpeername(), link.getsockname())]
        wanted = [*ends, "%02X" % ESTABLISHED]
        with open("/proc/net/tcp6" if link.family == _socket.AF_INET6 else "/proc/net/tcp") as file:
            rows = (line.split() for line in file)
            user = next((int(row[7]) for row in rows if row[1:4] == wanted and row[9] != "0"), -1)
        state = link.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, 1)
        return user if state[0] == ESTABLISHED else -1
    except (OSError, ValueError, IndexError):
        return -1
    finally:
        link.detach()


def accept(listener: _socket.socket) -> int | None:
    """Accept a connection; its descriptor, or None if there is none from our own user."""
    try:
        fd, _ = listener._accept()  # type: ignore[attr-defined]
    except OSError:
        return None
    if user_of(fd) == os.geteuid():
        return int(fd)
    os.close(fd)
    return None


def _in_table(host: str, port: int) -> str:
    """An address as the table has it: words in the machine's own byte order."""
    packed = _socket.inet_pton(_socket.AF_INET6 if ":" in host else _socket.AF_INET, host)
    words = unpack("=%dI" % (len(packed) // 4), packed)
    return "%s:%04X" % ("".join("%08X" % word for word in words), port)
