"""The addresses of this host's interfaces that are up, by ``getifaddrs(3)``.

Python's standard library has no call for it, and running ``ip`` would add a
program to what the launcher needs. Only used for ``Match localnetwork``.
"""

from __future__ import annotations

import ctypes
import functools
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator

_UP = 0x1

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]  # more fields follow; they are not read


@functools.cache
def addresses() -> tuple[Address, ...]:
    """All IPv4 and IPv6 addresses of interfaces that are up.

    Raises: OSError when the system call fails.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.freeifaddrs.argtypes = [ctypes.POINTER(_Ifaddrs)]
    libc.freeifaddrs.restype = None
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    try:
        return tuple(_walk(head))
    finally:
        libc.freeifaddrs(head)


def _walk(entry: ctypes._Pointer[_Ifaddrs]) -> Iterator[Address]:
    while entry:
        item = entry.contents
        if item.address and item.flags & _UP:
            # struct sockaddr: a length byte first on BSD, then the family
            start = ctypes.string_at(item.address, 2)
            family = start[1] if sys.platform == "darwin" else int.from_bytes(start, sys.byteorder)
            if family == socket.AF_INET:
                yield ipaddress.IPv4Address(ctypes.string_at(item.address + 4, 4))
            elif family == socket.AF_INET6:
                yield ipaddress.IPv6Address(ctypes.string_at(item.address + 8, 16))
        entry = item.next
