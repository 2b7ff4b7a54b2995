"""The pool's socket: its path, the check of callers, and the messages on it.

It is in ``$XDG_RUNTIME_DIR/dispatch`` if the user owns that folder (under ``su`` the user does
not), or in ``kept`` among dispatch's own files. Its name holds the node's name and the network
and mount namespaces. Both sides also ask the kernel for the other's user.

The messages are channels of ``remote.protocol.mux``: a connection is one launcher, which numbers
the channels, a channel one command. Bodies that are not bytes of a stream are JSON objects::

    launcher   OPEN (what to run where)  RESIZE (columns, rows)
               LET_END (as CLOSE, of a command that ends by itself)
    daemon     ACCEPTED (address)  FAILED (a failure)  NOT_POOLED  ENDED (code, signal, silence)
    at once    LIST  DROP (hosts)  and LIST the answer, on no channel
    daemon     ASK (for a login, something that the launcher knows), answered by its ANSWER

An OPEN is answered first, by one of the daemon's first three.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dispatcher.model.errors import NoConnectionDaemon
from dispatcher.model.paths import private_folder, state_folder
from dispatcher.remote.protocol.mux import OWN, Decoder, Malformed, frame

#: part of the socket's name, since a daemon may be older than its callers
PROTOCOL = 9
#: bytes of a body at most: a command may be long, and so may a list of hosts
LARGEST = 1 << 20
#: bytes of input that may come with an OPEN: as many as any connection takes at once
OPENING = 8 << 10

(
    RESIZE, LET_END, ACCEPTED, FAILED, NOT_POOLED, LIST, DROP, ASK, ANSWER,
) = range(OWN, OWN + 9)  # fmt: skip
#: seconds that a new daemon may take to listen
START_LIMIT = 10.0
#: seconds after which a daemon that does not answer is not used
ANSWER_LIMIT = 0.5
#: the namespaces that decide which machine a name means, and by which files it is reached
_NAMESPACES = ("net", "mnt")
_BACKLOG = 1024
#: the folder that has our own package in it
_HOUSE = Path(__file__).parents[3]


def folder() -> Path:
    """The folder, made if need be. Raises: UsageError if it is not ours alone."""
    runtime = _runtime()
    if runtime is not None:
        return private_folder(runtime)
    private_folder(state_folder())
    return private_folder(state_folder() / "kept")


def _runtime() -> Path | None:
    """The folder while the user is logged in; None where it belongs to another user."""
    above = os.environ.get("XDG_RUNTIME_DIR", "")
    if not above.startswith("/") or not os.path.isdir(above):
        return None
    return Path(above, "dispatch") if os.stat(above).st_uid == os.geteuid() else None


def socket_name() -> str:
    """The socket's file name: one for each node and its namespaces."""
    node = "".join(c if c.isalnum() or c in "-." else "_" for c in os.uname().nodename)
    spaces = (str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in _NAMESPACES)
    return "-".join([f"holder{PROTOCOL}", node[:64], *spaces])


def seems_up() -> bool:
    """Whether a daemon seems to run; only checks that the file exists."""
    places = state_folder() / "kept", _runtime()
    return any(place is not None and os.path.exists(place / socket_name()) for place in places)


def dial() -> socket.socket | None:
    """A connection to the daemon; None if there is none. Raises: UsageError."""
    place = folder()
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(ANSWER_LIMIT)  # a daemon that hangs lets callers queue up to its backlog
    try:
        with _at(place) as at:
            link.connect(f"/proc/self/fd/{at}/{socket_name()}")
        if uid_of(link) == os.geteuid():
            return link
    except OSError:
        pass
    link.close()
    return None


def reach(say: Callable[[str], None]) -> socket.socket | None:
    """Do as ``dial``; also None, after a note by ``say``, for a daemon that does not answer.

    ssh skips a ControlPath whose master is dead in the same way. Raises: UsageError.
    """
    link = dial()
    if link is None:
        return None
    silent = why_silent(link)
    if silent is None:
        return link
    link.close()
    say(f"note: {silent}: connecting without it (dispatch connect --close ends it)")
    return None


