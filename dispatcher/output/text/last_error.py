"""Finds the reason for a rank's end in its last lines. Pure.

``error_forms`` finds the lines that may be the reason. The last one that fits the rank's status
counts: if a signal ended the rank, an earlier Python traceback is not the cause. Lines after the
reason are skipped: frames of C++, exceptions of destructors and threads at the interpreter's end,
and the traceback of a launcher whose child failed.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence

from dispatcher.model.frozen import Value, value
from dispatcher.model.names import plural
from dispatcher.output.text.error_forms import (
    AFTERMATH,
    FOREIGN,
    FRAME,
    MOST_TEXT,
    Found,
    begin_at,
    endings,
    one_line,
)

#: characters of a line that are looked at
MOST_LINE = 2000

#: errors in the last lines that are compared
MOST_FOUND = 20

#: lines that may follow the reason: of a program that chose its exit code, of one that crashed
_REST, _REST_OF_CRASH = 60, 4


@value
class LastError(Value):
    """``text``: why the rank ended; place: ``train.py:33`` in the user's own code, or "".

    is_echo: the text blames another rank that went away or did not come, which has the reason.
    hint: the one remedy, "" where there is none.
    """

    text: str
    place: str = ""
    is_echo: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text


def last_error(lines: Sequence[str], status: int, *, is_short: bool = False) -> LastError | None:
    """The error in ``lines``, the last ones of a rank of ``status`` (exit code or -n), if any.

    is_short: the rank wrote only these one or two lines on standard error: they are the reason.
    """
    signum = -status if status < 0 else max(0, status - 128)
    found = None
    if lines and signum != signal.SIGKILL:
        bare = [*_bare(lines[begin_at(lines) :])]
        found = _chosen(endings(bare), bare, signum) or (
            None if signum else _plain(bare, is_short=is_short)
        )
    if found is None:
        hint = _CRASH_HINTS.get(signum, "")
        return LastError("", hint=hint) if hint else None
    text = found.text
    whole = text if signum != signal.SIGBUS else f"{text} Bus error"
    is_echo = bool(_ECHO.search(text))
    return LastError(one_line(text, MOST_TEXT), found.place, is_echo, _hint(whole, bare))


def _chosen(all_found: list[Found], lines: Sequence[str], signum: int) -> Found | None:
    room = _REST_OF_CRASH if signum else _REST
    few = all_found[-MOST_FOUND:]
    ends = [one for one in few if one.rank == 2 and _behind(lines, one.end) <= room]
    if signum not in (0, signal.SIGTERM, signal.SIGINT):
        native = [one for one in ends if one.is_native]
        ends = native or ends
    usual = [one for one in ends if not _WRAPPER.match(one.text)]
    minor = [one for one in few if one.rank == 1]
    return next((those[-1] for those in (usual, minor, ends) if those), None)


def _behind(lines: Sequence[str], at: int) -> int:
    """How many of the program's own lines follow line ``at``."""
    return sum(1 for line in lines[at + 1 :] if line.strip() and not AFTERMATH.match(line))


_PREFIX = re.compile(
    r"""\A(?:\[(?:rank|default|Rank\ )\d+\]:\ ?  # torch's excepthook, torchrun's --tee
          |\(\w+\ pid=\d+[^)]*\)\ ?              # Ray
           (?:[A-Z]+\ [\d-]+\ [\d:]+\ \[\S+\]\ )?  # vLLM
          |\d+:\ (?=\ |Traceback|[\w.]+Error)    # srun -l
        )""",
    re.VERBOSE,
)
_IN_GROUP = re.compile(r"\A *[|+] ?")


def _bare(lines: Sequence[str]) -> Iterator[str]:
    """``lines`` without the prefixes of launchers, and the bars of an exception group."""
    grouped = False
    for line in lines:
        line = _PREFIX.sub("", line[:MOST_LINE])
        if "Exception Group Traceback" in line:
            grouped = True
        if grouped and not line.lstrip().startswith("+-"):
            line = _IN_GROUP.sub("", line) if line.lstrip()[:1] in "|+" else line
        yield line


