"""Reads the stacks of ranks, normalizes and groups them, and finds the outlier. Pure.

``py-spy``, ``faulthandler`` and ``proc`` (the kernel's view of each thread) show where a process
is. Addresses, pids and ids of threads are left out, so that ranks that wait in one place have one
stack. The main thread represents the rank. Texts come from hosts: at most ``MOST`` frames of
``LONGEST`` characters are kept, and sinks sanitize them. See docs/design/hangs.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model.formats import StackGroup

#: the system calls in which processes hang, by machine; x86-64 has its own numbers
_CALLS = {
    machine: dict(call.split(":") for call in calls.split())
    for machine, calls in {
        "x86_64": """
            0:read 1:write 2:open 3:close 4:stat 5:fstat 6:lstat 7:poll 9:mmap 11:munmap 16:ioctl
            17:pread64 18:pwrite64 19:readv 20:writev 23:select 35:nanosleep 42:connect 43:accept
            44:sendto 45:recvfrom 46:sendmsg 47:recvmsg 56:clone 57:fork 58:vfork 59:execve
            61:wait4 74:fsync 75:fdatasync 82:rename 83:mkdir 87:unlink 137:statfs 162:sync
            166:umount2 202:futex 217:getdents64 230:clock_nanosleep 231:exit_group 232:epoll_wait
            257:openat 262:newfstatat 263:unlinkat 270:pselect6 271:ppoll 281:epoll_pwait
            288:accept4 306:syncfs 332:statx 435:clone3
        """,
        "aarch64": """
            22:epoll_pwait 29:ioctl 34:mkdirat 35:unlinkat 39:umount2 43:statfs 56:openat 57:close
            61:getdents64 63:read 64:write 65:readv 66:writev 67:pread64 68:pwrite64 72:pselect6
            73:ppoll 79:newfstatat 80:fstat 81:sync 82:fsync 83:fdatasync 94:exit_group 98:futex
            101:nanosleep 115:clock_nanosleep 203:connect 206:sendto 207:recvfrom 211:sendmsg
            212:recvmsg 215:munmap 220:clone 221:execve 222:mmap 260:wait4 267:syncfs
            276:renameat2 291:statx 435:clone3
        """,
    }.items()
}
_UNSEEN = ("-", "0")


def in_words(text: str) -> str:
    """``state D in nfs_wait_on_request, system call fsync``; "" if nothing is known.

    text: ``D nfs_wait_on_request 74 x86_64``, as an agent read it in /proc; "-" or "0" is unknown.
    """
    words = text.split()
    if len(words) != 4 or words[0] == "-":
        return ""
    state, function, number, machine = words
    found = f"state {state}"
    if function not in _UNSEEN:
        found += f" in {function}"
    if number.isascii() and number.isdigit() and len(number) < 5:
        found += f", system call {_CALLS.get(machine, {}).get(number, number)}"
    return found


PY_SPY, FAULTHANDLER, PROC = HOW = ("py-spy", "faulthandler", "proc")

MOST, LONGEST = 64, 200
#: characters of a name that is read at all
_LONG = 400

#: functions of Python in which a rank waits for others, in any library
WAITS = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
    "all_to_all_single", "barrier", "monitored_barrier", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "recv", "send", "batch_isend_irecv", "synchronize", "Allreduce", "Allgather", "Alltoall",
    "Barrier", "Bcast", "Gather", "Reduce", "Scatter", "Recv", "Send", "Waitall", "allreduce",
    "allgather", "alltoall", "bcast", "init_process_group", "destroy_process_group",
})  # fmt: skip
#: functions that wait for others only inside torch's own code
TORCH_WAITS = frozenset({"cpu", "item", "clip_grad_norm_", "wait", "wait_tensor"})
#: functions of C that say where a rank waits: of NCCL, CUDA, MPI, torch's groups
_TELLING = re.compile(r"p?nccl[A-Z]|cuda[A-Z]|cu[A-Z][a-z]+[A-Z]|P?MPI_|c10d::|gloo::")
#: how many of the innermost frames may be on the way from there into the library
NEAR = 6

_FAULT = re.compile(r'\s+File "(.{1,400}?)", line (\d+) in (.{1,400})$')
_GDB = re.compile(r"#\d{1,6} {1,4}(?:0x[0-9a-f]{1,16} in )?(.{1,400}?) \(")
_LIBRARY = re.compile(r"/lib/python3|/site-packages/|/dist-packages/|^<")


@value
class Frame(Value):
    """A function, and where in which file; line 0: not known."""

    function: str
    file: str
    line: int

    @property
    def words(self) -> str:
        """``load_batch at data.py:88``."""
        name = os.path.basename(self.file)
        where = f"{name}:{self.line}" if self.line else name
        return f"{self.function} at {where}" if where else self.function


@value
class Group(Value):
    """Ranks that are in the same place. frames: innermost first; state: a letter of proc(5).

    odd: the others are elsewhere, and wait, or are far more. native: the innermost function of C
    that says something, "" where that is not known.
    """

    ranks: tuple[int, ...]
    how: str
    state: str
    frames: tuple[Frame, ...]
    odd: bool = False
    native: str = ""

    def plain(self) -> StackGroup:
        """The group as reports have it."""
        return {
            "ranks": [placement.rank_name(rank) for rank in self.ranks],
            "how": self.how,
            "state": self.state,
            "frames": [
                {"function": one.function, "file": one.file, "line": one.line}
                for one in self.frames
            ],
            "odd": self.odd,
            "place": self.place,
            "native": self.native,
        }

    @property
    def waits(self) -> bool:
        """Whether these ranks wait for others, as far as their stack shows."""
        return any(_waits(frame) for frame in self.frames[:NEAR])

    @property
    def own(self) -> Frame | None:
        """The user's innermost frame; None where all frames are of libraries."""
        return next((frame for frame in self.frames if not _LIBRARY.search(frame.file)), None)

    @property
    def place(self) -> str:
        """The most useful frame as text: the call that waits, else the user's innermost code."""
        for frame in self.frames[:NEAR]:
            if _waits(frame):
                return frame.words
        chosen = self.own or next(iter(self.frames), None)
        return "an unknown place" if chosen is None else chosen.words


