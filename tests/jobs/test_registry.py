"""What a job leaves on its login node, and who may call it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.core.events.run_events import Entry, Event, NodeNoticed, NodeReady
from dispatcher.jobs import job_socket, registry
from dispatcher.jobs.host_history import LostBefore
from dispatcher.jobs.job_server import JobServer
from dispatcher.jobs.job_socket import JobConnection, frame, listen
from dispatcher.model.errors import DispatchError, JobEnded, LauncherSilent, UsageError

from .test_job_server import Run


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "dispatch"


def enroll(
    run_id: str = "20260131-142501-k3f9x2", *, name: str | None = None, **reach: str
) -> Path:
    return registry.enroll(
        run_id, program=["a", "\udcff"], hosts=[("n1", None, 22)], ranks=1, logs=None,
        detached=True, reach={"transport": "auto", **reach}, name=name,
    )  # fmt: skip


def test_a_job_is_found_by_its_start_or_its_end() -> None:
    enroll("20260131-142501-aaaaaa")
    enroll("20260131-142501-bbbbbb")
    assert registry.find("latest").run_id.endswith("b")
    assert registry.find("20260131-142501-a").run_id.endswith("a")
    assert registry.find("bb").run_id.endswith("b")
    for name in ("2026", "zz", "", None):
        with pytest.raises(UsageError):
            registry.find(name)


def test_a_name_is_its_newest_running_job_or_else_its_newest() -> None:
    folders = [enroll(f"20260131-14250{n}-aaaaa{n}", name="lr.1") for n in range(3)]
    enroll("20260131-142509-bbbbbb")
    with pytest.raises(UsageError, match=r"3 running jobs have the name 'lr\.1'") as told:
        registry.find("lr.1")
    assert told.value.hint == ", ".join(folder.name for folder in folders)
    for ends, found in ((2, None), (0, 1), (1, 2)):
        registry.conclude(folders[ends], 0, [])
        if found is not None:
            assert registry.find("lr.1").folder == folders[found]
    with pytest.raises(UsageError) as told:
        registry.find("lr.2")
    assert (registry.find("aaaaa0").title, told.value.hint) == (
        "lr.1 (20260131-142500-aaaaa0)", "dispatch jobs",
    )  # fmt: skip


def test_what_is_written_down_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.time()
    folder = registry.enroll(
        "20260131-142501-k3f9x2", program=["a", "\udcff"], logs=Path("\udcff"), detached=False,
        hosts=[("n1", None, 22), ("n2", "me", None)], ranks=None, reach={"transport": "ssh"},
    )  # fmt: skip
    job = registry.find("latest")
    assert job == registry.Job(
        folder=folder, run_id="20260131-142501-k3f9x2", node=socket.gethostname(),
        launcher=job.launcher, program=("a", "\\xff"),
        hosts=(("n1", None, 22), ("n2", "me", None)), ranks=None, began=job.began,
        logs=tmp_path / "\udcff", detached=False, reach={"transport": "ssh"}, end=None,
        gpus=(None, None),
    )  # fmt: skip
    assert job.launcher.pid == os.getpid()
    assert began <= job.began <= time.time()
    assert (job.exit_code, job.doing, job.phase) == (None, "running", "running")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (
        folder.parent.stat().st_mode & 0o777 == folder.parent.parent.stat().st_mode & 0o777 == 0o700
    )
    registry.note_phase(folder, "starting")
    assert registry.find("latest").phase == "starting"
    registry.conclude(folder, 3, ["error: \udcfe"])
    job = registry.find("latest")
    assert (job.exit_code, job.phase, job.state) == (3, "ended", "ended")
    assert job.end is not None
    assert job.end["verdict"] == ["error: \\xfe"]
    assert began <= job.end["ended"] <= time.time()
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    with pytest.raises(FileExistsError):
        enroll()


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_end_on_a_full_disk(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = enroll()
    registry.note_phase(folder, "starting")
    monkeypatch.setattr(registry, "replace_file", refuse)
    with pytest.raises(OSError, match="No space left"):
        registry.note_phase(folder, "running")
    assert registry.find("latest").phase == "running"  # never a word that was right before
    registry.conclude(folder, 3, ["error: why", "x" * registry.ROOM])
    job = registry.find("latest")
    assert (job.state, job.exit_code) == ("ended", 3)
    assert job.end is not None
    assert job.end["verdict"] == ["error: why"]
    assert sorted(file.name for file in folder.iterdir()) == ["end.json", "job.json"]
    with pytest.raises(OSError, match="No space left"):
        enroll("20260131-142501-aaaaaa")
    assert os.listdir(state / "jobs") == [folder.name]  # none that would count as dead


def test_the_file_of_f_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    enroll(ssh_config="gpus.conf")
    assert registry.find(None).reach == {
        "transport": "auto", "ssh_config": str(tmp_path / "gpus.conf"),
    }  # fmt: skip
    enroll("20260131-142502-k3f9x2", ssh_config="none")  # none is read
    assert registry.find("latest").reach["ssh_config"] == "none"


def test_where_nothing_is_on_record() -> None:
    assert registry.jobs() == []
    with pytest.raises(UsageError, match="this machine has no record of a job") as told:
        registry.find(None)
    assert told.value.hint == "dispatch run --detach -H hostfile ..."


def ended(run_id: str, **fields: Any) -> None:
    """A job with other ``fields`` in its record, which is over."""
    folder = enroll(run_id)
    change(folder, **fields)
    registry.conclude(folder, 0, [])


def change(folder: Path, **fields: Any) -> None:
    record = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**record, **fields}))


def test_the_newest_is_last_whatever_its_id() -> None:
    for letter, began in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
        ended(f"20260131-142501-{letter * 6}", began=began)
    assert [job.run_id[-1] for job in registry.jobs()] == ["b", "c", "a"]
    assert registry.find("latest").run_id.endswith("a")


def test_who_names_none_means_the_one_that_runs() -> None:
    """Whether in the background, in a terminal or of a program."""
    first, second = enroll("20260131-142501-aaaaaa"), enroll("20260131-142501-bbbbbb")
    change(second, detached=False)
    ended("20260131-142501-cccccc")
    with pytest.raises(UsageError, match="which of 2 jobs") as told:
        registry.find(None)
    assert told.value.hint == "dispatch jobs, or: latest"
    registry.conclude(first, 0, [])
    assert registry.find(None).run_id.endswith("b")
    registry.conclude(second, 0, [])
    with pytest.raises(UsageError, match="which of 3 jobs"):  # none of them runs
        registry.find(None)
    with pytest.raises(UsageError, match=r"^no job runs here$") as told:
        registry.find_running(None)
    assert told.value.hint == "dispatch jobs -a"


def test_the_program_of_a_restart_is_on_record() -> None:
    second = enroll("20260131-142501-bbbbbb")
    registry.note_program(second, ["new.py", "\udcff"])
    assert registry.find("bbb").program == ("new.py", "\\xff")


def test_a_name_that_fits_several_is_answered_with_the_last_ones() -> None:
    for at, letter in enumerate("abcd"):
        ended(f"20260131-142501-{letter * 6}", began=float(at))
    with pytest.raises(UsageError, match="'2026' could be any of 4 jobs") as told:
        registry.find("2026")
    assert told.value.hint == ", ".join(f"20260131-142501-{letter * 6}" for letter in "bcd")
    with pytest.raises(UsageError, match="this machine has no record of job 'latesst'") as near:
        registry.find("latesst")
    assert near.value.hint == "latest  # did you mean this job?"
    with pytest.raises(UsageError, match="this machine has no record of job 'x'") as none:
        registry.find("x")
    assert none.value.hint == "dispatch jobs"
    with pytest.raises(UsageError):
        registry.find("142501")  # neither its beginning nor that of its end


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.json", ""), ("job.json", "[]"), ("job.json", "{}"), ("job.json", None),
        ("end.json", "{"), ("job.json", '{"launcher": [1, 2]}'),
    ],
)  # fmt: skip
def test_what_is_no_record_is_no_job(name: str, text: str | None) -> None:
    folder, good = enroll("20260131-142501-aaaaaa"), enroll("20260131-142501-bbbbbb")
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    (folder.parent / "notes").mkdir()
    shutil.copy(good / "job.json", folder.parent / "notes")
    assert [job.run_id[-1] for job in registry.jobs()] == ["b"]


def test_a_launcher_that_lives_and_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DYING", 0.05)
    enroll()
    assert "does not answer" in registry.not_running(registry.find("latest")).message


def test_states() -> None:
    folder = enroll()
    assert registry.find(None).state == registry.RUNNING
    told = (folder / "job.json").read_text()
    gone = subprocess.Popen(["true"])
    gone.wait()
    (folder / "job.json").write_text(told.replace(f"[{os.getpid()},", f"[{gone.pid},"))
    (folder / "control").touch()
    assert registry.find(None).state == registry.DEAD
    assert not (folder / "control").exists()
    # the same pid, but it was started at another time
    (folder / "job.json").write_text(told.replace(f"[{os.getpid()}, ", f"[{os.getpid()}, 1"))
    assert registry.find(None).state == registry.DEAD
    (folder / "job.json").write_text(told.replace(socket.gethostname(), "another"))
    assert registry.find(None).state == registry.ELSEWHERE
    registry.conclude(folder, 3, ["error: x"])
    assert registry.find(None).state == registry.ENDED
    assert registry.find(None).exit_code == 3


def test_a_job_that_ends_after_it_was_read_is_not_taken_for_a_dead_one() -> None:
    folder = enroll()
    change(folder, launcher=[os.getpid(), 1, "another boot"])
    read = registry.find(None)
    assert read.state == registry.DEAD
    registry.conclude(folder, 0, [])
    assert read.state == registry.RUNNING
    assert registry.find(None).state == registry.ENDED


def test_a_folder_of_others_is_refused(state: Path) -> None:
    enroll()
    (state / "jobs").chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        enroll("20260131-142501-bbbbbb")


def test_only_so_many_records_are_kept(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, but not those of jobs that run, be it on another machine."""
    monkeypatch.setattr(registry, "MOST_RECORDS", 2)
    running = enroll("20260101-142501-aaaaaa")
    elsewhere = enroll("20260102-142501-aaaaaa")
    change(elsewhere, node="another")
    dead = enroll("20260103-142501-aaaaaa")
    change(dead, launcher=[os.getpid(), 1, "another boot"])
    (state / "jobs" / "20260104-142501-aaaaaa").mkdir()  # nobody can read that
    (state / "jobs" / "README").touch()
    monkeypatch.setattr(registry, "MOST_RECORDS", 100)
    for day in (5, 6, 7):
        registry.conclude(enroll(f"2026010{day}-142501-aaaaaa"), 0, [])
    monkeypatch.setattr(registry, "MOST_RECORDS", 2)
    enroll("20260108-142501-aaaaaa")
    assert sorted(name[6:8] for name in os.listdir(state / "jobs") if name != "README") == [
        "01", "02", "06", "07", "08",
    ]  # fmt: skip
    assert running.exists()