#: exceptions of a launcher whose child failed
_WRAPPER = re.compile(
    r"\A(?:[\w.]*\.)?(?:ChildFailedError|CalledProcessError|ProcessExitedException|SystemExit)\b"
)


_SAYS_NO = re.compile(
    r"(?i)\b(?:error|fail(?:ed)?|failure|cannot|can't|could not|couldn't|no such|not found|missing|"
    r"invalid|denied|unable|refused|unknown|unsupported|must|expected|no \w+ in)\b"
)


#: a line of a log, a warning, a bar
_NO_REASONS = re.compile(r"\b(?:INFO|DEBUG|WARN(?:ING)?)\b|Warning: |\d%|^[\W\d]*$")


def _plain(lines: Sequence[str], *, is_short: bool) -> Found | None:
    """The very last line, if it reads like a reason, as after ``sys.exit("no data")``."""
    at, line = next(((n, one) for n, one in reversed([*enumerate(lines)]) if one.strip()), (0, ""))
    if len(line) > MOST_TEXT or line.startswith((" ", "\t")):
        return None
    if not _SAYS_NO.search(line) and (not is_short or _NO_REASONS.search(line)):
        return None
    return Found(line.strip(), at)


#: errors that blame another rank, which went away or did not come
_ECHO = re.compile(
    r"Connection (?:closed|reset) by|connection abort|Broken pipe|Broken connection|"
    r"ncclRemoteError|remote process exited|Connection refused|store->get\(|"
    r"failed to recv, got 0|Watchdog caught collective|"
    r"clients joined|communicator was aborted|No route to host|recvValue failed|timed out after .* "
    r"waiting|while waiting for|MPI_ERR_PROC_FAILED|ConnectionResetError"
)  # fmt: skip

_KILLED = (
    "SIGKILL usually means that the host or the batch job ran out of memory: --sample 5 shows what "
    "ranks take"
)
_FAULTHANDLER = "if it is Python: -x PYTHONFAULTHANDLER=1 shows where"
#: for a rank that a signal killed without a message
_CRASH_HINTS: dict[int, str] = {
    signal.SIGSEGV: _FAULTHANDLER,
    signal.SIGFPE: _FAULTHANDLER,
    signal.SIGILL: "the code was built for another processor, or " + _FAULTHANDLER,
    signal.SIGABRT: _FAULTHANDLER,
    signal.SIGBUS: "SIGBUS usually means a full /dev/shm (in a container: --shm-size), or a mapped "
    "file that was cut",
    signal.SIGKILL: _KILLED,
    signal.SIGXCPU: "its limit of CPU time: ulimit -t",
    signal.SIGXFSZ: "its limit of the size of files: ulimit -f",
}

