"""Finds the reason for a rank's end in its last lines. Pure.

Each runtime prints the reason for a program's end in a fixed form. The last such line that fits the
rank's status counts: if a signal ended the rank, an earlier Python traceback is not the cause.
Lines after the reason are skipped: frames of C++, exceptions of destructors and threads at the
interpreter's end, and the traceback of a launcher whose child failed. The text comes from a host:
this module bounds it, and sinks sanitize it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence

from dispatcher.model.frozen import Value, value
from dispatcher.model.names import plural

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
    return LastError(cut(text, MOST_TEXT), found.place, is_echo, _hint(whole, bare))


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
     "shared memory (/dev/shm) is full: use a larger one (--shm-size of a container), or fewer "
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


# -- what is shown ----------------------------------------------------------------------------

#: a frame of a C++ stack, as torch and glibc write them; more in a row are shown as one line
_NATIVE_FRAME = re.compile(r" *(?:frame #\d+: |#\d+ 0x|#\d+: )")
_MANY_FRAMES = 3


def folded(lines: Sequence[str]) -> list[str]:
    """``lines`` with one line for each run of frames of C++, packages or Python's library."""
    kept: list[str] = []
    run: list[str] = []
    owners: list[str] = []
    for line in [*lines, ""]:
        bare = _PREFIX.sub("", line[:MOST_LINE])
        frame = _FRAME.match(bare)
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
    if frame is None or not _FOREIGN.search(frame[1]):
        return "C++" if _NATIVE_FRAME.match(line) else ""
    package = re.search(r"/(?:site|dist)-packages/([\w-]+)|/(torch)/", frame[1])
    return (package[1] or package[2]) if package else "Python"


# -- the forms -------------------------------------------------------------------------------

#: characters of a text, and of its cause; a text longer than ``LONG`` is cut after a sentence
MOST_TEXT, MOST_CAUSE, LONG = 240, 120, 160


class Found:
    """A line that may be the reason. rank: 2 for an end, 1 for a line before, 0 for aftermath."""

    def __init__(self, text: str, at: int, rank: int = 2, place: str = "", after: int = 0) -> None:
        self.text, self.at, self.rank, self.place = text, at, rank, place
        self.end = max(at, after)  # the last of its lines
        self.is_native = False


#: each form below has one of these in its first line
_SIGNS = (
    "Traceback", 'File "', "rror", "ERROR: ", "terminat", "(): ", "Assert", "panic", "Abort",
    "ABORT", " detected", "double free", "corrupted ", "pure virtual", "glibc", "sh: ", "STOP",
    "forrtl", "can't open", "not found", "] Check", "\nF", "Caught", "╰", "oom",
)  # fmt: skip


def begin_at(lines: Sequence[str]) -> int:
    """The line to begin with: a little before the first with one of ``_SIGNS``."""
    text = "\n".join(lines)
    found = [at for at in map(text.find, _SIGNS) if at >= 0]
    return max(0, text.count("\n", 0, min(found, default=len(text))) - 3)


_HEAD = re.compile(r"Traceback \(most recent call last\):\s*\Z")
_FRAME = re.compile(r'\A +File "(.+)", line (\d+)(?:, in (.+)| in (.+))?\Z')
_EXCEPTION = re.compile(r"\A([A-Za-z_][\w.]*)(?:: ?(.*))?\Z")
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/lib/python\d|/python\d[^/]*/lib/|\A<|/torch/|/bin/(?:torchrun|accel)"
    r"|\.pyx\Z"  # Cython's, as of mpi4py and pandas: a path where they were built
)
_NESTED = re.compile(r"\ACaught \w+ in (.+?)\.\Z")
_SPAWNED = re.compile(r"\A-- (Process \d+) terminated with the following error:")
_MINOR = re.compile(
    r"\A(?:Exception in thread |Process [\w:-]+:|Traceback of |.*\b(?:Retrying|retrying)\b)"
)
_LATE = re.compile(
    r"\A(?:Exception ignored |Error in atexit|Task exception was never|Error in sys\.)"
)
_CAUSES = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"

