"""Where the daemon's socket is, and what is asked over it; the test is the daemon."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from open_files import open_files

import dispatcher
from dispatcher.model.errors import DispatchError, NoConnectionDaemon
from dispatcher.remote.protocol.mux import Decoder, Malformed, frame
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_socket import DROP, LARGEST, LIST, ask_daemon, json_frame


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folders for sockets and for state, both of this test alone."""
    made = tmp_path / "runtime"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(made))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return made


@pytest.fixture
def listener(runtime: Path) -> Iterator[socket.socket]:
    made = daemon_socket.listen()
    assert made is not None
    with made:
        yield made


# -- where ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("{runtime}", "runtime/dispatch"),
        ("{runtime}/missing", "state/dispatch/kept"),
        ("runtime", "state/dispatch/kept"),  # relative: the standard says to ignore it
        ("", "state/dispatch/kept"),
    ],
)
def test_the_folder(runtime: Path, monkeypatch: pytest.MonkeyPatch, said: str, where: str) -> None:
    monkeypatch.chdir(runtime.parent)
    monkeypatch.setenv("XDG_RUNTIME_DIR", said.format(runtime=runtime))
    assert not daemon_socket.seems_up()
    folder = daemon_socket.folder()
    assert folder == runtime.parent / where
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent == runtime or folder.parent.stat().st_mode & 0o777 == 0o700
    assert not daemon_socket.seems_up()
    (folder / daemon_socket.socket_name()).touch()
    assert daemon_socket.seems_up()


def test_a_relative_folder_is_not_looked_into(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (daemon_socket.folder() / daemon_socket.socket_name()).touch()
    assert daemon_socket.seems_up()
    monkeypatch.chdir(runtime.parent)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime.name)
    assert not daemon_socket.seems_up()


def test_a_folder_of_another_user_is_not_looked_into(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``su`` leaves it in the environment."""
    another = runtime
    if os.geteuid() == 0:
        os.chown(runtime, 1, -1)
    else:
        another = Path("/")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(another))
    assert daemon_socket.folder() == runtime.parent / "state/dispatch/kept"
    assert not daemon_socket.seems_up()


@cases(
    ("node", "middle"),
    [
        ("n1.example-2.org", "-n1.example-2.org-"),
        ("a/b c_d", "-a_b_c_d-"),
        ("x" * 300, "-" + "x" * 64 + "-"),
    ],
)
def test_each_node_has_its_own(monkeypatch: pytest.MonkeyPatch, node: str, middle: str) -> None:
    """A home directory may be shared by many."""
    system = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((system[0], node, *system[2:])))
    assert daemon_socket.socket_name().startswith(f"holder{daemon_socket.PROTOCOL}{middle}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may leave a namespace by itself")
@pytest.mark.parametrize("kind", ["net", "mount"])
def test_each_network_and_mount_namespace_has_its_own(runtime: Path, kind: str) -> None:
    """The same name may be another machine there: commands ran on the wrong hosts."""
    program = "from dispatcher.transport.pool import daemon_socket as d;"
    program += "print(d.socket_name(), d.seems_up())"
    asked = [sys.executable, "-c", program]
    with socket.socket():
        (daemon_socket.folder() / daemon_socket.socket_name()).touch()
        here = subprocess.check_output(asked, text=True)
        elsewhere = subprocess.check_output(["unshare", f"--{kind}", *asked], text=True)
    assert here == f"{daemon_socket.socket_name()} True\n"
    assert elsewhere.endswith(" False\n")


# -- listening and calling --------------------------------------------------------------


def test_the_socket_is_private_whatever_the_umask(runtime: Path) -> None:
    before = os.umask(0)
    try:
        listener = daemon_socket.listen()
        assert listener is not None
        assert os.umask(0) == 0  # as it was
    finally:
        os.umask(before)
    with listener:
        modes = {
            path.name: path.stat().st_mode & 0o777 for path in daemon_socket.folder().iterdir()
        }
    name = daemon_socket.socket_name()
    assert modes == {name: 0o600, f"{name}.lock": 0o600}


def test_a_socket_that_was_left_behind_is_replaced(listener: socket.socket) -> None:
    left = daemon_socket.folder() / daemon_socket.socket_name()
    listener.close()
    assert left.is_socket()
    assert daemon_socket.dial() is None
    os.unlink(f"{left}.lock")  # as its process would have let go of it
    again = daemon_socket.listen()
    assert again is not None
    with again:
        caller = daemon_socket.dial()
        assert caller is not None
        with caller:
            heard, _ = again.accept()
            heard.close()
    daemon_socket.remove_socket()
    assert not left.exists()
    daemon_socket.remove_socket()  # is gone already


def test_a_lock_that_leads_elsewhere_is_not_followed(runtime: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (daemon_socket.folder() / f"{daemon_socket.socket_name()}.lock").symlink_to(elsewhere)
    with pytest.raises(OSError):
        daemon_socket.listen()
    assert not elsewhere.exists()


def test_a_path_may_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than an address of a socket."""
    runtime = tmp_path / ("x" * 120)
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    listener = daemon_socket.listen()
    assert listener is not None
    with listener:
        caller = daemon_socket.dial()
        assert caller is not None
        caller.close()


def test_a_stranger_who_listens_is_hung_up_on(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_socket, "uid_of", lambda link: os.geteuid() + 1)
    before = open_files()
    assert daemon_socket.dial() is None
    assert open_files() <= before


def test_a_daemon_is_started_where_there_is_none(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, Any]]] = []
    listeners: list[socket.socket] = []

    def run(argv: list[str], **options: Any) -> None:
        started.append((argv, options))
        listener = daemon_socket.listen()
        assert listener is not None
        listeners.append(listener)

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        daemon_socket.dial_or_start().close()
    ((argv, options),) = started  # the second time it was there
    assert argv[-3:] == [sys.executable, "-m", "dispatcher.transport.pool.daemon"]
    assert options.pop("cwd") == Path(dispatcher.__file__).parents[1]
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    assert options == {**nowhere, "start_new_session": True, "check": False}
    listeners[0].close()


