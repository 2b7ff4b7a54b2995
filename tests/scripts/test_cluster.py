"""The rig is what it says: real ssh, hosts of their own, cuts that nobody is told of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from rig import PROGRAM, Cluster, gone, wait_for
from testbed import layout

# Says "alive" about every 50 ms on a TCP connection; ends with what ended the connection.
TALKER = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 7777), timeout=60)
peer.settimeout(float(sys.argv[2]))
try:
    while True:
        peer.sendall(b"?")
        answer = peer.recv(1)
        print("alive" if answer else "FIN", flush=True)
        if not answer:
            break
        time.sleep(0.05)
except TimeoutError:
    print("silence", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""
ECHO = """
import socket
door = socket.create_server(("0.0.0.0", 7777))
print("open", flush=True)
peer, _ = door.accept()
while data := peer.recv(1):
    peer.sendall(data)
"""


def python(script: str, *arguments: str) -> list[str]:
    return ["/usr/bin/env", "python3", "-c", script, *arguments]


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_ssh_from_login_needs_no_options(cluster: Cluster) -> None:
    for host in cluster.hosts:
        ended = cluster.run(["ssh", host, "echo", "here"])
        assert (ended.stdout, ended.stderr, ended.returncode) == ("here\n", "", 0)


def test_hosts_reach_each_other(cluster: Cluster) -> None:
    ended = cluster.run(["ssh", "n1", "ssh", "n4", "hostname"])
    assert (ended.stdout, ended.stderr) == ("n4\n", "")


def test_exit_code_and_signal_come_back(cluster: Cluster) -> None:
    assert cluster.run(["sh", "-c", "exit 42"]).returncode == 42
    assert cluster.run(["sh", "-c", "exit 42"], host="n2").returncode == 42
    assert cluster.run(["sh", "-c", "kill -KILL $$"]).returncode == -signal.SIGKILL
    assert cluster.run(["no-such-program"]).returncode in (2, 127)


def test_standard_input_and_environment_arrive(cluster: Cluster) -> None:
    ended = cluster.run(["sh", "-c", 'cat; echo "$COLOUR"'], input="a\n", env={"COLOUR": "blue"})
    assert ended.stdout == "a\nblue\n"


def test_each_host_has_its_own_name_processes_and_files(cluster: Cluster) -> None:
    for host in cluster.hosts:
        mark = f"for place in /tmp /dev/shm /run; do echo x > $place/only-{host}; done"
        cluster.run(["sh", "-c", mark], host, check=True)
    for host in cluster.hosts:
        look = "hostname; cd /; ls -d tmp/only* dev/shm/only* run/only*"
        seen = cluster.run(["sh", "-c", look], host).stdout.split()
        assert seen == [host, *(f"{place}/only-{host}" for place in ("dev/shm", "run", "tmp"))]
        own = cluster.run(["cat", "/proc/1/comm"], host)
        assert own.stdout == f"init-{host}\n"
        numbers = cluster.run(["sh", "-c", "echo /proc/[0-9]*"], host).stdout.split()
        assert len(numbers) < 12, "a host sees processes of others"
        for path in ("/tmp", "/dev/shm", "/run"):
            assert not os.path.exists(f"{path}/only-{host}"), f"{host} wrote to our {path}"


def test_each_host_has_its_own_network(cluster: Cluster) -> None:
    seen = cluster.run(["ls", "/sys/class/net"], "n2").stdout.split()
    assert sorted(set(seen) - {"bonding_masters"}) == ["eth0", "lo"]
    assert cluster.run(["getent", "hosts", "n3"], "n2").stdout.split() == ["10.77.0.5", "n3"]
    assert cluster.run(["getent", "hosts", "example.org"], "n2").returncode == 2


def test_the_machine_keeps_its_own_home(cluster: Cluster) -> None:
    seen = cluster.run(["sh", "-c", "cat ~/.bashrc ~/.profile; ls -A ~/.ssh"], "n1").stdout
    assert seen.split() == ["authorized_keys", "id_ed25519", "id_ed25519.pub", "known_hosts"]
    home = os.path.expanduser("~/.ssh/known_hosts")
    if os.path.exists(home):
        with open(home) as file:
            assert "10.77." not in file.read()


def test_shared_files_are_the_same_everywhere(cluster: Cluster) -> None:
    path = cluster.hostfile(slots=3)
    for host in ("login", "n1", "n4"):
        text = cluster.run(["cat", path], host).stdout
        assert text == "".join(f"{name} slots=3\n" for name in cluster.hosts)
    with open(PROGRAM) as file:
        assert cluster.run(["cat", PROGRAM], "n3").stdout == file.read()


def test_an_environment_below_tmp_is_on_all_hosts(rig: None, tmp_path: Path) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(os.path.realpath(sys.executable))
    program = [str(python), "-IS", PROGRAM]
    name = f"env-{os.getpid()}"
    up = [*program, "up", "1", "--name", name, "--owner", str(os.getpid())]
    subprocess.run(up, check=True, capture_output=True, timeout=60)
    try:
        there = subprocess.run(
            [*program, "enter", "--name", name, "n1", "--", "ls", str(tmp_path),
             str(python.parent)],
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        subprocess.run([*program, "down", "--name", name], check=True, timeout=60)
    assert there.stdout.split() == [f"{tmp_path}:", "environment", f"{python.parent}:", "python"]


def commands(cluster: Cluster, host: str) -> list[str]:
    return [command for _, command in cluster.processes(host)]


def test_processes_lists_what_runs_and_where(cluster: Cluster) -> None:
    with cluster.popen(["ssh", "n2", "exec sleep 91"]) as ssh:
        # until the exec is done, ssh's shell has its place
        wait_for(lambda: commands(cluster, "n2") == ["sleep 91"], 30, "the sleep runs on n2")
        found = cluster.processes("n2")
        assert not cluster.processes("n3")
        cluster.signal("n2", found[0][0], signal.SIGKILL)
        assert ssh.wait(60) == 255
    wait_for(lambda: not cluster.processes("n2"), 30, "the sleep is gone")


def test_processes_by_run_id(cluster: Cluster) -> None:
    with (
        cluster.popen(["ssh", "n1", "DISPATCH_RUN_ID=one exec sleep 92"]) as one,
        cluster.popen(["ssh", "n1", "DISPATCH_RUN_ID=two exec sleep 93"]) as two,
    ):
        both = ["sleep 92", "sleep 93"]
        wait_for(lambda: sorted(commands(cluster, "n1")) == both, 30, "both sleeps run")
        found = cluster.processes("n1", run_id="two")
        assert [command for _, command in found] == ["sleep 93"]
        for pid, _ in cluster.processes("n1"):
            cluster.signal("n1", pid, signal.SIGTERM)
        one.wait(60)
        two.wait(60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_outer_process_ends_the_inner_one(
    cluster: Cluster, number: signal.Signals
) -> None:
    with cluster.popen(["sleep", "94"]) as outer:
        # what is between us and the exec hears signals otherwise
        wait_for(lambda: commands(cluster, "login") == ["sleep 94"], 30, "the sleep runs on login")
        outer.send_signal(number)
        assert outer.wait(60) == -number
        wait_for(lambda: not cluster.processes("login"), 30, "the sleep is gone")


def test_orphans_are_reaped(cluster: Cluster) -> None:
    cluster.run(["ssh", "n1", "setsid sh -c 'sleep 0.05' >/dev/null 2>&1 </dev/null &"])
    wait_for(lambda: not cluster.processes("n1"), 30, "the orphan ended and was reaped")


def test_a_cut_is_silent_and_heals(cluster: Cluster) -> None:
    with cluster.popen(python(ECHO), "n3", stdout=subprocess.PIPE, text=True) as echo:
        assert line(echo) == "open"
        talker = cluster.popen(python(TALKER, "n3", "120"), stdout=subprocess.PIPE, text=True)
        with talker:
            assert line(talker) == "alive"
            cluster.cut("n3")
            try:
                assert cluster.run(["ping", "-c1", "-W10", "n2"]).returncode in (0, 127)
                ended = cluster.run(["ssh", "-o", "ConnectTimeout=1", "n3", "true"])
                assert "timed out" in ended.stderr, "the cut was noticed at once"
                assert talker.poll() is None, "the connection was told of the cut"
            finally:
                cluster.mend("n3")
            started = time.monotonic()
            lines = 0
            while lines < 20:  # more than the pipe can have held from before the cut
                assert line(talker) == "alive"
                lines += 1
            assert time.monotonic() - started < 60
            talker.kill()


@pytest.mark.parametrize("way", ["to", "from", "both"])
def test_each_way_of_cutting_stops_an_answer(cluster: Cluster, way: str) -> None:
    count = python(
        "import sys\n"
        "with open('/proc/net/dev') as f:\n"
        "    print([int(l.split()[2]) for l in f if 'eth0' in l][0])"
    )
    cluster.cut("n4", way)
    try:
        before = int(cluster.run(count, "n4").stdout)
        refused = cluster.run(["ssh", "-o", "ConnectTimeout=1", "n4", "true"])
        assert "timed out" in refused.stderr
        arrived = int(cluster.run(count, "n4").stdout) - before
        assert (arrived > 0) == (way == "from"), "packets went the wrong way"
    finally:
        cluster.mend("n4")
    assert cluster.run(["ssh", "n4", "true"]).returncode == 0


def test_power_off_ends_a_host_without_a_word(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(2)
    with cluster.popen(python(ECHO), "n2", stdout=subprocess.PIPE, text=True) as echo:
        assert line(echo) == "open"
        with cluster.popen(python(TALKER, "n2", "6"), stdout=subprocess.PIPE, text=True) as talker:
            assert line(talker) == "alive"
            cluster.power_off("n2")
            assert talker.stdout is not None
            assert talker.stdout.read().split()[-1] == "silence"
        assert echo.wait(60) == -signal.SIGKILL
    wait_for(lambda: not cluster.processes(), 30, lambda: f"idle, not {cluster.processes()}")
    assert "off" in cluster.run(["true"], "n2").stderr
    assert cluster.run(["ssh", "n1", "echo", "well"]).stdout == "well\n"


def test_who_ends_while_it_is_looked_at_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "98"])
    assert not gone(process.pid)

    def opened_too_late(path: str, mode: str) -> IO[Any]:
        file: IO[Any] = open(path, mode)  # noqa: SIM115 - closed by who asked
        process.kill()
        process.wait()
        return file

    monkeypatch.setattr(layout, "open", opened_too_late, raising=False)
    assert gone(process.pid)


def test_a_cluster_of_another_checkout_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(layout, "directory", lambda name: str(tmp_path))
    record = layout.Record("a", 1, 2, 0, "me", tuple(layout.members(1, 1)))
    layout.save(record)
    path = tmp_path / "cluster.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, "colour": "blue"}))
    assert layout.read("a") == record


def test_clusters_come_and_go_beside_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last one takes the folder of all along, while others are about to be made in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    errors: list[BaseException] = []

    def come_and_go(name: str) -> None:
        try:
            for _ in range(200):
                layout.claim(name)
                assert not any(map(layout.abandoned, layout.names()))
                layout.discard(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert os.listdir(tmp_path) == []


def test_a_name_that_is_just_being_taken_is_not_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.mkdir(layout.directory("new"))  # who made it has not written yet who it is
    assert not layout.abandoned("new")
    os.utime(layout.directory("new"), (1, 1))
    assert layout.abandoned("new")


def leftovers(name: str) -> list[str]:
    """What of cluster ``name`` this machine still has: processes, mounts."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                if name in file.read():
                    found.append(f"process {pid}")
            with open(f"/proc/{pid}/mounts") as file:
                if name in file.read():
                    found.append(f"mount of {pid}")
        except OSError:
            continue
    return found


