"""What a rank wrote about its own end: the one line that says why, out of all that it wrote last.

Pure: lines go in, a ``LastError`` comes out. What ends a program says so in a form that its runtime
keeps (``error_forms``). Those forms are looked for, and the last one that can have ended a program
in this way counts: who died of SIGSEGV did not die of a traceback an hour before.

What comes after the end proper is passed over: frames of C++, what destructors and threads raise at
the interpreter's end, and the traceback of a launcher that only says that its child failed.

The text stays as the rank wrote it, so that it can be searched for; it is cut, and a message of
several lines becomes one. It is a host's word: bounded here, sanitized by whoever shows it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from dispatcher.model.frozen import Value, value
from dispatcher.output.text.error_forms import AFTERMATH, MOST_TEXT, Found, begin_at, cut, endings

#: characters of a line that are looked at
MOST_LINE = 2000

#: errors in the last lines that are weighed
MOST_FOUND = 20

#: lines that may follow the end proper: of one that chose its exit code, of one that crashed
_REST, _REST_OF_CRASH = 60, 4


@value
class LastError(Value):
    """``text`` says why the rank ended; place: ``train.py:33`` in the user's own code, or "".

    is_echo: it tells that another rank went away or did not come, so the reason is that one's.
    hint: the one remedy, "" where there is none.
    """

    text: str
    place: str = ""
    is_echo: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text


def last_error(lines: Sequence[str], status: int) -> LastError | None:
    """The error in ``lines``, the last ones of a rank of ``status`` (exit code or -n), if any."""
    signum = -status if status < 0 else max(0, status - 128)
    found = None
    if lines and signum != signal.SIGKILL:
        bare = [*_bare(lines[begin_at(lines) :])]
        found = _chosen(endings(bare), bare, signum) or (_plain(bare) if not signum else None)
    if found is None:
        hint = _CRASH_HINTS.get(signum, "")
        return LastError("", hint=hint) if hint else None
    text = found.text
    whole = text if signum != signal.SIGBUS else f"{text} Bus error"
    return LastError(
        cut(text, MOST_TEXT), found.place, bool(_ECHO.search(text)), _hint(whole, bare)
    )


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
    """How many lines of the program's own follow line ``at``."""
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
    """``lines`` without what others put before them, and the bars of an exception group."""
    grouped = False
    for line in lines:
        line = _PREFIX.sub("", line[:MOST_LINE])
        if "Exception Group Traceback" in line:
            grouped = True
        if grouped and not line.lstrip().startswith("+-"):
            line = _IN_GROUP.sub("", line) if line.lstrip()[:1] in "|+" else line
        yield line


#: exceptions of those who only started what failed
_WRAPPER = re.compile(
    r"\A(?:[\w.]*\.)?(?:ChildFailedError|CalledProcessError|ProcessExitedException|SystemExit)\b"
)


_SAYS_NO = re.compile(
    r"(?i)\b(?:error|fail(?:ed)?|failure|cannot|can't|could not|couldn't|no such|not found|missing|"
    r"invalid|denied|unable|refused|unknown|unsupported|must|expected|no \w+ in)\b"
)


def _plain(lines: Sequence[str]) -> Found | None:
    """The very last line, where that reads like a reason, as ``sys.exit("no data")`` leaves it."""
    at, line = next(((n, one) for n, one in reversed([*enumerate(lines)]) if one.strip()), (0, ""))
    if len(line) > MOST_TEXT or line.startswith((" ", "\t")) or not _SAYS_NO.search(line):
        return None
    return Found(line.strip(), at)


#: it says that another rank went away, or did not come
_ECHO = re.compile(
    r"Connection (?:closed|reset) by|connection abort|Broken pipe|Broken connection|"
    r"ncclRemoteError|remote process exited|Connection refused|store->get\(|"
    r"failed to recv, got 0|Watchdog caught collective|"
    r"clients joined|communicator was aborted|No route to host|recvValue failed|timed out after .* "
    r"waiting|while waiting for|MPI_ERR_PROC_FAILED|ConnectionResetError"
)  # fmt: skip