#: lines printed after the real error (tracebacks of C++, interpreter shutdown): skip them
AFTERMATH = re.compile(
    r"""\A(?:frame\ \#|\#\d+\ |\ |\t|\*\*\*|Exception\ (?:raised\ from|ignored|in\ thread)|
          Traceback\ |[-=~^]{3,}|\w+Error:|\[?[EWI]\d{4}\ |\[[EWI]\d*\ |wandb:|Set\ TORCH|
          Compile\ with|
          For\ debugging\ |CUDA\ kernel\ errors|C\+\+\ Captured|Thread\ 0x|Current\ thread|
          Extension\ modules|Aborted|Segmentation\ fault|/\S+:\ line\ \d+|[\w./-]+:\ line\ \d+:|
          \[\S+:\d+\])
    """,
    re.VERBOSE,
)


def endings(lines: Sequence[str]) -> list[Found]:
    """All lines that may be the reason for a program's end, in order."""
    found: list[Found] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        one = None
        if _HEAD.search(line) or (_FRAME.match(line) and line.startswith("  File")):
            one = _python(lines, at, found)
        elif line.startswith("Fatal Python error: "):
            one = _faulthandler(lines, at)
        elif line.startswith("\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}"):
            one = _python(lines, at, found)  # the frame that rich draws around a traceback
        elif _NATIVE.search(line):
            one = _native(lines, at)
        if one is not None:
            found.append(one)
            at = one.end
        at += 1
    for one in found:
        if "device-side assert" not in one.text:
            continue
        asserted = next((m for m in map(_KERNEL_ASSERT.search, lines) if m), None)
        if asserted is not None:
            where = f"{asserted[1].rpartition('/')[2]}: {asserted[2]}"
            one.text = f"{one.text.partition('. ')[0]} ({where})"
    return found


def _python(lines: Sequence[str], head: int, found: list[Found]) -> Found | None:
    place, at = "", head
    if not _FRAME.match(lines[head]):
        at += 1
    foreign = ""
    while at < len(lines) and (lines[at].startswith((" ", "\t")) or not lines[at]):
        frame = _FRAME.match(lines[at])
        if frame:
            here = f"{frame[1].replace(chr(92), '/').rpartition('/')[2]}:{frame[2]}"
            place, foreign = (place, here) if _FOREIGN.search(frame[1]) else (here, foreign)
        at += 1
    match = _EXCEPTION.match(lines[at]) if at < len(lines) else None
    if match is None:
        return None
    text, end = _message(lines, at, match)
    one = Found(text, at, place=place, after=end)
    before = next((line for line in reversed(lines[:head]) if line.strip()), "")
    if _LATE.match(before):
        one.rank = 0
    elif _MINOR.match(before):
        one.rank = 1
    elif before in (_CAUSES, _DURING) and found:
        first = found[-1].text.partition(" (caused by ")[2].removesuffix(")") or found[-1].text
        how = "caused by" if before == _CAUSES else "while handling"
        if how == "while handling":
            first = found[-1].text.partition(" (while handling ")[2].removesuffix(")") or first
        if first != text:
            one.text += f" ({how} {cut(first, MOST_CAUSE)})"
    elif spawned := _SPAWNED.match(before):
        one.text += f" (in {spawned[1].lower()})"
    if "Original Traceback" in lines[head]:
        caught = _NESTED.match(before.partition(": ")[2])
        one.text += f" (in {caught[1]})" if caught else ""
        one.place = one.place or (found[-1].place if found else "")
    if "Exception Group" in lines[head]:
        inner = _members(lines, at + 1)
        one.text += f": {'; '.join(inner)}" if inner else ""
        one.end = len(lines) - 1
    return one


def _message(lines: Sequence[str], at: int, match: re.Match[str]) -> tuple[str, int]:
    """The exception in line ``at`` with the lines of its message, and the number of the last."""
    text = _BUILT_AT.sub(": ", lines[at].strip(), count=1)
    if "ChildFailedError" in match[1]:
        return _child(lines, at, text)
    if "NCCL error in" in text or "NCCL error:" in text:
        return _nccl(lines, at)
    end = at
    if not match[2] or text.endswith((":", ": ")):
        more = []
        for line in lines[at + 1 : at + 6]:
            if _HEAD.search(line) or _SPAWNED.match(line) or _AFTERMATH_LINE.match(line):
                break
            if line.strip():
                more.append(line.strip())
            elif more:
                break
        if match[2] and more:
            text = f"{text} {'; '.join(more)}"
            end = at + len(more)
        elif more and "Error" not in more[0]:
            text = f"{text.rstrip(':')}: {more[0]}"
    return text, end


