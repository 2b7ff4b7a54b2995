"""Actions that come after a start, if ever: signals, samples, questions, orders for MPI.

Each function does the action of its name for the ``Loop`` of ``agent_loop``, as the loop's own
``do_*`` do. A host compiles this module for the first of them, so no start waits for it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
from time import monotonic

from dispatcher.remote.host import proctree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dispatcher.remote.agent.agent_loop import Loop


def do_signal_ranks(loop: Loop, ranks: list[int], signum: int, to: str = "all") -> None:
    """Send ``signum`` to ``ranks``, and to the processes that ended ranks have left.

    to: all, their groups; rank, their own processes; auto, these if they are Python.
    """
    harmless = signal.SIGUSR1, signal.SIGUSR2, signal.SIGSTOP, signal.SIGCONT
    loop.no_failure_yet = loop.no_failure_yet and signum in harmless
    if loop.pmi is not None:
        loop.pmi.note_segments()
    for rank in ranks:
        member = loop.ranks[rank]
        if member.status is None:
            alone = to == "rank" or (to == "auto" and proctree.is_python(member.pid))
            alone = alone and signum != signal.SIGCONT
            proctree.send_signal(member.pid if alone else -member.pid, signum)
            if signum not in harmless:
                member.told_alone = alone
        else:
            proctree.signal_leftovers(member.pid, signum)


def do_sample(loop: Loop, message: dict[str, Any]) -> None:
    """Sample the ranks that run now."""
    from dispatcher.remote.probe.sampler import Sampler

    loop.sampler = loop.sampler or Sampler(loop.poll, loop.silence)
    ranks = {rank: member.pid for rank, member in loop.ranks.items()}
    try:
        loop.sampler.begin(message, ranks, loop.error_folder, loop.mark)
        loop.poll.add(loop.sampler.fd, lambda *_: loop.read_sampler())
    except OSError as error:
        loop.do_send("node.noticed", {"text": "nothing is sampled: %s" % error.strerror})


def do_watch_peer(loop: Loop, on: bool) -> None:
    """Switch the guardian's own check of the launcher's machine on or off."""
    loop.guardian.watch_peer(on)


def do_ask_peer(loop: Loop, first: bool) -> None:
    """See whether the launcher's machine answers; first: begin a new question."""
    from dispatcher.remote.host.ssh_peer import SilenceWatch

    if loop.peer is not None and (first or loop.question is None):
        loop.question = SilenceWatch(loop.peer, monotonic(), loop.node.heartbeat)
    if loop.question is not None and loop.question.look(monotonic()):
        loop.tell(("lifeline", "the launcher's machine does not answer"))


def do_pmi(loop: Loop, message: dict[str, Any]) -> None:
    """Carry out an order for MPI."""
    if loop.pmi is not None:
        loop.act(loop.pmi.replies().order(message))


def do_mpi(loop: Loop, rank: int, served: str, library: str = "") -> None:
    """Report which MPI ``rank`` has loaded, unless another rank has loaded the same."""
    from dispatcher.remote.host.shm import loaded_mpi as loaded

    if rank in loop.ranks and loop.pmi is not None:
        pid = loop.ranks[rank].pid
        known = {found[:2] for found in loop.pmi.mpis.values()}
        loop.pmi.mpis[rank] = found = served, loaded(pid) or library, pid
        if found[:2] not in known:
            loop.do_send("mpi.found", {"rank": rank, "library": found[1], "served": served})


def do_break(loop: Loop, rank: int, why: str) -> None:
    """End a rank that sent invalid data to the PMI server."""
    name = loop.pmi.replies().name(rank) if loop.pmi is not None else rank
    loop.do_send("node.noticed", {"text": "rank %s was killed: MPI: %s" % (name, why)})
    member = loop.ranks.get(rank)
    if member is not None and member.status is None:
        proctree.send_signal(-member.pid, signal.SIGKILL)
