"""``dispatch debug``: which job and rank are meant, and which host is given the terminal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases

from dispatcher.api import run
from dispatcher.cli.exec import run_exec
from dispatcher.cli.jobs.debug import DebugOptions, debug
from dispatcher.core.events import codec
from dispatcher.core.events.run_events import Entry, RankSpawned
from dispatcher.jobs import registry
from dispatcher.model.errors import DispatchError, JobEnded, NoSuchJob, UsageError
from dispatcher.model.host import Hostlist
from dispatcher.model.paths import RunPaths
from dispatcher.plan.exec_plan import ExecPlan

RUN = "20260131-142501-k3f9x2"
SPAWNED = codec.encode(Entry(1, 0.0, RankSpawned(1, 3, 7))).decode()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return registry.enroll(
        RUN, program=("train.py",), hosts=[("n1", "ml", None), ("n2", None, 22)], ranks=4,
        logs=None, detached=False, reach={"transport": "auto"},
    )  # fmt: skip


@cases(
    ("rank", "kind", "said"),
    [
        ("x", UsageError, "--rank: not a whole number: 'x'"),
        ("-1", UsageError, "--rank: not a whole number: '-1'"),
        ("4", NoSuchJob, f"job {RUN}: it has no rank 4"),
    ],
)
def test_which_rank(job: Path, rank: str, kind: type[DispatchError], said: str) -> None:
    with pytest.raises(kind) as caught:
        debug(DebugOptions(job="latest", rank=rank, dry_run=False))
    assert caught.value.message == said
    assert (caught.value.hint or "").startswith("--rank 0")


def test_a_dry_run_touches_no_host(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert debug(DebugOptions(job=None, rank="3", dry_run=True)) == 0
    assert f"look for rank 3 of {RUN}, and run pdb in it" in capsys.readouterr().out


def test_a_job_that_has_ended(job: Path) -> None:
    registry.conclude(job, 3, [])
    with pytest.raises(JobEnded, match="it has ended, exit code 3"):
        debug(DebugOptions(job="latest", rank="0", dry_run=False))


@cases(
    ("journal", "claims", "given"),
    [
        ("", {"n2"}, "n2"),
        ("", {"n1", "n2"}, None),  # one of them lies
        ("", set(), None),
        (SPAWNED, {"n1"}, None),
        (SPAWNED,
         {"n1", "n2"}, "n2"),
    ],
)  # fmt: skip
def test_who_is_given_the_terminal(
    job: Path, monkeypatch: pytest.MonkeyPatch, journal: str, claims: set[str], given: str | None
) -> None:
    RunPaths(job).journal.write_text(journal)
    attached: list[str] = []

    def answers(hosts: Hostlist, words: object, ways: object) -> SimpleNamespace:
        codes = [SimpleNamespace(code=0 if host.name in claims else 1) for host in hosts.hosts]
        return SimpleNamespace(hosts=codes, verdict=(), exit_code=1)

    def carry_out(plan: ExecPlan, options: object, reach: object) -> tuple[int, tuple[()]]:
        attached.extend(host.name for host in plan.hosts)
        return 0, ()

    monkeypatch.setattr(run, "exec", answers)
    monkeypatch.setattr(run_exec, "carry_out", carry_out)
    options = DebugOptions(job=None, rank="3", dry_run=False)
    if given is None:
        many = len(claims) > 1
        with pytest.raises(NoSuchJob, match=r"n\[1-2\] all report" if many else "no host has"):
            debug(options)
    else:
        assert debug(options) == 0
    assert attached == ([given] if given else [])
