"""``sweep`` and ``kill``: which leftovers are told of, which are ended, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases
from rig import wait_for

from dispatcher import cli
from dispatcher.api.find_processes import Look
from dispatcher.bootstrap.shell import SweptProcess
from dispatcher.cli.jobs import sweep as command
from dispatcher.cli.options.host_options import LoginOptions
from dispatcher.jobs import registry
from dispatcher.model.host import Host
from dispatcher.model.paths import new_run_id

from ..conftest import Launched, OnRecord

ENDED, DEAD, ALIVE, FOREIGN = (f"20260131-14250{n}-aaaaaa" for n in range(4))
GONE = [1, 1, "another boot"]


def tagged(what: str, run_id: str, name: str = "python", pid: int | None = 7) -> SweptProcess:
    return SweptProcess("n1", run_id, what, pid, name)


class Looks:
    """What looks at hosts find, in the place of hosts."""

    def __init__(self) -> None:
        self.found: dict[str, list[SweptProcess]] = {"n1": [], "n2": []}
        self.killed: dict[str, list[SweptProcess]] = {}
        self.failures: list[str] = []
        self.failures_of_killing: list[str] = []
        self.interrupted = 0
        self.calls: list[tuple[list[str], list[str], bool]] = []
        self.reach: LoginOptions | None = None

    def __call__(
        self, hosts: Sequence[Host], run_ids: Sequence[str], reach: LoginOptions, *, kill: bool
    ) -> Look:
        self.reach = reach
        self.calls.append(([host.name for host in hosts], list(run_ids), kill))
        if kill:
            return Look(self.killed, self.failures_of_killing, self.interrupted)
        return Look(self.found, self.failures, self.interrupted)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(command, "look", looks)
    return looks


def of_process(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Have ``process`` be the launcher of the job."""
    known = registry.Process.of(process.pid)
    assert known is not None
    of_record(folder, launcher=[known.pid, known.started, known.boot])


def of_record(folder: Path, **changes: Any) -> None:
    path = folder / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def records(on_record: OnRecord) -> None:
    registry.conclude(on_record(ENDED), 0, [])
    of_record(on_record(DEAD), launcher=GONE)
    on_record(ALIVE)


SWEEP = ["sweep", "-w", "n[1-2]"]