def _waits(frame: Frame) -> bool:
    inside = "/torch/" in frame.file and frame.function in TORCH_WAITS
    return inside or frame.function in WAITS


def read_frames(how: str, text: bytes) -> tuple[Frame, ...]:
    """The main thread's frames in a text from ``how``, innermost first; () if there are none."""
    lines = text.decode("utf-8", "backslashreplace").splitlines()
    found = {PY_SPY: _py_spy, FAULTHANDLER: _faulthandler}.get(how, _proc)(lines)
    return tuple(found[:MOST])


def _py_spy(lines: Sequence[str]) -> list[Frame]:
    """Blocks ``Thread 12 (idle): "MainThread"``, each line ``    function (file:line)``."""
    blocks: list[tuple[bool, list[Frame]]] = []
    for line in lines:
        if line.startswith("Thread "):
            blocks.append(('"MainThread"' in line, []))
        elif blocks and line[:1].isspace() and (text := line.strip()).endswith(")"):
            function, _, place = text[:-1].partition(" (")  # no pattern: it would go back and forth
            file, _, number = place.rpartition(":")
            file, number = (file, number) if file and number.isdecimal() else (place, "")
            if 0 < len(function) <= _LONG and 0 < len(file) <= _LONG:
                blocks[-1][1].append(_frame(function, file, number))
    return next((frames for main, frames in blocks if main), blocks[0][1] if blocks else [])


def _faulthandler(lines: Sequence[str]) -> list[Frame]:
    """Blocks ``Thread 0x7f.. (most recent call first):``, the main thread's last."""
    blocks: list[list[Frame]] = []
    for line in lines:
        if line.startswith(("Thread 0x", "Current thread 0x")):
            blocks.append([])
        elif blocks and (match := _FAULT.match(line)):
            blocks[-1].append(_frame(match[3], match[1], match[2]))
    return next((frames for frames in reversed(blocks) if frames), [])


def innermost(text: bytes) -> str:
    """The innermost function in C of the main thread that shows what it waits for, "" for none.

    text: from ``gdb``, or from py-spy.
    """
    lines = text.decode("utf-8", "backslashreplace").splitlines()
    found = [match[1] for line in lines if (match := _GDB.match(line))]
    found = found or [frame.function for frame in _py_spy(lines)]
    telling = (name.partition("(")[0][:LONGEST] for name in found if _TELLING.match(name))
    return next(telling, "")


def _proc(lines: Sequence[str]) -> list[Frame]:
    """Lines ``state wchan syscall machine command``, of the main thread first."""
    for line in lines:
        words = line.split(None, 4)
        if len(words) == 5 and (where := in_words(" ".join(words[:4]))):
            return [Frame(f"{where} ({words[4]})"[:LONGEST], "", 0)]
    return []


def _frame(function: str, file: str, line: str | None) -> Frame:
    number = int(line) if line and len(line) < 9 else 0
    return Frame(function[:LONGEST], file[-LONGEST:], number)


def grouped(
    stacks: Mapping[int, tuple[str, str, tuple[Frame, ...]]],
    natives: Mapping[int, bytes] | None = None,
) -> tuple[Group, ...]:
    """Group ranks with the same frames, odd groups first, then by size.

    stacks: rank -> how it is known, its process's state, its frames. natives: rank -> a text for
    ``innermost``. A group is odd if it does not wait while others do; where all wait, or none,
    if it has less than half the ranks of the largest; or if it is stopped, unless all are.
    """
    natives = natives or {}
    by_place: dict[tuple[bool, tuple[Frame, ...]], list[int]] = {}
    for rank, (_, state, frames) in sorted(stacks.items()):
        by_place.setdefault((state in "Tt", frames), []).append(rank)
    groups = []
    for ranks in by_place.values():
        how, state, frames = stacks[ranks[0]]
        native = next((innermost(natives[rank]) for rank in ranks if rank in natives), "")
        groups.append(Group(tuple(ranks), how, state, frames, native=native))
    most = max((len(group.ranks) for group in groups), default=0)
    waiting = sum(len(group.ranks) for group in groups if group.waits and group.state not in "Tt")
    found = []
    for group in groups:
        if len(groups) < 2:
            odd = False
        elif any(other.state in "Tt" for other in groups):
            odd = group.state in "Tt"
        elif 0 < waiting < len(stacks):
            odd = not group.waits
        else:
            odd = 2 * len(group.ranks) < most
        found.append(replace(group, odd=odd))
    return tuple(sorted(found, key=lambda g: (not g.odd, -len(g.ranks), g.ranks)))
