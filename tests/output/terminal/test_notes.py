"""What the user is told at once, and with --verbose; every event of which something is said."""

from __future__ import annotations

from dataclasses import replace

from cases import cases

from dispatcher.core.events import mpi_events, verdicts
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import RanksHung, RanksStalled, RanksWait
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.terminal.notes import MOST_MAPPED, Notes

HOSTS = [f"n{i}" for i in range(40)]
FACTS = ev.Facts("node-a", 7, "3.11.7", 8, 4, (), "m")


def said(event: ev.Event, *, verbose: bool = False) -> list[str]:
    lines: list[str] = []
    Notes(HOSTS, lines.append, verbose=verbose).event(ev.Entry(1, 1.25, event))
    return lines


ALWAYS = [
    (ev.NodeNoticed(2, "odd \x1b[31m"), "n2: odd"),
    (ev.RankLeaked(1, 5), "rank 5 on n1 ended, but a process it started held its output open; "
     "later output of that process is not shown"),
    (ev.InputLeft((0, 1), 3, 9), "ranks 0-1 did not take all of standard input: 3 of 9 bytes were "
     "left"),
    (ev.InputBroken("EIO"), "standard input: EIO; the ranks got its end at that point"),
    (mpi_events.PmiWaiting(1, (3,), (), 30.0),
     "MPI: waiting for rank 3 on n1 (never called MPI_Init) since 30 s"),
    (mpi_events.PmiWaiting(1, (), (3, 4), 30.0), "MPI: waiting for ranks 3-4 on n1 since 30 s"),
    (mpi_events.PmiWaiting(1, (2,), (3, 4), 30.0, some=True),
     "MPI: waiting for rank 2 on n1 (never called MPI_Init) and some of ranks 3-4 on n1 since "
     "30 s"),
    (ev.RanksBound(1, (("CPU 0 of NUMA node 0", (3,)),), (("too few", (1, 2)),), is_asked=True),
     "n1: not bound (the others are): ranks 1-2: too few (-v shows other hosts, too)"),
    (RanksStalled((0,), 2.5), "rank 0: no output for 2.5 s"),
    (RanksHung(61.0, writing=True), "ranks write, but nothing else has happened for 61 s"),
    (RanksHung(61.0), "no activity on any rank for 61 s; looking where they are"),
    (RanksWait(60.0, (0,), (1, 2)), "no output for 60 s; rank 0: no CPU; ranks 1-2: busy, which "
     "may be a wait that spins (--progress-line REGEX shows which), so the job is not ended"),
    (mpi_events.SpawnRefused(0, 1, "no room"), "rank 1 on n0: MPI_Comm_spawn: no room"),
    (ev.NodeConnecting(0, 2), "n0: connection was dropped, attempt 2"),
    (ev.RunRestarting(verdicts.RankFailed(0, 1, 3), 1, 4, 0.5),
     "rank 1 on n0: exit code 3; restart 1 of 4"),
    (ev.RunRestarting(verdicts.RankFailed(0, 1, 3), 2, 4, 1.0),
     "rank 1 on n0: exit code 3; restart 2 of 4 in 1 s"),
    (ev.HostReplaced(0, 3, (0, 1), "unreachable"), "n3 takes the place of n0 with ranks 0-1 "
     "(unreachable)"),
    (ev.HostsSilent((1, 2), 5.3, 15.0),
     "n[1-2] have been silent for 5 s; after 15 s they are lost (--heartbeat)"),
    (ev.HostsSilent((2,), 9.1, 0.0), "n2 responds again after 9 s"),
    (ev.LauncherSlept(40.2), "this machine slept or was stopped for 40 s"),
    (ev.HostReplaced(0, 3, (), "unreachable"), "n3 takes the place of n0 (unreachable)"),
    (ev.HostLeftOut(4, "twice"), "n4: not used any more: twice"),
    (ev.WorldShrunk((0, 2), (1, 2)), "2 hosts and 3 ranks go on: n0:1, n2:2"),
]  # fmt: skip
IN_DETAIL = [
    (ev.NodeConnecting(0, 1), None),
    (ev.NodeConnected(0, "10.0.0.1", "ssh"), "n0: connected to 10.0.0.1 by ssh"),
    (ev.NodeConnected(0, None, "rsh"), "n0: connected to it by rsh"),
    (ev.NodeBooted(0, 0), "n0: agent is up"),
    (ev.NodeBooted(0, 9), "n0: agent is up after 9 bytes of noise"),
    (ev.NodeReady(1, FACTS), "n1: node-a, python 3.11.7, 8 cores, 4 GPUs"),
    (
        ev.NodeReady(1, replace(FACTS, hostname="a\4\nb")),
        "n1: a\\x04\\x0ab, python 3.11.7, 8 cores, 4 GPUs",
    ),
    (ev.RanksPlaced(8, "10.0.0.1", 4000), "8 ranks start, meeting at 10.0.0.1:4000"),
    (ev.RanksPlaced(1, "10.0.0.1", 4000), "1 rank starts, meeting at 10.0.0.1:4000"),
    (
        ev.RanksBound(1, (("CPUs 0-3 of NUMA node 0", (3, 4)),), (("odd", (1,)),)),
        "n1: ranks 3-4 on CPUs 0-3 of NUMA node 0; rank 1 not bound: odd",
    ),
    (ev.RanksBound(1, (("CPUs 0", (0,)),), is_asked=True), "n1: rank 0 on CPUs 0"),
    (
        ev.RanksBound(1, tuple((f"CPUs {n}", (n,)) for n in range(33))),
        "n1: " + "; ".join(f"rank {n} on CPUs {n}" for n in range(32)) + "; ...",
    ),
    (ev.RankSpawned(0, 1, 77), "rank 1 on n0: started, pid 77"),
    (ev.RankExited(0, 1, 0), "rank 1 on n0: exit code 0"),
    (ev.RankExited(0, 1, -9), "rank 1 on n0: killed by SIGKILL (signal 9)"),
    (ev.NodeLost(2, Failure(Kind.UNREACHABLE, "no\x07 route")), "n2: unreachable: no\\x07 route"),
    (ev.NodeDying(2, "told to"), "n2: told to"),
    (ev.JobStopping("RankFailed"), "ending the job: RankFailed"),
    (ev.NodeHeard(0), None),
]

