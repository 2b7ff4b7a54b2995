"""The report on a run: a fold over its events, and over nothing else."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.api.report import (
    MOST_INDENTED,
    FailedAttempt,
    FirstFailure,
    Fold,
    HostFailure,
    MpiLibrary,
    RankEnding,
    Report,
    SpawnedWorld,
    replay,
    write_json,
)
from dispatcher.core.events.collectives import Collective
from dispatcher.core.events.monitor_events import (
    LastWords,
    NcclNetwork,
    PlacedNode,
    RankError,
    RunBegan,
    RunClosed,
)
from dispatcher.core.events.mpi_events import MpiFound, WorldPlaced
from dispatcher.core.events.run_events import (
    Entry,
    Event,
    HostExcluded,
    RankExited,
    RankSpawned,
    RanksPlaced,
)
from dispatcher.core.events.stack_frames import Frame, Group
from dispatcher.core.events.verdicts import (
    Attempt,
    Cause,
    ErrorFile,
    Hung,
    Impossible,
    Interrupted,
    LeftMpi,
    MpiAborted,
    NodeFailed,
    RankFailed,
    RankNotStarted,
    Rejected,
    Signal,
    Verdict,
)
from dispatcher.model.errors import DispatchError
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.files.journal import Journal
from dispatcher.plan.job.placement import FIRST
from dispatcher.plan.job.reassignment import Exclusion

BEGAN = RunBegan("run-1", 1000.5, ("n1", "n2", "n3"))
NODES = (PlacedNode("n1", (0, 1)), PlacedNode("n2", (2,)))
LOST = Failure(Kind.LOST, "no heartbeat", "look")


def closed(verdict: Verdict, **more: Any) -> RunClosed:
    return RunClosed(verdict, 12.3456, NODES, **more)


def failed(cause: Cause | None, **more: Any) -> Verdict:
    return Verdict(cause, 0 if cause is None else 3, 3, **more)


def folded(*events: Event, folder: Path | None = None) -> Report:
    """The report on these events, a second apart."""
    fold = Fold(folder)
    for at, event in enumerate(events):
        fold.event(Entry(at + 1, float(at), event))
    assert fold.seq == len(events)
    return fold.report()


START = (
    BEGAN, RanksPlaced(3, "n1", 1), RankSpawned(0, 0, 70), RankSpawned(0, 1, 71),
    RankSpawned(1, 2, 72), RankExited(0, 0, 0), RankExited(1, 2, -9),
)  # fmt: skip


def test_a_run_that_went_as_planned() -> None:
    verdict = failed(None, statuses={0: 0, 1: 0, 2: 0})
    report = folded(BEGAN, closed(verdict, written=((0, 5, 6),)), folder=Path("/logs"))
    assert report == Report(
        "run-1", 0, None, (), 1000.5, 12.3456, 3,
        ranks=(
            RankEnding("0", "n1", None, 0, 5, 6, None, None),
            RankEnding("1", "n1", None, 0, 0, 0, None, None),
            RankEnding("2", "n2", None, 0, 0, 0, None, None),
        ),
        log_dir=Path("/logs"),
    )  # fmt: skip
    assert report.ok
    assert report.statuses == {"0": 0, "1": 0, "2": 0}


def test_what_became_of_each_rank() -> None:
    verdict = failed(RankFailed(1, 2, -9), statuses={0: 0, 2: -9})
    report = folded(*START, closed(verdict, written=((2, 7, 8), (0, 1, 2))))
    assert report.ranks == (
        RankEnding("0", "n1", 70, 0, 1, 2, 2.0, 5.0),
        RankEnding("1", "n1", 71, None, 0, 0, 3.0, None),
        RankEnding("2", "n2", 72, -9, 7, 8, 4.0, 6.0),
    )
    assert report.statuses == {"0": 0, "2": -9}
    assert not report.ok


def test_only_the_last_attempt_counts() -> None:
    """Ranks of the one before, and worlds that they spawned, are no more."""
    report = folded(
        *START, WorldPlaced(1, 0, FIRST, (0, 2)), MpiFound(0, "/lib/old", "PMI-1"),
        RankSpawned(2, FIRST, 99), RanksPlaced(3, "n1", 1, 1), RankSpawned(2, 2, 80),
        closed(failed(None)),
    )  # fmt: skip
    assert [(one.rank, one.host, one.pid, one.began, one.ended) for one in report.ranks] == [
        ("0", "n1", None, None, None), ("1", "n1", None, None, None), ("2", "n3", 80, 11.0, None),
    ]  # fmt: skip
    assert report.spawned == ()
    assert report.mpi == {}


def test_what_ranks_spawned_and_which_mpi_they_use() -> None:
    report = folded(
        *START, WorldPlaced(1, 2, FIRST, (0, 2)), RankSpawned(2, FIRST, 99),
        MpiFound(0, "/lib/a", "PMI-1"), MpiFound(0, "/lib/b", "PMIx"), MpiFound(2, "", "PMI-1"),
        closed(failed(None)),
    )  # fmt: skip
    assert report.spawned == (SpawnedWorld(1, "2", ("n1", "n3")),)
    assert [(one.rank, one.host, one.pid) for one in report.ranks][-1] == ("1.0", "n3", 99)
    assert report.mpi == {"n1": MpiLibrary("/lib/b", "PMIx"), "n3": MpiLibrary("", "PMI-1")}


def test_hosts_stand_by_name() -> None:
    network = NcclNetwork("IB", ("mlx5_0",), "2.20")
    verdict = failed(
        NodeFailed(1, LOST), lost={1: LOST}, unkillable={0: (7, 8)}, stuck={0: ("state D",)},
        swept={1: 2}, left_out={"n9": "bad"}, no_restart="too few hosts",
        attempts=(Attempt(0, ("n1", "n9"), 2, RankFailed(1, 1, 5), True),
                  Attempt(1, ("n1",), 1, Interrupted(15), False)),
    )  # fmt: skip
    report = folded(BEGAN, closed(verdict, nccl={2: network}, notes=("note: swept",)))
    assert report.lost == {"n2": HostFailure("host lost", "no heartbeat", "look", "host-lost")}
    assert (report.unkillable, report.stuck) == ({"n1": (7, 8)}, {"n1": ("state D",)})
    assert (report.swept, report.left_out) == ({"n2": 2}, {"n9": "bad"})
    assert (report.no_restart, report.nccl) == ("too few hosts", {"n3": network})
    first, second = report.attempts
    assert first == FailedAttempt(0, True, 2, ("n1", "n9"), "RankFailed", first.what, 5)
    assert "rank 1" in first.what
    assert (second.started, second.cause, second.exit_code) == (False, "Interrupted", 143)
    text = "\n".join(report.verdict)
    for words in (
        "note: attempt 1: ", "note: before a start: ", "n9 was left out from then on: bad",
        "not started again: too few hosts", "n2", "no heartbeat",
    ):  # fmt: skip
        assert words in text
    assert report.verdict[-1] == "note: swept"


def test_hosts_that_were_not_fit() -> None:
    excluded = Exclusion("n7", "bad", "n8")
    began = RunBegan("run-1", 1.0, ("n1",), (excluded,))
    report = folded(began, HostExcluded("n7", "bad", "n8"), closed(failed(None)))
    assert report.excluded == (excluded,)
    assert report.verdict == ("note: n7: left out, unhealthy: bad; n8 takes its place",)


def test_what_a_rank_said_last() -> None:
    words = LastWords((1, 2), "stdout", ("line 7", "x"))
    verdict = failed(RankFailed(0, 1, 3), statuses={1: 3, 2: 3, 0: 3})
    report = folded(*START, closed(verdict, last_words=words))
    assert report.cause is not None
    assert report.cause.last_lines == ("line 7", "x")
    assert report.cause.facts["same"] == [2]
    assert any("stdout" in line for line in report.verdict)
    silent = folded(*START, closed(verdict))
    assert silent.cause is not None
    assert silent.cause.last_lines == ()
    assert silent.cause.facts["same"] == []
    assert any("wrote nothing" in line for line in silent.verdict)


GROUP = Group((0, FIRST), "py-spy", "S", (Frame("f", "a.py", 3),))


#: of a rank that wrote nothing of its end
UNTOLD = {"last_error": None, "place": None, "remedy": None}


@cases(
    ("error", "told"),
    [
        (RankError((2,), "E: no", "a.py:3", hint="pip install x"),
         {"last_error": "E: no", "place": "a.py:3", "remedy": "pip install x"}),
        (RankError((2,), "E: no"), {**UNTOLD, "last_error": "E: no"}),
        (RankError((2,), ""), UNTOLD), (RankError((0,), "E: no", "a.py:3", hint="x"), UNTOLD),
    ],
)  # fmt: skip
def test_what_the_rank_that_failed_wrote_of_its_end(
    error: RankError, told: Mapping[str, Any]
) -> None:
    report = folded(*START, closed(failed(RankFailed(1, 2, 3)), errors=(error,)))
    assert report.cause is not None
    assert {name: report.cause.facts[name] for name in UNTOLD} == told


@cases(
    ("cause", "rank", "host", "facts"),
    [
        (RankFailed(1, 2, 3, ErrorFile("why", "tb"), "hint"), "2", "n2",
         {"rank": 2, "host": "n2", "status": 3, "error": {"message": "why", "traceback": "tb"},
          "hint": "hint", "pid": 72, "last_lines": [], **UNTOLD, "same": []}),
        (RankFailed(0, FIRST, 3), "1.0", "n1",
         {"rank": "1.0", "host": "n1", "status": 3, "error": None, "hint": "", "pid": None,
          "last_lines": [], **UNTOLD, "same": []}),
        (MpiAborted(0, 1, 7, "text"), "1", "n1",
         {"rank": 1, "host": "n1", "code": 7, "text": "text", "error": None, "pid": 71,
          "last_lines": [], **UNTOLD}),
        (LeftMpi(0, 1, True, (1, FIRST), (2,)), "1", "n1",
         {"rank": 1, "host": "n1", "never": True, "ranks": ["1", "1.0"], "waiting": ["2"]}),
        (RankNotStarted(0, 1, 2, "exec", "prog"), "1", "n1",
         {"rank": 1, "host": "n1", "errno": 2, "step": "exec", "what": "prog"}),
        (NodeFailed(1, LOST), None, "n2",
         {"host": "n2", "failure": {"kind": "host lost", "why": "no heartbeat", "hint": "look",
         "message_code": "host-lost"}}),
        (Rejected({1: LOST}, 125, {1: frozenset({"cwd", "a"})}), None, None,
         {"failures": {"n2": {"kind": "host lost", "why": "no heartbeat", "hint": "look",
         "message_code": "host-lost"}},
          "exit_code": 125, "problems": {"n2": ["a", "cwd"]}}),
        (Impossible("too few", "more"), None, None, {"message": "too few", "hint": "more"}),
        (Interrupted(15), None, None, {"signum": 15, "by": ""}),
    ],
)  # fmt: skip
def test_what_ended_it(
    cause: Cause, rank: str | None, host: str | None, facts: Mapping[str, Any]
) -> None:
    report = folded(*START, closed(failed(cause)))
    assert report.cause == FirstFailure(
        type(cause).__name__, rank, host, (), facts, cause.message_code
    )
    assert report.plain()["cause"] == {
        "kind": type(cause).__name__,
        "message_code": cause.message_code,
        **facts,
    }


@cases(("node", "rank"), [(None, None), (0, 1)])
def test_where_ranks_were_when_they_hung(node: int | None, rank: int | None) -> None:
    late = Collective("group 0", 4, "all_reduce", (0, FIRST), (1,), (), (("bcast", (1,)),))
    known = (Signal("RAS", (FIRST,)),), (Signal("INIT", (FIRST,)),)
    hung = Hung(60.0, (GROUP,), node, rank, late, *known)
    report = folded(*START, closed(failed(hung)))
    assert report.cause is not None
    facts = dict(report.cause.facts)
    (group,) = facts.pop("groups")
    assert group["ranks"] == ["0", "1.0"]
    assert group["frames"] == [vars(GROUP.frames[0])]
    assert group["place"] == GROUP.place
    assert group["native"] == GROUP.native
    assert facts.pop("collective") == {
        "group": "group 0", "sequence": 4, "name": "all_reduce", "entered": ["0", "1.0"],
        "missing": ["1"], "unknown": [], "differing": [{"name": "bcast", "ranks": ["1"]}],
    }  # fmt: skip
    assert facts.pop("signals") == [{"name": "RAS", "ranks": ["1.0"]}]
    assert facts.pop("nccl") == [{"name": "INIT", "ranks": ["1.0"]}]
    expected: dict[str, Any] = {"seconds": 60.0, "writing": False}
    if rank is not None:
        expected |= {"rank": 1, "host": "n1"}
    assert facts == expected
    assert (report.cause.rank, report.cause.host) == ((None, None) if rank is None else ("1", "n1"))


def test_for_programs() -> None:
    report = folded(
        *START, closed(failed(RankFailed(1, 2, -9), statuses={2: -9})), folder=Path("d")
    )
    told = report.plain()
    assert "log_dir" not in told
    assert (told["ok"], told["seconds"], told["statuses"]) == (False, 12.346, {"2": -9})
    assert told["ranks"][2]["pid"] == 72
    assert json.loads(json.dumps(told))["cause"]["kind"] == "RankFailed"
    assert folded(BEGAN, closed(failed(None))).plain()["cause"] is None


@cases(
    ("events", "said"),
    [
        ((), "no run.began: not the whole journal of a run"),
        ((closed(failed(None)),), "no run.began"),
        ((BEGAN,), "no run.closed: the run has not ended, or its launcher was killed"),
    ],
)
def test_not_all_of_a_run(events: tuple[Event, ...], said: str) -> None:
    with pytest.raises(DispatchError) as caught:
        folded(*events)
    assert caught.value.message.startswith(said)


# -- journals ------------------------------------------------------------------------------


def journal(folder: Path, *events: Event) -> Path:
    path = folder / "kept.jsonl"
    sink = Journal(path, lambda line: None)
    for at, event in enumerate(events):
        sink.event(Entry(at + 1, float(at), event))
    sink.close()
    return path


def test_a_journal_is_replayed(tmp_path: Path) -> None:
    events = (*START, closed(failed(RankFailed(1, 2, -9), statuses={2: -9})))
    assert replay(journal(tmp_path, *events)) == folded(*events, folder=tmp_path)


@cases(
    ("events", "said"),
    [
        ((BEGAN,), "{path}: no run.closed"),
        ((RunBegan("run-1", 1.0, ("n1",), (), 99), closed(failed(None))), "{path}: of version 99"),
        ((RunBegan("run-1", 1.0, ()), RankSpawned(5, 0, 7), closed(failed(None))),
         "{path}: its events do not fit together"),
        ((BEGAN, closed(failed(NodeFailed(7, LOST)))), "{path}: its events do not fit together"),
    ],
)  # fmt: skip
def test_a_journal_that_is_none(tmp_path: Path, events: tuple[Event, ...], said: str) -> None:
    path = journal(tmp_path, *events)
    with pytest.raises(DispatchError) as caught:
        replay(path)
    assert caught.value.message.startswith(said.format(path=path))


def test_a_journal_with_a_hole(tmp_path: Path) -> None:
    """As a disk leaves it that was full in the middle of the run."""
    path = journal(tmp_path, *START, closed(failed(None)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(DispatchError, match="event 2 is missing"):
        replay(path)


def test_a_value_is_written_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "f", {"a": [1]})
    assert (tmp_path / "f").read_text() == '{\n  "a": [\n    1\n  ]\n}\n'
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_json(tmp_path / "f", {})
    monkeypatch.setattr("dispatcher.api.report.write_all", lambda fd, data: os.read(-1, 1))
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_json(tmp_path / "full", {})
    assert not (tmp_path / "full").exists()


@cases("count, lines", [(0, 0), (3, 0), (MOST_INDENTED + 1, MOST_INDENTED + 1)])
def test_what_is_written_is_indented_but_for_what_is_long(
    tmp_path: Path, count: int, lines: int
) -> None:
    plain = {
        "a": {"b": ["x\ny"]},
        "ranks": [{"rank": n, "host": "n\n"} for n in range(count)],
        "c": 3,
    }
    write_json(tmp_path / "f", plain)
    text = (tmp_path / "f").read_text()
    assert json.loads(text) == plain
    assert list(json.loads(text)) == list(plain)
    if count <= MOST_INDENTED:
        assert text == json.dumps(plain, indent=2) + "\n"
    assert text.count('\n    {"rank"') == lines
    write_json(tmp_path / "empty", {})
    assert (tmp_path / "empty").read_text() == "{}\n"