def test_a_daemon_that_does_not_come_up(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(daemon_socket, "START_LIMIT", 0.05)
    with pytest.raises(DispatchError, match="no process to hold connections"):
        daemon_socket.dial_or_start()


# -- asking ---------------------------------------------------------------------------


class Answering:
    """Says ``pieces`` to each order of the first caller, and notes the orders."""

    def __init__(self, listener: socket.socket, *pieces: bytes) -> None:
        self.heard: list[tuple[int, int, bytes]] = []
        self._listener = listener
        self._pieces = pieces
        listener.settimeout(60)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        link, _ = self._listener.accept()
        with link:
            frames = Decoder(LARGEST)
            while data := link.recv(1 << 16):
                for order in frames.feed(data):
                    self.heard.append(order)
                    for piece in self._pieces:
                        link.sendall(piece)
                        # the next piece is another: the caller has to read on
                        threading.Event().wait(0.01)
                    if len(self._pieces) == 1 and not self._pieces[0].endswith(b"}"):
                        return  # what is cut off has an end, too

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.mark.parametrize(
    ("kind", "order", "body"),
    [(LIST, {}, b"{}"), (DROP, {"hosts": ["n1"]}, b'{"hosts": ["n1"]}')],
)
@pytest.mark.parametrize("cut", [None, 3, 20])
def test_an_answer(
    listener: socket.socket, kind: int, order: dict[str, Any], body: bytes, cut: int | None
) -> None:
    said = json_frame(LIST, hosts=["n1"] * 5, idle=600.0)
    answering = Answering(listener, *([said] if cut is None else [said[:cut], said[cut:]]))
    assert ask_daemon(kind, **order) == {"hosts": ["n1"] * 5, "idle": 600.0}
    answering.end()
    assert answering.heard == [(0, LIST, b"{}"), *([(0, kind, body)] if kind == DROP else [])]


@pytest.mark.parametrize(
    "said", [b"", json_frame(LIST)[:-1], frame(0, LIST, b"[1]"), frame(0, LIST, b"\xff")]
)
def test_an_answer_that_is_none(listener: socket.socket, said: bytes) -> None:
    answering = Answering(listener, said)
    with pytest.raises(Malformed):
        ask_daemon(LIST)
    answering.end()


def test_an_answer_that_does_not_come(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_socket, "ANSWER_LIMIT", 0.05)
    us = f"the process that holds connections (pid {os.getpid()}) does not answer"
    with pytest.raises(NoConnectionDaemon, match=re.escape(us)) as caught:
        ask_daemon(LIST)
    assert caught.value.hint == "dispatch connect --close"
    notes: list[str] = []
    before = open_files()
    assert daemon_socket.reach(notes.append) is None
    assert notes == [f"note: {us}: connecting without it (dispatch connect --close ends it)"]
    assert open_files() <= before


def test_a_daemon_that_is_reached_answers(listener: socket.socket) -> None:
    answering = Answering(listener, json_frame(LIST, hosts=[], idle=600.0))
    notes: list[str] = []
    link = daemon_socket.reach(notes.append)
    assert link is not None
    link.close()
    answering.end()
    assert (answering.heard, notes) == ([(0, LIST, b"{}")], [])


def test_a_stopped_daemon_is_killed(runtime: Path) -> None:
    program = (
        "import os, signal, sys; from dispatcher.transport.pool import daemon_socket as d;"
        "l = d.listen(); print(flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline()
        os.waitid(os.P_PID, daemon.pid, os.WSTOPPED | os.WNOWAIT)
        link = daemon_socket.dial()
        assert link is not None
        with link:
            assert daemon_socket.why_silent(link)
        assert daemon_socket.kill_daemon()
        assert daemon.wait(60) == -signal.SIGKILL
    assert daemon_socket.dial() is None


def test_nobody_is_there_to_answer(runtime: Path) -> None:
    assert ask_daemon(LIST) is None
