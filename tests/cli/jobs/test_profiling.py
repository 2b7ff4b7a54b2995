"""``dispatch profile``: wrong inputs before a host is touched, and what hosts may answer."""

from __future__ import annotations

import json
import zlib
from binascii import b2a_base64
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.jobs import profiling
from dispatcher.core.events.exec_events import Exited, Interrupted, Outcome
from dispatcher.jobs import registry
from dispatcher.output.exec.host_results import HostResult

RUN = "20260131-142501-k3f9x2"
SAMPLES: dict[str, Any] = {
    "rank": 1, "said": "3 s, by py-spy",
    "shared": {"frames": [{"name": "step", "file": "a.py", "line": 3},
                          {"name": "\x1b]0;x", "file": None, "line": None}]},
    "profiles": [{"name": "other", "samples": [[0]], "weights": [1]},
                 {"name": "MainThread", "samples": [[0, 1], [1]], "weights": [0.5, 0.25]}],
}  # fmt: skip


def line(**changed: Any) -> bytes:
    return b"profile " + b2a_base64(zlib.compress(json.dumps(SAMPLES | changed).encode()))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(profiling, "_sampled", lambda *_: pytest.fail("a host was touched"))
    return registry.enroll(
        RUN, program=("train.py",), hosts=[("n1", None, None), ("n2", None, None)], ranks=100,
        logs=None, detached=False, reach={"transport": "auto"},
    )  # fmt: skip


def answer(monkeypatch: pytest.MonkeyPatch, out: bytes, outcome: Outcome | None = None) -> None:
    result = HostResult("n1", 0, outcome or Exited(0), 1.0, out, b"", 0, 0)
    monkeypatch.setattr(profiling, "_sampled", lambda *_: (result,))


@cases(
    ("words", "said"),
    [
        (["--rank", "100"], "--rank: 100: the world's ranks are 0-99"),
        (["--rank", "x"], "--rank: not a list of ranks: 'x'"),
        (["--rank", "none"], "--rank none: not 1 to 64 ranks"),
        (["--rank", "all"], "--rank all: not 1 to 64 ranks"),
        (["--seconds", "0"], "--seconds: 0 is not between 1 and 600"),
        (["-o", "no/a.json"], "-o no/a.json: no such file or directory"),
        (["-o", "there"], "-o there: file exists"),
        (["nonsuch"], "this machine has no record of job 'nonsuch'"),
    ],
)
def test_what_touches_no_host(
    job: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there").touch()
    assert cli.main(["profile", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_job_that_has_ended_and_a_dry_run(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--rank", "0-2", "--dry-run"]) == 0
    assert f"n[1-2] (2): sample ranks 0-2 of {RUN} for 10 s" in capsys.readouterr().out
    registry.conclude(job, 3, [])
    assert cli.main(["profile", "latest"]) == 125
    assert f"error: job {RUN}: it has ended, exit code 3" in capsys.readouterr().err


@cases(("outcome", "code"), [(Exited(0), 0), (Exited(130), 130), (Interrupted(2), 130)])
def test_the_file(
    job: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    answer(monkeypatch, b"a banner\n" + line() + line(said="again"), outcome)
    assert cli.main(["profile", "--rank", "1"]) == code
    path = f"profile-{RUN}-1.speedscope.json"
    note = "note: rank 1 on n1: 3 s, by py-spy\n"
    assert capsys.readouterr() == (f"{path}: open it with https://www.speedscope.app\n", note)
    told = json.loads(Path(path).read_text())
    Path(path).unlink()
    assert told["shared"]["frames"] == [
        {"name": "step", "file": "a.py", "line": 3}, {"name": "\\x1b]0;x", "file": "", "line": 0},
    ]  # fmt: skip
    assert [(one["name"], one["samples"], one["endValue"]) for one in told["profiles"]] == [
        ("rank 1 on n1: MainThread", [[0, 1], [1]], 0.75), ("rank 1 on n1: other", [[0]], 1),
    ]  # fmt: skip


BAD = [
    b"profile !\n",
    b"profile " + b2a_base64(zlib.compress(b"[" * 100_000)),
    b"profile " + b2a_base64(zlib.compress(bytes(profiling.LARGEST + 1))),
    line(said=3),
    line(rank=None),
    line(rank=float("inf")) * 2,
    b"profile " + b2a_base64(zlib.compress(b"[]")),
    line(shared=[]),
    line(profiles=[{"name": "x", "samples": [[2]], "weights": [1]}]),
    line(profiles=[{"name": "x", "samples": [[0]], "weights": []}]),
    line(profiles=[{"name": "x", "samples": [["0"]], "weights": [1]}]),
    line(profiles=[{"name": "x", "samples": [[0]], "weights": [10**400]}]),
    line(shared={"frames": [{"name": "x", "file": "y", "line": "z"}]}),
]


@cases(("bad",), BAD)
def test_what_a_host_may_send(
    job: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, bad)
    assert cli.main(["profile", "--rank", "1"]) == 125
    assert capsys.readouterr().err.count("note: n1: its samples make no sense\n") == 1
    assert [*Path().glob("profile-*")] == []


def test_ranks_without_samples(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none = b2a_base64(zlib.compress(b'{"rank": 2, "said": "it runs\\nno\\u001b Python"}'))
    answer(monkeypatch, line() + b"profile " + none)
    assert cli.main(["profile", "--rank", "1-3", "-o", "new"]) == 125
    said = "rank 2: it runs\\x0ano\\x1b Python; rank 3: no process of it is there [not-profiled]\n"
    assert f"error: job {RUN}: {said}" in capsys.readouterr().err
    assert len(json.loads(Path("new").read_text())["profiles"]) == 2  # of rank 1