def test_down_leaves_nothing(new_cluster: Callable[..., Cluster]) -> None:
    name = f"gone-{os.getpid()}"
    links = os.listdir("/sys/class/net")
    cluster = Cluster(3, name=name)
    with cluster:
        directory = os.path.dirname(cluster.shared)
        cluster.run(["ssh", "n1", "setsid sleep 95 >/dev/null 2>&1 </dev/null &"])
        assert leftovers(name)
        assert os.listdir("/sys/class/net") == links, "the machine's own network was touched"
    assert not leftovers(name)
    assert not os.path.exists(directory)


def test_where_the_kernel_gives_no_namespaces_there_is_no_cluster(
    rig: None, tmp_path: Path
) -> None:
    nobody = ["unshare", "--user"]  # one without a number may have no namespaces
    if subprocess.run([*nobody, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare and user namespaces, to have them refused")
    tmp_path.chmod(0o777)
    up = subprocess.run(
        [*nobody, sys.executable, "-IS", PROGRAM, "up", "1", "--name", "poor"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    refused = "cluster: needs hosts made of namespaces: unshare: Operation not permitted\n"
    assert (up.returncode, up.stderr) == (2, refused)
    assert not leftovers(str(tmp_path))


def test_an_ordinary_user_is_no_root_on_the_hosts(cluster: Cluster) -> None:
    look = ["sh", "-c", "id -un; test -w /usr/bin; echo $?; grep CapEff /proc/self/status"]
    outside = subprocess.run(look, capture_output=True, text=True, check=True).stdout
    for host in ("login", "n2"):
        assert cluster.run(look, host).stdout == outside
        assert cluster.run(["id", "-u"], host, root=True).stdout == "0\n"
    logged_in = cluster.run(["ssh", "n2", *look[:2], f"'{look[2]}'"])
    assert logged_in.stdout == outside, logged_in.stderr
    cluster.run(["mount", "-t", "tmpfs", "none", "/mnt"], "n2", root=True, check=True)
    cluster.run(["umount", "/mnt"], "n2", root=True, check=True)


def test_a_killed_test_run_takes_its_cluster_along(rig: None) -> None:
    name = f"orphan-{os.getpid()}"
    owner = subprocess.Popen(["sleep", "96"])
    argv = [sys.executable, "-IS", PROGRAM]
    try:
        up = [*argv, "up", "2", "--name", name, "--owner", str(owner.pid)]
        subprocess.run(up, check=True, capture_output=True, timeout=60)
        assert leftovers(name)
    finally:
        owner.kill()
        owner.wait()
    wait_for(lambda: not leftovers(name), 30, lambda: f"the cluster is gone: {leftovers(name)}")


def test_a_killed_keeper_takes_the_hosts_along_and_the_name_is_free(rig: None) -> None:
    name = f"stale-{os.getpid()}"
    cluster = Cluster(2, name=name)
    with cluster:
        os.kill(cluster._record.keeper, signal.SIGKILL)
        wait_for(lambda: not leftovers(name), 30, lambda: f"hosts died: {leftovers(name)}")
        wait_for(lambda: gone(cluster._record.keeper), 30, "the keeper is dead")
        stale = subprocess.run(cluster.argv(["true"]), capture_output=True, text=True, check=False)
        assert stale.returncode == 2
        assert "keeper is dead" in stale.stderr
        again = Cluster(1, name=name)
        again.__enter__()
        assert again.run(["ssh", "n1", "echo", "again"]).stdout == "again\n"


def test_two_clusters_do_not_meet(new_cluster: Callable[..., Cluster]) -> None:
    one, two = new_cluster(1, width=3), new_cluster(1)
    assert one.hosts == ["n001"]
    with one.popen(["ssh", "n001", "exec sleep 97"]) as ssh:
        wait_for(lambda: one.processes("n001"), 30, "the sleep runs")
        assert two.processes() == []
        assert two.run(["ssh", "n001", "true"]).returncode == 255
        ssh.kill()


def test_sshd_drops_connections_when_told_to(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(1, "--max-startups", "1:100:1")
    hold = (
        "import socket; s = socket.create_connection(('n1', 22));"
        "print(s.recv(99)[:4], flush=True); s.recv(1)"
    )
    with cluster.popen(python(hold), stdout=subprocess.PIPE, text=True) as holder:
        assert line(holder) == "b'SSH-'"
        assert cluster.run(["ssh", "n1", "true"]).returncode == 255
        holder.kill()
    wait_for(lambda: cluster.run(["ssh", "n1", "true"]).returncode == 0, 30, "sshd takes us again")


def test_a_wrong_host_is_named(cluster: Cluster) -> None:
    ended = cluster.run(["true"], "n9")
    assert ended.returncode == 2
    assert "n9: no such host" in ended.stderr
    assert "n1..n4" in ended.stderr