@pytest.mark.usefixtures("records")
class TestSweep:
    def test_nothing(self, looks: Looks, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(SWEEP) == 0
        assert capsys.readouterr() == ("nothing left over\n", "")
        assert looks.calls == [(["n1", "n2"], [], False)]

    @pytest.mark.parametrize("words", [[], ["--kill"]])
    def test_only_what_has_no_launcher_is_left_over(
        self, looks: Looks, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        looks.found = {
            "n1": [tagged("found", ALIVE), tagged("found", ENDED), tagged("found", FOREIGN)],
            "n2": [tagged("found", ENDED, "sh"), tagged("found", ALIVE)],
        }
        looks.killed = {"n1": [tagged("killed", ENDED)], "n2": [tagged("killed", ENDED, "sh")]}
        assert cli.main([*SWEEP, *words]) == 0
        out, err = capsys.readouterr()
        lines = [
            f"{ENDED}: left over",
            "  n1: found 1 process: python 1",
            "  n2: found 1 process: sh 1",
            f"{ALIVE}: still running",
            "  n[1-2]: found 1 process: python 1",
            f"{FOREIGN}: its launcher is not known on this machine; give its id to kill it",
            "  n1: found 1 process: python 1",
        ]
        if words:
            lines += ["n1: killed 1 process: python 1", "n2: killed 1 process: sh 1"]
            assert looks.calls[1:] == [(["n1", "n2"], [ENDED], True)]
        assert out.splitlines() == lines
        assert err == ("" if words else "note: --kill kills and removes the leftovers\n")
        assert len(looks.calls) == 1 + len(words)

    def test_what_died_is_left_over_and_only_its_hosts_are_asked_again(
        self, looks: Looks, capsys: pytest.CaptureFixture[str]
    ) -> None:
        looks.found = {"n1": [tagged("found", ALIVE)], "n2": [tagged("found", DEAD)]}
        looks.killed = {"n2": []}
        assert cli.main([*SWEEP, "--kill"]) == 0
        assert looks.calls[1:] == [(["n2"], [DEAD], True)]
        assert f"{DEAD}: left over\n" in capsys.readouterr().out

    def test_for_programs(self, looks: Looks, capsys: pytest.CaptureFixture[str]) -> None:
        looks.found = {"n1": [tagged("found", ALIVE), tagged("found", ENDED)], "n2": []}
        looks.killed = {"n1": [tagged("removed", ENDED, "/tmp", None)]}
        looks.failures = ["n2: unreachable"]
        assert cli.main([*SWEEP, "--kill", "--json"]) == 125
        told = promises.told(capsys.readouterr().out)
        assert told["runs"] == [
            {"run_id": ENDED, "state": "ended", "left_over": True},
            {"run_id": ALIVE, "state": "running", "left_over": False},
        ]
        assert [(one["what"], one["pid"]) for one in told["found"]] == [
            ("found", 7), ("found", 7), ("removed", None),
        ]  # fmt: skip
        assert told["failures"] == ["n2: unreachable"]

    @pytest.mark.parametrize(("run_id", "killed"), [(FOREIGN, True), (ALIVE, False)])
    def test_a_run_that_is_named(
        self, looks: Looks, run_id: str, killed: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What another machine has started is ended, and what runs here is not."""
        looks.found = {"n1": [tagged("found", run_id)], "n2": []}
        looks.killed = {"n1": [tagged("killed", run_id)]}
        assert cli.main([*SWEEP, "--kill", run_id]) == 0
        first, *more = looks.calls
        assert first == (["n1", "n2"], [run_id], False)
        assert more == ([(["n1"], [run_id], True)] if killed else [])
        assert ("left over" in capsys.readouterr().out) is killed

    @pytest.mark.parametrize(
        ("found", "words", "out"),
        [
            ([], [], ""),
            ([], ["--kill"], ""),
            ([ENDED], [], "left over"),
            ([ENDED], ["--kill"], "k"),
        ],
    )
    def test_hosts_that_could_not_be_asked(
        self, looks: Looks, found: list[str], words: list[str], out: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        looks.found = {"n1": [tagged("found", one) for one in found], "n2": []}
        looks.killed = {"n1": [tagged("killed", one) for one in found]}
        looks.failures = ["n2: unreachable"]
        assert cli.main([*SWEEP, *words]) == 125
        shown = capsys.readouterr()
        assert "n2: unreachable\n" in shown.err
        assert out in shown.out
        assert "nothing left over" not in shown.out

    @pytest.mark.parametrize(("what", "code"), [("killed", 0), ("left", 1), ("kept", 1)])
    def test_what_cannot_be_ended_is_a_failure(self, looks: Looks, what: str, code: int) -> None:
        looks.found["n1"] = [tagged("found", ENDED)]
        looks.killed = {"n1": [tagged(what, ENDED, pid=None if what == "kept" else 7)]}
        assert cli.main([*SWEEP, "--kill"]) == code
        looks.failures_of_killing = ["n1: host lost"]
        assert cli.main([*SWEEP, "--kill"]) == 125

    def test_after_ctrl_c_nothing_is_killed(
        self, looks: Looks, capsys: pytest.CaptureFixture[str]
    ) -> None:
        looks.found = {"n1": [tagged("found", ENDED)], "n2": []}
        looks.failures, looks.interrupted = ["n2: interrupted by SIGINT"], 130
        assert cli.main([*SWEEP, "--kill"]) == 130
        assert capsys.readouterr() == (
            f"{ENDED}: left over\n  n1: found 1 process: python 1\n", "n2: interrupted by SIGINT\n"
        )  # fmt: skip
        assert len(looks.calls) == 1

    def test_no_run_id(self, looks: Looks, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main([*SWEEP, "k3f9x2"]) == 2
        said = "error: not a run id: 'k3f9x2' [no-such-job]\n  hint: dispatch sweep lists them\n"
        assert capsys.readouterr().err == said
        assert looks.calls == []


# -- kill ------------------------


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait(60)


def test_a_launcher_that_stays_is_killed_last(
    launched: Launched, looks: Looks, sleeper: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "LAUNCHER", 0.1)
    reach: dict[str, Any] = {"transport": "ssh", "rsh": None, "ssh_config": "/c", "host_keys": None}
    one = launched(run_id=ALIVE, code=None, hosts=[("n1", "me", 22)], reach=reach)
    of_process(one.folder, process := sleeper())
    looks.killed = {"n1": [tagged("killed", ALIVE)]}
    assert cli.main(["kill", ALIVE]) == 0
    assert process.wait(60) == -9
    wait_for(lambda: one.orders == [{"order": "stop", "now": True}])
    assert looks.calls == [(["n1"], [ALIVE], True)]
    assert looks.reach == LoginOptions(**reach)
    assert capsys.readouterr().out.splitlines() == [
        "n1: killed 1 process: python 1",
        f"launcher: killed pid {process.pid}, which did not end by itself",
    ]


def test_a_program_that_has_begun_a_job_is_not_killed_for_it(
    launched: Launched, looks: Looks, sleeper: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    one = launched(run_id=ALIVE, code=None, detached=False, by_program=True)
    of_process(one.folder, process := sleeper())
    looks.killed = {"n1": [tagged("killed", ALIVE)]}
    assert cli.main(["kill", ALIVE]) == 0
    wait_for(lambda: one.orders == [{"order": "stop", "now": True}])
    assert process.poll() is None
    assert capsys.readouterr().out == "n1: killed 1 process: python 1\n"


def test_a_launcher_that_ends_by_itself_is_left_to_do_so(
    launched: Launched, looks: Looks, sleeper: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    one = launched(run_id=ALIVE, code=None, detached=False)
    of_process(one.folder, process := sleeper())
    monkeypatch.setattr(time, "sleep", lambda seconds: process.kill() or process.wait())
    looks.killed = {"n1": [tagged("left", ALIVE)], "n2": []}
    assert cli.main(["kill", "aaaaaa"]) == 1
    said = "n1: error: could not kill 1 process: python 1\n"
    assert capsys.readouterr().out == said
    wait_for(lambda: one.orders == [{"order": "stop", "now": True}])


def test_all_that_run_and_all_that_died(
    on_record: OnRecord, looks: Looks, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.conclude(on_record(ENDED), 0, [])
    for run_id, host in ((DEAD, "n1"), (ALIVE, "n2")):
        of_record(on_record(run_id), launcher=GONE, hosts=[[host, None, None]])
    of_record(on_record(FOREIGN), node="elsewhere.example")
    looks.killed = {"n1": [tagged("left", DEAD)]}
    assert cli.main(["kill", "--all"]) == 1
    assert sorted(looks.calls) == [(["n1"], [DEAD], True), (["n2"], [ALIVE], True)]
    capsys.readouterr()
    assert cli.main(["kill", "--all", "--json"]) == 1
    told = promises.told(capsys.readouterr().out)
    assert [run["run_id"] for run in told["runs"]] == [DEAD, ALIVE]
    assert {one["what"] for one in told["found"]} == {"left"}
    capsys.readouterr()
    assert cli.main(["kill", FOREIGN]) == 125
    said = f"error: job {FOREIGN}: it belongs to elsewhere.example [job-elsewhere]\n"
    assert capsys.readouterr().err.startswith(said)


@cases(
    ("killed", "failures", "interrupted", "state"),
    [
        ({"n1": [tagged("killed", DEAD)]}, [], 0, registry.ENDED),
        ({"n1": []}, [], 0, registry.ENDED),
        ({"n1": [tagged("left", DEAD)]}, [], 0, registry.DEAD),
        ({"n1": [], "n2": []}, ["n2: out of reach"], 0, registry.DEAD),
        ({"n1": []}, [], 130, registry.DEAD),
    ],
)
def test_a_dead_job_has_ended_when_nothing_is_left_of_it(
    killed: dict[str, list[SweptProcess]], failures: list[str], interrupted: int, state: str,
    on_record: OnRecord, looks: Looks, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    job = new_run_id()
    of_record(on_record(job), launcher=GONE)
    looks.killed, looks.failures_of_killing, looks.interrupted = killed, failures, interrupted
    assert (cli.main(["kill", job]) == 0) is (state == registry.ENDED)
    assert registry.find(job).state == state
    capsys.readouterr()
    assert cli.main(["attach", job]) == 125
    said = capsys.readouterr().err
    assert "its launcher" in said.splitlines()[0]
    assert (f"note: job {job} ended, exit code 125\n" in said) is (state == registry.ENDED)


def test_a_job_that_is_killed_with_its_launcher_has_ended(
    on_record: OnRecord, looks: Looks, sleeper: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LAUNCHER", 0.1)
    of_process(on_record(ALIVE), sleeper())
    looks.killed = {"n1": []}
    assert cli.main(["kill", ALIVE]) == 0
    assert registry.find(ALIVE).exit_code == 125


def test_what_runs_does_not_wait_for_hosts_of_the_dead(
    on_record: OnRecord, looks: Looks, sleeper: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LAUNCHER", 0.1)
    of_record(on_record(DEAD), launcher=GONE)
    of_process(on_record(ALIVE), sleeper())
    assert cli.main(["kill", "--all"]) == 0
    assert [ids for _, ids, _ in looks.calls] == [[ALIVE], [DEAD]]


def test_after_ctrl_c_all_else_is_left_as_it_is(
    on_record: OnRecord, looks: Looks, sleeper: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LAUNCHER", 0.1)
    of_process(on_record(DEAD), process := sleeper())
    of_record(on_record(ALIVE), launcher=GONE)
    looks.failures_of_killing, looks.interrupted = ["n1: interrupted by SIGINT"], 130
    assert cli.main(["kill", "--all"]) == 130
    assert [ids for _, ids, _ in looks.calls] == [[DEAD]]
    assert process.poll() is None


def test_a_job_that_has_ended_may_have_left_something(on_record: OnRecord, looks: Looks) -> None:
    folder = on_record(ENDED)
    of_record(folder, launcher=GONE)
    registry.conclude(folder, 0, [])
    assert cli.main(["kill", ENDED]) == 0
    assert looks.calls == [(["n1", "n2"], [ENDED], True)]


@pytest.mark.parametrize("words", [[], ["--all", "k3"]])
def test_one_job_or_all(
    on_record: OnRecord, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    on_record()
    assert cli.main(["kill", *words]) == 2
    said = "error: kill needs one JOB, or --all [ambiguous-job]\n  hint: dispatch jobs\n"
    assert capsys.readouterr().err == said


def test_none_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cli.main(["kill", "--all"]) == 0
    assert capsys.readouterr() == ("", "no jobs\n")


# -- over this machine ------------------------


def test_ctrl_c_is_told_of_a_look(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPATCH_RUN_ID", raising=False)
    rsh = f"sh -c 'kill -INT {os.getpid()}; exec sleep 100'"
    assert cli.main(["sweep", "-w", "n1", "--rsh", rsh, "--kill"]) == 130
    assert "n1  interrupted by SIGINT" in capfd.readouterr().err


def test_what_carries_the_id_is_found_and_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even by who carries it: what looks is spared."""
    run_id = new_run_id()
    monkeypatch.setenv("DISPATCH_RUN_ID", run_id)
    argv = [sys.executable, "-c", "import time; time.sleep(1000)"]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        comm = Path(f"/proc/{process.pid}/environ")
        wait_for(lambda: run_id.encode() in comm.read_bytes(), 20, lambda: "it has its environment")
        assert cli.main(["sweep", "-w", "localhost", run_id]) == 0
        assert "DISPATCH_RUN_ID" not in os.environ
        out = capfd.readouterr().out
        assert out.startswith(f"{run_id}: its launcher is not known on this machine") is False
        assert out.startswith(f"{run_id}: left over\n  localhost: found 1 process: python")
        assert process.poll() is None
        assert cli.main(["sweep", "-w", "localhost", "--kill", run_id]) == 0
        assert process.wait(60) in (-15, -9)
        assert "localhost: killed 1 process: python" in capfd.readouterr().out
    finally:
        process.kill()
        process.wait(60)
