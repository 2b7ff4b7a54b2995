"""Readings of a survey that need our own code; each call may hang.

``pair``: two hosts measure latency, and what arrives in both directions. One listens, the other
calls three times: to play ping-pong, to send, to receive. The receiver keeps the clock and closes
the connection, so bytes in buffers do not count. Everything has a deadline.
"""

from __future__ import annotations

import _socket
import os
from fcntl import ioctl
from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SIOCGIFFLAGS = 0x8913
#: bytes of a file that is summed
SUM_LIMIT = 256 << 20
TCP_NODELAY = 1
#: for a pair: round trips, the purposes of a connection, bytes of one write
PINGS = 20
PING, SEND, RECEIVE = b"p", b"s", b"r"
CHUNK = 1 << 18


def space(folder: bytes) -> list[int]:
    """Bytes, free bytes, files, free files of the file system of ``folder``, for a usual user.

    b"" is the folder for temporary files. Raises: OSError.
    """
    there = os.statvfs(folder or os.environb.get(b"TMPDIR") or b"/tmp")
    size = there.f_frsize
    return [there.f_blocks * size, there.f_bavail * size, there.f_files, there.f_favail]


def summed(path: bytes) -> list[Any]:
    """[size, SHA-256 of the first ``SUM_LIMIT`` bytes in hexadecimal]. Raises: OSError."""
    try:  # hashlib would load OpenSSL for it
        from _sha2 import sha256  # type: ignore[import-not-found]
    except ImportError:  # before Python 3.12
        from _sha256 import sha256  # type: ignore[import-not-found]

    total, size = sha256(), 0
    with open(path, "rb") as file:
        while size < SUM_LIMIT:
            data = file.read(1 << 20)
            if not data:
                break
            size += len(data)
            total.update(data)
        return [os.fstat(file.fileno()).st_size, total.hexdigest()]


def netdevs() -> str:
    """``netdev NAME flags= mtu= speed= type= lower= addresses=``, a line each, in kernel's order.

    flags: hexadecimal; lower: the devices below a bond, bridge or VLAN; addresses: not link-local.
    """
    from dispatcher.remote.host import host_facts

    lines = []
    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    for _, name in _socket.if_nameindex()[:256]:
        flags, request = 0, name.encode().ljust(40, b"\0")
        try:
            flags = int.from_bytes(ioctl(probe.fileno(), SIOCGIFFLAGS, request)[16:18], "little")
        except OSError:
            pass
        words = ["netdev", name, "flags=%x" % flags]
        for field in ("mtu", "speed", "type"):
            try:
                with open("/sys/class/net/%s/%s" % (name, field)) as file:
                    words.append("%s=%s" % (field, file.read(32).strip()))
            except OSError:
                pass
        try:
            links = sorted(os.listdir("/sys/class/net/" + name))
        except OSError:
            links = []
        lower = ",".join(link[6:] for link in links if link[:6] == "lower_")
        words += ["lower=" + lower] if lower else []
        words.append("addresses=" + ",".join(host_facts.addresses_of(name.encode())))
        lines.append(" ".join(words))
    probe.close()
    return "\n".join(lines)