def why_silent(link: socket.socket) -> str | None:
    """Check that the daemon answers: None if it does in time, else a text about its silence.

    link: as ``dial`` gives it.
    """
    try:
        _asked(link, LIST, ANSWER_LIMIT)
    except (OSError, Malformed):
        return _silent(link)
    return None


def _silent(link: socket.socket) -> str:
    return f"the process that holds connections (pid {peer(link)[0]}) does not answer"


def kill_daemon() -> bool:
    """Kill the daemon, which need not answer; False if it is in another pid namespace."""
    link = dial()
    if link is None:
        return True
    with link:
        pid, _ = peer(link)
    if pid <= 0:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # a stopped process gets no other signal
    remove_socket()
    return True


def dial_or_start() -> socket.socket:
    """Do as ``dial``, but start a daemon where there is none. Raises: DispatchError, UsageError."""
    link = dial()
    if link is not None:
        return link
    import subprocess  # most of us find a daemon, or want none

    # by a shell that ends at once: it is not our child, so we need not wait for its end
    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-m", "dispatcher.transport.pool.daemon"],
        cwd=_HOUSE,  # python -m looks there first, and the user's folder may hold anything
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end:
        link = dial()
        if link is not None:
            return link
        time.sleep(0.01)  # another's daemon may be the one that comes up
    raise NoConnectionDaemon("no process to hold connections could be started")


def listen() -> socket.socket | None:
    """The daemon's own socket; None if another daemon has it. Raises: UsageError, OSError."""
    place = folder()
    lock = os.open(place / f"{socket_name()}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until we end
    except BlockingIOError:
        os.close(lock)
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _at(place) as at:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_name(), dir_fd=at)
        before = os.umask(0o177)
        try:
            listener.bind(f"/proc/self/fd/{at}/{socket_name()}")
        finally:
            os.umask(before)
    listener.listen(_BACKLOG)
    return listener


def remove_socket() -> None:
    """Remove the socket, which has no listener any more."""
    with contextlib.suppress(OSError):
        (folder() / socket_name()).unlink()


def uid_of(link: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    return peer(link)[1]


def peer(link: socket.socket) -> tuple[int, int]:
    """Process id and user at the other end (unix(7), SO_PEERCRED); pid 0 if we cannot see it."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid), int(uid)


@contextlib.contextmanager
def _at(place: Path) -> Iterator[int]:
    """A descriptor of the folder: its path may be longer than a socket's address may be."""
    fd = os.open(place, os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def json_frame(kind: int, channel: int = 0, /, **fields: Any) -> bytes:
    """A frame whose body is ``fields`` as JSON."""
    return frame(channel, kind, json.dumps(fields).encode())


def fields(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises: Malformed."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Malformed("not an object")
    return found


#: seconds that the daemon may take to close connections
LIMIT = 10.0


def ask_daemon(kind: int, **order: Any) -> dict[str, Any] | None:
    """The daemon's answer to LIST, or to DROP of ``hosts``; None where no daemon runs.

    Raises: UsageError if its folder is not ours alone; NoConnectionDaemon if it does not answer;
    OSError, Malformed.
    """
    link = dial()
    if link is None:
        return None
    with link:
        try:
            listed = _asked(link, LIST, ANSWER_LIMIT)
        except TimeoutError:
            raise NoConnectionDaemon(_silent(link), hint="dispatch connect --close") from None
        return listed if kind == LIST else _asked(link, kind, LIMIT, **order)


def _asked(link: socket.socket, kind: int, seconds: float, **order: Any) -> dict[str, Any]:
    """The daemon's answer to an order. Raises: OSError, also if it is late; Malformed."""
    link.settimeout(seconds)
    link.sendall(json_frame(kind, **order))
    frames, answers = Decoder(LARGEST), list[tuple[int, int, bytes]]()
    while not answers:
        data = link.recv(1 << 16)
        if not data:
            raise Malformed("the daemon hung up")
        answers += frames.feed(data)
    return fields(answers[0][2])
