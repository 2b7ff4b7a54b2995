"""NCCL's RAS: what it says in the samples of its guide (NCCL 2.30.7, troubleshooting/ras.rst)."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events.collectives import MOST, Process, RasReply, read_ras

BEHIND = """Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
"""
#: an outlier that is ahead blames nobody; a status is no count
AHEAD = """#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  26 ranks have status UNKNOWN
  4 ranks have status RUNNING
  Rank 0 -- GPU 0 managed by process 507285 on node 172.16.64.210
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 5
  Rank 4 has launched up to operation 6 -- GPU 4 managed by process 507289 on node 172.16.64.210
  Rank 5 has launched up to operation 7 -- GPU 5 managed by process 507290 on node 172.16.64.210
"""
#: by kind of collective, as from 2.26 on
KINDS = """#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 5
  Rank 4 has not launched any operations -- GPU 4 managed by process 11 on node fe80::1

  Communicator ranks have different Broadcast operation counts
  7 ranks have launched up to operation 2
  Rank 5 has launched up to operation 1 -- GPU 0 (NVML 3) managed by process 12 on node 10.0.0.2

#1-0 (1) MISMATCH
  Communicator ranks have different Reduce operation counts
  6 ranks have not launched any operations
  2 ranks have launched up to operation 1
  Rank 6 -- GPU 1 managed by process 13 on node 10.0.0.2
  Rank 7 -- [process information not found]
"""
DEAD = """Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
"""
SILENT = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
#: errors, of one rank and of several, and states; "rasClientBreakDownErrors" of its source
ERRORS = """#0-0 (27a079b828ff1a75) ERROR
  Initialization error on 1 rank
  Rank 5 reported System error -- GPU 5 managed by process 42 on node 10.0.0.3
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 0 -- GPU 0 managed by process 43 on node 10.0.0.3
  Rank 1 -- [process information not found]
  Rank 2 reported Unhandled CUDA error -- [process information not found]

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different status
  6 ranks have status RUNNING
  Rank 3 -- GPU 3 managed by process 44 on node 10.0.0.4
  Rank 6 has status NOCOMM -- GPU 6 (NVML 2) managed by process 45 on node 10.0.0.4
"""
HERE, THERE = "10.0.0.3", "10.0.0.4"
ONE = (Process(3487984, "172.16.64.213"),)
#: what RAS says, its answer to us, and whom it blames
SAMPLES = [
    (BEHIND, RasReply(behind=(Process(483072, "172.16.64.210"), Process(483074, "172.16.64.210")))),
    (AHEAD, RasReply()),
    (KINDS, RasReply(behind=(Process(11, "fe80::1"), Process(12, "10.0.0.2")))),
    (ERRORS, RasReply(said=(
        (Process(42, HERE), "System error"), (Process(43, HERE), "Remote process error"),
        (Process(45, THERE), "NOCOMM")))),
    (DEAD, RasReply(dead=ONE)), (SILENT, RasReply(silent=ONE)), ("", RasReply()),
    ("SERVER PROTOCOL 2\nOK\n", RasReply()),
    ("  Process 1 on node a\n  Rank 1 -- GPU 1 managed by process 1 on node a\n", RasReply()),
    # who is listed before any count has launched nothing
    ("  Communicator ranks have different operation counts\n"
     "  Rank 1 -- GPU 1 managed by process 1 on node a\n  1 rank has launched up to operation 1\n",
     RasReply(behind=(Process(1, "a"),))),
]  # fmt: skip


@cases(("text", "reply"), SAMPLES)
def test_what_it_says(text: str, reply: RasReply) -> None:
    assert read_ras(text.encode()) == reply


def test_the_gravest_counts() -> None:
    reply = read_ras((BEHIND + "\n" + SILENT).encode())
    assert reply.blamed == ONE
    assert reply.behind
    assert read_ras((DEAD + "\n" + BEHIND).encode()).blamed == ONE
    assert read_ras(BEHIND.encode()).blamed == reply.behind
    both = RasReply(dead=(Process(1, "a"),), silent=ONE)
    assert both.blamed == both.dead


def test_it_is_bounded() -> None:
    lines = "".join(f"  Process {n} on node a\n" for n in range(1, 1000))
    assert len(read_ras(f"DEAD\n{lines}\xff".encode("latin1")).dead) == MOST
