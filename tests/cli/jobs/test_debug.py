"""``dispatch debug``: which job and rank are meant, before any host is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases

from dispatcher.cli.jobs.debug import DebugOptions, debug
from dispatcher.jobs import registry
from dispatcher.model.errors import DispatchError, JobEnded, NoSuchJob, UsageError

RUN = "20260131-142501-k3f9x2"


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
