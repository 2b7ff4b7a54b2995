"""Kept connections as a user meets them: ``dispatch connect``, and ``exec`` after it."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import Cluster, kill_left, wait_for

from dispatcher.bootstrap import shell
from dispatcher.transport.pool import daemon as daemon
from dispatcher.transport.pool import daemon_socket

DISPATCH = [sys.executable, "-m", "dispatcher"]
WAITS = f"-c {shlex.split(shell.COMMAND)[-1]}"
ASK = ("--shell", "echo $PPID")


class Home:
    """A user's folder for the daemon, and the cluster from whose ``login`` it is used."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._pids: dict[int, int] = {}  # of the daemons, by the inodes of their sockets

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        env = ["env", f"XDG_RUNTIME_DIR={self.folder}"]
        return self.cluster.run([*env, *DISPATCH, *words], **options)

    def holds(self, said: str) -> None:
        """Wait until its daemon has these connections back."""

        def listed() -> str:
            return self.run("connect", "--list").stdout

        wait_for(lambda: listed().startswith(said), 60, listed)

    def daemons(self) -> list[int]:
        """The pids of living daemons of this home, as this machine counts.

        They let nobody but root read their environment, so their sockets tell. Each is called
        once: a daemon that is called all the time does not end.
        """
        for place in self.folder.glob("dispatch/holder*"):
            inode = place.stat().st_ino if place.is_socket() else 0
            if inode and inode not in self._pids:
                with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
                    with daemon_socket._at(place.parent) as at:  # the path may be too long
                        link.connect(f"/proc/self/fd/{at}/{place.name}")
                    self._pids[inode] = daemon_socket.peer(link)[0]
        return [pid for pid in self._pids.values() if is_daemon(pid)]

    def waiting(self) -> list[tuple[str, int, str]]:
        """The shells on the hosts that wait for a command: sshd's own, not what they left."""
        return [
            (one.host, one.pid, one.command)
            for one in self.cluster.census(self.cluster.hosts)
            if one.command.endswith(WAITS) and _parent(one.outer).startswith("sshd")
        ]

    def idle(self) -> bool:
        """Whether nothing is on the hosts but what waits there."""
        return self.waiting() == self.cluster.on_hosts()


