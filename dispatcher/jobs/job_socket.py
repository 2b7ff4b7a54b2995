"""The socket of a job: its place, its protocol, and the client's side.

A client sends one line of JSON, its order: ``attach`` (with ``notes``, ``picture``, ``table``:
seconds), ``stop`` (``now``, ``signal``), ``stacks``, ``progress``, or ``restart`` (``words``,
``exports``). The launcher sends frames, each a line of JSON with a ``type``: ``picture``,
``table``, ``stacks``, ``progress``, ``restarted``, ``refused``, ``say``, and last ``verdict``.
Lines are bounded; unknown types are ignored. The output of the ranks does not go this way: it is in
the job's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.jobs.registry import PAUSED, Job, find, not_running

#: bytes at most of an order, which may hold arguments, and of a frame
LONGEST_ORDER = 128 << 10
LONGEST_LINE = 64 << 20

#: seconds between two samples
LEAST_EVERY, MOST_EVERY = 0.2, 3600.0

ORDERS = ("attach", "stop", "stacks", "progress", "restart")
#: signals that a job may be stopped with: all except those that no program can handle
PASSED_ON = frozenset(range(65)) - {9, 19, 32, 33}


class Malformed(ValueError):
    """Data from the other end breaks this protocol."""


def frame(**fields: Any) -> bytes:
    """One frame of these ``fields``."""
    return json.dumps(fields).encode() + b"\n"


def parse_order(line: bytes) -> Mapping[str, Any]:
    """The order in ``line``. Raises: Malformed."""
    try:
        order = json.loads(line) if len(line) <= LONGEST_ORDER else None
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, dict) or order.get("order") not in ORDERS:
        raise Malformed("not an order")
    return order


def way_to_stop(order: Mapping[str, Any]) -> str:
    """The kind of a ``stop`` order: "stop", "kill" or the number of the first signal."""
    number = order.get("signal")
    if order.get("now") is True:
        return "kill"
    known = isinstance(number, int) and not isinstance(number, bool) and number in PASSED_ON
    return str(number) if known else "stop"


def wants_table(order: Mapping[str, Any]) -> float | None:
    """Seconds between the samples that the client wants to see in a table; None for no table."""
    seconds = order.get("table")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    return float(seconds) if LEAST_EVERY <= seconds <= MOST_EVERY else None


def restart_of(order: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(program and arguments or (), variables) of a ``restart``. Raises: Malformed."""
    words, exports = order.get("words", []), order.get("exports", [])
    if not isinstance(words, list) or not isinstance(exports, list):
        raise Malformed("not an order")
    pairs = [tuple(pair) for pair in exports if isinstance(pair, list)]
    texts = [*words, *(text for pair in pairs for text in pair)]
    if not all(isinstance(text, str) for text in texts) or any(len(pair) != 2 for pair in pairs):
        raise Malformed("not an order")
    return tuple(words), tuple((name, text) for name, text in pairs)


class RestartAnswer:
    """The answer to a restart. A refusal follows its order at once; a later one is not for us."""

    def __init__(self) -> None:
        self._ordered = self._heard = self._accepted = False

    def order(self) -> None:
        """Note that this client has ordered a restart."""
        self._ordered = True

    def take(self, event: ev.Event) -> bytes | None:
        """The frame that ``event`` calls for."""
        answer = None
        match event:
            case ev.RestartWanted():
                self._accepted = self._heard
                self._heard = self._ordered
            case ev.RestartRefused(why) if self._heard and not self._accepted:
                answer = refused(why)
            case ev.RanksPlaced(world_size, restart=restart) if self._heard:
                answer = frame(type="restarted", world_size=world_size, restart=restart)
        if answer is not None:
            self._ordered = self._heard = self._accepted = False
        return answer


def refused(why: str, hint: str | None = None) -> bytes:
    """The frame that what was ordered is not done."""
    return frame(type="refused", why=why, hint=hint)


class Frames:
    """Bytes in, frames out: ``feed`` gives the fields of each that is complete."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Raises: Malformed."""
        self._rest += data
        while (end := self._rest.find(b"\n")) >= 0:
            try:
                fields = json.loads(self._rest[:end])
            except (ValueError, RecursionError):
                fields = None
            if not isinstance(fields, dict):
                raise Malformed("not a frame")
            del self._rest[: end + 1]
            yield fields
        if len(self._rest) > LONGEST_LINE:
            raise Malformed("too long a line")