def environment(prefixes: list[str]) -> str:
    """Lines NAME=VALUE of the variables that begin with one of ``prefixes``."""
    return "\n".join(
        "%s=%s" % (name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith(tuple(prefixes)) and "\n" not in value
    )


def resolve(names: list[str]) -> list[list[Any]]:
    """[name, addresses, seconds] of each of ``names``, and of this host's name first."""
    found = []
    for name in [os.uname().nodename, *names]:
        began = monotonic()
        try:
            # text would load the tables of international names
            entries = _socket.getaddrinfo(os.fsencode(name), None, 0, _socket.SOCK_STREAM)
            addresses = sorted({entry[4][0] for entry in entries})
        except OSError:
            addresses = []
        found.append([name, addresses, monotonic() - began])
    return found


def count_gpus() -> int:
    """NVIDIA GPUs that we may use, counted as a run counts them."""
    from dispatcher.remote.host import host_facts

    return host_facts.count_gpus()


def identity() -> str:
    """A text that two processes share only on the same machine (or container)."""
    from dispatcher.remote.host import host_facts

    return host_facts.identity()


def gpu_users() -> list[list[Any]]:
    """[pid, user id, name] of processes that have an NVIDIA GPU open, as far as we may see."""
    found: list[list[Any]] = []
    if not os.path.exists("/proc/driver/nvidia"):
        return found
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            folder = "/proc/%s/fd/" % pid
            if any(_is_gpu(folder + fd) for fd in os.listdir(folder)):
                with open("/proc/%s/comm" % pid) as file:
                    name = file.read(64).strip()
                found.append([int(pid), os.stat("/proc/" + pid).st_uid, name])
        except OSError:
            continue  # not ours, or over
    return found[:64]


def _is_gpu(link: str) -> bool:
    try:
        target = os.readlink(link)
    except OSError:
        return False
    return target[:11] == "/dev/nvidia" and target[11:].isdigit()


def free_port() -> int:
    """A TCP port that is free now."""
    probe = _socket.socket()
    probe.bind(("", 0))
    port = probe.getsockname()[1]
    probe.close()
    return int(port)


def meet(addresses: list[str], port: int, seconds: float) -> list[list[str]]:
    """[address, result]: the first host listens, all others connect to it.

    The result is "" for a connection. Later addresses are tried only if the first does not answer
    for two thirds of ``seconds``. The listener ends when all have called.
    """
    end = monotonic() + seconds
    if os.environ.get("DISPATCH_INDEX") == "0":
        return await_calls(port, int(os.environ["DISPATCH_COUNT"]) - 1, end)
    found = []
    for nth, address in enumerate(addresses):
        why = announce(address, port, end - seconds / 3 if nth == 0 else monotonic() + 1)
        found.append([address, why])
        if not why or monotonic() >= end:
            break
    return found


def announce(address: str, port: int, until: float) -> str:
    """Connect and say who we are, again and again; "", or why that did not work last."""
    try:
        caller = connect(address, port, until)
        caller.send(os.environ["DISPATCH_INDEX"].encode())
        caller.close()
    except OSError as error:
        return error.strerror or "no answer"
    return ""


def await_calls(port: int, callers: int, until: float) -> list[list[str]]:
    """Take calls at ``port`` of every address until ``callers`` hosts have called; or why not."""
    for address in ("::", ""):
        try:
            door = listener(address, port)
            break
        except OSError as error:
            why = error.strerror or "cannot listen"
    else:
        return [["", why]]
    seen: set[bytes] = set()
    while len(seen) < callers and monotonic() < until:
        door.settimeout(max(0.01, until - monotonic()))
        try:
            caller = _socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            caller.settimeout(0.2)
            name = caller.recv(16)
            if name:  # or it only tried the door
                seen.add(name)
            caller.close()
        except OSError:
            pass  # no call, or no host that we know
    return []


# -- a pair ------------------------------------------------------------------------------


def pair(table: dict[str, list[Any]], seconds: float, limit: float) -> list[Any]:
    """[latency (s), bytes/s received here, error text], as far as this end knows them.

    table: by ``DISPATCH_INDEX`` ["listen" or "call", address, port]; a host that is not in it does
    nothing: []. seconds: to receive; limit: for all of it.
    """
    if os.environ["DISPATCH_INDEX"] not in table:
        return []
    role, address, port = table[os.environ["DISPATCH_INDEX"]]
    until = monotonic() + limit
    found: list[Any] = [None, None, ""]
    try:
        (listen if role == "listen" else call)(address, port, seconds, until, found)
    except OSError as error:
        found[2] = error.strerror or "no answer"
    return found


def listen(address: str, port: int, seconds: float, until: float, found: list[Any]) -> None:
    """Take the other end's three calls; into ``found`` goes the rate. Raises: OSError."""
    door = listener(address, port)
    done = b""
    while RECEIVE not in done:
        left(door, until)
        line = _socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
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
    """Call three times; into ``found`` go latency and rate. Raises: OSError."""
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


def socket_for(address: str) -> _socket.socket:
    """A TCP socket of the family of a numeric ``address``."""
    return _socket.socket(_socket.AF_INET6 if ":" in address else _socket.AF_INET)


def listener(address: str, port: int) -> _socket.socket:
    """A socket that listens at the address; "::" includes IPv4. Raises: OSError."""
    door = socket_for(address)
    door.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    if address == "::":
        door.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
    door.bind((address, port))
    door.listen(1024)
    return door


def connect(address: str, port: int, until: float) -> _socket.socket:
    """A connection, as soon as the other end listens. Raises: OSError at the deadline."""
    while True:
        line = socket_for(address)
        left(line, until)
        try:
            line.connect((address, port))
            line.setsockopt(_socket.IPPROTO_TCP, TCP_NODELAY, 1)
        except ConnectionRefusedError:
            line.close()
            sleep(0.02)  # the listener may come later than we
            if monotonic() >= until - 0.05:  # however long that took
                raise
        else:
            return line


def send(line: _socket.socket, until: float) -> None:
    """Send until the other end closes the connection."""
    line.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, CHUNK)
    data = b"\0" * CHUNK
    try:
        while True:
            left(line, until)
            line.send(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def receive(line: _socket.socket, seconds: float, until: float) -> float:
    """Bytes per second that arrive within ``seconds``."""
    began = monotonic()
    total = 0
    while (rest := began + seconds - monotonic()) > 0:
        left(line, until)
        line.settimeout(min(rest, line.gettimeout() or rest))  # a timeout is not a failure
        try:
            data = line.recv(CHUNK)
        except TimeoutError:
            break
        except OSError as error:  # before Python 3.10 a timeout is another kind of error
            if error.errno is None:
                break
            raise
        if not data:
            break
        total += len(data)
    return total / max(0.001, monotonic() - began)


def left(line: _socket.socket, until: float) -> None:
    """Let ``line`` wait until then at most. Raises: OSError when it is past."""
    rest = until - monotonic()
    if rest <= 0:
        raise OSError(110, "no answer in time")
    line.settimeout(rest)


#: functions that a reading may call by name
CALLS: dict[str, Callable[..., Any]] = {
    "space": space,
    "summed": summed,
    "free_port": free_port,
    "meet": meet,
    "pair": pair,
    "netdevs": netdevs,
    "environment": environment,
    "resolve": resolve,
    "count_gpus": count_gpus,
    "gpu_users": gpu_users,
    "identity": identity,
}
