"""A host's end of a copy: reads an order, answers, and does it.

``put``: order with the list of files; answer: which are needed; the files; a report.
``get``: order with paths; answer: the list, in pieces; which are needed; the files.
The report is the last word, and says what went wrong if anything did.
"""

from __future__ import annotations

import fcntl
import os

try:
    import _signal as signal  # type: ignore[import-not-found]  # signal: 5 ms of enumerations
except ImportError:
    import signal

from dispatcher.remote.copy import disk
from dispatcher.remote.copy.receiver import Receiver
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.mux import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Tuple

    from dispatcher.remote.copy.copy_relay import Relay

    Frames = Iterator[Tuple[int, bytes]]

_MOST = 1 << 30  # bytes of a list; the host trusts the launcher
_READ = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python knows from 3.10 on


class _Ended(Exception):
    """The launcher is gone, or ends us."""


def main(program: bytes) -> int:
    """Copy; the exit code, 0 if all files are in place. program: as it was sent."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    incoming = _frames()
    try:
        order = copy_frames.value_of(*next(incoming))
        return _put(order, incoming, program) if order["do"] == "put" else _get(order, incoming)
    except (Malformed, disk.NotGiven, disk.NotTaken) as bad:
        return _fail(str(bad))
    except OSError as error:
        name = f"{error.filename}: " if error.filename is not None else ""
        return _fail(name + (error.strerror or str(error)).lower())
    except _Ended:
        return 1


def _put(order: dict[str, Any], incoming: Frames, program: bytes) -> int:
    entries = copy_frames.rows(order["list"])
    more = [order["checksum"], order["resume"], order.get("owner", "")]
    more += [order.get("alone", False), order.get("fixed", False)]
    receiver = Receiver(entries, order["groups"], *more)
    keep, relay = False, None
    try:
        _send(receiver.needs())
        if order.get("below"):
            from dispatcher.remote.copy.copy_relay import Relay

            relay = Relay(order, program, receiver, _send)
            relay.start()
        _receive(receiver, incoming, relay)
        if relay is not None:
            relay.wait(lambda child: child.fed)
        receiver.commit()
        if relay is not None:
            relay.wait(lambda child: child.ended)
        receiver.close(keep)  # first, because the launcher may end us after our last message
        _send(receiver.report())
    except BaseException as error:
        keep = isinstance(error, _Ended) and bool(order["resume"])
        if relay is not None:
            relay.abandon()
        raise
    finally:
        receiver.close(keep)
    return 0


def _get(order: dict[str, Any], incoming: Frames) -> int:
    entries: list[copy_frames.Entry] = []
    places: list[str] = []

    def listed() -> Iterator[copy_frames.Entry]:
        for start, name, named in _named(order):
            for entry, place in disk.scan(start, name, named=named, partial=True):
                if order["checksum"] and entry.kind == copy_frames.FILE:
                    try:
                        entry.more = disk.digest(place)
                    except OSError:
                        pass  # it is reported when its turn comes
                entries.append(entry)
                places.append(place)
                yield entry

    for part in copy_frames.pieces(listed()):
        _send(part)
    answer = copy_frames.value_of(*next(incoming))
    starts = copy_frames.starts_of(answer)
    waiting, size = [], 0
    for index in copy_frames.needed_of(answer):
        at, seen = starts.get(index, (0, ""))
        for piece in disk.file_frames(places[index], entries[index].size, at, seen):
            waiting.append(piece)
            size += len(piece)
            if size >= copy_frames.CHUNK:
                _write(b"".join(waiting))
                waiting, size = [], 0
    _write(b"".join(waiting))
    return 0


def _named(order: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Of each file that is asked for its path, ``GROUP/NAME``, and whether it was named in full."""
    known: dict[str, str] = {}
    for path, name in order["paths"]:
        found = [(disk.at_home(path), name)]
        wild = disk.has_wildcards(path) and not os.path.lexists(found[0][0])
        if wild:
            folder, parts = disk.split_wildcards(path)
            group = name.partition("/")[0]
            matches = disk.expand(disk.at_home(folder), parts)
            found = [(at, f"{group}/{inner}") for at, inner in matches]
            if not found:
                raise disk.NotGiven(f"{path}: no file there matches")
        for place, named in found:
            if named not in known:
                known[named] = place
                yield place, named, not wild
            elif os.path.normpath(known[named]) != os.path.normpath(place):
                raise disk.NotGiven(f"{known[named]} and {place}: copied to the same path")


def _receive(receiver: Receiver, incoming: Frames, relay: Relay | None) -> None:
    while not receiver.done:
        kind, body = next(incoming)
        try:
            if relay is None:
                receiver.take(kind, body)
                continue
            with relay.grown:
                receiver.take(kind, body)
                relay.grown.notify_all()
        except OSError as error:
            if error.filename is None:
                error.filename = receiver.now.path.partition("/")[2]
            raise


def _frames() -> Frames:
    for fd in 0, 1:
        try:
            fcntl.fcntl(fd, _SET_PIPE_SIZE, _READ)  # fewer turns between sshd and us
        except OSError:
            pass  # no pipe, or not on Linux
    incoming = copy_frames.frames(_MOST)
    while data := os.read(0, _READ):
        for _, kind, body in incoming.feed(data):
            yield kind, body
    raise _Ended


def _send(value: dict[str, Any]) -> None:
    _write(copy_frames.message(value))


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _fail(why: str) -> int:
    _send({"error": why})
    return 1


def _end(number: int, frame: object) -> None:
    raise _Ended
