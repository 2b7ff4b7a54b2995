"""Measures the network between pairs of hosts, by a job of two ranks for each pair.

Each pair is a separate job with MPI, so a pair that hangs or cannot start spoils no other. The
ranks' program, ``remote.rank.pair``, is an argument of their command; it needs torch, mpi4py and
``dispatcher.comm`` on the hosts. ``AT_ONCE`` pairs are measured at the same time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dispatcher.api.report import Report
from dispatcher.api.request import plan_job, request
from dispatcher.api.run_session import RunSession
from dispatcher.checks.pair_ranking import InsideHost, Pair
from dispatcher.core.events.run_events import Sink
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.request import Limits
from dispatcher.remote.rank import pair as program
from dispatcher.runner.loop import Stop
from dispatcher.transport.base import Transport

#: seconds that each direction of a pair is measured
SECONDS = 0.4
AT_ONCE = 32
#: bytes of a rank's output that are read
MOST = 64 << 10


@dataclass(frozen=True)
class PairProbe:
    """The limits and the number of ranks of a pair's job.

    start: seconds for Python, its modules and MPI_Init on the hosts. limit: seconds for the rest.
    grace: seconds in which a rank whose partner failed may still report what its host lacks.
    every_gpu: a rank for each GPU of a host, or for each of its slots; else one.
    """

    start: float
    limit: float
    grace: float
    every_gpu: bool = False


#: torch is large and may be on a shared disk; NCCL builds its rings before the first byte
PROBES = {"nccl": PairProbe(90.0, 60.0, 20.0, every_gpu=True), "gloo": PairProbe(90.0, 20.0, 20.0)}


class RankPairs:
    """Measures pairs of ``hosts``. over: of ``PROBES``. python: of the ranks. iface: the option.

    connect: seconds to reach a host. problems: hosts, by number, that cannot take part, and why.
    inside: the best rate among the GPUs of a host, by number.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        transport_for: Callable[[Host], Transport],
        *,
        over: str,
        python: str,
        iface: str | None,
        connect: float,
    ) -> None:
        self.problems: dict[int, str] = {}
        self.inside: dict[int, InsideHost] = {}
        self._hosts = hosts
        self._transport_for = transport_for
        self._python = python
        self._iface = iface
        self._connect = connect
        self._backend = over
        self._probe = PROBES[over]
        self._program = Path(program.__file__).read_text(encoding="utf-8")
        self._lock = threading.Lock()
        self._stops: list[Stop] = []
        self._over = False

    def play(self, pairs: Sequence[tuple[int, int]]) -> list[Pair]:
        """Measure ``pairs`` (numbers of hosts); leave out pairs with hosts that cannot take part.

        Ctrl-C ends the jobs on all hosts, and is then raised.
        """
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pair") as pool:
            try:
                found = list(pool.map(self._measured, pairs))
            except BaseException:
                self._end()
                raise
        return [pair for pair in found if not {pair.a, pair.b} & self.problems.keys()]

    def _end(self) -> None:
        with self._lock:
            self._over = True
            for stop in self._stops:
                stop(now=True)

    def _measured(self, pair: tuple[int, int]) -> Pair:
        a, b = pair
        output = PairOutput()
        session = self._session(pair, output)
        stop = Stop(session.tell)
        with self._lock:
            if self._over:
                return Pair(a, b, why="not measured")
            self._stops.append(stop)
        limit = self._connect + self._probe.start + self._probe.limit
        late = threading.Timer(limit, lambda: stop(now=True))
        late.daemon = True
        late.start()
        try:
            report = session.run(())
        finally:
            late.cancel()
            with self._lock:
                self._stops.remove(stop)
        ends = [output.of(rank) for rank in (0, 1)]
        for host, end in zip(pair, ends, strict=True):
            if end["lack"]:
                with self._lock:
                    self.problems[host] = end["lack"]
        for node, host in enumerate(pair):
            measured = output.inside(node)
            with self._lock:
                known = self.inside.get(host)
                if measured is not None and (known is None or measured.rate > known.rate):
                    self.inside[host] = measured
        why = next((end["why"] for end in ends if end["why"]), "") or _why(report)
        there, back = ends[0]["rate"], ends[1]["rate"]
        if there is not None and back is not None:
            why = ""  # later errors do not matter
        return Pair(a, b, ends[0]["latency"], there, back, why, output.rails())

    def _session(self, pair: tuple[int, int], output: PairOutput) -> RunSession:
        hosts = [replace(self._hosts[one], spare=False) for one in pair]
        every_gpu = self._probe.every_gpu
        if not every_gpu:
            hosts = [replace(host, slots=1, max_slots=None, gpus=None) for host in hosts]
        figures = str(SECONDS), str(self._probe.limit)
        job = request(
            Hostlist(tuple(hosts)),
            [self._python, "-c", self._program, self._backend, *figures],
            kind="command",
            cwd="/",
            iface=self._iface,
            limits=Limits(connect_timeout=self._connect, grace=self._probe.grace),
            nproc_per_node=None if every_gpu else 1,
            devices="auto" if every_gpu else "none",
        )
        return RunSession(plan_job(job), self._transport_for, [output], say=lambda line: None)


