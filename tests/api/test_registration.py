"""A run on record: what is written when it begins and ends, and who may ask meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.api import host_notes
from dispatcher.api.registration import JobRecord
from dispatcher.api.request import plan_job
from dispatcher.api.request import request as asked
from dispatcher.core.events.monitor_events import (
    GpuTroubled,
    NodeVersions,
    RunClosed,
    SamplesWanted,
    StacksGathered,
    StacksWanted,
    VersionsWanted,
    placed,
)
from dispatcher.core.events.mpi_events import MpiFound
from dispatcher.core.events.run_events import Entry, Event, RankSpawned, RanksPlaced, SignalReceived
from dispatcher.core.events.verdicts import NodeFailed, RankFailed, Verdict
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection
from dispatcher.model.errors import DispatchError, UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.paths import RunPaths
from dispatcher.output.run_state import RunState
from dispatcher.plan.job.job_plan import Change
from dispatcher.plan.job.parts import PartPlan, Program


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class Made:
    """A record, and what the run is told by it. started: as in the background."""

    def __init__(
        self, hosts: str = "n1:1,n2:1", *, started: Callable[[int], None] | None = None,
        paths: RunPaths | None = None, reach: Mapping[str, Any] = MappingProxyType({}),
        **fields: Any,
    ) -> None:  # fmt: skip
        self.told: list[Event] = []
        self.changes: list[Change] = []
        self.said: list[str] = []
        self.plan = plan_job(asked(hosts, ["train.py", "x"], **fields))
        nodes = (*self.plan.nodes, *self.plan.spares)
        self.state = RunState([node.host.name for node in nodes])
        session: Any = SimpleNamespace(
            plan=self.plan, state=self.state, tell=self.told.append, restart=self.changes.append,
            closed=None,
        )  # fmt: skip
        self.session = session
        self.one = JobRecord(
            session, reach, paths, self.said.append, slow=lambda: ("rank 1 is slow",),
            started=started,
        )  # fmt: skip

    @property
    def job(self) -> registry.Job:
        return registry.find(self.plan.run_id)

    def event(self, *events: Event) -> None:
        for event in events:
            for sink in (self.state, self.one):
                sink.event(Entry(0, 0.0, event))


def test_what_is_written_down(tmp_path: Path) -> None:
    reach = {"transport": "ssh", "rsh": None, "ssh_config": "/c", "host_keys": "strict"}
    hosts = "n1:1,n2:1,n3:1"
    made = Made(hosts, paths=RunPaths(tmp_path), reach=reach, spares=1, user="ml")
    job = made.job
    assert job.program == ("train.py", "x")
    assert job.hosts == (("n1", "ml", None), ("n2", "ml", None), ("n3", "ml", None))
    assert (job.ranks, job.logs, job.detached) == (2, tmp_path, False)
    assert job.reach == reach
    assert job.typed is None
    assert set(job.variables) >= {"PATH"}
    assert (job.state, job.launcher.pid, job.phase) == ("running", os.getpid(), "connecting")
    made.event(RanksPlaced(2, "n1", 1))
    assert made.job.phase == "starting"
    made.one.conclude(3, ["error: it failed"])
    assert (made.job.state, made.job.exit_code) == ("ended", 3)
    assert (made.job.end or {})["verdict"] == ["error: it failed"]


def test_versions_of_a_job_that_has_run_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_notes, "LATER", 0.01)
    made = Made()
    for _ in range(2):  # a restart asks no more
        made.event(RanksPlaced(2, "n1", 1), RankSpawned(0, 0, 7), RankSpawned(1, 1, 8))
        wait_for(lambda: VersionsWanted() in made.told, 30, "the hosts are asked")
    text = "dispatch-version python 3.11.2\ndispatch-version {} {}\nother 1 2\n"
    made.event(VersionsWanted())
    made.event(NodeVersions(0, text.format("torch", "2.8.0+cu128")), MpiFound(1, "", "PMI-1"))
    assert registry.versions_of(made.job) == {}  # written once all hosts have answered
    made.event(NodeVersions(1, text.format("nvidia_nccl_cu12", "2.27")), NodeVersions(0, "\x1b["))
    assert registry.versions_of(made.job) == {
        "python": {"3.11.2": "n[1-2]"}, "torch": {"2.8.0+cu128": "n1"}, "nccl": {"2.27": "n2"},
        "mpi": {"PMI-1": "n2"},
    }  # fmt: skip
    (made.job.folder / "versions.json").unlink()
    made.one.conclude(0, [])
    assert "mpi" in registry.versions_of(made.job)
    assert made.told.count(VersionsWanted()) == 1
    (made.job.folder / "versions.json").write_text("[1]")
    assert registry.versions_of(made.job) == {}


def test_a_short_job_is_asked_for_no_versions() -> None:
    made = Made()
    made.event(RanksPlaced(2, "n1", 1), RankSpawned(0, 0, 7), RankSpawned(1, 1, 8))
    made.one.conclude(0, [])
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "look"], 30, "end")
    assert VersionsWanted() not in made.told


@cases(
    ("made", "order", "change"),
    [
        ({}, {}, Change()),
        ({}, {"exports": [["A", "1"]]}, Change(None, (("A", "1"),))),
        ({}, {"words": ["b.py", "y"]}, Change(Program("script", ("b.py", "y")))),
        ({}, {"words": ["none.py"]}, "none.py: no such script in "),
        ({}, {"exports": [["RANK", "1"]]}, "-x: RANK is set by dispatch"),
        ({"parts": True}, {"words": ["b.py"]}, "it has several programs"),
    ],
)  # fmt: skip
def test_what_a_restart_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], order: dict[str, Any],
    change: Change | str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "b.py"):
        (tmp_path / name).touch()
    one = Made()
    if "parts" in made:
        part = PartPlan("", one.plan.program, "python3", "/", ())
        one.one._plan = replace(one.plan, parts=(part, part))
    if isinstance(change, str) and " " in change:
        with pytest.raises(DispatchError) as refused:
            one.one.restart(order)
        assert refused.value.message.startswith(change)
    else:
        one.one.restart(order)
        assert one.changes == [change]
    one.one.conclude(0, [])


@cases(
    ("words", "line"),
    [(["3"], "train.py 3"), (["--lr", "1 2"], "train.py --lr '1 2'"), (["tran.py"], "train.py"),
     (["./no", "x"], "train.py x")],
)  # fmt: skip
def test_a_restart_with_arguments_alone_is_told_the_whole_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    one = Made()
    with pytest.raises(DispatchError) as refused:
        one.one.restart({"words": words})
    assert refused.value.hint == f"dispatch restart {one.plan.run_id} -- {line}"
    one.one.conclude(0, [])


@cases(
    ("error", "code", "lines"),
    [
        (None, None, None),
        (UsageError("who: what"), 2, ["error: who: what [bad-value]"]),
        (DispatchError("lost"), 125, ["error: lost [dispatch-failed]"]),
        (ZeroDivisionError("a bug"), 125, ["error: ZeroDivisionError: a bug"]),
        (KeyboardInterrupt(), 125, ["error: KeyboardInterrupt: "]),
    ],
)
def test_a_run_that_could_not_be_begun_has_ended_too(
    error: BaseException | None, code: int | None, lines: list[str] | None
) -> None:
    made = Made()
    try:
        with made.one as same:
            assert same is made.one
            if error is not None:
                raise error
    except (DispatchError, ZeroDivisionError, KeyboardInterrupt) as raised:
        assert raised is error  # noqa: PT017 - it is not swallowed
    assert made.job.exit_code == code
    if lines is not None:
        assert (made.job.end or {})["verdict"] == lines
    made.one.conclude(0, [])


def test_where_the_ranks_are_is_asked_of_the_hosts() -> None:
    made = Made()
    made.one.answer()
    with JobConnection(made.job) as call:
        call.order("stacks")
        wait_for(lambda: made.told == [StacksWanted()], 20, lambda: "the hosts are asked")
        made.event(StacksGathered(1, ()))
        frames = call.frames()
        found = next(fields for fields in frames if fields)
        assert (found["type"], found["lines"]) == ("stacks", ["no rank is running"])
        made.one.conclude(4, ["x"])
        rest = [fields for fields in frames if fields]
    assert [(one["type"], one["exit_code"]) for one in rest] == [("verdict", 4)]
    assert not (made.job.folder / "control").exists()


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_job_in_front_or_behind_can_be_called(is_behind: bool) -> None:
    began: list[int] = []
    made = Made(started=began.append if is_behind else None)
    assert made.job.detached is is_behind
    made.event(RanksPlaced(2, "n1", 1), RankSpawned(0, 0, 71))
    assert began == []
    made.event(RankSpawned(1, 1, 72))
    assert (began, made.job.phase) == ([2] if is_behind else [], "running")
    said: list[str] = []
    made.one.answer()
    with JobConnection(made.job) as call:
        call.order("attach", table=0.5, picture=True)
        frames = call.frames()
        kinds: dict[str, dict[str, Any]] = {}
        both = made.one.shown_to_clients(said.append)
        while not {"table", "picture"} <= kinds.keys():
            fields = next(frames)
            kinds.setdefault(str(fields.get("type")), fields)
        assert SamplesWanted(0.5) in made.told
        assert [row["pid"] for row in kinds["table"]["table"]["ranks"]] == [71, 72]
        assert kinds["table"]["table"]["slow"] == ["rank 1 is slow"]
        both("note: x")
        made.one.conclude(5, ["error: y"])
        rest = [fields for fields in frames if fields]
    assert said == ["note: x"]
    assert any(one.get("line") == "note: x" for one in rest)
    assert (rest[-1]["type"], rest[-1]["exit_code"]) == ("verdict", 5)


@pytest.mark.parametrize("now", [False, True])
def test_a_job_can_be_stopped(now: bool) -> None:
    made = Made()
    with JobConnection(made.job) as call:
        call.order("stop", now=now)
        assert made.told == []  # there is no run yet that could be told
        made.one.answer()
        wait_for(lambda: len(made.told) >= (2 if now else 1), 20, lambda: f"told: {made.told}")
    assert all(isinstance(event, SignalReceived) for event in made.told)
    assert len(made.told) == (2 if now else 1)
    made.one.conclude(0, [])


def test_without_a_record_a_run_goes_on_and_a_job_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    made = Made()
    made.event(RanksPlaced(2, "n1", 1))
    (said,) = made.said
    assert said.startswith("note: dispatch jobs and stop will not know this job: ")
    with made.one:
        made.one.conclude(0, [])
    with pytest.raises(UsageError) as caught:
        Made(started=print)
    assert caught.value.message.startswith("--detach: the job cannot be recorded in ")


def test_a_folder_that_is_gone_costs_the_phase_and_not_the_job() -> None:
    began: list[int] = []
    made = Made(started=began.append)
    made.job.folder.rename(made.job.folder.with_name("moved"))
    made.event(RanksPlaced(1, "n1", 1), RankSpawned(0, 0, 71))
    assert began == [1]
    made.one.conclude(0, [])


@cases(
    ("xid", "cause", "blamed"),
    [
        (79, RankFailed(1, 1, 1), {"n2": "Xid-79"}),
        (13, RankFailed(1, 1, 1), {}),  # by the program
        (79, None, {}),
        (79, NodeFailed(1, Failure(Kind.LOST, "gone")), {"n2": "host-lost"}),
    ],
)
def test_a_gpu_s_error_blames_its_host_if_the_run_fails(
    xid: int, cause: Any, blamed: dict[str, str]
) -> None:
    made = Made()
    made.event(GpuTroubled(1, 3, (1,), xid, 0))
    made.session.closed = RunClosed(Verdict(cause, 1, 2), 1.0, placed(made.plan))
    made.one.conclude(1 if cause else 0, [])
    assert made.job.blamed == blamed
