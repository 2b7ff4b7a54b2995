"""Finding the rank that is to be looked into, and passing on what is said."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from dispatcher.remote.rank import debugger

#: says its pid once it can be asked; its child cannot, a fork of it could
CATCHES = "import signal, time; signal.signal(61, print); print(1, flush=True); time.sleep(1000)"


def test_ranks_are_found_by_what_they_were_started_with(tmp_path: Path) -> None:
    folder = tmp_path / "dispatch-run-1-ab"
    folder.mkdir()
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
    finally:
        for process in [*programs, deaf]:
            process.kill()
            process.communicate()
    assert debugger.parent(deaf.pid) == 0


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