ALWAYS += [
    (ev.HostReturned(1), "n1: is back, and can be used at the next restart"),
    (ev.WorldGrown((0, 1), (2, 2)), "2 hosts and 4 ranks go on: n0:2, n1:2"),
    (ev.TimeShort(10, 60.0), "60 s are left: all ranks get SIGUSR1"),
    (ev.RanksAwaited((0, 1, 3), 9.2, "Ctrl-C again"),
     "waiting for ranks 0-1,3 to end; in 9 s they are killed; Ctrl-C again kills them now"),
    (ev.RanksAwaited((2,), 9.0), "waiting for rank 2 to end; in 9 s it is killed"),
]  # fmt: skip


@cases(("event", "text"), ALWAYS)
def test_what_is_always_told(event: ev.Event, text: str) -> None:
    for verbose in (False, True):
        (line,) = said(event, verbose=verbose)
        assert line.startswith(f"note: {text}")


@cases(("event", "text"), IN_DETAIL)
def test_what_is_told_with_verbose(event: ev.Event, text: str | None) -> None:
    assert said(event) == []
    assert said(event, verbose=True) == ([] if text is None else [f"note: 1.250 s: {text}"])


@cases("count", [MOST_MAPPED, MOST_MAPPED + 1])
def test_of_a_large_world_the_first_hosts_are_named(count: int) -> None:
    (line,) = said(ev.WorldShrunk(tuple(range(count)), (2,) * count))
    assert line.startswith(f"note: {count} hosts and {2 * count} ranks go on: n0:2, n1:2")
    assert line.endswith(f"n{MOST_MAPPED - 1}:2" + (", ..." if count > MOST_MAPPED else ""))


def test_a_notice_of_many_hosts_is_told_of_the_first_and_once_of_the_others() -> None:
    lines: list[str] = []
    notes = Notes(HOSTS, lines.append, verbose=False)
    for node, text in ((0, "odd"), (1, "odd"), (2, "even"), (3, "odd")):
        notes.event(ev.Entry(1, 1.0, ev.NodeNoticed(node, text)))
    assert lines == ["note: n0: odd", "note: n2: even"]
    placed = ev.Entry(1, 2.0, ev.RanksPlaced(4, "n0", 1))
    notes.event(placed)
    assert lines[2:] == ["note: n[1,3]: odd"]
    notes.event(placed)
    assert len(lines) == 3


def test_a_reason_not_to_bind_is_told_of_one_host() -> None:
    lines: list[str] = []
    notes = Notes(HOSTS, lines.append, verbose=False)
    for node, why in ((0, "a"), (1, "a"), (2, "b"), (3, "a")):
        event = ev.RanksBound(node, (), ((why, (node,)),), is_asked=True)
        notes.event(ev.Entry(1, 0.0, event))
    assert [line.partition(" (")[0] for line in lines] == [
        "note: n0: not bound: rank 0: a", "note: n2: not bound: rank 2: b",
    ]  # fmt: skip