def test_a_launcher_that_is_stopped_is_paused() -> None:
    folder = enroll()
    registry.note_phase(folder, "stopping")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as sleeper:
        known = registry.Process.of(sleeper.pid)
        assert known is not None
        change(folder, launcher=[known.pid, known.started, known.boot])
        assert registry.find(None).phase == "stopping"
        sleeper.send_signal(signal.SIGSTOP)
        wait_for(lambda: known.is_stopped, 30, "the process is stopped")
        assert registry.find(None).phase == registry.PAUSED
        sleeper.kill()
        wait_for(lambda: not known.lives, 30, "it is gone, though nobody has waited for it")
    assert not known.is_stopped
    assert registry.Process.of(known.pid) is None
    assert registry.find(None).phase == registry.DEAD


@pytest.mark.parametrize(
    ("fields", "why", "hint"),
    [
        ({"launcher": [1 << 22, 5, "x"]}, "its launcher (pid 4194304) was killed: no verdict",
         "dispatch kill 20260131-142501-k3f9x2  # ends what it may have left on its hosts"),
        ({"node": "far"}, "it belongs to far", "ssh far"),
    ],
)  # fmt: skip
def test_why_nobody_answers(fields: dict[str, Any], why: str, hint: str | None) -> None:
    folder = enroll()
    change(folder, **fields)
    job = registry.find("latest")
    with pytest.raises(DispatchError) as told:
        JobConnection(job)
    assert told.value.message == f"job {job.run_id}: {why}"
    assert told.value.hint == hint