class PairOutput(Sink):
    """Reads the results in the ranks' output, and ignores all other output.

    If a result names no node, its rank is the node: of two ranks, rank 1 is on the second host.
    """

    def __init__(self) -> None:
        self._text: dict[int, bytes] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream == 1:
            self._text[rank] = (self._text.get(rank, b"") + data)[:MOST]

    def of(self, node: int) -> dict[str, Any]:
        """The result of ``node``'s ranks: latency and rate or None, why and lack or ""."""
        answers = self._answers(node) or [{}]
        words = {
            name: [str(one.get(name) or "")[:400] for one in answers] for name in ("why", "lack")
        }
        return {
            **{name: _figure(answers[0].get(name)) for name in ("latency", "rate")},
            **{name: next(filter(None, texts), "") for name, texts in words.items()},
        }

    def rails(self) -> tuple[float | None, ...]:
        """Bytes/s of each rail, by the slower of its ends; () if none was measured."""
        ends = [[_figure(one.get("rail")) for one in self._answers(node)] for node in (0, 1)]
        found = [None if None in both else min(both) for both in zip(*ends, strict=False)]
        return tuple(found) if any(found) else ()

    def inside(self, node: int) -> InsideHost | None:
        """The rate among the GPUs of ``node``; None for a single GPU, or if it was not measured."""
        answers = self._answers(node)
        figures = [rate for one in answers if (rate := _figure(one.get("inside")))]
        if not figures or len(figures) < len(answers):
            return None
        return InsideHost(min(figures), str(answers[0].get("gpu") or "")[:80], len(answers))

    def _answers(self, node: int) -> list[Mapping[str, Any]]:
        """The results of the ranks of ``node``, in order."""
        found = ((rank, self._answer(text)) for rank, text in sorted(self._text.items()))
        return [answer for rank, answer in found if answer and answer.get("node", rank) == node]

    def _answer(self, text: bytes) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = {}
        for line in text.splitlines():
            head, found, words = line.partition(program.MARK.encode())
            if found and not head:
                answer = _object(words)
        return answer


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _figure(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if good else None


def _why(report: Report) -> str:
    """Why a pair's job ended, if its ranks reported no reason."""
    if report.cause is not None and report.cause.kind == "Interrupted":
        return "no answer in time"
    failures = {} if report.cause is None else report.cause.facts.get("failures", {})
    for host, failure in failures.items():
        return f"{host}: {failure['why']}"[:400]
    first = next((line for line in report.verdict if line.startswith("error: ")), "")
    return first.removeprefix("error: ")[:400] or "it reported nothing"
