"""Reads NCCL's and torch's state of this host's ranks: RAS, flight recorders, torch's own dumps.

**RAS** is a thread in each process that uses NCCL (2.24 and later). One answers at NCCL_RAS_ADDR
for the whole job. All ranks of a host listen there (SO_REUSEPORT), so a stopped rank may get the
question: then ask another time. Source: ``src/ras/client_support.cc`` of NCCL 2.30.7.

**Flight recorders** hold the collectives that a rank has called last; ``sitecustomize`` writes
them. torch's own dumps are pickles: they are kept as they are.
"""

from __future__ import annotations

import os
from _socket import AF_INET, AF_INET6, SOCK_STREAM, socket, timeout
from time import CLOCK_BOOTTIME, clock_gettime, monotonic, sleep, time

from dispatcher.remote.host import tcp_peer
from dispatcher.remote.probe import usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    #: rank -> (pid, its tree)
    Trees = Dict[int, Tuple[int, List[int]]]
    #: rank -> (path of its answer, the inode that was there before)
    Asked = Dict[int, Tuple[str, int]]

#: bytes of an answer of RAS, and seconds for its first words
RAS, RAS_GREETING = 64 << 10, 0.7
RAS_ADDRESS = "localhost:28028"
#: most bytes of a flight recorder in a report, and of all dumps of torch's
RECORDER, FLIGHTS = 64 << 10, 256 << 10
#: the type of a file in its mode, as inode(7) has it
TYPE, FIFO, FILE = 0o170000, 0o010000, 0o100000
#: where torch dumps if no variable (old and new name) is set: since 2.9, and before
FLIGHT_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
FLIGHT_CACHE, FLIGHT = "torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"  # noqa: S108 - torch's
FLIGHT_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


# -- RAS ----------------------------------------------------------------------------------


def ask_ras(pids: list[int], end: float) -> bytes:
    """The answer of RAS about all communicators, b"" if no process on this host listens."""
    known = (usage.environ(pid).get("NCCL_RAS_ADDR") for pid in pids[:1])
    host, _, port = (next(known, None) or RAS_ADDRESS).rpartition(":")
    host = host.strip("[]")
    places = {"localhost": ("127.0.0.1", "::1"), "::1": ("::1",)}.get(host, (host,))
    if not port.isdigit() or not (places[0].startswith("127.") or places[0] == "::1"):
        return b""
    while monotonic() < end:
        answers = [_converse(place, int(port), end) for place in places]
        if any(answers) or None not in answers:
            return next(filter(None, answers), b"")
    return b""


def _converse(host: str, port: int, end: float) -> bytes | None:
    """The answer at the address; b"" if none of our processes listens, None if it is silent."""
    output = b""
    try:
        link = socket(AF_INET6 if ":" in host else AF_INET, SOCK_STREAM)
    except OSError:
        return b""
    try:
        link.settimeout(0.5)
        link.connect((host, port))
        link.send(b"client protocol 2\n")
        while len(output) < RAS and monotonic() < end:
            left = max(0.01, end - monotonic())
            link.settimeout(left if output else min(left, RAS_GREETING))
            data = link.recv(65536)
            if not data:
                break
            if not output:
                # any user could listen on that port; the owner is known once it has answered
                if tcp_peer.user_of(link.fileno()) not in (0, os.geteuid()):
                    return b""
                link.send(b"timeout 1\nverbose status\n")
            output += data
    except timeout:
        return output[:RAS] or None
    except OSError:
        pass
    finally:
        link.close()
    return output[:RAS]


# -- flight recorders ---------------------------------------------------------------------


def ask_recorders(trees: Trees, folder: str | None) -> Asked:
    """Have the ranks write the contents of their flight recorders, if they can."""
    asked = {}
    for rank, (pid, _) in trees.items() if folder is not None else ():
        path = "%s/flight-%d" % (folder, pid)
        before = _inode(path + ".json")
        if _ring(path, b"1"):
            asked[rank] = path + ".json", before
    return asked


def _ring(path: str, words: bytes) -> bool:
    """Write to the pipe ``path``; False if it has no reader or is not a pipe."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.fstat(fd).st_mode & TYPE == FIFO and os.write(fd, words) > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def recorders(asked: Asked, end: float) -> list[list[Any]]:
    """[rank, its answer] of each that answers until ``end``; a new file is there as a whole."""
    left, found = dict(asked), []
    while left:
        for rank, (path, before) in list(left.items()):
            if _inode(path) not in (0, before):
                del left[rank]
                data = _content(path)
                if data:
                    found.append([rank, data])
        if not left or monotonic() >= end:
            break
        sleep(0.05)
    return sorted(found)


def _inode(path: str) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def _content(path: str) -> bytes:
    """A file's bytes, b"" if it is too long, or no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        about = os.fstat(fd)
        fits = about.st_mode & TYPE == FILE and about.st_size <= RECORDER
        return os.read(fd, RECORDER) if fits else b""
    finally:
        os.close(fd)


# -- torch's own dumps --------------------------------------------------------------------


def ask_flights(trees: Trees) -> None:
    """Have torch dump its flight recorders where it listens for that."""
    for rank, (pid, _) in trees.items():
        pipe = usage.environ(pid).get(FLIGHT_PIPE)
        if pipe:
            _ring("%s%d.pipe" % (pipe, rank), b"1\n")


def flights(trees: Trees) -> list[list[Any]]:
    """[rank, path, size, bytes] of each rank's dump that is younger than the rank."""
    found: list[list[Any]] = []
    left = FLIGHTS
    for rank, (pid, _) in trees.items():
        known = usage.environ(pid)
        cache = known.get("XDG_CACHE_HOME") or "%s/.cache" % known.get("HOME", "")
        chosen = next(filter(None, map(known.get, FLIGHT_VARIABLES)), None)
        prefixes = [chosen] if chosen else ["%s/%s" % (cache, FLIGHT_CACHE), FLIGHT]
        paths = ["%s%d" % (prefix, rank) for prefix in prefixes]
        path = next(filter(os.path.exists, paths), paths[-1])
        stat = usage.stat_of(pid)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            about = os.fstat(fd)
            born = 0.0 if stat is None else stat[6] / os.sysconf("SC_CLK_TCK")
            old = clock_gettime(CLOCK_BOOTTIME) - born
            if about.st_mtime >= time() - old - 1.0 and about.st_uid == os.geteuid():
                data = os.read(fd, about.st_size) if about.st_size <= left else b""
                left -= len(data)
                found.append([rank, path, about.st_size, data])
        except OSError:
            pass
        finally:
            os.close(fd)
    return found
