"""Every code of the catalogue that needs no host over SSH: a line, or a run, that ends with it.

Those of hosts that cannot be reached are shown in ``tests/runs/test_message_codes.py``; together
they are all of ``model.messages``. Nothing here is a table of names: each row is done, and what it
said last is looked at.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runner.played import Agent, Order, Played, agents_with, plan_of

from dispatcher import cli
from dispatcher.api.report import replay
from dispatcher.api.request import request
from dispatcher.api.transports import allow_open_files
from dispatcher.cli.jobs import profiling
from dispatcher.cli.jobs.restart import _follow
from dispatcher.cli.run import detach
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.exec_events import Exited
from dispatcher.core.events.monitor_events import placed
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.jobs import registry
from dispatcher.model.errors import DispatchError
from dispatcher.model.failure import Kind
from dispatcher.model.messages import HOSTS, MESSAGES, REFUSALS, RUN
from dispatcher.model.paths import RunPaths
from dispatcher.output.exec.host_results import HostResult
from dispatcher.output.terminal.asking import Asking
from dispatcher.output.text.verdict_text import describe
from dispatcher.plan.job.request import Limits

from .conftest import OnRecord

ENDED, HERE, THERE, GONE = (f"20260131-14250{n}-aaaaa{n}" for n in range(4))
#: code -> a line that is refused with it, in the folder that ``folder`` has made
LINES: dict[str, Sequence[str]] = {
    "bad-value": ["-w", "n1", "--np", "many", "train.py"],
    "unknown-command": ["exce", "-w", "n1", "hostname"],
    "unknown-code": ["explain", "no-such-thing"],
    "unknown-option": ["-w", "n1", "--max-restarst", "3", "train.py"],
    "missing-argument": ["exec", "-w", "n1"],
    "unexpected-argument": ["check", "-w", "n1", "train.py", "more.py"],
    "conflicting-options": ["exec", "-w", "n1", "--json", "--diff", "true"],
    "not-a-script": ["-w", "n1", "python", "train.py"],
    "cannot-translate": ["import", "--", "torchrun", "--frobnicate", "train.py"],
    "file-unusable": ["-H", "none/at/all", "train.py"],
    "bad-config": ["exec", "--profile", "lab", "-w", "n1", "true"],
    "cannot-copy": ["get", "-w", "n[1-2]", "/etc/hosts", "/other/hosts", "here"],
    "bad-hostfile": ["hosts", "-H", "bad"],
    "no-hosts": ["exec", "--", "true"],
    "unknown-host": ["-w", "n1", "--exclude", "n9", "--dry-run", "train.py"],
    "plan-impossible": ["-w", "n1", "--exclude", "n1:0", "--dry-run", "train.py"],
    "too-few-hosts": ["-w", "n1", "--nnodes", "2", "--dry-run", "train.py"],
    "too-many-ranks": ["-w", "n1:2", "--np", "3", "--dry-run", "train.py"],
    "no-such-job": ["logs", "zzzzzz"],
    "ambiguous-job": ["kill"],
    "job-ended": ["stacks", ENDED],
    "job-elsewhere": ["attach", THERE],
    "launcher-killed": ["attach", GONE],
    "launcher-silent": ["attach", HERE],
    "no-log-files": ["logs", ENDED],
    "no-password": ["exec", "-w", "n1", "--ask-pass", "true"],
}
#: the same where the environment says something
UNDER: dict[str, tuple[dict[str, str], Sequence[str]]] = {
    "bad-batch-job": ({"SLURM_JOB_ID": "7"}, ["--dry-run", "train.py"]),
    "hosts-disagree": (
        {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "1",
         "LSB_JOBID": "8", "LSB_MCPU_HOSTS": "n2 1"},
        ["--dry-run", "train.py"],
    ),
    "config-not-trusted": ({"DISPATCH_CONFIG": ""}, ["exec", "-w", "n1", "true"]),
}  # fmt: skip


@pytest.fixture
def folder(nothing_around: Path, on_record: OnRecord, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that are wrong, and jobs on record that do not answer."""
    monkeypatch.setattr(registry, "DYING", 0.0)
    monkeypatch.setattr(Asking, "ask", lambda self, prompt: None)
    (nothing_around / "bad").write_text("n1 slots=many\n")
    (nothing_around / "train.py").write_text("")
    registry.conclude(on_record(ENDED), 3, [])
    on_record(HERE)
    for run_id, changes in (
        (THERE, {"node": "elsewhere.example"}),
        (GONE, {"launcher": [1 << 22, 1, "another boot"]}),
    ):
        about = on_record(run_id) / "job.json"
        about.write_text(json.dumps({**json.loads(about.read_text()), **changes}))
    return nothing_around


