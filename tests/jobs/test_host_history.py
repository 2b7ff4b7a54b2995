"""Which hosts a run blames, and which have failed in several of the last runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import cases

from dispatcher.core.events import verdicts
from dispatcher.core.events.monitor_events import PlacedNode, RankError, RunClosed
from dispatcher.jobs import registry
from dispatcher.jobs.host_history import FailedHost, blamed, failing, failures_text
from dispatcher.jobs.registry import Job, Process
from dispatcher.model.failure import Failure, Kind

NAMES = ("n1", "n2", "n3")


def fails(*nodes: int, kind: Kind = Kind.UNREACHABLE) -> dict[int, Failure]:
    return {node: Failure(kind, "why") for node in nodes}


def closed(
    cause: verdicts.Cause | None, *texts: str, attempts: Any = (), lost: Any = None
) -> RunClosed:
    nodes = tuple(PlacedNode(name, (rank,)) for rank, name in enumerate(NAMES))
    verdict = verdicts.Verdict(cause, 1, 3, lost=lost or {}, attempts=attempts)
    return RunClosed(verdict, 1.0, nodes, errors=tuple(RankError((1,), text) for text in texts))


def rank_failed(status: int = 1, text: str | None = None) -> verdicts.RankFailed:
    return verdicts.RankFailed(1, 1, status, None if text is None else verdicts.ErrorFile(text))


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@cases(
    ("cause", "texts", "lost", "found"),
    [
        (None, (), {}, {}),
        (rank_failed(), ("ValueError: no such file",), {}, {}),
        (rank_failed(), ("CUDA out of memory",), {}, {}),
        (rank_failed(-9), (), {}, {}),
        (rank_failed(), (ECC,), {}, {"n2": "uncorrectable-ECC-error"}),
        (rank_failed(1, ECC), (), {}, {"n2": "uncorrectable-ECC-error"}),
        (rank_failed(), ("NVRM: GPU has fallen off the bus",), {}, {"n2": "GPU-lost"}),
        (rank_failed(), ("ncclSystemError: nvlink error",), {}, {"n2": "NVLink-error"}),
        (verdicts.MpiAborted(1, 1, 3), (ECC,), {}, {"n2": "uncorrectable-ECC-error"}),
        (rank_failed(), (), fails(2, kind=Kind.LOST), {"n3": "host-lost"}),
        (verdicts.NodeFailed(0, Failure(Kind.LOST, "gone")), (), {}, {"n1": "host-lost"}),
        (verdicts.Rejected(fails(0, 2)), (), {}, {"n1": "unreachable", "n3": "unreachable"}),
        (verdicts.Rejected(fails(0, 1, 2)), (), {}, {}),  # this machine is off the network
        (verdicts.Rejected(fails(0, 1, 2, kind=Kind.BOOT)), (), {},
         dict.fromkeys(NAMES, "agent-did-not-start")),
        (verdicts.Rejected(fails(1, kind=Kind.CHECK)), (), {}, {}),  # the script is not there
        (verdicts.Rejected(fails(1, kind=Kind.AUTH)), (), {}, {}),
        (verdicts.Rejected(fails(1, kind=Kind.HOST_KEY_CHANGED)), (), {}, {}),
        (verdicts.Interrupted(2), (), fails(1, kind=Kind.LOST), {}),
        (verdicts.TimeUp(9.0), (), fails(1, kind=Kind.LOST), {}),
        (verdicts.Hung(60.0, node=1, rank=1), (), {}, {}),
        (verdicts.Impossible("no GPU"), (), {}, {}),
        (verdicts.RankNotStarted(1, 1, 2, "exec", "x"), (), {}, {}),
    ],
)  # fmt: skip
def test_who_is_to_blame(cause: Any, texts: Any, lost: Any, found: dict[str, str]) -> None:
    assert blamed(closed(cause, *texts, lost=lost)) == found


def test_attempts_before_the_last_blame_their_own_hosts() -> None:
    cause = verdicts.NodeFailed(1, Failure(Kind.LOST, "gone"))
    attempts = (
        verdicts.Attempt(0, ("n1", "n7"), 2, cause, True),
        verdicts.Attempt(1, ("n1", "n8"), 2, rank_failed(), True),
        verdicts.Attempt(2, ("n1", "n9"), 2, rank_failed(), True),
    )
    ended = replace(closed(None, attempts=attempts), attempt_errors={1: "ValueError", 2: ECC})
    assert blamed(ended) == {"n7": "host-lost", "n9": "uncorrectable-ECC-error"}


def job(number: int, hosts: str, blame: Any = None, *, ended: bool = True) -> Job:
    end = {"exit_code": 1, "verdict": [], "ended": 2.0, "blamed": blame}
    return Job(
        Path("x"), f"r{number}", "login", Process(1, 1, ""), ("a",),
        tuple((name, None, None) for name in hosts.split()), 1, float(number), None, False, {},
        end if ended else None,
    )  # fmt: skip


UP = {"n1": "unreachable"}


@cases(
    ("jobs", "found"),
    [
        ([], []),
        ([job(1, "n1", UP)], [("n1", 1, 1, {"unreachable": 1}, "r1")]),
        ([job(1, "n1", UP), job(2, "n1"), job(3, "n2", UP)],
         [("n1", 1, 2, {"unreachable": 1}, "r1")]),
        # the last five of a host, of those that have ended
        ([job(1, "n1", UP), *(job(n, "n1") for n in range(2, 7))], []),
        ([job(1, "n1", UP), *(job(n, "n2") for n in range(2, 7)), job(7, "n1", ended=False)],
         [("n1", 1, 1, {"unreachable": 1}, "r1")]),
        # the worst host and the usual cause first
        ([job(1, "n2 n1", UP), job(2, "n2", {"n2": "host-lost"}), job(3, "n2", {"n2": "a-b"}),
          job(4, "n2", {"n2": "a-b"})],
         [("n2", 3, 4, {"a-b": 2, "host-lost": 1}, "r4"), ("n1", 1, 1, {"unreachable": 1}, "r1")]),
        # a record that someone has edited
        ([job(1, "n1", "x"), job(2, "n1", {"n1": 3}), job(3, "n1", {"n1": "\x1b[2J"})], []),
    ],
)  # fmt: skip
def test_which_have_failed(jobs: list[Job], found: list[Any]) -> None:
    told = [(one.host, one.failures, one.runs, dict(one.causes), one.job) for one in failing(jobs)]
    assert told == found
    assert failing(jobs, {"n9"}) == []


def test_failures_are_told_in_one_line() -> None:
    causes = {"uncorrectable-ECC-error": 2, "unreachable": 1}
    hosts = [FailedHost(f"n{n}", 3, 5, causes, "r1") for n in (4, 5)]
    assert failures_text(hosts) == (
        "n[4-5] failed in 3 of the last 5 runs: uncorrectable ECC error (2), unreachable (1)"
    )
    many = [FailedHost(f"n{n}", 3, 5, {f"a{n}": 3}, "r1") for n in range(9)]
    assert failures_text(many).count("failed in") == 4
    assert failures_text(many).endswith("; and others: dispatch hosts --failures")
    assert failing([], least=2) == []
    assert failures_text([]) == ""


def test_a_record_keeps_the_hosts_to_blame(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number in range(2):
        folder = registry.enroll(
            f"20260131-14250{number}-aaaaaa", program=["a"], hosts=[("n1", None, 22)], ranks=1,
            logs=None, detached=False, reach={},
        )  # fmt: skip
        registry.conclude(folder, 125, ["error: x"], UP if number else {})
    assert [one.blamed for one in registry.jobs()] == [{}, UP]
    (found,) = failing(registry.jobs())
    assert (found.failures, found.runs, found.why) == (1, 2, "unreachable (1)")