_AFTERMATH_LINE = re.compile(r"\A(?:=+|-{4,}|The above exception|During handling)")


def _nccl(lines: Sequence[str], at: int) -> tuple[str, int]:
    """``DistBackendError: NCCL 2.18.6: ncclSystemError: socketStartConnect: Connect to ...``."""
    name = lines[at].partition(": ")[0].strip()
    version = re.search(r"NCCL version ([\d.]+)", lines[at])
    more = [line.strip() for line in lines[at + 1 : at + 8]]
    code = next((line for line in more if re.match(r"nccl\w+(?:Error|Usage|Argument)\b", line)), "")
    said = ""
    if "Last error:" in more:
        follows = [line for line in more[more.index("Last error:") + 1 :] if line][:1]
        said = next((line for line in follows if not AFTERMATH.match(line)), "")
    if code and said:
        code = f"{code.partition(':')[0]}: {said}"
    if not code:
        return cut(lines[at].strip(), MOST_TEXT), at
    told = f"{name}: NCCL{' ' + version[1] if version else ''}: {code}"
    return told, at + (more.index(said) + 1 if said else 1)


#: place of a line of C++ on the machine that built it
_BUILT_AT = re.compile(r": \[\S+\.(?:cc|cpp|h):\d+\] ")


def _child(lines: Sequence[str], at: int, text: str) -> tuple[str, int]:
    """torchrun's report on the rank that it blames: the script and how it ended."""
    script = next((line for line in lines[at + 1 : at + 4] if line.endswith(" FAILED")), "FAILED")
    root = next((n for n, line in enumerate(lines[at:], at) if line.startswith("Root Cause")), at)
    said = [line.strip().partition(" : ") for line in lines[root : root + 8]]
    why = [value for key, _, value in said if key.strip() in ("traceback", "exitcode")]
    signalled = [one for one in why if one.startswith("Signal")]
    signalled = signalled or [f"exit code {one}" for one in why[:1]]
    return ": ".join([text.rstrip(": "), script, *signalled]), len(lines) - 1


def _members(lines: Sequence[str], start: int) -> list[str]:
    inner: list[str] = []
    for at in range(start, len(lines)):
        above = lines[at - 1]
        line = lines[at].strip()
        if (
            above.startswith("  ") and not lines[at].startswith("  ") and _EXCEPTION.match(line)
        ) or (above.lstrip().startswith("+-") and _EXCEPTION.match(line) and "Error" in line):
            inner.append(line)
    return inner[:3]


def _faulthandler(lines: Sequence[str], at: int) -> Found:
    """``Fatal Python error: Segmentation fault``, with the place of the thread that crashed."""
    place, end, current = "", at, False
    for number in range(at + 1, len(lines)):
        line = lines[number]
        if line.startswith(("Current thread", "Thread 0x")):
            current = line.startswith("Current")
        elif not line.startswith("  ") and line.strip() and "Python runtime state" not in line:
            break
        frame = _FRAME.match(line)
        if frame and current and not place and not _FOREIGN.search(frame[1]):
            place = f"{frame[1].rpartition('/')[2]}:{frame[2]}"
        end = number
    one = Found(lines[at].strip(), at, place=place, after=end)
    one.is_native = True
    return one


_KERNEL_ASSERT = re.compile(r"(?<![\w./-])([\w./-]+\.cuh?:\d+): .*?Assertion (`[^`']+[`']) failed")