def code_of(said: str) -> str:
    """The code behind the first line of the last error."""
    found = re.findall(r"^error: .*?\[([a-z-]+)\]$", said, re.M)
    assert found, said
    return str(found[-1])


def test_lines_that_are_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen = {}
    for code, words in LINES.items():
        exit_code = cli.main(words)
        seen[code] = (code_of(capfd.readouterr().err), str(exit_code))
    assert seen == {code: (code, MESSAGES[code].exit_code) for code in LINES}


def test_lines_that_are_refused_where_they_are_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for code, (environ, words) in UNDER.items():
        with monkeypatch.context() as here:
            for name, text in environ.items():
                here.setenv(name, text)
            if "DISPATCH_CONFIG" in environ:
                here.delenv("DISPATCH_CONFIG")
                (folder / "dispatch.toml").write_text('[exec]\nssh-config = "/tmp/config"\n')
            assert str(cli.main(words)) == MESSAGES[code].exit_code
        assert code_of(capfd.readouterr().err) == code


def _detached() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        detach.background(lambda word: 0, RunPaths(Path("/none")), ENDED)
    finally:
        over.set()
        thread.join(60)


def _open_to_all(on_record: OnRecord) -> None:
    os.chmod(Path(os.environ["XDG_STATE_HOME"], "dispatch"), 0o777)
    on_record()


def _a_journal_cut_off(folder: Path) -> None:
    (folder / "dispatch.jsonl").write_text("{")
    replay(folder / "dispatch.jsonl")


def _no_restart() -> None:
    class Refusing:
        def answer(self) -> dict[str, str]:
            return {"type": "refused", "why": "it is ending"}

    _follow(registry.find(ENDED), Refusing())  # type: ignore[arg-type]


