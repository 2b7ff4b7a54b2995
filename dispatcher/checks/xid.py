"""The driver's reports of faulty GPUs in the kernel's log: Xid and SXid; pure.

*critical*: take the host out now. *warn*: the job that had it is dead, the host stays. *ignore*:
no fault. The sources do not agree (NVIDIA's catalogue, DCGM, operators), so a site may overrule
the table. Unknown numbers are *warn*. Only lines since boot, and of the last hours, count. An SXid
has three lines (error_nvswitch.c of open-gpu-kernel-modules): fatal once is fatal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dispatcher.checks.check import CheckHost, Finding, Seen, Unread, a_few, critical, ok, warn
from dispatcher.checks.health import has_gpus
from dispatcher.model.errors import UsageError

CRITICAL, WARN, IGNORE = _RANKING = ("critical", "warn", "ignore")

#: drain and reset: 46 ... 158; reboot: 79; uncorrected memory: 48, 172; NVLink: 74; 54: power
#: cable; 167: PCIe; 151: the virtual machine must be restarted; 173: the link to the CPU
_CRITICAL = (
    46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158, 167,
    169, 172, 173,
)  # fmt: skip
_IGNORE = (
    37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161,
    162, 163, 164, 165, 174, 176,
)  # fmt: skip
#: Xids that a program causes by itself
_PROGRAM = frozenset({13, 31, 32, 43, 45, 68, 69})
#: NVLink 5 (Blackwell): these say themselves whether they are ``Fatal`` or ``Nonfatal``
_NVLINK5 = range(144, 151)
#: the action that the driver asks for; the last such line of a GPU counts
_RECOVERY = 154
#: "can be safely ignored" (Fabric Manager's guide, D.4): healthy hosts log them as links come up
_HARMLESS_SXID = frozenset({22013})
TABLE: Mapping[int, str] = {**dict.fromkeys(_CRITICAL, CRITICAL), **dict.fromkeys(_IGNORE, IGNORE)}

#: seconds of uptime: older lines are yesterday's
RECENT = 24 * 3600.0

MEANING = {
    13: "illegal access by the program", 31: "page fault by the program",
    48: "double-bit ECC error", 62: "micro-controller halted", 63: "row remapped",
    64: "no spare rows left", 74: "NVLink error", 79: "GPU has fallen off the bus",
    94: "contained ECC error", 95: "uncontained ECC error", 119: "GSP does not answer",
    120: "GSP error", 168: "less memory than there was", 169: "SEC2 processor halted",
    171: "uncorrected error of memory", 172: "uncorrected error of a cache",
    173: "link to the CPU failed", 175: "error of the memory subsystem",
    **dict.fromkeys(_NVLINK5, "NVLink error"),
}  # fmt: skip

#: characters of a line that are looked at
MOST_LINE = 1024

#: with MIG the instances follow the address: ``PCI:0000:01:00 GPU-I:05 GPU-CI:00``
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+(?: GPU-C?I:\w{1,4}){0,2})\): (\d{1,5})(?:, (.{0,200}))?"
)
_ACTION = re.compile(r"recovery action changed from .* to 0x[0-9a-fA-F]+ \(([\w -]{1,40})\)")
_SXID = re.compile(
    r"nvidia-nvswitch\d*: SXid \(PCI:([\w:.]+)\): (\d{1,6}), (Fatal|Severity (\d{1,3})|Data)?"
)
_STAMP = re.compile(r"^(?:<\d+>)?\[ *(\d+\.\d+)\]")
#: words of journalctl when it shows us nothing; it exits with 0 then
_CLOSED = ("No journal files", "not seeing messages from other users")
#: from the beginning of a word on, and bounded: a host's line may be one word of 64 KiB
_NARROW = re.compile(
    r"(?<!\S)(\S{1,64}): [\d.]{1,16} Gb/s available PCIe bandwidth, limited by (.{0,80}? link)"
)


def parse_table(text: str, source: str) -> dict[int, str]:
    """A site's own levels by number. Raises: UsageError naming ``source`` and line."""
    found = {}
    for at, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        good = len(words) == 2 and words[0].isascii() and words[0].isdigit() and len(words[0]) < 6
        if not good or words[1] not in (CRITICAL, WARN, IGNORE):
            raise UsageError(
                f"{source}:{at}: not a number and a level: {line.strip()[:60]!r}",
                hint="79 critical   # or warn, or ignore",
            )
        found[int(words[0])] = words[1]
    return found


