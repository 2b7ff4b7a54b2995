"""Rounds of pairs by ranks: what two ranks said, who cannot take part, and what is ended."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

import pytest
from cases import cases

from dispatcher.api import rank_pairs
from dispatcher.api.rank_pairs import MOST, PROBES, SECONDS, PairOutput, RankPairs
from dispatcher.api.report import FirstFailure, Report
from dispatcher.checks.pair_ranking import InsideHost, Pair
from dispatcher.core.events.run_events import SignalReceived
from dispatcher.model.host import Host
from dispatcher.remote.rank.pair import MARK

NOTHING = {"latency": None, "rate": None, "why": "", "lack": ""}
FIRST, SECOND, THIRD, FOURTH = (Host(f"n{n}", slots=4, gpus=("0", "1")) for n in range(1, 5))


def said(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def result(**found: Any) -> str:
    return MARK + json.dumps(found)


@cases(
    ("text", "found"),
    [
        (b"", NOTHING),
        (said(result(latency=1e-5, rate=4e9)), {**NOTHING, "latency": 1e-5, "rate": 4e9}),
        (said("noise", result(rate=1), "more"), {**NOTHING, "rate": 1.0}),
        (said(result(rate=1), result(rate=2)), {**NOTHING, "rate": 2.0}),  # the last counts
        (said(f"x {result(rate=1)}"), NOTHING),  # somebody else's
        (said(MARK + "{"), NOTHING), (said(MARK + "[1]"), NOTHING),
        (said(MARK + "[" * 100_000), NOTHING), (said(result(rate=True, latency="1")), NOTHING),
        (said(result(rate=-1, latency=1e15)), NOTHING),
        (said(result(rate=0, latency=9e14)), {**NOTHING, "rate": 0.0, "latency": 9e14}),
        (said(MARK + '{"rate": NaN}'), NOTHING),
        (said(result(why="x" * 500, lack=None)), {**NOTHING, "why": "x" * 400}),
        (said(result(why=7, lack="mpi4py")), {**NOTHING, "why": "7", "lack": "mpi4py"}),
    ],
)  # fmt: skip
def test_what_a_rank_said(text: bytes, found: dict[str, Any]) -> None:
    output = PairOutput()
    for at in range(0, len(text), 7):
        output.output(1, 1, text[at : at + 7])
    output.output(1, 2, said(result(rate=7)))
    output.output(0, 1, said(result(rate=8)))
    assert output.of(1) == found
    assert output.of(0)["rate"] == 8.0
    assert output.of(2) == NOTHING


def test_a_rank_that_says_much_is_cut() -> None:
    output = PairOutput()
    for _ in range(3):
        output.output(0, 1, b"x" * (MOST // 2))
    output.output(0, 1, b"\n" + said(result(rate=1)))
    assert output.of(0) == NOTHING


def rank(node: int, local: int, **found: Any) -> bytes:
    return said(result(node=node, local=local, **found))


@cases(
    ("says", "rails", "inside"),
    [
        ({}, (), None),
        ({0: said(result(rate=1.0)), 1: said(result(rate=1.0))}, (), None),
        ({0: rank(0, 0, rail=4e9, inside=4.8e11, gpu="NVIDIA H100 80GB HBM3"),
          1: rank(0, 1, rail=3e9, inside=4.7e11),
          2: rank(1, 0, rail=2e9, inside=1.0), 3: rank(1, 1, rail=5e9, inside=1.0)},
         (2e9, 3e9), InsideHost(4.7e11, "NVIDIA H100 80GB HBM3", 2)),
        ({0: rank(0, 0, rail=4e9), 1: rank(0, 1, rail=3e9), 2: rank(1, 0), 3: rank(1, 1, rail=5e9)},
         (None, 3e9), None),  # one of them has not measured
        ({0: rank(0, 0, rail=4e9, inside=1.0, gpu="x" * 99), 1: said("no result"),
          2: rank(1, 0, rail=4e9)}, (4e9,), InsideHost(1.0, "x" * 80, 1)),
        ({0: rank(0, 0, inside=1e9), 1: rank(0, 1, why="late"), 2: rank(1, 0)}, (), None),
        ({0: rank(0, 0, rail=4e9, inside=2.0), 1: rank(0, 1, rail=4e9, inside=1.0),
          2: rank(1, 0, rail=4e9)}, (4e9,), InsideHost(1.0, "", 2)),
    ],
)  # fmt: skip
def test_what_several_ranks_of_a_host_said(
    says: dict[int, bytes], rails: tuple[float | None, ...], inside: InsideHost | None
) -> None:
    output = PairOutput()
    for number, text in reversed(says.items()):  # whoever writes first
        output.output(number, 1, text)
    assert (output.rails(), output.inside(0)) == (rails, inside)


def test_any_rank_of_a_host_may_say_what_went_wrong() -> None:
    output = PairOutput()
    output.output(2, 1, rank(1, 0, rate=2.0))
    output.output(3, 1, rank(1, 1, rate=1.0, why="wrong sums"))
    output.output(0, 1, rank(0, 0, rate=3.0))
    assert output.of(1) == {**NOTHING, "rate": 2.0, "why": "wrong sums"}


def report(cause: FirstFailure | None = None, *verdict: str) -> Report:
    return Report("run-1", 0, cause, verdict, 0.0, 0.0, 2)


@cases(
    ("ended", "why"),
    [
        (report(), "it reported nothing"),
        (report(None, "note: x", "error: bad", "error: worse"), "bad"),
        (report(None, "error: " + "x" * 500), "x" * 400),
        (report(FirstFailure("Interrupted"), "error: y"), "no answer in time"),
        (report(FirstFailure("Rejected", facts={"failures": {"n1": {"why": "no mpi"}}}),
                "error: y"), "n1: no mpi"),
        (report(FirstFailure("Rejected", facts={"failures": {"n1": {"why": "x" * 500}}})),
         ("n1: " + "x" * 400)[:400]),
        (report(FirstFailure("RankFailed"), "error: rank 0 failed"), "rank 0 failed"),
    ],
)  # fmt: skip
def test_why_a_pair_told_nothing(ended: Report, why: str) -> None:
    assert rank_pairs._why(ended) == why


class Session:
    """In the place of a job of two ranks. says: rank -> what it writes; waits: until it is killed,
    which it is told twice.
    """

    def __init__(self, output: PairOutput, says: dict[int, bytes], *, waits: bool = False) -> None:
        self._output = output
        self._says = says
        self._waits = waits
        self._ended = threading.Event()
        self.told: list[int] = []

    def tell(self, event: SignalReceived) -> None:
        self.told.append(event.signum)
        if len(self.told) == 2:
            self._ended.set()

    def run(self, handled: Any) -> Report:
        assert handled == ()
        for rank, text in self._says.items():
            self._output.output(rank, 1, text)
        if self._waits:
            assert self._ended.wait(30)
            return report(FirstFailure("Interrupted"))
        return report(None, "error: it failed")


class Jobs:
    """What the job of each pair does, by its hosts."""

    def __init__(self) -> None:
        self.says: dict[tuple[int, int], dict[int, bytes]] = {}
        self.waits: set[tuple[int, int]] = set()
        self.sessions: dict[tuple[int, int], Session] = {}

    def __call__(self, pair: tuple[int, int], output: PairOutput) -> Any:
        says = self.says.get(pair, {})
        self.sessions[pair] = Session(output, says, waits=pair in self.waits)
        return self.sessions[pair]


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def played(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> RankPairs:
    transport: Any = None
    made = RankPairs(
        [FIRST, SECOND, THIRD, FOURTH], transport, over="gloo", python="/py", iface="ib0",
        connect=3.0,
    )  # fmt: skip
    monkeypatch.setattr(made, "_session", jobs)
    return made


def test_what_pairs_measured(jobs: Jobs, played: RankPairs) -> None:
    ends = {0: said(result(latency=1e-5, rate=4e9)), 1: said(result(rate=2e9, latency=7))}
    jobs.says = {(0, 1): ends, (3, 2): {0: said(result(why="refused")), 1: said(result(rate=1))}}
    assert played.play([(0, 1), (3, 2)]) == [
        Pair(0, 1, 1e-5, 4e9, 2e9), Pair(3, 2, None, None, 1.0, "refused"),
    ]  # fmt: skip
    assert played.problems == {}
    assert played._stops == []


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({}, "it failed"),
        ({1: said(result(why="from the second"))}, "from the second"),
        ({0: said(result(rate=1, why="late")), 1: said(result(rate=2))}, ""),
        ({0: said(result(rate=0)), 1: said(result(rate=0, why="late"))}, ""),
    ],
)
def test_what_went_wrong(jobs: Jobs, played: RankPairs, says: dict[int, bytes], why: str) -> None:
    jobs.says = {(0, 1): says}
    (pair,) = played.play([(0, 1)])
    assert pair.why == why


def test_what_a_host_reaches_by_itself_is_its_best(jobs: Jobs, played: RankPairs) -> None:
    def ends(inside: float) -> dict[int, bytes]:
        found: dict[str, Any] = {"rate": 1.0, "rail": 2.0, "inside": inside}
        return {at: rank(at // 2, at % 2, **found) for at in range(4)}

    jobs.says = {(0, 1): ends(5.0), (2, 0): ends(7.0), (1, 3): ends(3.0)}
    for chosen in jobs.says:
        (pair,) = played.play([chosen])
        assert pair.rails == (2.0, 2.0)
    assert {host: one.rate for host, one in played.inside.items()} == {0: 7, 1: 5, 2: 7, 3: 3}


def test_hosts_that_cannot_take_part_spoil_nobody_else(jobs: Jobs, played: RankPairs) -> None:
    good = {0: said(result(rate=1)), 1: said(result(rate=1))}
    jobs.says = {(0, 1): {1: said(result(lack="no mpi4py"))}, (2, 3): good}
    assert [(pair.a, pair.b) for pair in played.play([(0, 1), (2, 3)])] == [(2, 3)]
    assert played.problems == {1: "no mpi4py"}


def test_a_job_that_does_not_end_is_killed(
    jobs: Jobs, played: RankPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played, "_probe", rank_pairs.PairProbe(0.1, 0.1, 1.0))
    monkeypatch.setattr(played, "_connect", 0.1)
    jobs.waits = {(0, 1)}
    began = time.monotonic()
    (pair,) = played.play([(0, 1)])
    assert time.monotonic() - began >= 0.25
    assert pair.why == "no answer in time"
    assert jobs.sessions[0, 1].told == [signal.SIGINT, signal.SIGKILL]


def test_ctrl_c_ends_all(jobs: Jobs, played: RankPairs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.waits = {(0, 1), (2, 3)}
    real = played._measured

    def measured(pair: tuple[int, int]) -> Pair:
        if pair == (1, 2):
            while len(played._stops) < 2:
                time.sleep(0.01)
            raise KeyboardInterrupt
        return real(pair)

    monkeypatch.setattr(played, "_measured", measured)
    with pytest.raises(KeyboardInterrupt):
        played.play([(1, 2), (0, 1), (2, 3)])
    for one in jobs.sessions.values():
        assert one.told == [signal.SIGINT, signal.SIGKILL]
    assert real((0, 3)) == Pair(0, 3, why="not measured")  # and nobody begins any more


@cases("over", list(PROBES))
def test_the_job_of_a_pair(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(rank_pairs, "RunSession", lambda *given, **more: made.append((given, more)))
    transport: Any = object()
    hosts = [FIRST, SECOND, Host("n3", spare=True, user="me")]
    one = RankPairs(hosts, transport, over=over, python="/py", iface="ib0", connect=3.0)
    output = PairOutput()
    one._session((2, 0), output)
    (((plan, way, sinks), more),) = made
    assert (way, sinks) == (transport, [output])
    assert [node.host.name for node in plan.nodes] == ["n3", "n1"]
    assert plan.spares == ()
    probe = PROBES[over]
    if probe.every_gpu:  # those of the hostfile, and where nobody has said any, all that there are
        assert (plan.is_open, plan.nodes[1].slots) == (True, ("0", "1"))
    else:
        assert all(node.host.gpus is None and len(node.ranks) == 1 for node in plan.nodes)
    words = plan.program.argv
    assert words[:2] == ("/py", "-c")
    assert MARK in words[2] or "MARK" in words[2]
    assert words[3:] == (over, str(SECONDS), str(probe.limit))
    devices = "auto" if probe.every_gpu else "none"
    assert (plan.cwd, plan.devices, plan.iface) == ("/", devices, "ib0")
    assert (plan.limits.connect_timeout, plan.limits.grace) == (3.0, probe.grace)
    assert more["say"]("x") is None