def _no_samples(folder: Path, _: OnRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    result = HostResult("n1", 0, Exited(0), 1.0, b"", b"", 0, 0)
    monkeypatch.setattr(profiling, "_sampled", lambda *_: (result,))
    profiling.profile(profiling.ProfileOptions(job=HERE, rank="0"))


def _few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    allow_open_files(10_000)


def test_errors_of_what_a_line_cannot_bring_about_alone(
    folder: Path, on_record: OnRecord, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for code, do in OTHERS.items():
        with pytest.raises(DispatchError) as raised:
            do(folder, on_record, monkeypatch)
        assert str(cli.print_error(raised.value)) == MESSAGES[code].exit_code
        assert code_of(capfd.readouterr().err) == code


UNKNOWN: Any = SimpleNamespace(name="no.such")
OTHERS: dict[str, Callable[..., Any]] = {
    "dispatch-failed": lambda *_: _detached(),
    "unsafe-folder": lambda folder, on_record, patch: _open_to_all(on_record),
    "journal-unusable": lambda folder, *_: _a_journal_cut_off(folder),
    "cannot-restart": lambda *_: _no_restart(),
    "not-profiled": _no_samples,
    "wrong-argument": lambda *_: request("n1", ["x"], nosuch=1),  # type: ignore[call-arg]
    "too-few-open-files": lambda folder, on_record, patch: _few_files(patch),
    "internal-error": lambda *_: AttemptMachine(plan_of()).handle(UNKNOWN, 0.0),
}


def test_nobody_holds_connections(
    nothing_around: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from dispatcher.transport.pool import daemon_socket

    def ask(*_: Any, **__: Any) -> Any:
        raise OSError("gone")

    monkeypatch.setattr(daemon_socket, "ask_daemon", ask)
    assert str(cli.main(["connect", "--list"])) == MESSAGES["no-connection-daemon"].exit_code
    assert code_of(capfd.readouterr().err) == "no-connection-daemon"


# -- what ends a run, by agents that are played ------------------------------------------------


def started(then: Callable[[Agent], None]) -> dict[str, Callable[[Agent, Order], None]]:
    """What an agent does that starts its ranks; ``then`` is done on the first host."""

    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        if agent.number == 0:
            then(agent)

    return {"start_ranks": start}


def _cannot(number: int) -> dict[str, Callable[[Agent, Order], None]]:
    def start(agent: Agent, order: Order) -> None:
        for rank, *_ in order["ranks"]:
            agent.report("rank.failed_to_start", rank=rank, errno=number, step="exec", what="prog")

    return {"start_ranks": start}


def _short(agent: Agent) -> None:
    agent._sent[0, 1] = 5  # it has read five bytes that never came
    agent.exits(0)


def _left_mpi() -> dict[str, Callable[[Agent, Order], None]]:
    """Ranks that use MPI, of which the first leaves it half-way."""

    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        first = 2 * agent.number
        agent.report("mpi.found", library="/a/libmpi.so.12", served="PMI-1", rank=first)
        if agent.number == 0:
            agent.exits(0, mpi="inside")

    def inside(agent: Agent, order: Order) -> None:
        agent.report("mpi.inside", ranks=sorted(agent.living), over=[])

    return {"start_ranks": start, "query_inside": inside}


def _idle(agent: Agent, order: Order) -> None:
    """It lives, and its ranks do nothing."""
    ranks = [[rank, "S", 0.5, 1, 1, 1, None, None, None] for rank in sorted(agent.living)]
    if agent.beat():
        agent.report("node.sampled", at=time.monotonic(), ranks=ranks, gpus=[], late=False)


def _where(agent: Agent, order: Order) -> None:
    if "stacks" in order:
        ranks = [[rank, 7, "S", "proc", b""] for rank in sorted(agent.living)]
        agent.report(
            "node.stacks", number=1, ranks=ranks, flights=[], recorders=[], natives=[], ras=b""
        )


#: code -> what the played agents do otherwise than usual, and fields of the request
RUNS: dict[str, tuple[dict[str, Callable[[Agent, Order], None]], dict[str, Any]]] = {
    "rank-failed": (started(lambda agent: agent.exits(0, 3)), {}),
    "rank-killed": (started(lambda agent: agent.exits(0, -9)), {}),
    "mpi-aborted": (
        started(lambda agent: agent.report("pmi.aborted", rank=0, code=7, text="why")), {}
    ),
    "mpi-left-early": (_left_mpi(), {}),
    "program-not-found": (_cannot(2), {}),
    "program-not-executable": (_cannot(13), {}),
    "hosts-rejected": (
        {"prepare": lambda agent, order: agent.ready(order, ["cwd", "/w"])}, {}
    ),
    "output-lost": (started(_short), {}),
    "host-lost": (started(Agent.hangs_up), {}),
    "protocol-error": (started(lambda agent: agent.report("nonsense")), {}),
    "no-gpu": ({}, {"nproc_per_node": "gpu"}),
    "time-limit": (started(lambda agent: None), {"limits": Limits(time_limit=0.2)}),
    "job-hung": (
        {**started(lambda agent: None), "ping": _idle, "sample": _where},
        {"limits": Limits(hang_timeout=1.0, heartbeat=0.2, max_missed_heartbeats=100)},
    ),
}  # fmt: skip


def ended(verdict: Any, plan: Any) -> tuple[str, str]:
    """(the code that is shown, the exit code)"""
    lines = describe(verdict, placed(plan), {}, lambda rank: ("stderr", []))
    return code_of("\n".join(lines)), str(verdict.exit_code)


def test_runs_that_end() -> None:
    for code, (answers, fields) in RUNS.items():
        plan = plan_of(**fields)
        shown, exit_code = ended(Played(plan, *agents_with(2, **answers)).run(), plan)
        assert shown == code
        said = MESSAGES[code].exit_code
        assert exit_code in said or code in ("rank-failed", "rank-killed", "mpi-aborted"), code


@pytest.mark.parametrize(
    ("code", "signum"), [("interrupted", signal.SIGINT), ("reader-left", signal.SIGPIPE)]
)
def test_runs_that_are_told_to_end(code: str, signum: int) -> None:
    answers = started(lambda agent: played.runner.tell(ev.SignalReceived(signum)))
    played = Played(plan := plan_of(), *agents_with(2, **answers))
    assert ended(played.run(), plan) == (code, str(128 + signum))


def test_a_host_that_is_not_fit_is_told_by_its_own_code() -> None:
    played = Played(plan_of(), *agents_with(2, **RUNS["hosts-rejected"][0]))
    cause = played.run().cause
    assert {one.kind.code for one in cause.failures.values()} == {"check-failed"}  # type: ignore[union-attr]


def test_all_codes_are_shown_here_or_over_ssh() -> None:
    from runs.test_message_codes import ELSEWHERE

    here = {*LINES, *UNDER, *OTHERS, *RUNS, "no-connection-daemon", "interrupted", "reader-left"}
    # a program alone can give a wrong argument: tests/model/test_arguments.py
    here |= {"check-failed", "wrong-argument"}
    here |= {"host-in-use"}  # tests/runs/run/test_busy.py
    assert here | ELSEWHERE == set(MESSAGES)
    assert {one.code for one in (*RUN, *HOSTS, *REFUSALS)} == set(MESSAGES)
    assert {kind.code for kind in Kind} == {one.code for one in HOSTS}