#: most clients attached at once; as many more may send other orders
MOST_CLIENTS = 16
#: whole seconds in which a launcher must have room for a caller
CONNECT_TIMEOUT = 5


def listen(folder: Path) -> socket.socket:
    """A listening socket ``folder``/control, mode 0600; nothing waits for it. Raises: OSError.

    Bound through /proc: the folder's own path may be longer than the 107 bytes of an address.
    """
    at = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{at}/control")
        os.chmod("control", 0o600, dir_fd=at)
        listener.listen(MOST_CLIENTS)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(at)
    return listener


def forget(folder: Path) -> None:
    """Remove the socket of a launcher that has stopped listening; ignores an error."""
    with contextlib.suppress(OSError):
        (folder / "control").unlink()


def is_ours(link: socket.socket) -> bool:
    """Whether the kernel reports our own user, or root, at the other end."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid) in (os.geteuid(), 0)


def connected(folder: Path) -> socket.socket:
    """A connection to the launcher whose record is in ``folder``. Raises: OSError."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # connect waits for ever where the queue of a launcher that hangs is full
    wait = struct.pack("ll", CONNECT_TIMEOUT, 0)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
    try:
        at = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            link.connect(f"/proc/self/fd/{at}/control")
        finally:
            os.close(at)
    except OSError:
        link.close()
        raise
    return link


def progress_of(jobs: Iterable[Job], seconds: float) -> dict[str, tuple[str, float | None]]:
    """Run id -> the last progress of each job and the seconds left, None where they are unknown.

    Launchers that do not answer within ``seconds``, all together, are left out.
    """
    asked, found = {}, {}
    with contextlib.ExitStack() as links:
        for job in jobs:
            with contextlib.suppress(OSError):
                link = asked[job.run_id] = links.enter_context(connected(job.folder))
                link.sendall(json.dumps({"order": "progress"}).encode() + b"\n")
        until = time.monotonic() + seconds
        for run_id, link in asked.items():
            with contextlib.suppress(OSError, Malformed):
                frames = Frames()
                while run_id not in found:
                    link.settimeout(max(0.001, until - time.monotonic()))
                    if not (data := link.recv(1 << 16)):
                        break
                    for fields in frames.feed(data):
                        match fields:
                            case {"type": "progress", "reached": str(reached), "left": left}:
                                known = isinstance(left, (int, float)) and 0 <= left < 1e12
                                found[run_id] = reached, float(left) if known else None
    return found


class JobConnection:
    """A connection to the launcher of ``job``; ``frames`` reads its messages.

    stops: to order ``stop``, for which a paused launcher is woken; any other order it would carry
    out much later.
    Raises: DispatchError when the launcher does not answer.
    """

    def __init__(self, job: Job, *, stops: bool = False) -> None:
        if job.phase == PAUSED and not stops:
            raise not_running(job)
        self._job = job
        self._said = self.frames()
        try:
            self._link = connected(job.folder)
        except OSError:
            raise not_running(find(job.run_id)) from None  # it may have ended since it was found

    def order(self, order: str, **fields: Any) -> None:
        """Send an order. If the launcher is gone, reading its answer shows that.

        A paused launcher is woken to stop, as shells wake a process that they send SIGTERM.
        """
        is_paused = self._job.phase == PAUSED
        with contextlib.suppress(OSError):
            self._link.sendall(json.dumps({"order": order, **fields}).encode() + b"\n")
            if is_paused and order == "stop":
                os.kill(self._job.launcher.pid, signal.SIGCONT)

    def answer(self) -> dict[str, Any]:
        """The launcher's next message; an empty dict now and then.

        Raises: DispatchError when it is gone, with the end that the record has.
        """
        with contextlib.suppress(OSError, Malformed):
            for fields in self._said:
                return fields
        raise not_running(find(self._job.run_id))

    def frames(self) -> Iterator[dict[str, Any]]:
        """Every frame until the launcher closes the connection, and an empty frame now and then.

        Raises: Malformed, OSError.
        """
        frames = Frames()
        self._link.settimeout(ev.TICK)
        while True:
            try:
                data = self._link.recv(1 << 16)
            except TimeoutError:
                yield {}
                continue
            if not data:
                return
            yield from frames.feed(data)

    def __enter__(self) -> JobConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self._link.close()
