"""What NCCL's RAS says of a job: who is dead, who does not answer, who lags behind. Pure.

Read is the text of ``verbose status``, which every NCCL from 2.24 on can write (JSON only since
2.28.7). Ranks are named there by process and host, and those of one communicator by its own
numbers. Source: ``src/ras/client_support.cc`` of NCCL 2.30.7, and the samples of its guide::

    DEAD
      1 job process is considered dead (unreachable via the RAS network)
      Process 3487984 on node 172.16.64.213 managing GPU 5

    #0-0 (27a079b828ff1a75) MISMATCH
      Communicator ranks have different collective operation counts
      26 ranks have launched up to operation 6650
      6 ranks have launched up to operation 6649
      Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210

Outliers are listed alone: where as many lag as do not, none is named here.
"""

from __future__ import annotations

import re

from dispatcher.model.frozen import Value, value

#: processes of each kind that are told of
MOST = 256

_PROCESS = re.compile(r"  Process (\d{1,9}) on node (\S{1,80})")
_RANK = re.compile(
    r"  Rank \d{1,9}(?: has (?:launched up to operation (\d{1,18})|(not launched) any operations))?"
    r" -- GPU .{1,80}? managed by process (\d{1,9}) on node (\S{1,80})"
)
_COUNT = re.compile(
    r"  \d{1,9} ranks? ha(?:ve|s) (?:launched up to operation (\d{1,18})|not launched)"
)


@value
class Process(Value):
    """A process that RAS names: ``pid`` on the host of address ``host``."""

    pid: int
    host: str


@value
class RasReply(Value):
    """dead: out of reach for so long that RAS has given them up. silent: did not answer now.

    behind: have launched fewer collectives than others of their communicator.
    """

    dead: tuple[Process, ...] = ()
    silent: tuple[Process, ...] = ()
    behind: tuple[Process, ...] = ()

    @property
    def blamed(self) -> tuple[Process, ...]:
        """The processes that are in the way, by the gravest that is known of any."""
        return self.dead or self.silent or self.behind


def read(text: bytes) -> RasReply:
    """What ``text`` says; what is not understood counts as nothing."""
    found: dict[str, dict[Process, None]] = {"DEAD": {}, "INCOMPLETE": {}}
    behind: dict[Process, None] = {}
    section = ""
    counts: dict[Process, int] | None = None  # of those listed of one kind of collective
    every: set[int] = set()  # all counts of that kind
    count = 0

    def close() -> None:
        for process, own in (counts or {}).items():
            if own == min(every) < max(every):
                behind[process] = None

    for line in text.decode("utf-8", "backslashreplace").splitlines():
        if not line.startswith("  ") or "ranks have different" in line:
            close()
            counts, every = {} if line.endswith("operation counts") else None, set()
            if line and line[0] != " ":
                section = line
        elif (match := _COUNT.match(line)) and counts is not None:
            count = int(match[1] or 0)
            every.add(count)
        elif (match := _RANK.match(line)) and counts is not None:
            own = int(match[1]) if match[1] else 0 if match[2] else count
            counts[Process(int(match[3]), match[4])] = own
            every.add(own)
        elif (match := _PROCESS.match(line)) and section in found:
            found[section][Process(int(match[1]), match[2])] = None
    close()
    dead, silent = found.values()
    return RasReply(*(tuple(each)[:MOST] for each in (dead, silent, behind)))
