"""Finds the lines that may be the reason for a program's end. Pure.

Each runtime prints the reason in a fixed form: Python, C and C++, MPI, NCCL, Fortran, Rust, Go, the
shell. The text comes from a host: this module bounds it, and sinks sanitize it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
FRAME = re.compile(r'\A +File "(.+)", line (\d+)(?:, in (.+)| in (.+))?\Z')
_EXCEPTION = re.compile(r"\A([A-Za-z_][\w.]*)(?:: ?(.*))?\Z")
FOREIGN = re.compile(
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
        if _HEAD.search(line) or (FRAME.match(line) and line.startswith("  File")):
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
    if not FRAME.match(lines[head]):
        at += 1
    foreign = ""
    while at < len(lines) and (lines[at].startswith((" ", "\t")) or not lines[at]):
        frame = FRAME.match(lines[at])
        if frame:
            here = f"{frame[1].replace(chr(92), '/').rpartition('/')[2]}:{frame[2]}"
            place, foreign = (place, here) if FOREIGN.search(frame[1]) else (here, foreign)
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
            one.text += f" ({how} {one_line(first, MOST_CAUSE)})"
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
        return one_line(lines[at].strip(), MOST_TEXT), at
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
        frame = FRAME.match(line)
        if frame and current and not place and not FOREIGN.search(frame[1]):
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


def one_line(text: str, most: int) -> str:
    """``text`` in one line of at most ``most`` characters; a long one ends with a sentence."""
    text = " ".join(text.split())
    if len(text) <= min(most, LONG):
        return text
    end = text.rfind(". ", LONG // 3, LONG) + 1
    if end or len(text) > most:
        text = f"{text[: end or most - 2].rstrip()} \N{HORIZONTAL ELLIPSIS}"
    return text