def is_daemon(pid: int) -> bool:
    try:
        return b"dispatcher.transport.pool" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _parent(pid: int) -> str:
    """The name of the parent of ``pid``; empty if that is gone."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return Path(f"/proc/{parent}/comm").read_text()
    except OSError:
        return ""


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path) -> Iterator[Home]:
    made = Home(cluster, tmp_path)
    yield made
    kill_left(made.daemons())
    wait_for(lambda: not made.daemons(), 30, "the daemon is gone")


def parents(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_later_commands_find_the_connections(home: Home) -> None:
    assert home.run("connect", "-w", "n[1-2]").returncode == 0
    listed = home.run("connect", "--list")
    assert listed.stdout == "n[1-2] (2), for 600 idle seconds\n", listed.stderr
    first = home.run("exec", "-v", "-w", "n[1-3]", *ASK)
    assert "n1: connected to " in first.stderr
    assert first.stderr.count(" by kept") == 2
    assert first.stderr.count(" by paramiko") == 1  # n3 was not asked to be kept
    home.holds("n[1-2] (2)")
    again = home.run("exec", "-w", "n[1-2]", *ASK)
    assert parents(again) == parents(first)[:2]
    home.run("connect", "--close", "-w", "n1")
    assert home.run("connect", "--list").stdout.startswith("n2 (1)")
    home.run("connect", "--close")
    wait_for(lambda: not home.daemons(), 30, "who holds nothing ends")
    assert "no connections are kept" in home.run("connect", "--list").stderr


def test_keep_with_the_first_command(home: Home) -> None:
    first = home.run("exec", "--keep", "-w", "n1", *ASK)
    home.holds("n1 (1)")
    assert parents(home.run("exec", "-w", "n1", *ASK)) == parents(first)


def test_idle_connections_are_closed(home: Home) -> None:
    home.run("exec", "--keep=1", "-w", "n1", *ASK)
    wait_for(lambda: not home.daemons(), 30, "the idle daemon is gone")


def test_a_daemon_that_was_killed_is_done_without(home: Home) -> None:
    home.run("connect", "-w", "n1")
    kill_left(home.daemons())
    wait_for(lambda: not home.daemons(), 30, "the daemon is gone")
    done = home.run("exec", "-v", "-w", "n1", *ASK)
    assert done.returncode == 0
    assert "by paramiko" in done.stderr


def test_a_connection_that_broke_is_done_without(home: Home) -> None:
    home.run("connect", "-w", "n1")
    _, parent = parents(home.run("exec", "-w", "n1", *ASK))[0].split()
    home.cluster.run(["kill", "-9", parent], host="n1")
    done = home.run("exec", "-w", "n1", *ASK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] != parent


def test_a_changed_configuration_holds_at_once(home: Home) -> None:
    config = home.folder / "config"
    config.write_text("Host a\n HostName n1\n HostKeyAlias n1\n")
    words = ("exec", "--keep", "-F", str(config), "-w", "a", "hostname")
    assert home.run(*words).stdout == "a: n1\n"
    config.write_text("Host a\n HostName n2\n HostKeyAlias n2\n")
    assert home.run(*words).stdout == "a: n2\n"
    config.write_text("Host a\n HostName n2\n HostKeyAlias nobody\n")
    refused = home.run(*words)
    assert refused.returncode == 125
    assert "host key unknown" in refused.stderr


@pytest.mark.parametrize("how", ["killed", "too long"])
def test_nothing_is_left_on_the_host(home: Home, how: str) -> None:
    home.run("connect", "-w", "n1")
    text = "trap '' TERM INT; (trap '' TERM INT; exec sleep 1000) & echo up; wait"
    limit = ("-u", "8") if how == "too long" else ()
    words = ("exec", "--grace", "0.3", *limit, "-w", "n1", "--shell", text)
    env = ["env", f"XDG_RUNTIME_DIR={home.folder}"]
    with home.cluster.popen(
        [*env, *DISPATCH, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as one:  # fmt: skip
        assert one.stdout is not None
        assert one.stdout.readline() == "n1: up\n"
        if how == "killed":
            one.kill()
        else:
            assert one.wait(60) == 124
        one.communicate()
    # what ended by our order ended: its connection stays, and a shell waits for the next command
    waiting = 1 if how == "too long" else 0
    wait_for(lambda: len(home.waiting()) == waiting, 30, lambda: home.cluster.on_hosts())
    wait_for(home.idle, 30, home.cluster.on_hosts)
    home.run("connect", "--close")
    wait_for(lambda: not home.cluster.on_hosts(), 30, lambda: home.cluster.on_hosts())


def alone(found: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """What was found, if it is one."""
    return found if len(found) == 1 else []


def test_the_next_command_is_the_shell_that_waits(home: Home) -> None:
    home.run("connect", "-w", "n1")
    for _ in range(2):
        ((_, pid, _),) = wait_for(lambda: alone(home.waiting()), 30, "a shell waits")
        done = home.run("exec", "-w", "n1", "--shell", "echo $$; pwd; cat; exit 3")
        assert done.stdout == f"n1: {pid}\nn1: {os.path.expanduser('~')}\n", done.stderr
        assert "exit code 3" in done.stderr


@pytest.mark.parametrize(("program", "code"), [("hostname", 0), ("false", 1)])
def test_a_run_gives_its_connections_back(home: Home, program: str, code: int) -> None:
    home.run("connect", "-w", "n[1-2]")
    sessions = parents(home.run("exec", "-w", "n[1-2]", *ASK))
    for _ in range(2):
        assert home.run("-H", "n1,n2", "--no-python", program).returncode == code
        home.holds("n[1-2] (2)")
        assert parents(home.run("exec", "-w", "n[1-2]", *ASK)) == sessions


def test_a_run_ends_as_without(home: Home) -> None:
    """A host whose connection breaks is lost, with the same words and code."""
    ends = []
    for keep in ((), ("--keep",), ()):
        command = ["env", f"XDG_RUNTIME_DIR={home.folder}", *DISPATCH, *keep, "-H", "n1,n2"]
        with home.cluster.popen(
            [*command, "--no-python", "sh", "-c", "echo up; exec sleep 1000"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as run:  # fmt: skip
            assert run.stdout is not None
            assert {run.stdout.readline(), run.stdout.readline()} == {"[0] up\n", "[1] up\n"}
            # of a daemon that is there the third run has n1's connection, but not n2's
            found = home.cluster.run(["ps", "-e", "-o", "pid=,args="], host="n2").stdout
            sessions = [line.split()[0] for line in found.splitlines() if "@notty" in line]
            assert sessions
            home.cluster.run(["kill", "-9", *sessions], host="n2")
            said = run.communicate(timeout=60)[1].splitlines(keepends=True)
            # what a look at the host finds is a matter of moments; later runs know of the loss
            passing = (
                "note: n2: killed ",
                "note: n2: an earlier job lost it",
                "note: n2 failed in ",
            )
            told = [line for line in said if not line.startswith(passing)]
            ends.append(("".join(told), run.returncode))
        wait_for(home.idle, 30, home.cluster.on_hosts)
    assert ends == [ends[0]] * 3
    assert ends[0][1] == 125
    assert "host lost" in ends[0][0]


def test_a_host_that_fell_silent(new_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """ssh_config says after how long; over kept connections too, with the same words."""
    cluster, config = new_cluster(1), tmp_path / "config"
    config.write_text("ServerAliveInterval 4\nServerAliveCountMax 1\n")
    command = ["env", f"XDG_RUNTIME_DIR={tmp_path}", *DISPATCH, "exec", "-F", str(config)]
    text = ("-w", "n1", "--shell", "echo up; exec sleep 1000")
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with (
        cluster.popen([*command, "--keep", *text], text=True, **options) as kept,
        cluster.popen([*command, "--transport", "paramiko", *text], text=True, **options) as direct,
    ):
        for one in (kept, direct):
            assert one.stdout is not None
            assert one.stdout.readline() == "n1: up\n"
        cluster.cut("n1")
        for one in (kept, direct):
            _, said = one.communicate(timeout=60)
            assert one.returncode == 125
            assert "n1  unreachable: no answer for " in said


@pytest.mark.parametrize("words", [("put", "{file}", "/tmp/"), ("get", "/etc/hostname", "{here}")])
def test_files_go_over_kept_connections(home: Home, words: tuple[str, ...]) -> None:
    (home.folder / "one").write_text("1")
    words = tuple(word.format(file=home.folder / "one", here=home.folder) for word in words)
    for _ in range(2):
        done = home.run(words[0], "--keep", "-v", "-w", "n1", *words[1:])
        assert (done.returncode, done.stderr.count(" by kept")) == (0, 1), done.stderr
        home.holds("n1 (1)")


def test_the_socket_is_ours_alone(home: Home) -> None:
    home.run("connect", "-w", "n1")
    sockets = [path for path in (home.folder / "dispatch").iterdir() if path.is_socket()]
    assert [path.stat().st_mode & 0o777 for path in sockets] == [0o600]
    assert (home.folder / "dispatch").stat().st_mode & 0o777 == 0o700
    (home.folder / "dispatch").chmod(0o777)
    refused = home.run("exec", "-w", "n1", "hostname")
    assert refused.returncode == 2
    assert "others may write to it" in refused.stderr


#: asks at descriptor FD as user UID what is held; says the answer, or nothing when hung up on
ASKS = """
import os, socket, sys
from dispatcher.remote.protocol.mux import Decoder
from dispatcher.transport.pool.daemon_socket import LIST, json_frame
os.setuid(int(sys.argv[3]))
with socket.socket(socket.AF_UNIX) as link:
    link.connect(f"/proc/self/fd/{sys.argv[1]}/{sys.argv[2]}")
    link.settimeout(60)
    try:
        link.sendall(json_frame(LIST))
        print(*Decoder().feed(link.recv(4096)))
    except ConnectionError:
        pass