#: (form in the text or the last lines, remedy), the most particular first
_HINTS: tuple[tuple[str, str], ...] = (
    (r"Bus error|shared memory ?\(shm\)|raise your shared memory limit|/dev/shm\b.*No space"
     r"|No space.*/dev/shm|Error while creating shared memory",
     "shared memory (/dev/shm) is full: make it larger (--shm-size of a container), or fewer "
     "DataLoader workers"),
    (r"DataLoader worker.*killed by signal: (?:Terminated|User defined|Interrupt|Hangup)",
     "the signal went to the workers as well: --signal-to rank sends it to the rank alone"),
    (r"DataLoader worker \(pid.*(?:Killed|exited unexpectedly)(?!.* signal: (?!Killed))",
     "a worker was killed, usually for lack of memory: fewer DataLoader workers, smaller batches"),
    (r"(?:CUDA|HIP) (?:error: )?out of memory|CUDA_ERROR_OUT_OF_MEMORY",
     "smaller batches or sharding; -x PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if much is "
     "reserved but not allocated"),
    (r"device-side assert|illegal memory access|misaligned address|unspecified launch failure",
     "-x CUDA_LAUNCH_BLOCKING=1 lets the traceback name the call that did it"),
    (r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for|\d clients joined",
     "some rank did not arrive: --hang-timeout 300 shows where each rank is"),
    (r"Gloo connectFullMesh failed.*remote=\[127\.|Unable to find address for",
     "a host's own name has no address that others reach: --iface NAME (dispatch check)"),
    (r"terminate called without an active exception",
     "if it uses torch.distributed: dist.destroy_process_group() before it ends"),
    (r"socketStartConnect|No route to host",
     "the hosts do not reach each other that way: dispatch check --pairs, and --iface"),
    (r"\bnccl\w+Error|NCCL error",
     "-x NCCL_DEBUG=WARN makes NCCL print the reason"),
    (r"EADDRINUSE|(?i:address already in use)",
     "leave MASTER_PORT as dispatch gives it, which is free on that host"),
    (r"Too many open files", "allow more open files: ulimit -n, or LimitNOFILE= of its sshd"),
    (r"Signal 9 \(SIGKILL\)", _KILLED),
    (r"bad_alloc|MemoryError|Unable to allocate|[Cc]annot allocate memory|DefaultCPUAllocator",
     "the host's memory, or the limit of the batch job, is used up: --sample 5 shows what "
     "ranks take"),
    (r"EOFError: EOF when reading a line", "--stdin 0 gives rank 0 the terminal"),
    (r"No module named 'dispatcher'",
     "pip install --no-deps dispatch-launcher in the ranks' Python"),
    (r"(?:unrecognized arguments|o such option|nrecognized option).{0,99}?(--(?:grace|hang-timeout|"
     r"heartbeat|hostfile|label|log-dir|max-restarts|nproc-per-node|sample|stdin|sync))\b",
     r"\1 is an option of dispatch: put it before the script"),
    (r"write_line failure : Bad file descriptor",
     "the program that starts MPI closes descriptors, as Python's subprocess does: --pmi-port"),
    (r"No space left on device", "a disk of the host is full: dispatch exec -b -w HOST df -h"),
    (r"error while loading shared libraries|version `\w+' not found|libcud\w+\.so|libnccl\S*\.so",
     "libraries differ on that host: -x LD_LIBRARY_PATH sends your path"),
)  # fmt: skip
_REMEDIES = [(re.compile(form), remedy) for form, remedy in _HINTS]


def _hint(text: str, lines: Sequence[str]) -> str:
    """The remedy for the text itself, or for full shared memory in the lines above it."""
    for form, remedy in _REMEDIES:
        if found := form.search(text):
            return found.expand(remedy)
    module = re.search(r"No module named '(\w{1,99})'", text)
    if module and (os.path.isdir(module[1]) or os.path.isfile(f"{module[1]}.py")):
        return f"{module[1]} is in this folder: -x PYTHONPATH=.:$PYTHONPATH"
    shared = _REMEDIES[0]
    return shared[1] if any(shared[0].search(line) for line in lines[-40:]) else ""


#: a frame of a C++ stack, as torch and glibc write them; more in a row are shown as one line
_NATIVE_FRAME = re.compile(r" *(?:frame #\d+: |#\d+ 0x|#\d+: )")
_MANY_FRAMES = 3


def fold_frames(lines: Sequence[str]) -> list[str]:
    """``lines`` with one line for each run of frames of C++, packages or Python's library."""
    kept: list[str] = []
    run: list[str] = []
    owners: list[str] = []
    for line in [*lines, ""]:
        bare = _PREFIX.sub("", line[:MOST_LINE])
        frame = FRAME.match(bare)
        owner = _owner(bare, frame)
        is_code = owners and bare.startswith(("    ", "  [Prev")) and not frame
        if owner or (is_code and owners[-1] != "C++"):
            run.append(line)
            owners += [owner] if owner else []
            continue
        if len(owners) > (_MANY_FRAMES if "C++" in owners else 0):
            before = _PREFIX.match(run[0])
            names = ", ".join(dict.fromkeys(owners))
            told = f"  ({plural(len(owners), 'frame')} of {names})"
            run = [(before[0] if before else "") + told]
        kept += [*run, line]
        run, owners = [], []
    return kept[:-1]


def _owner(line: str, frame: re.Match[str] | None) -> str:
    """The package of a frame (``torch``), "C++", or "" for the user's own frame or another line."""
    if frame is None or not FOREIGN.search(frame[1]):
        return "C++" if _NATIVE_FRAME.match(line) else ""
    package = re.search(r"/(?:site|dist)-packages/([\w-]+)|/(torch)/", frame[1])
    return (package[1] or package[2]) if package else "Python"
