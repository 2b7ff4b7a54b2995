"""What a job leaves on its login node, and who may call it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from dispatcher.core.events.run_events import Entry, Event, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.control_server import ControlServer
from dispatcher.jobs.job_socket import Frames, JobConnection
from dispatcher.jobs.status import StacksServer
from dispatcher.model.errors import UsageError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "dispatch"


def enroll(run_id: str = "20260131-142501-k3f9x2") -> Path:
    return registry.enroll(
        run_id, program=["a", "\udcff"], hosts=[("n1", None, 22)], ranks=1, logs=None,
        detached=True, reach={"transport": "auto"},
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


@pytest.mark.parametrize("detached", [True, False])
def test_a_launcher_that_lives_and_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, detached: bool
) -> None:
    monkeypatch.setattr(registry, "DYING", 0.05)
    folder = enroll()
    text = (folder / "job.json").read_text()
    (folder / "job.json").write_text(
        text.replace('"detached": true', f'"detached": {"true" if detached else "false"}')
    )
    why = registry.not_running(registry.find("latest")).message
    assert ("does not answer" in why) == detached
    assert ("its terminal has it" in why) != detached


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


def test_a_folder_of_others_is_refused(state: Path) -> None:
    enroll()
    (state / "jobs").chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        enroll("20260131-142501-bbbbbb")


def test_only_so_many_records_are_kept(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MOST_RECORDS", 2)
    for letter in "abcd":
        registry.conclude(enroll(f"20260131-142501-{letter * 6}"), 0, [])
    running = enroll("20260101-142501-aaaaaa")  # the oldest of all, and alive
    enroll("20260131-142501-zzzzzz")
    assert running.exists()
    assert len(os.listdir(state / "jobs")) <= 4


def test_who_waits_for_an_answer_is_told_that_the_run_has_ended() -> None:
    folder = enroll()
    asked = threading.Event()
    server = StacksServer(folder, asked.set, lambda told: Sink())
    server.event(Entry(1, 0.0, Event()))
    with JobConnection(registry.find(None)) as stranger, JobConnection(registry.find(None)) as call:
        stranger.order("attach")
        assert list(stranger.frames())[-1:] in ([], [({}, b"")])  # hung up on
        call.order("stacks")
        assert asked.wait(20)
        server.finish(3)
        (told,) = (fields for fields, _ in call.frames() if fields)
    assert (told["type"], told["exit_code"]) == ("verdict", 3)
    assert not (folder / "control").exists()


def test_who_looks_on_and_reads_nothing_is_shown_little(tmp_path: Path) -> None:
    """Pictures do not pile up for a viewer that stands still, while others go on seeing them."""
    big = {"what": "x" * (1 << 20)}  # more than a socket holds
    control = ControlServer(tmp_path, lambda how: None, picture=lambda: big)
    attach = b'{"order": "attach", "output": false, "picture": true}\n'
    with socket.socket(socket.AF_UNIX) as stuck, socket.socket(socket.AF_UNIX) as reads:
        for link in (stuck, reads):
            link.connect(str(tmp_path / "control"))
            link.sendall(attach)
            link.settimeout(20)
        frames, seen = Frames(), 0
        while seen < 6:
            seen += sum(f["type"] == "picture" for f, _ in frames.feed(reads.recv(1 << 16)))
        ends = threading.Thread(target=control.finish, args=(0, []))
        ends.start()
        frames, late = Frames(), []
        while data := stuck.recv(1 << 16):
            late += [fields["type"] for fields, _ in frames.feed(data)]
        ends.join()
    assert late == ["hello", "picture", "verdict"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become somebody else")
@pytest.mark.parametrize("uid", [0, 65534])
def test_the_kernel_says_who_calls(tmp_path: Path, uid: int) -> None:
    orders: list[str] = []
    control = ControlServer(tmp_path, orders.append)
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
            link.settimeout(10)
            try:
                link.sendall(b'{"order": "stop"}\n')
                code = 0 if b"hello" in link.recv(4096) else 1
            except ConnectionError:
                code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    os.close(at)
    control.finish(0, [])
    assert os.waitstatus_to_exitcode(status) == (0 if uid == 0 else 1)
    assert orders == (["stop"] if uid == 0 else [])


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
