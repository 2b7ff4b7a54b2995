"""Two hosts measure the way between them: latency, and what arrives in both directions.

One listens, the other calls three times: to play ping-pong, to send, to receive. Who
receives keeps the clock, and hangs up when its time is over; who sends stops when it
notices. So what lies in buffers, or in the queue of a slow link, counts for nobody, and
no end is waited for. Everything has a deadline; what is late has failed.
"""

from __future__ import annotations

from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    SO_REUSEADDR,
    SO_SNDBUF,
    SOL_SOCKET,
    socket,
)
from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TCP_NODELAY = 1
PINGS = 20
PING, SEND, RECEIVE = b"p", b"s", b"r"
CHUNK = 1 << 18


def measure(mine: list[Any], seconds: float, limit: float) -> list[Any]:
    """[latency (s), bytes/s received here, what went wrong], as far as this end knows them.

    mine: ["listen" or "call", address, port]: the listener's own, or whom to call.
    seconds: to receive. limit: seconds for all of it.
    """
    role, address, port = mine
    until = monotonic() + limit
    found: list[Any] = [None, None, ""]
    try:
        (listen if role == "listen" else call)(address, port, seconds, until, found)
    except OSError as error:
        found[2] = error.strerror or "no answer"
    return found


def listen(address: str, port: int, seconds: float, until: float, found: list[Any]) -> None:
    door = socket(AF_INET6 if ":" in address else AF_INET)
    door.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    door.bind((address, port))
    door.listen(8)
    done = b""
    while RECEIVE not in done:
        left(door, until)
        line = socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
        left(line, until)
        what = line.recv(1)
        if what == PING:
            for _ in range(PINGS):
                line.send(line.recv(1) or b"x")
        elif what == SEND:
            found[1] = receive(line, seconds, until)
        elif what == RECEIVE:
            send(line, until)
        done += what
        line.close()


def call(address: str, port: int, seconds: float, until: float, found: list[Any]) -> None:
    line = connect(address, port, until)
    line.send(PING)
    times = []
    for _ in range(PINGS):
        began = monotonic()
        line.send(b"x")
        if not line.recv(1):
            break
        times.append(monotonic() - began)
    line.close()
    found[0] = sorted(times)[len(times) // 2] if times else None
    line = connect(address, port, until)
    line.send(SEND)
    send(line, until)
    line.close()
    line = connect(address, port, until)
    line.send(RECEIVE)
    found[1] = receive(line, seconds, until)
    line.close()


def connect(address: str, port: int, until: float) -> socket:
    """A connection, as soon as the other end listens. Raises: OSError at the deadline."""
    while True:
        line = socket(AF_INET6 if ":" in address else AF_INET)
        left(line, until)
        try:
            line.connect((address, port))
            line.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        except ConnectionRefusedError:
            line.close()
            if monotonic() >= until:
                raise
            sleep(0.02)
        else:
            return line


def send(line: socket, until: float) -> None:
    """Send until the other end hangs up."""
    line.setsockopt(SOL_SOCKET, SO_SNDBUF, CHUNK)
    data = b"\0" * CHUNK
    try:
        while True:
            left(line, until)
            line.send(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def receive(line: socket, seconds: float, until: float) -> float:
    """Bytes per second that arrive within ``seconds``."""
    began = monotonic()
    total = 0
    while (rest := began + seconds - monotonic()) > 0:
        left(line, until)
        line.settimeout(min(rest, line.gettimeout() or rest))  # its end is no failure
        try:
            data = line.recv(CHUNK)
        except TimeoutError:
            break
        except OSError as error:  # before Python 3.10 a timeout is of its own kind
            if error.errno is None:
                break
            raise
        if not data:
            break
        total += len(data)
    return total / max(0.001, monotonic() - began)


def left(line: socket, until: float) -> None:
    """Let ``line`` wait until then at most. Raises: OSError when it is past."""
    rest = until - monotonic()
    if rest <= 0:
        raise OSError(110, "no answer in time")
    line.settimeout(rest)
