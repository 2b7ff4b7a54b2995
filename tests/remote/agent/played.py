"""A ``Loop`` in this process whose surroundings the test plays: launcher, guardian, ranks, clock.

Nothing is started and nobody is killed: what would be is noted. Frames cross real pipes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.remote.agent import agent_loop
from dispatcher.remote.agent.guardian import GuardianPipe
from dispatcher.remote.agent.main import later
from dispatcher.remote.host import poll, process, proctree, shm
from dispatcher.remote.protocol.frames import CONTROL, COUNT, ENDED, OUTPUT, Decoder, control
from dispatcher.remote.protocol.packing import unpack
from remote.driver import noting

#: beyond any pid that a kernel gives
FIRST_PID = 1 << 23
#: what an order says of a world that may speak PMI
MPI = {"name": b"kvs", "size": 2, "mapping": b"(vector,(0,1,2))", "patience": 30.0}
PREPARE = {
    "run_id": "test", "node": 0, "check": {}, "path": b"/usr/bin:/bin", "cwd": b"/",
    "reserve": None, "token": b"T" * 16, "heartbeat": 60.0, "lease": 60.0, "lifeline_grace": 0.5,
    "credit": 1 << 30, "parts": {},
}  # fmt: skip


class Played:
    """``loop``, and what came of what it was told.

    started: what each rank was started with; signals: (pid or -group, number) in order;
    refusals: program -> what its start fails with; found, left: what a sweep kills and leaves.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.started: dict[int, SimpleNamespace] = {}
        self.signals: list[tuple[int, int]] = []
        self.leftovers: list[tuple[int, int]] = []
        self.refusals: dict[bytes, Exception] = {}
        self.ends: dict[int, tuple[int, int]] = {}  # rank -> where it writes
        self.dead: list[tuple[int, int]] = []
        self.found: set[int] = set()
        self.left: list[int] = []
        self.output: dict[tuple[int, int], bytes] = {}
        self.counts: dict[tuple[int, int], int] = {}
        self.reports: list[dict[str, Any]] = []
        self.frames: list[Any] = []
        link_in, self._to_loop = os.pipe()
        self._from_loop, link_out = os.pipe()
        self._guarded, guarding = os.pipe()
        for fd in (link_in, link_out, self._from_loop, self._guarded):
            os.set_blocking(fd, False)
        self._decoder = Decoder()
        put = monkeypatch.setattr
        put(agent_loop, "monotonic", lambda: self.now)
        put(poll, "monotonic", lambda: self.now)
        put(process, "spawn", self._spawn)
        put(proctree, "send_signal", noting(self.signals, True))
        put(proctree, "signal_leftovers", noting(self.leftovers))
        put(proctree, "reaped", self._reaped)
        put(proctree, "kill_all", self._kill_all)
        put(proctree, "where_stuck", lambda pid: f"D at-{pid}")
        put(shm, "loaded_mpi", lambda pid: "")
        self.guardian = GuardianPipe(os.getppid(), guarding)
        self.loop = agent_loop.Loop(link_in, link_out, self.guardian, later)
        self.loop.poll.add(link_in, lambda *_: self.loop.read_link())
        self._fds = [link_in, link_out, guarding, self._guarded]

    # -- what it does to others -----------------------------------------------------

    def _spawn(
        self, rank: int, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, keep: int,
        stdin: int,
    ) -> process.Process:  # fmt: skip
        refused = self.refusals.get(argv[0])
        if refused is not None:
            raise refused
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        for fd in (out, err):
            os.set_blocking(fd, False)
        self.ends[rank] = (out_end, err_end)
        # what a rank inherits lives on in it
        held = {name: os.dup(fd) for name, fd in (("keep", keep), ("stdin", stdin)) if fd >= 0}
        self.started[rank] = SimpleNamespace(
            argv=argv, env=dict(env), cwd=cwd, keep=held.get("keep", -1), lent=(keep, stdin),
            stdin=held.get("stdin", -1), pid=FIRST_PID + rank,
        )  # fmt: skip
        return process.Process(rank, FIRST_PID + rank, out, err)

    def _reaped(self) -> Any:
        while self.dead:
            yield self.dead.pop(0)

    def _kill_all(self, reap: Any, at_once: Any) -> tuple[set[int], list[int]]:
        self.dead += [(pid, 9) for pid in self.found if pid in self.loop.by_pid]
        reap()
        return self.found, self.left

    # -- what it is told ------------------------------------------------------------

    def write(self, data: bytes) -> None:
        os.write(self._to_loop, data)
        self.turn()

    def order(self, type: str, **fields: object) -> None:
        self.write(control(type, **fields))

    def prepare(self, **fields: object) -> dict[str, Any]:
        """The answer, which leaves at once."""
        before = len(self.hear())
        self.order("prepare", **{**PREPARE, **fields})
        self._take()
        (ready,) = self.reports[before:]
        assert ready["type"] == "node.ready"
        return ready

    def start(self, *argvs: Sequence[bytes], **fields: object) -> None:
        ranks = [[rank, list(argv), []] for rank, argv in enumerate(argvs)]
        self.order("start_ranks", **{"ranks": ranks, "common": [], "scrub": [], **fields})

    def turn(self) -> None:
        """Let the loop look once at all that may have come."""
        self.loop.poll.turn(0.0)

    def ready(self) -> list[int]:
        """The descriptors that the loop would look at now."""
        return [fd for fd, _ in self.loop.poll.epoll.poll(0.0)]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.loop.act(self.loop.node.tick(self.now))
        self.loop.flush()
        self.loop.let_go()

    def says(self, rank: int, data: bytes, stream: int = 1) -> None:
        os.write(self.ends[rank][stream - 1], data)

    def closes(self, rank: int) -> None:
        """The rank's outputs end."""
        for fd in self.ends.pop(rank):
            os.close(fd)
        for _ in range(2):
            self.turn()

    def exits(self, rank: int, code: int = 0, signum: int = 0) -> None:
        self.dead.append((FIRST_PID + rank, code << 8 | signum))
        self.loop.reap()

    def cuts(self, rank: int) -> None:
        """The pipes of a rank are let go of."""
        self.loop.do_cut(rank)
        self.loop.flush()
        self.loop.let_go()

    def hang_up(self) -> None:
        os.close(self._to_loop)
        self._to_loop = -1
        self.turn()

    # -- what it says ---------------------------------------------------------------

    def hear(self) -> list[dict[str, Any]]:
        """All reports so far."""
        self.loop.flush()
        while self._take():
            self.loop.flush()
        return self.reports

    def _take(self) -> bool:
        try:
            data = os.read(self._from_loop, 1 << 20)
        except BlockingIOError:
            return False
        for frame in self._decoder.feed(data):
            self.frames.append(frame)
            place = (frame.rank, frame.stream)
            if frame.kind == CONTROL:
                self.reports.append(unpack(frame.body))
            elif frame.kind == OUTPUT:
                self.output[place] = self.output.get(place, b"") + frame.body
            elif frame.kind == ENDED:
                (self.counts[place],) = COUNT.unpack(frame.body)
        return bool(data)

    def all_of(self, type: str) -> list[dict[str, Any]]:
        return [report for report in self.hear() if report["type"] == type]

    def one(self, type: str) -> dict[str, Any]:
        """The only report of ``type``. Raises: AssertionError."""
        found = self.all_of(type)
        assert len(found) == 1, self.reports
        return found[0]

    def guarded(self) -> bytes:
        """What the guardian was told since it was asked last."""
        try:
            return os.read(self._guarded, 1 << 16)
        except BlockingIOError:
            return b""

    def nobody_listens(self) -> None:
        os.close(self._from_loop)
        self._from_loop = -1

    def close(self) -> None:
        loop = self.loop
        for rank in list(self.ends):
            self.closes(rank)
        for one in self.started.values():
            for fd in (one.keep, one.stdin):
                if fd >= 0:
                    os.close(fd)
        if loop.rendezvous is not None:
            loop.rendezvous.close()
        pmi = loop.pmi
        own = [] if loop.stdin is None else list(loop.stdin.ends.values())
        own += [] if pmi is None else list(pmi.ends.values())
        for fd in [*self._fds, *loop.readable, *own, self._to_loop, self._from_loop]:
            if fd >= 0:
                os.close(fd)
        loop.poll.epoll.close()
