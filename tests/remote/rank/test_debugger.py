"""Finding the rank that is to be looked into, and passing on what is said."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cases import cases

from dispatcher.remote.rank import debugger, sitecustomize
from dispatcher.runner.run import orders

#: says its pid once it can be asked; its child cannot, a fork of it could
CATCHES = "import signal, time; signal.signal(61, print); print(1, flush=True); time.sleep(1000)"
#: goes on to its second line once it is told so
ASKED = """
import sys
word = "first"
print("there", flush=True)
while sys.stdin.readline().strip() != "go":
    pass
print(word, flush=True)
"""
#: opens the door that its argument names when it is asked, and not before
OPENS = """
import signal, socket, sys
door = socket.socket(socket.AF_UNIX)
signal.pthread_sigmask(signal.SIG_BLOCK, [61])
print(1, flush=True)
signal.sigwait([61])
door.bind(sys.argv[1])
door.listen()
link = door.accept()[0]
link.sendall(b"here")
link.recv(2)
"""


def test_ranks_are_found_by_what_they_were_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dispatch-run-1-ab"
    folder.mkdir(0o700)
    own = {"DISPATCH_RUN_ID": "run-1", "RANK": "3", "PYTHONPATH": f"{folder}:/else"}
    wrong = [{"RANK": "4"}, {"DISPATCH_RUN_ID": "run-2"}, {"PYTHONPATH": "/else"}]
    programs = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", CATCHES], stdout=subprocess.PIPE, env={**own, **other}
        )
        for other in [{}, *wrong]
    ]
    deaf = subprocess.Popen(["sleep", "1000"], env=own)  # the signal would end it
    try:
        for one in programs:
            assert one.stdout is not None
            assert one.stdout.readline() == b"1\n"
        assert debugger.ranks_here(b"run-1", b"3") == {programs[0].pid: str(folder)}
        assert debugger.main(["find", "run-1", "3"]) == 0
        assert debugger.main(["find", "run-1", "9"]) == debugger.NOT_HERE
        assert debugger.parent(deaf.pid) == os.getpid()
        monkeypatch.setattr(debugger, "is_private", lambda folder: True)
        monkeypatch.setattr(os, "geteuid", lambda: -1)
        assert debugger.ranks_here(b"run-1", b"3") == {}  # it is another user's
    finally:
        for process in [*programs, deaf]:
            process.kill()
            process.communicate()
    assert debugger.parent(deaf.pid) == 0


@cases(("mode", "private"), [(0o700, True), (0o500, True), (0o710, False), (0o701, False)])
def test_a_folder_of_others_is_not_private(tmp_path: Path, mode: int, private: bool) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    folder.chmod(mode)
    link.symlink_to(folder)
    assert debugger.is_private(str(folder)) is private
    assert not debugger.is_private(str(link))


def test_a_file_and_a_folder_of_another_user_are_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch(0o600)
    assert not debugger.is_private(str(tmp_path / "file"))
    assert debugger.is_private(str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert not debugger.is_private(str(tmp_path))


def test_a_rank_is_looked_into_again_and_again_and_goes_on(tmp_path: Path) -> None:
    for name in ("select", "signal", "socket", "time"):  # somebody's, where the caller is
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    folder = tmp_path / "dispatch-run-1-ab"
    folder.mkdir(0o700)
    (folder / "sitecustomize.py").write_bytes(orders.hook())
    env = {**os.environ, "DISPATCH_RUN_ID": "run-1", "RANK": "3", "PYTHONPATH": str(folder)}
    text = Path(debugger.__file__).read_text().replace("\nANSWER = 5.0\n", "\nANSWER = 60.0\n")

    def look(*lines: str) -> str:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", text, "attach", "run-1", "3"], cwd=tmp_path,
            input="".join(f"{line}\n" for line in lines), text=True, capture_output=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert not [*folder.glob("debug-*")]  # the door is shut behind the caller
        return done.stdout

    rank = subprocess.Popen(
        [sys.executable, "-c", ASKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=env,
    )  # fmt: skip
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "there\n"
        assert "(Pdb rank 3) 'first'\n" in look("p word", "word = 'second'", "c")
        last = look("p word", "b 7", "q")
        assert "(Pdb rank 3) 'second'\n" in last
        assert last.endswith("(Pdb rank 3) the rank goes on\n")
        assert rank.communicate("go\n", timeout=60)[0] == "second\n"
        assert rank.returncode == 0
    finally:
        rank.kill()
        rank.communicate()


def test_a_rank_that_is_asked_waits_only_so_long(tmp_path: Path) -> None:
    sitecustomize.answer_debugger(str(tmp_path), sys._getframe(), 0.05)
    assert not [*tmp_path.iterdir()]


def test_a_door_that_is_not_open_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugger, "ANSWER", 60.0)
    monkeypatch.setattr(debugger, "door", lambda folder, pid: f"{folder}/door")
    with subprocess.Popen(
        [sys.executable, "-S", "-c", OPENS, f"{tmp_path}/door"], stdout=subprocess.PIPE
    ) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"1\n"
            link = debugger.called(str(tmp_path), rank.pid, b"# its source", 0)
            assert link is not None
            assert (tmp_path / "debugger.py").read_bytes() == b"# its source"
            with link:
                assert link.recv(10) == b"here"
        finally:
            rank.kill()


def test_what_is_typed_and_what_comes_back() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = "import socket, sys; from dispatcher.remote.rank import debugger; "
        code += "debugger.relay(socket.socket(fileno=int(sys.argv[1])))"
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(ours.fileno())], pass_fds=[ours.fileno()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        theirs.sendall(b"(Pdb) ")
        assert process.stdout is not None
        assert process.stdout.read(6) == b"(Pdb) "
        assert process.stdin is not None
        process.stdin.write(b"n\n")
        process.stdin.flush()
        assert theirs.recv(10) == b"n\n"
        process.stdin.close()
        ours.close()
        assert theirs.recv(10) == b""  # nothing more will be typed
        theirs.sendall(b"the rank goes on")
        theirs.close()
        assert process.stdout.read() == b"the rank goes on"
        assert process.wait(60) == 0
        process.stdout.close()
