"""Where the ranks meet: a port kept free on node 0, and proof that an address reaches it.

Node 0's agent binds the port for the whole job. It listens only before ranks start, to send
the other agents the run's token (``docs/design/rendezvous.md``). Source: socket(7), ip(7).
"""

from __future__ import annotations

import _socket
import os
import select
from errno import EINPROGRESS
from time import monotonic

TOKEN_SIZE = 16
#: seconds after which an address that could not be reached is tried again
AGAIN = 0.25


class RendezvousPort:
    """Node 0's ``port`` (0: any), reserved; heard until ``close_listener``. Raises: OSError."""

    def __init__(self, token: bytes, port: int = 0) -> None:
        self.token = token
        self._keeper: _socket.socket | None = None
        self._listener: _socket.socket | None = None
        self._claim = _claimed(port) if port else None
        for family, address in ((_socket.AF_INET6, "::"), (_socket.AF_INET, "0.0.0.0")):  # noqa: S104
            try:
                keeper = _reusable(family)
                keeper.bind((address, port))
                number = keeper.getsockname()[1]
                self._claim = self._claim or _claimed(number)
                listener = _reusable(family)
                listener.bind((address, number))
                listener.listen(1024)
                listener.setblocking(False)
            except OSError:
                if family == _socket.AF_INET:
                    self.close()
                    raise
                continue
            self._keeper, self._listener, self.port = keeper, listener, number
            return

    def fileno(self) -> int:
        """The listener's descriptor, or -1 when it is closed."""
        return -1 if self._listener is None else self._listener.fileno()

    def greet(self) -> None:
        """Give the token to everyone who has connected."""
        while self._listener is not None:
            try:
                fd, _ = self._listener._accept()  # type: ignore[attr-defined]
            except OSError:
                return
            try:
                os.write(fd, self.token)
            except OSError:
                pass
            os.close(fd)

    def close_listener(self) -> None:
        """Stop sending the token; the port stays reserved."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Give the port back to the kernel."""
        self.close_listener()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if self._claim is not None:
            self._claim.close()
            self._claim = None


def _claimed(port: int) -> _socket.socket:
    """Claim ``port`` for one job. Raises: OSError, EADDRINUSE while another job has it.

    The keeper does not do that: it must let the rank bind the port, and so lets another keeper.
    An abstract name (unix(7)) is unique in a network namespace, for all users, and goes
    with its socket.
    """
    claim = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        claim.bind(b"\0dispatch-master-port-%d" % port)
    except OSError:
        claim.close()
        raise
    return claim


def _reusable(family: int) -> _socket.socket:
    sock = _socket.socket(family, _socket.SOCK_STREAM)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    if family == _socket.AF_INET6:
        sock.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
    return sock


def probe(addresses: list[str], port: int, token: bytes, seconds: float) -> list[str]:
    """Which of the numeric ``addresses`` answer at ``port`` with ``token``, in the given order.

    All are tried at once, and again while none is reached, for ``seconds`` at most.
    """
    end = monotonic() + seconds
    asked = addresses
    reached: set[str] = set()
    while asked and not reached:
        began = monotonic()
        found, asked = _ask(asked, port, token, end)
        reached.update(found)
        again = min(end, began + AGAIN) - monotonic()
        if monotonic() >= end:
            break
        if asked and not reached and again > 0:
            select.poll().poll(again * 1000)
    return [address for address in addresses if address in reached]


def _ask(addresses: list[str], port: int, token: bytes, end: float) -> tuple[list[str], list[str]]:
    """The addresses that answered before ``end``, and those that refused a connection."""
    poller = select.poll()
    open_sockets: dict[int, tuple[_socket.socket, str]] = {}
    reached: list[str] = []
    failed: list[str] = []
    for address in addresses:
        try:
            family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
            sock = _socket.socket(family, _socket.SOCK_STREAM)
            sock.setblocking(False)
            number = sock.connect_ex((address, port))
        except OSError:
            failed.append(address)  # no descriptor is free, say
            continue
        if number in (0, EINPROGRESS):
            poller.register(sock.fileno(), select.POLLIN)
            open_sockets[sock.fileno()] = (sock, address)
        else:
            failed.append(address)
            sock.close()
    while open_sockets and monotonic() < end:
        for fd, _ in poller.poll(max(0, (end - monotonic()) * 1000)):
            sock, address = open_sockets.pop(fd)
            poller.unregister(fd)
            try:
                if sock.recv(TOKEN_SIZE) == token:
                    reached.append(address)
            except OSError:
                failed.append(address)
            sock.close()
    for sock, _ in open_sockets.values():
        sock.close()
    return reached, failed
