"""A run on record: what is written when it begins and ends, and who may ask meanwhile."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.api.request import plan_job
from dispatcher.api.request import request as asked
from dispatcher.cli.run.detach import ForegroundLink
from dispatcher.cli.run.registration import JobRegistration
from dispatcher.cli.run.run import RunOptions
from dispatcher.core.events.monitor_events import SamplesWanted, StacksWanted
from dispatcher.core.events.run_events import Entry, Event, RankSpawned, RanksPlaced, SignalReceived
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection
from dispatcher.model.errors import DispatchError, UsageError
from dispatcher.model.paths import RunPaths
from dispatcher.output.run_state import RunState
from dispatcher.plan.job.job_plan import Change
from dispatcher.plan.job.parts import PartPlan, Program


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class Made:
    """A registration, and what the run is told by it."""

    def __init__(
        self, hosts: str = "n1:1,n2:1", *, word: Any = None, paths: RunPaths | None = None,
        options: RunOptions | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        self.told: list[Event] = []
        self.changes: list[Change] = []
        self.said: list[str] = []
        self.plan = plan_job(asked(hosts, ["train.py", "x"], **fields))
        self.state = RunState([node.host.name for node in self.plan.nodes])
        self.one = JobRegistration(
            self.plan, options or RunOptions(), paths, word, self.state, self.told.append,
            self.changes.append, self.said.append, lambda: ("rank 1 is slow",),
        )  # fmt: skip

    @property
    def job(self) -> registry.Job:
        return registry.find(self.plan.run_id)

    def event(self, *events: Event) -> None:
        for event in events:
            for sink in (self.state, *self.one.sinks):
                sink.event(Entry(0, 0.0, event))


def test_what_is_written_down(tmp_path: Path) -> None:
    options = RunOptions(transport="ssh", ssh_config="/c", host_keys="strict")
    hosts = "n1:1,n2:1,n3:1"
    made = Made(hosts, paths=RunPaths(tmp_path), options=options, spares=1, user="ml")
    job = made.job
    assert job.program == ("train.py", "x")
    assert job.hosts == (("n1", "ml", None), ("n2", "ml", None), ("n3", "ml", None))
    assert (job.ranks, job.logs, job.detached) == (2, tmp_path, False)
    assert job.reach == {"transport": "ssh", "rsh": None, "ssh_config": "/c",
                         "host_keys": "strict"}  # fmt: skip
    assert (job.state, job.launcher.pid, job.phase) == ("running", os.getpid(), "connecting")
    made.event(RanksPlaced(2, "n1", 1))
    assert made.job.phase == "starting"
    made.one.conclude(3, ["error: it failed"])
    assert (made.job.state, made.job.exit_code) == ("ended", 3)
    assert (made.job.end or {})["verdict"] == ["error: it failed"]


@cases(
    ("made", "order", "change"),
    [
        ({}, {}, Change()),
        ({}, {"exports": [["A", "1"]]}, Change(None, (("A", "1"),))),
        ({}, {"words": ["b.py", "y"]}, Change(Program("script", ("b.py", "y")))),
        ({}, {"words": ["none.py"]}, "none.py: no such script in "),
        ({}, {"exports": [["RANK", "1"]]}, "-x: RANK is set by dispatch"),
        ({"parts": True}, {"words": ["b.py"]}, "it has several programs"),
        ({"launcher": "torchrun"}, {"words": ["b.py"]}, "torch.distributed.run"),
    ],
)  # fmt: skip
def test_what_a_restart_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], order: dict[str, Any],
    change: Change | str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "b.py"):
        (tmp_path / name).touch()
    options = RunOptions(words=("train.py", "x"), launcher=made.get("launcher", "dispatch"))
    one = Made(options=options)
    if "parts" in made:
        part = PartPlan("", one.plan.program, "python3", "/", ())
        one.one._plan = replace(one.plan, parts=(part, part))
    if isinstance(change, str) and " " in change:
        with pytest.raises(DispatchError) as refused:
            one.one._order_restart(order)
        assert refused.value.message.startswith(change)
    else:
        one.one._order_restart(order)
    programs = [(found.program or Program("script", ())).argv for found in one.changes]
    assert one.changes == [change] or [(argv[0], argv[-1]) for argv in programs] in (
        [(change, "b.py")], [],
    )  # fmt: skip
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
    one = Made(options=RunOptions(words=("train.py", "x")))
    with pytest.raises(DispatchError) as refused:
        one.one._order_restart({"words": words})
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


def test_a_run_in_the_foreground_tells_where_its_ranks_are() -> None:
    made = Made()
    made.one.answer()
    with JobConnection(made.job) as call:
        call.order("stacks")
        wait_for(lambda: made.told == [StacksWanted()], 20, lambda: "the hosts are asked")
        made.one.conclude(4, ["x"])
        frames = [fields for fields, _ in call.frames() if fields]
    assert [(one["type"], one["exit_code"]) for one in frames] == [("verdict", 4)]
    assert not (made.job.folder / "control").exists()
    said: list[str] = []
    assert made.one.shown_to_viewers(said.append) == said.append
    assert made.one.control is None


@pytest.fixture
def word() -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ForegroundLink(theirs)


def test_a_job_in_the_background_can_be_called(word: Any) -> None:
    made = Made(word=word)
    assert made.job.detached is True
    assert made.one.sinks[-1] is word
    made.event(RanksPlaced(2, "n1", 1), RankSpawned(0, 0, 71), RankSpawned(1, 1, 72))
    said: list[str] = []
    made.one.answer()
    with JobConnection(made.job) as call:
        call.order("attach", output=True, table=0.5, picture=True)
        frames = call.frames()
        kinds: dict[str, dict[str, Any]] = {}
        both = made.one.shown_to_viewers(said.append)
        while not {"hello", "table", "picture"} <= kinds.keys():
            fields, _ = next(frames)
            kinds.setdefault(str(fields.get("type")), fields)
        assert SamplesWanted(0.5) in made.told
        assert [row[3] for row in kinds["table"]["table"]["ranks"]] == [71, 72]
        assert kinds["table"]["table"]["slow"] == ["rank 1 is slow"]
        both("note: x")
        made.one.conclude(5, ["error: y"])
        rest = [fields for fields, _ in frames if fields]
    assert said == ["note: x"]
    assert any(one.get("line") == "note: x" for one in rest)
    assert (rest[-1]["type"], rest[-1]["exit_code"]) == ("verdict", 5)


@pytest.mark.parametrize("now", [False, True])
def test_a_job_in_the_background_can_be_stopped(word: Any, now: bool) -> None:
    made = Made(word=word)
    with JobConnection(made.job) as call:
        call.order("stop", now=now)
        assert made.told == []  # there is no run yet that could be told
        made.one.answer()
        wait_for(lambda: len(made.told) >= (2 if now else 1), 20, lambda: f"told: {made.told}")
    assert all(isinstance(event, SignalReceived) for event in made.told)
    assert len(made.told) == (2 if now else 1)
    made.one.conclude(0, [])


def test_without_a_record_a_run_goes_on_and_a_job_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: Any
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    made = Made()
    assert made.one.sinks == []
    (said,) = made.said
    assert said.startswith("note: dispatch jobs and stop will not know this job: ")
    with made.one:
        made.one.conclude(0, [])
    with pytest.raises(UsageError) as caught:
        Made(word=word)
    assert caught.value.message.startswith("--detach: the job cannot be recorded in ")
