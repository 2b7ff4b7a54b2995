"""A connected TCP socket by a deadline: ``dial(host, port, deadline)``.

All addresses are tried, the two families in turn, each a moment after the one before (RFC 8305's
idea), so that an IPv6 route that leads nowhere costs a quarter of a second. The name is looked up
in its own thread, as ``getaddrinfo`` knows no time limit.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from itertools import zip_longest

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Steps

_STAGGER = 0.25
#: unacknowledged data ends the connection after this long, unless ``expect_answers`` sets less
USER_TIMEOUT_MS = 120_000

_Address = tuple[socket.AddressFamily, tuple[object, ...]]
_RETRY_LATER = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


def dial(
    host: str,
    port: int,
    deadline: float,
    *,
    family: socket.AddressFamily = socket.AF_UNSPEC,
    source: str | None = None,
    steps: Steps | None = None,
) -> socket.socket | Failure:
    """A connected socket without Nagle's delay, or the failure."""
    if steps is not None:
        steps.enter("name lookup")
    addresses = look_up(host, port, deadline, family)
    if isinstance(addresses, Failure):
        return addresses
    if steps is not None:
        steps.enter("connection")
    return _Race(host, port, addresses, deadline, source).run()


def look_up(
    host: str, port: int, deadline: float, family: socket.AddressFamily
) -> Sequence[_Address] | Failure:
    """The host's addresses, families in turn, in the resolver's order."""
    numeric = _resolve(host, port, family, socket.AI_NUMERICHOST)
    if not isinstance(numeric, socket.gaierror):
        return numeric
    answer: list[Sequence[_Address] | socket.gaierror] = []
    done = threading.Event()

    def ask() -> None:
        answer.append(_resolve(host, port, family, 0))
        done.set()

    # A daemon: a resolver that never answers must not keep the launcher alive.
    threading.Thread(target=ask, name=f"transport:lookup:{host}", daemon=True).start()
    if not done.wait(max(0.0, deadline - time.monotonic())):
        return Failure(Kind.TIMEOUT, f"name lookup of {host}: no answer in time", retryable=True)
    result = answer[0]
    if isinstance(result, socket.gaierror):
        words, again = (result.strerror or "not found").lower(), result.errno == socket.EAI_AGAIN
        return Failure(Kind.DNS, f"{host}: {words}", f"getent hosts {host}", again)
    return result


def _resolve(
    host: str, port: int, family: socket.AddressFamily, flags: int
) -> Sequence[_Address] | socket.gaierror:
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, flags)
    except socket.gaierror as error:
        return error
    except (UnicodeError, OSError) as error:
        return socket.gaierror(socket.EAI_NONAME, str(error))
    by_family: dict[socket.AddressFamily, list[_Address]] = {}
    for kind, _, _, _, address in found:
        by_family.setdefault(kind, []).append((kind, address))
    turns = zip_longest(*by_family.values())
    return [item for turn in turns for item in turn if item is not None]


class _Race:
    """Connections under way to one host's addresses; the first to succeed wins."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[_Address],
        deadline: float,
        source: str | None,
    ) -> None:
        self._host, self._port = host, port
        self._waiting = list(addresses)
        self._deadline = deadline
        self._source = source
        self._poller = select.poll()  # select() ends at descriptor 1023
        self._running: dict[int, tuple[socket.socket, str]] = {}
        self._errors: list[tuple[int, str]] = []

    def run(self) -> socket.socket | Failure:
        try:
            return self._run()
        finally:
            for sock, _ in self._running.values():
                sock.close()

    def _run(self) -> socket.socket | Failure:
        while self._waiting or self._running:
            left = self._deadline - time.monotonic()
            if left <= 0:
                break
            if self._waiting:
                self._start(*self._waiting.pop(0))
            if not self._running:
                continue
            pause = min(left, _STAGGER) if self._waiting else left
            for descriptor, _ in self._poller.poll(pause * 1000):
                winner = self._finish(descriptor)
                if winner is not None:
                    return winner
        return self._failure()

    def _start(self, family: socket.AddressFamily, address: tuple[object, ...]) -> None:
        text = str(address[0])
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._errors.append((error.errno or 0, text))
            return
        sock.setblocking(False)
        try:
            if self._source is not None:
                sock.bind((self._source, 0))
            status = sock.connect_ex(address)
        except OSError as error:
            status = error.errno or errno.EINVAL
        if status not in (0, errno.EINPROGRESS):
            sock.close()
            self._errors.append((status, text))
            return
        self._running[sock.fileno()] = (sock, text)
        self._poller.register(sock, select.POLLOUT)

    def _finish(self, descriptor: int) -> socket.socket | None:
        sock, text = self._running.pop(descriptor)
        self._poller.unregister(descriptor)
        status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status:
            sock.close()
            self._errors.append((status, text))
            return None
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
        if user_timeout is not None:
            sock.setsockopt(socket.IPPROTO_TCP, user_timeout, USER_TIMEOUT_MS)
        return sock

    def _failure(self) -> Failure:
        few = self._errors[:4]
        errors = "; ".join(f"{text}: {os.strerror(code).lower()}" for code, text in few)
        codes = {code for code, _ in self._errors}
        silent = [text for _, text in self._running.values()]
        silent += [str(address[0]) for _, address in self._waiting]
        where = f"port {self._port}"
        if silent:
            why = f"connection: no answer from {', '.join(silent[:4])} {where}"
            return Failure(Kind.TIMEOUT, f"{why}; {errors}" if errors else why)
        if errno.ECONNREFUSED in codes:
            if len(codes) == 1:  # the kind already names the error
                errors = ", ".join(text for _, text in few)
            return Failure(Kind.REFUSED, f"{errors} ({where})", f"is sshd running on {self._host}?")
        if errno.ETIMEDOUT in codes:
            return Failure(Kind.TIMEOUT, f"{errors} ({where})")
        busy = bool(codes.intersection(_RETRY_LATER)) or errno.ECONNRESET in codes
        return Failure(Kind.UNREACHABLE, f"{errors or 'no address'} ({where})", retryable=busy)
