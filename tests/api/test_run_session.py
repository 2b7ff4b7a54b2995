"""One run from the first connection to its report: files, what closes a journal, its thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.api.report import replay
from dispatcher.api.request import plan_job, request
from dispatcher.api.run_session import RunSession, open_files
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.core.events.verdicts import Rejected, Verdict
from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.paths import Rotation, RunPaths
from dispatcher.output.buffered import BufferedSink
from dispatcher.output.files.journal import Journal
from dispatcher.output.files.rank_logs import MergedLog, RankFiles
from dispatcher.output.text.stacks_text import StackFiles
from dispatcher.plan.job.reassignment import Exclusion
from dispatcher.plan.job.request import Limits
from dispatcher.transport.process.command import LocalTransport


def plan_of(argv: list[str], hosts: str = "localhost:2", **fields: Any) -> Any:
    return plan_job(request(hosts, argv, kind="command", **fields))


# -- files -------------------------------------------------------------------------------


@cases(
    ("how", "kinds"),
    [
        ({}, [Journal, RankFiles]),
        ({"merge": True}, [Journal, MergedLog]),
        ({"overflow": "drop"}, [Journal, BufferedSink]),
    ],
)
def test_which_files_there_are(tmp_path: Path, how: dict[str, Any], kinds: list[type]) -> None:
    plan = plan_of(["a"])
    sinks = open_files(plan, RunPaths(tmp_path), lambda line: None, **how)
    assert [type(sink) for sink in sinks] == kinds
    for sink in sinks:
        sink.output(0, 1, b"x\n")
    for sink in sinks:
        sink.close()
    written = tmp_path / ("merged.log" if how.get("merge") else "rank-00000.out")
    assert b"x\n" in written.read_bytes()
    assert json.loads((tmp_path / "plan.json").read_text())["run_id"] == plan.run_id


@cases("merge", [False, True])
def test_files_come_in_pieces(tmp_path: Path, merge: bool) -> None:
    sinks = open_files(
        plan_of(["a"]), RunPaths(tmp_path), lambda line: None, merge=merge, rotation=Rotation(4096)
    )
    for number in range(300):
        sinks[1].output(0, 1, b"%060d\n" % number)
    for sink in sinks:
        sink.close()
    assert len(list(tmp_path.glob("*.1"))) == 1


@cases(("seconds", "kept"), [(0.0, False), (60.0, True)])
def test_stacks_are_kept_where_silence_is_limited(
    tmp_path: Path, seconds: float, kept: bool
) -> None:
    plan = plan_of(["a"], "n1:1,n2:1,n3:1", spares=1, limits=Limits(hang_timeout=seconds))
    sinks = open_files(plan, RunPaths(tmp_path), lambda line: None)
    found: list[Any] = [sink for sink in sinks if isinstance(sink, StackFiles)]
    assert len(found) == kept
    for one in found:
        assert (one._hosts, one._folder) == (["n1", "n2", "n3"], tmp_path)
        assert one._answer(1, ["x"]) is None
    for sink in sinks:
        sink.close()


def test_files_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("")
    with pytest.raises(UsageError) as caught:
        open_files(plan_of(["a"]), RunPaths(tmp_path), lambda line: None)
    assert caught.value.message == f"--log-dir {tmp_path.parent}: file exists"


# -- a run -------------------------------------------------------------------------------


class Heard(Sink):
    def __init__(self) -> None:
        self.names: list[str] = []

    def event(self, entry: Entry) -> None:
        self.names.append(entry.event.name)


class Ran:
    """A session over this machine, run to its end."""

    def __init__(self, plan: Any, sinks: tuple[Sink, ...] = (), **how: Any) -> None:
        self.said: list[str] = []
        transport = LocalTransport()
        verdict = how.pop("verdict", None)
        self.session = RunSession(
            plan, lambda host: transport, list(sinks), say=self.said.append, **how
        )
        try:
            self.report = self.session.run((), verdict)
        finally:
            transport.close()


def test_the_journal_says_all_that_the_report_does(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    plan = plan_of(["sh", "-c", "echo last >&2; exit 3"], "localhost:1")
    files = open_files(plan, paths, print)
    ran = Ran(plan, tuple(files), paths=paths)
    assert ran.said == []
    report = ran.report
    assert (report.exit_code, report.log_dir) == (3, tmp_path)
    assert report.cause is not None
    assert report.cause.last_lines == ("last",)
    assert replay(paths.journal) == report
    kept = json.loads(paths.report.read_text())
    assert kept == json.loads(json.dumps(report.plain()))
    last = json.loads(paths.journal.read_text().splitlines()[-1])
    assert last["name"] == "run.closed"
    seqs = [json.loads(line)["seq"] for line in paths.journal.read_text().splitlines()]
    assert seqs == sorted(set(seqs))
    assert seqs[-1] == seqs[-2] + 1
    assert last["t"] == round(report.seconds, 6)
    assert report.began > 1e9
    assert (ran.session.home(0), ran.session.host_of(0)) == ((0, 0), "localhost")
    assert ran.session.plan.world_size == 1


def test_a_report_is_worth_more_than_its_file(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    plan = plan_of(["true"], "localhost:1")
    files = open_files(plan, paths, print)
    paths.report.mkdir()
    ran = Ran(plan, tuple(files), paths=paths)
    assert ran.report.ok
    assert ran.said == [f"note: {paths.report}: cannot be written: file exists"]
    paths.report.rmdir()


def test_a_sink_that_fails_is_told_of_and_holds_nobody() -> None:
    class Broken(Sink):
        def event(self, entry: Entry) -> None:
            raise ZeroDivisionError("a bug")

    heard = Heard()
    ran = Ran(plan_of(["true"], "localhost:1"), (Broken(), heard))
    assert ran.report.ok
    assert ran.said == ["error: Broken: a bug"]
    assert "run.finished" in heard.names
    failed: list[Any] = []
    ran = Ran(
        plan_of(["true"], "localhost:1"), (Broken(),),
        sink_failed=lambda sink, error: failed.append((type(sink).__name__, str(error))),
    )  # fmt: skip
    assert (ran.said, failed) == ([], [("Broken", "a bug")])


FAILURE = Failure(Kind.CHECK, "memory: bad", "add")


def test_a_verdict_that_is_known_is_told_and_nothing_is_run() -> None:
    heard = Heard()
    excluded = (Exclusion("n2", "bad"),)
    verdict = Verdict(Rejected({0: FAILURE}), 125, 2)
    ran = Ran(plan_of(["a"], "n1:1,n2:1"), (heard,), verdict=verdict, excluded=excluded)
    assert ran.report.exit_code == 125
    assert ran.report.excluded == excluded
    assert "host.excluded" not in heard.names  # the verdict says it
    assert not any(name.startswith("node.") for name in heard.names)
    assert any("memory: bad" in line for line in ran.report.verdict)


def test_hosts_that_are_left_out_are_told_of() -> None:
    heard = Heard()
    ran = Ran(plan_of(["true"], "localhost:1"), (heard,), excluded=(Exclusion("n2", "bad", "n3"),))
    assert heard.names.count("host.excluded") == 1
    assert ran.report.verdict == ("note: n2: left out, unhealthy: bad; n3 takes its place",)
    assert ran.report.ok


def test_what_this_machine_knows_is_said() -> None:
    verdict = Verdict(Rejected({0: Failure(Kind.DNS, "who?")}), 125, 1)
    ran = Ran(
        plan_of(["a"], "n1:1"), verdict=verdict,
        advise=lambda trouble: f"advice about {trouble}",
    )  # fmt: skip
    assert any("advice about name not found" in line for line in ran.report.verdict)