def test_the_last_words_of_a_launcher_that_is_gone() -> None:
    folder = enroll()
    change(folder, launcher=[1 << 22, 5, "x"])
    (folder / "launcher.log").write_text("x" * registry.ROOM + "\nnote: its disk is full\n")
    why = registry.not_running(registry.find("latest")).message
    assert why.endswith("was killed: no verdict; its log ends: note: its disk is full")


def test_a_job_that_has_ended_is_none_that_runs() -> None:
    folder = enroll()
    assert registry.find_running(None).folder == folder
    registry.conclude(folder, 3, [])
    with pytest.raises(JobEnded, match="it has ended, exit code 3"):
        registry.find_running(None)


def test_one_who_says_nothing_is_heard_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DYING", 0.0)
    folder = enroll()
    listener, links = listen(folder), list[socket.socket]()
    assert (folder / "control").stat().st_mode & 0o777 == 0o600
    with JobConnection(registry.find(None)) as call:
        call.order("attach")
        wait_for(lambda: accepted(listener, links), 30, "the call comes")
        (link,) = links
        heard = call.frames()
        assert next(heard) == {}
        link.sendall(frame(type="say", line="ab"))
        while (told := next(heard)) == {}:
            pass
        assert told == {"type": "say", "line": "ab"}
        assert json.loads(link.recv(4096)) == {"order": "attach"}
        link.close()
        assert list(filter(None, heard)) == []
        with pytest.raises(DispatchError, match="its launcher does not answer"):
            call.answer()
    listener.close()


