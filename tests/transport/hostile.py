"""Peers that are not what they should be: a listening socket and what it does to a client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .sshd import ADDRESS


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that calls ``serve`` with each connection, in a thread of its own."""
    server = socket.create_server((ADDRESS, 0))
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()

    def guarded(connection: socket.socket) -> None:
        try:
            serve(connection)
        except (OSError, EOFError):
            pass  # the client went, as the socket or as paramiko says it

    threading.Thread(target=accept, name="test:accept", daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in connections:
            connection.close()


def silent(connection: socket.socket) -> None:
    """Accepts and says nothing."""


def banner_only(connection: socket.socket) -> None:
    """Stops after the first line."""
    connection.sendall(b"SSH-2.0-stuck\r\n")


def hangs_up(connection: socket.socket) -> None:
    """What MaxStartups does to some."""
    connection.close()


def over_limit(connection: socket.socket) -> None:
    """What newer sshd does when MaxStartups is exceeded."""
    connection.sendall(b"Exceeded MaxStartups\r\n")
    connection.close()


def locked_out(connection: socket.socket) -> None:
    """What sshd says while PerSourcePenalties last."""
    connection.sendall(b"Not allowed at this time\r\n")
    connection.close()


def web_server(connection: socket.socket) -> None:
    """Another service on the port."""
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"<p>no</p>\r\n" * 60)


def endless_line(connection: socket.socket) -> None:
    """Bytes without a line end, for ever."""
    while True:
        connection.sendall(b"x" * 4096)