"""
somebody_else = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become somebody else")


@somebody_else
@pytest.mark.parametrize("uid", [0, 65534])
def test_another_user_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    listener = daemon_socket.listen()
    assert listener is not None
    folder = daemon_socket.folder()
    folder.chmod(0o755)  # as if the folder's mode did not keep strangers out
    (folder / daemon_socket.socket_name()).chmod(0o666)
    serves = threading.Thread(target=daemon.Daemon(listener).run, daemon=True)
    at = os.open(folder, os.O_DIRECTORY)
    monkeypatch.setattr(daemon, "LINGER", 60.0)
    serves.start()
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASKS, str(at), daemon_socket.socket_name(), str(uid)],
            pass_fds=[at], capture_output=True, timeout=100, check=True,
        )  # fmt: skip
    finally:
        os.close(at)
        monkeypatch.setattr(daemon, "LINGER", 0.0)
        serves.join(60)
        listener.close()
    assert (b'"hosts": []' in asked.stdout) == (uid == 0), asked
    assert uid == 0 or not asked.stdout


def test_nothing_of_the_current_folder_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dispatcher" / "transport" / "pool").mkdir(parents=True)
    for trap in ("dispatcher/__init__.py", "dispatcher/transport/pool/daemon.py", "json.py"):
        (tmp_path / trap).write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with daemon_socket.dial_or_start() as link:
        who = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    daemon = int.from_bytes(who[:4], sys.byteorder)
    with pytest.raises(ChildProcessError):  # or its end would be ours to wait for
        os.waitpid(daemon, os.WNOHANG)
    end = os.pidfd_open(daemon)
    signal.pidfd_send_signal(end, signal.SIGTERM)
    assert select.select([end], [], [], 60)[0]
    os.close(end)
    assert not (tmp_path / "sprung").exists()


@cases(
    ("words", "said"),
    [
        (("exec", "--keep=0", "-w", "n1", "true"), "cannot be kept for 0 s"),
        (("exec", "--keep=soon", "-w", "n1", "true"), "--keep: not a number"),
        (("exec", "--keep", "--transport", "ssh", "-w", "n1", "true"), "ControlPersist"),
        (("connect", "--list", "--close"), "exclude each other"),
        (("connect",), "no hosts"),
    ],
)
def test_usage(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*DISPATCH, *words], env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not list(tmp_path.iterdir())
