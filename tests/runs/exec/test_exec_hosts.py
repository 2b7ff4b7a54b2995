"""``dispatch exec`` over real sshd."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import promises
import pytest
from rig import Cluster, wait_for

EXEC = [sys.executable, "-m", "dispatcher", "exec", "-t", "60"]


@pytest.fixture(params=["paramiko", "ssh"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(cluster: Cluster, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return cluster.run([*EXEC, *words], **options)


def test_every_host_is_heard(cluster: Cluster, transport: str) -> None:
    done = run(cluster, "--transport", transport, "-w", "n[1-4]", "-x", "n3", "--", "hostname")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["n1: n1", "n2: n2", "n4: n4"]


def test_the_hostfile_is_that_of_run(cluster: Cluster) -> None:
    Path(cluster.shared, "hosts").write_text("n1 slots=8 # first\nn2:8\n\nn4 port=22\n")
    done = run(cluster, "-H", f"{cluster.shared}/hosts", "--", "hostname")
    assert sorted(done.stdout.splitlines()) == ["n1: n1", "n2: n2", "n4: n4"]


def test_kinds_of_failure_are_kept_apart(cluster: Cluster, transport: str) -> None:
    text = (
        "case $DISPATCH_HOST in n1) exit 3;; n2) exit 255;; n3) kill -KILL $$;; "
        "n4) exec sleep 1000;; esac"
    )
    words = ("--transport", transport, "-u", "8", "-w", "n[1-4],nosuch", "--shell", text)
    done = run(cluster, *words)
    assert done.returncode == 125
    lines = done.stderr.splitlines()
    assert "error: 5 of 5 hosts failed [hosts-failed]" in lines
    assert any(line.split() == ["n1", "exit", "code", "3"] for line in lines)
    who = "n2" if transport == "paramiko" else "n[2-3]"  # ssh says 255 for a signal too
    assert any(line.split() == [who, "exit", "code", "255"] for line in lines)
    assert any("nosuch" in line and "name not found" in line for line in lines)
    assert any("n4" in line and "timeout" in line for line in lines)
    if transport == "paramiko":
        assert any("n3" in line and "SIGKILL" in line for line in lines)


@pytest.mark.parametrize("how", ["ctrl-c", "killed", "stdin-killed", "script-killed"])
def test_nothing_is_left(cluster: Cluster, transport: str, how: str, tmp_path: Path) -> None:
    if (transport, how) == ("ssh", "stdin-killed"):
        pytest.skip("an orphaned ssh waits for the command whose input has ended")
    text = "sleep 1000 & (trap '' TERM INT; while :; do sleep 0.1; done) & echo up $0; wait"
    words = ["-I"] if how == "stdin-killed" else []
    (tmp_path / "s.sh").write_text(text)
    what = ["--script", f"{tmp_path}/s.sh"] if how == "script-killed" else ["--shell", text]
    command = [*EXEC, "--transport", transport, "--grace", "0.5", "-w", "n[1-2]", *words, *what]
    with cluster.popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        said = [one.stdout.readline().split() for _ in range(2)]
        assert [line[1] for line in said] == ["up", "up"]
        if how == "ctrl-c":
            one.send_signal(signal.SIGINT)
            assert one.wait(60) == 130
        else:
            one.kill()
        one.communicate()
    wait_for(lambda: not cluster.on_hosts(), 60, lambda: cluster.on_hosts())
    if how == "script-killed":
        there = ("-S", "-w", "n[1-2]", "--", "ls", *(line[2] for line in said))
        assert run(cluster, *there).returncode == 2


def test_a_script_of_ours(cluster: Cluster, transport: str, tmp_path: Path) -> None:
    script = tmp_path / "its name.py"
    script.write_text(
        "#!/usr/bin/env python3\nimport sys, os\nprint(sys.argv, os.getpid())\nexit(3)"
    )
    words = ["--transport", transport, "--serial", "1,1", "--json", "--script", str(script)]
    done = run(cluster, *words, "-w", "n[1-2]", "a  b", "$HOME")
    assert done.returncode == 3, done.stderr
    one, other = map(promises.told, done.stdout.splitlines())
    path, _, rest = one["stdout"].partition("', ")
    assert path.startswith("['/tmp/dispatch-")
    assert path.endswith("/its name.py")
    assert rest.startswith("'a  b', '$HOME'] ")
    assert (one["code"], other["outcome"]) == (3, "not started")
    assert run(cluster, "-w", "n1", "--", "test", "-e", path[2:]).returncode == 1


def test_a_login_file_that_reads_lines(cluster: Cluster, tmp_path: Path) -> None:
    """As with ``ssh HOST command </dev/null``; every way in, and a tree's inner hosts."""
    (tmp_path / "sent").write_text("sent\n")
    for host in cluster.hosts:
        cluster.run(["sh", "-c", "echo 'read a; read b' > ~/.bashrc"], host)
    try:
        dispatch = [sys.executable, "-m", "dispatcher"]
        run_all = [*dispatch, "--no-python", "-w", "n[1-4]", "--connect-timeout", "60"]
        for words in (
            [*EXEC, "-w", "n[1-2]", "--", "hostname"],
            [*EXEC, "-w", "n[1-2]", "--transport", "ssh", "--sudo", "--", "hostname"],
            [*dispatch, "put", "-w", "n[1-2]", str(tmp_path / "sent"), "/var/tmp/sent"],
            [*run_all, "hostname"],
            [*run_all, "--transport", "ssh", "hostname"],
            [*run_all, "--fanout-tree=2", "hostname"],
        ):
            done = cluster.run(words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            assert "note" not in done.stderr
    finally:
        for host in cluster.hosts:
            cluster.run(["sh", "-c", ": > ~/.bashrc; rm -f /var/tmp/sent"], host)


def test_a_login_that_allows_one_command(cluster: Cluster, transport: str) -> None:
    """And reads all of standard input; as by a forced command, or rbash."""
    guard = "case $BASH_EXECUTION_STRING in 'uname -n') cat;; *) echo restricted; exit 7;; esac"
    cluster.run(["sh", "-c", f"echo {shlex.quote(guard)} > ~/.bashrc"], "n1")
    try:
        words = ("--transport", transport, "-w", "n1")
        done = run(cluster, *words, "--", "uname", "-n")
        assert done.returncode == 125
        assert "remote said: restricted" in done.stderr
        assert "hint: dispatch exec --plain -w n1 true" in done.stderr
        done = run(cluster, *words, "--plain", "--", "uname", "-n")
        assert (done.returncode, done.stdout) == (0, "n1: n1\n"), done.stderr
        done = run(cluster, *words, "--plain", "uname -a")
        assert (done.returncode, done.stdout) == (1, "n1: restricted\n"), done.stderr
    finally:
        cluster.run(["sh", "-c", ": > ~/.bashrc"], "n1")


def test_a_background_process_does_not_hold_us(cluster: Cluster) -> None:
    done = run(cluster, "-N", "-w", "n1", "--shell", "sleep 1000 & echo $!")
    assert done.returncode == 0, done.stderr
    # it would be gone if it had been waited for, or ended
    assert cluster.run(["kill", done.stdout.strip()], "n1").returncode == 0
    assert "n1: the command ended, but a process it started holds its output open" in done.stderr


def test_broadcast_to_a_host_that_is_slow(cluster: Cluster) -> None:
    text = '[ "$DISPATCH_HOST" = n1 ] && sleep 1; cksum'
    done = run(cluster, "-N", "-I", "-w", "n[1-3]", "--shell", text, input="line\n" * 1_000_000)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    assert lines[0].split()[1] == "5000000"


def test_rolling_one_by_one_stops_at_the_first_failure(cluster: Cluster) -> None:
    text = "echo $DISPATCH_INDEX; [ $DISPATCH_INDEX != 1 ]"
    done = run(cluster, "--serial", "1", "--max-fail", "1", "-w", "n[1-4]", "--shell", text)
    assert done.returncode == 3
    assert done.stdout == "n1: 0\nn2: 1\n"
    assert "n[3-4]  not started: stopped after 1 failed" in done.stderr


def test_drops_are_tried_again(new_cluster: Any) -> None:
    crowded = new_cluster(1, "--max-startups", "2:100:2")
    hosts = "\n".join(f"Host a{i}\n HostName n1\n HostKeyAlias n1" for i in range(12))
    Path(crowded.shared, "config").write_text(hosts + "\n")
    done = run(crowded, "-F", f"{crowded.shared}/config", "-t", "90", "-w", "a[0-11]", "true")
    assert done.returncode == 0, done.stderr