_KILLED = (
    "SIGKILL mostly comes of a memory limit, of the host or the batch job: --sample 5 and "
    "dispatch top show what ranks take"
)
_FAULTHANDLER = "if it is Python: -x PYTHONFAULTHANDLER=1 shows where"
#: of one that died by a signal and said nothing
_CRASH_HINTS: dict[int, str] = {
    signal.SIGSEGV: _FAULTHANDLER,
    signal.SIGFPE: _FAULTHANDLER,
    signal.SIGILL: "the code was built for another processor, or " + _FAULTHANDLER,
    signal.SIGABRT: _FAULTHANDLER,
    signal.SIGBUS: "SIGBUS mostly comes of a full /dev/shm (in a container: --shm-size), or of a "
    "mapped file that was cut",
    signal.SIGKILL: _KILLED,
    signal.SIGXCPU: "its limit of CPU time: ulimit -t",
    signal.SIGXFSZ: "its limit of the size of files: ulimit -f",
}

#: (form in the text or the last lines, remedy), the most particular first
_HINTS: tuple[tuple[str, str], ...] = (
    (r"Bus error|shared memory ?\(shm\)|raise your shared memory limit|/dev/shm\b.*No space"
     r"|No space.*/dev/shm|Error while creating shared memory",
     "shared memory (/dev/shm) is full there: a larger one (--shm-size of a container), or fewer "
     "DataLoader workers"),
    (r"DataLoader worker \(pid.*(?:Killed|exited unexpectedly)",
     "a worker was killed, mostly for want of memory: fewer DataLoader workers, smaller batches"),
    (r"(?:CUDA|HIP) (?:error: )?out of memory|CUDA_ERROR_OUT_OF_MEMORY",
     "smaller batches or sharding; -x PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if much is "
     "reserved but not allocated"),
    (r"device-side assert|illegal memory access|misaligned address|unspecified launch failure",
     "-x CUDA_LAUNCH_BLOCKING=1 lets the traceback name the call that did it"),
    (r"Watchdog caught collective operation timeout",
     "some rank did not come to that collective: --hang-timeout 300 shows where each stands"),
    (r"socketStartConnect|No route to host",
     "the hosts do not reach each other by that way: dispatch check --pairs, and --iface"),
    (r"\bnccl\w+Error|NCCL error",
     "-x NCCL_DEBUG=WARN lets NCCL say why"),
    (r"EADDRINUSE|(?i:address already in use)",
     "leave MASTER_PORT as dispatch gives it, which is free on that host"),
    (r"Too many open files", "more open files there: ulimit -n, or LimitNOFILE= of its sshd"),
    (r"Signal 9 \(SIGKILL\)", _KILLED),
    (r"bad_alloc|MemoryError|Unable to allocate|[Cc]annot allocate memory|DefaultCPUAllocator",
     "the memory there, or the limit of the batch job, is used up: --sample 5 and dispatch top "
     "show by whom"),
    (r"write_line failure : Bad file descriptor",
     "what starts MPI there closes descriptors, as Python's subprocess does: --pmi-port"),
    (r"No space left on device", "a disk there is full: dispatch exec -b -w HOST df -h"),
    (r"error while loading shared libraries|version `\w+' not found|libcud\w+\.so|libnccl\S*\.so",
     "libraries differ there: -x LD_LIBRARY_PATH takes yours along"),
)  # fmt: skip
_REMEDIES = [(re.compile(form), remedy) for form, remedy in _HINTS]


def _hint(text: str, lines: Sequence[str]) -> str:
    """The one remedy: for the text itself, or else for what stands above it of the same trouble."""
    for form, remedy in _REMEDIES:
        if form.search(text):
            return remedy
    shared = _REMEDIES[0]
    return shared[1] if any(shared[0].search(line) for line in lines[-40:]) else ""