def xid(table: Mapping[int, str]) -> CheckHost:
    """The check that goes by ``table``: number -> level."""

    def find(seen: Seen) -> Finding:
        try:
            text, uptime = log(seen), None
        except Unread:
            if has_gpus(seen):
                raise
            return ok(text="no GPU")  # whose driver could have said anything
        first = seen.files("kernel").get("/proc/uptime", "").split()
        if first:
            uptime = float(first[0])
        counts: dict[tuple[str, str], int] = {}
        levels: dict[tuple[str, str], str] = {}
        for line in text.splitlines():
            stamp = _STAMP.match(line)
            if stamp and uptime is not None and uptime - float(stamp[1]) > RECENT:
                continue
            event = _event(line, table)
            if event is not None:
                what, level, times = event
                for old in [one for one in counts if _supersedes(what, one)]:
                    del counts[old]
                counts[what] = counts.get(what, 0) + times
                levels[what] = min(level, levels.get(what, level), key=_RANKING.index)
        return _finding(counts, levels)

    return find


def log(seen: Seen) -> str:
    """The kernel's log, from dmesg or the journal. Raises: Unread where both are closed to us."""
    for name in ("dmesg", "journal"):
        reading = seen.reading(name)
        closed = any(words in reading.text for words in _CLOSED)
        if reading.status == 0 and reading.text.strip() and not closed:
            return reading.text
    dmesg, journal = (seen.reading(name).why() for name in ("dmesg", "journal"))
    raise Unread(f"dmesg: {dmesg}; journalctl: {journal}")


def _event(line: str, table: Mapping[int, str]) -> tuple[tuple[str, str], str, int] | None:
    """(what, where), its level, and the count of more in a line; None for other lines."""
    line = line[:MOST_LINE]
    if match := _XID.search(line):
        number, words = int(match[2]), match[3] or ""
        means, default = MEANING.get(number), WARN
        if number in _NVLINK5:
            default = WARN if "Nonfatal" in words.split() else CRITICAL
        elif number == _RECOVERY:
            action = _ACTION.search(words)
            means = action[1] if action else "the driver wants something done"
            default = IGNORE if means == "None" else CRITICAL
        what = f"Xid {number}" + (f" ({means})" if means else "")
        return (what, match[1]), table.get(number, default), 1
    if match := _SXID.search(line):
        number, word, severity = int(match[2]), match[3], match[4]
        if word == "Data":
            return None
        default = IGNORE if number in _HARMLESS_SXID else WARN
        if word == "Fatal" or (severity is not None and int(severity)):
            default = CRITICAL
        return (f"SXid {number}", match[1]), table.get(number, default), severity is None
    if match := _NARROW.search(line):
        return ("PCIe bandwidth limited by " + match[2][:60], match[1]), WARN, 1
    return None


def _supersedes(new: tuple[str, str], old: tuple[str, str]) -> bool:
    """Whether ``new`` makes ``old`` out of date: another action for the same GPU."""
    head = f"Xid {_RECOVERY} "
    return new[1] == old[1] and new[0].startswith(head) and old[0].startswith(head)


_LOOK_UP = "look the numbers up in NVIDIA's Xid catalogue; the host may stay"


def _remedy(what: str) -> str:
    """The remedy for ``what``, a warning: ``Xid 13 (...)``, or a narrow link."""
    kind, _, rest = what.partition(" ")
    number = rest.partition(" ")[0]
    if kind == "Xid" and int(number) in _PROGRAM:
        return "most often the program's own fault; the host may stay"
    if kind == "Xid" and number == "94":
        return "its program is dead; reset the GPU once its other jobs have ended"
    return "reseat the card, and look at its slot and riser" if kind == "PCIe" else _LOOK_UP


def _finding(
    counts: Mapping[tuple[str, str], int], levels: Mapping[tuple[str, str], str]
) -> Finding:
    for level, make in ((CRITICAL, critical), (WARN, warn)):
        those = [what for what in counts if levels[what] == level]
        if those:
            times = {one: f", {counts[one]} times" if counts[one] > 1 else "" for one in those}
            texts = [f"{one[0]} of {one[1]}{often}" for one, often in times.items()]
            remedies = {_remedy(what) for what, _ in those}
            remedy = remedies.pop() if len(remedies) == 1 else _LOOK_UP
            if level == CRITICAL:
                remedy = "drain the host; reset the GPU or reboot"
            return make(a_few(texts, between="; "), remedy)
    return ok()