def accepted(listener: socket.socket, links: list[socket.socket]) -> bool:
    try:
        links.append(listener.accept()[0])
    except BlockingIOError:
        return False
    return True


def test_a_socket_that_cannot_be_made_leaves_nothing_open(tmp_path: Path) -> None:
    """A descriptor that is left over is a warning, and so a failure, of the test run."""
    (tmp_path / "control").touch()
    with pytest.raises(OSError, match="in use"):
        listen(tmp_path)
    with pytest.raises(FileNotFoundError):
        listen(tmp_path / "absent")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become somebody else")
@pytest.mark.parametrize("uid", [0, 65534])
def test_the_kernel_says_who_calls(tmp_path: Path, uid: int) -> None:
    run = Run()
    control = JobServer(tmp_path, run)
    control.start()
    at = os.open(tmp_path, os.O_DIRECTORY)
    tmp_path.chmod(0o755)  # as if the folder's mode did not keep strangers out
    (tmp_path / "control").chmod(0o666)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setuid(uid)
            link = socket.socket(socket.AF_UNIX)
            link.connect(f"/proc/self/fd/{at}/control")
            link.settimeout(60)
            try:
                link.sendall(b'{"order": "restart", "words": ["none.py"]}\n{"order": "stop"}\n')
                code = 0 if b"refused" in link.recv(4096) else 1
            except ConnectionError:
                code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    os.close(at)
    control.finish(0, [])
    assert os.waitstatus_to_exitcode(status) == (0 if uid == 0 else 1)
    assert run.ways == (["stop"] if uid == 0 else [])


def test_a_launcher_that_takes_no_callers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "DYING", 0.05)
    monkeypatch.setattr(job_socket, "CONNECT_TIMEOUT", 1)
    folder = enroll()
    said: list[str] = []
    at = os.open(folder, os.O_DIRECTORY)
    with ExitStack() as stack:
        stack.callback(os.close, at)
        stack.enter_context(listen(folder))
        full = False
        while not full:
            waits = stack.enter_context(socket.socket(socket.AF_UNIX))
            waits.setblocking(False)
            full = waits.connect_ex(f"/proc/self/fd/{at}/control") == errno.EAGAIN

        def call() -> None:
            try:
                JobConnection(registry.find(None))
            except LauncherSilent as error:
                said.append(error.message)

        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        caller.join(30)
        assert not caller.is_alive()
    assert "its launcher does not answer" in said[0]


def test_a_launcher_that_is_just_being_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DYING", 60.0)
    folder = enroll()
    dying = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    known = registry.Process.of(dying.pid)
    assert known is not None
    told = json.loads((folder / "job.json").read_text())
    told["launcher"] = [known.pid, known.started, known.boot]
    (folder / "job.json").write_text(json.dumps(told))
    job = registry.find(None)
    assert job.state == registry.RUNNING
    killer = threading.Timer(0.1, dying.kill)
    killer.start()
    assert "was killed: no verdict" in registry.not_running(job).message
    killer.join()
    with dying:
        dying.wait()


def test_where_ranks_of_lost_jobs_may_run_on(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    assert registry.left() == {}
    enroll()
    registry.note_left({"n1": 30.0, "n2": 44.0})
    now[0] += 32.0
    assert registry.left() == {"n2": 12.0}
    registry.note_left({"n3": 5.0})
    assert registry.left() == {"n2": 12.0, "n3": 5.0}
    for broken in ("[1]", "{", '{"n1": "x"}'):
        (state / "left.json").write_text(broken)
        assert registry.left() == {}


def test_a_job_says_where_ranks_of_one_before_may_run_on() -> None:
    told: list[Event] = []
    enroll()
    facts = {"n1": "boot-1", "n2": "boot-2", "again": "boot-2", "new": ""}

    def started(*names: str) -> LostBefore:
        lost = LostBefore(names, told.append)
        for node, name in enumerate(names):
            known = SimpleNamespace(machine=facts[name])
            for seq in range(2):  # as before a restart
                lost.event(Entry(seq, 0.0, NodeReady(node, known)))  # type: ignore[arg-type]
        return lost

    started("n1", "n2").write_down({"n2": 30.0})
    assert told == []
    started("n1", "again", "new").write_down({"new": 30.0})  # by another name
    (noticed,) = told
    assert noticed == NodeNoticed(1, "an earlier job lost it: that job's ranks may run on for 30 s")


@cases("text", ["", "[]", '{"phase": 3}', '{"phase": "\\u001b[2J"}', "{}"])
def test_a_file_of_no_phase(tmp_path: Path, text: str) -> None:
    (tmp_path / "phase.json").write_text(text)
    assert registry._doing(tmp_path) == "running"
