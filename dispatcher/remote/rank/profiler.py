"""Samples of the stacks of this host's ranks, for ``dispatch profile``, by py-spy or by the rank.

For each rank that is here it prints a line: ``profile`` and JSON, compressed, in base64. It writes
no file, and its children end with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from binascii import b2a_base64
from select import select
from time import monotonic
from zlib import compress

from dispatcher.remote.host.child import start_child
from dispatcher.remote.probe import stack_dump, usage
from dispatcher.remote.rank import debugger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: samples a second at most, by py-spy and by a rank itself; samples of a thread
BY_SPY, BY_RANK, SAMPLES = 100, 20, 2000
#: bytes of a rank's samples, and of all lines
LARGEST, LINES = 16 << 20, 3 << 20
#: seconds for py-spy to write its samples
WRITES = 10.0
#: the signals to end that have come
signals: list[int] = []


def main(argument: bytes) -> int:
    """Sample the ranks after a run id and seconds in ``argument``; the exit code."""
    run_id, seconds, *ranks = argument.split()
    ended, children = [0], []  # type: ignore[var-annotated]

    def end(number: int, _: Any) -> None:
        ended.append(128 + number)
        for pid, _ in children:
            os.kill(pid, signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    processes = debugger.processes_of(run_id)
    for rank in ranks:
        pids = [pid for pid, variables in processes.items() if variables.get(b"RANK") == rank]
        if pids:
            work = (run_id, rank, pids, int(seconds), LINES // len(ranks))
            children.append(start_child(lambda into, work=work: answer(into, *work), "profile"))  # type: ignore[misc]
    for _, out in children:
        sys.stdout.buffer.write(taken(out, float("inf")))
        sys.stdout.flush()
    return ended[-1]


def answer(into: int, run_id: bytes, rank: bytes, pids: list[int], seconds: int, most: int) -> None:
    """Write the line for the rank that has the processes ``pids``; a child's work."""
    signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    os.setpgid(0, 0)  # a SIGTERM for the group of ``main`` would end py-spy without its samples
    stats = {pid: usage.stat_of(pid) for pid in pids if stack_dump.is_python(pid, None)}
    ages = {stat[6]: pid for pid, stat in stats.items() if stat is not None}
    pid = ages[min(ages)] if ages else 0  # as ``stacks``: the first Python
    began, rate = monotonic(), min(BY_SPY, max(1, SAMPLES // seconds))
    how = "by py-spy"
    told: Any = by_spy(pid, rate, began + seconds)
    if told is None:
        how, rate = "by the rank itself, without py-spy", min(BY_RANK, rate)
        told = by_itself(run_id, rank, pid, rate, began + seconds)
    if isinstance(told, str):
        told = {"said": told}
    else:
        end = "" if stack_dump.is_python(pid, None) else "; then it ended"
        told["said"] = "%.0f s, %d times a second, %s%s" % (monotonic() - began, rate, how, end)
    for one in (told, {"said": "its samples do not fit in an answer; take fewer ranks or seconds"}):
        line = b2a_base64(compress(json.dumps({**one, "rank": int(rank)}).encode()))
        if len(line) <= most:
            with open(into, "wb") as file:
                file.write(b"profile " + line)
            return


def by_spy(pid: int, rate: int, until: float) -> dict[str, Any] | None:
    """Samples in speedscope's format; None if py-spy is not there or may not look."""
    spy = stack_dump.spy_of(pid)
    if spy is None:
        return None
    words = "record --format speedscope --nonblocking --idle --full-filenames --output"
    more = ["/proc/self/fd/1", "--rate", str(rate), "--pid", str(pid)]
    child, out = usage.start_program([spy, *words.split(), *more])
    text = taken(out, until)
    os.kill(child, signal.SIGINT)
    text += taken(out, monotonic() + WRITES, heeds=False)
    os.kill(child, signal.SIGKILL)  # if it has not ended
    try:
        start, end = text.index(b'{"$schema"'), text.rindex(b"}")  # py-spy also writes words
        return json.loads(text[start : end + 1])  # type: ignore[no-any-return]
    except ValueError:
        return None


def by_itself(
    run_id: bytes, rank: bytes, pid: int, rate: int, until: float
) -> dict[str, Any] | str:
    """The same by a thread of the rank (``debugger.sample``), or why there is nothing."""
    folder = debugger.ranks_here(run_id, rank).get(pid)
    if pid and folder and os.path.exists(debugger.door(folder, pid)):
        return "it waits at breakpoint()"
    source = sys.modules[debugger.__name__].__spec__.loader.get_source(debugger.__name__)  # type: ignore[union-attr]
    link = debugger.called(folder, pid, source.encode(), rate) if folder else None
    if link is None:
        return "no py-spy, and its Python does not answer" if pid else "it runs no Python"
    began = monotonic()
    text = taken(link.fileno(), until).decode("utf-8", "replace")
    link.close()
    places: dict[tuple[str, ...], int] = {}
    threads: dict[str, Any] = {}
    for line in filter(None, text.split("\n")[:-1]):
        thread, at, name, *words = line.split("\0")
        one = threads.setdefault(thread, {"name": name, "samples": [], "weights": [], "at": []})
        frames = zip(words[::3], words[1::3], words[2::3])
        one["samples"].append([places.setdefault(frame, len(places)) for frame in frames][::-1])
        one["at"].append(float(at))
    for one in threads.values():
        ends = [*one["at"][1:], monotonic() - began]
        one["weights"] = [end - at for at, end in zip(one["at"], ends)]
    shared = [{"name": name, "file": file, "line": int(at)} for name, file, at in places]
    return {"shared": {"frames": shared}, "profiles": list(threads.values())}


def taken(fd: int, until: float, heeds: bool = True) -> bytes:
    """Read ``fd`` until ``until``, the end or, if it ``heeds`` signals, the first of them."""
    data = bytearray()
    while len(data) < LARGEST and monotonic() < until and not (heeds and signals):
        if select([fd], [], [], 0.1)[0]:
            more = os.read(fd, 65536)
            if not more:
                break
            data += more
    return bytes(data)