#: (form, how its text is made: the match, and the number of lines that belong to it)
_FORMS: tuple[tuple[str, str], ...] = (
    (r"\Aterminate called", "terminate"),
    (r"\Alibc\+\+abi: terminating", "line"),
    (r"\A(?:free|malloc|malloc_consolidate|realloc|munmap_chunk)\(\): |\A(?:double free or"
     r"|corrupted (?:size|double-linked)|Fatal glibc error)|\A\*\*\* (?:stack smashing|buffer"
     r" overflow) detected|\Apure virtual method called", "line"),
    (r"\A(?!.*block: \[).*: Assertion `.+' failed\.?\Z", "line"),
    (r"==\d+==\s*ERROR: \w+Sanitizer: ", "after ERROR: "),
    (r"\Athread '.*' .*?panicked at ", "joined"),
    (r"\A(?:panic: |fatal error: all goroutines)", "line"),
    (r"\AAbort\(\d+\) on node \d+", "joined"),
    (r"\AFatal error in P?MPI_\w+: |\Asystem msg for write_line failure : ", "line"),
    (r"\*\*\* An error occurred in MPI_\w+", "open mpi"),
    (r"\AMPI_ABORT was invoked on rank \d+", "joined"),
    (r"\A(?:Fortran runtime error: |forrtl: |ERROR STOP|ERROR: LoadError: )", "line"),
    (r"\AF\d{4} [\d:.]+ .*?\] ", "line"),
    (r"\A[\w./+-]+: error: |: error while loading shared libraries: |: symbol lookup error: "
     r"|\A\S*python[\d.]*: can't open file |: version `\w+' not found", "line"),
    (r"\A(?:\S*/)?(?:ba|da|k|z)?sh: (?:line )?\d+: .*(?:not found|denied|or directory)\Z", "line"),
    (r"\Aslurmstepd: error: .*oom.?kill", "line"),
)  # fmt: skip
_NATIVE = re.compile("|".join(f"(?:{form})" for form, _ in _FORMS))
_MADE = [(re.compile(form), how) for form, how in _FORMS]


def _native(lines: Sequence[str], at: int) -> Found:
    line = lines[at].strip()
    how = next(how for form, how in _MADE if form.search(lines[at]))
    text, end = line, at
    following = [one.strip() for one in lines[at + 1 : at + 8]]
    if how == "terminate":
        text, end = _terminate(line, following, at)
    elif how == "joined" and following and following[0] and not line.endswith("."):
        text, end = f"{line} {following[0]}", at + 1
    elif how == "open mpi":
        why = next((one for one in following if "MPI_ERR_" in one), "")
        text = line.partition("*** ")[2] + (f": {why.partition('*** ')[2] or why}" if why else "")
        end = at + min(len(following), 6)
    elif how.startswith("after "):
        text = line.partition(how.removeprefix("after "))[2]
        text, end = text.partition(" (pc ")[0].partition(" at pc ")[0].rstrip(":"), len(lines) - 1
    if "Fatal error in" in text:  # MPICH begins with the rank and the call, which the headline has
        text = text[text.index("Fatal error in") :].partition(", error stack:")[0]
    found = Found(text, at, after=end)
    found.is_native = True
    if text == _NO_REASON:
        found.rank = 1
    return found


#: the line of a thread that still runs when an exception ends the program: never the reason
_NO_REASON = "terminate called without an active exception"


def _terminate(line: str, following: Sequence[str], at: int) -> tuple[str, int]:
    """``std::runtime_error: cannot map it``: the class and the message of a C++ exception."""
    kind = re.search(r"instance of '([\w:<>,]+)'", line)  # threads may write into each other
    for number, one in enumerate(following, 1):
        if one.startswith("what():"):
            said = _WATCHDOG.sub("", one.removeprefix("what():").strip())
            if said.startswith("NCCL error") and kind:
                return _nccl([f"{kind[1]}: {said}", *following[number:]], 0)[0], at + number
            said = said or next((more for more in following[number:] if more), "")
            return f"{kind[1] if kind else 'C++ exception'}: {said}", at + number
    return kind[1] if kind else line, at


_WATCHDOG = re.compile(
    r"\A\[[^\]]*\]+ ?(?:NCCL|Process group) watchdog thread terminated with exception: "
)


def cut(text: str, most: int) -> str:
    """``text`` in one line of at most ``most`` characters; a long one ends with a sentence."""
    text = " ".join(text.split())
    if len(text) <= min(most, LONG):
        return text
    end = text.rfind(". ", LONG // 3, LONG) + 1
    if end or len(text) > most:
        text = f"{text[: end or most - 2].rstrip()} \N{HORIZONTAL ELLIPSIS}"
    return text
