"""Codes of hosts that cannot be used: each is told of a host over real SSH, as JSON tells it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rig import Cluster

DISPATCH = [sys.executable, "-m", "dispatcher"]
EXEC = [*DISPATCH, "exec", "--json", "-t", "60"]
#: code -> what ssh_config says of a host that is refused with it; {folder} has its known_hosts
OF_CONFIG = {
    "name-not-found": "HostName a..b",
    "connection-refused": "HostName n1\n  Port 1",
    "unreachable": "HostName 240.0.0.1",
    "timeout": "ProxyCommand sleep 100",
    "connection-dropped": "ProxyCommand echo Not allowed at this time",
    "authentication-failed": "HostName n1\n  HostKeyAlias n1\n  User nobody",
    "host-key-unknown": "HostName n1\n  HostKeyAlias n1\n  UserKnownHostsFile {folder}/none",
    "host-key-changed": "HostName n1\n  HostKeyAlias n1\n  UserKnownHostsFile {folder}/changed",
    "host-key-revoked": "HostName n1\n  HostKeyAlias n1\n  UserKnownHostsFile {folder}/revoked",
    "bad-ssh-configuration": "ProxyJump bad-ssh-configuration",
}
#: those of hosts that are tried until the time is up
WAITING = {"timeout", "connection-dropped"}
#: code -> a login that leads to no agent
OF_START = {
    "no-usable-python": 'PATH= exec /bin/sh -c "$(echo "$*" | sed s,/usr/bin/python3,/none,)"',
    "agent-did-not-start": "exit 1",
}
SUDO, COMMAND, LOGIN = "sudo-refused", "hosts-failed", "command-did-not-start"
CONTAINER = "container-did-not-start"
ELSEWHERE = {*OF_CONFIG, *OF_START, SUDO, COMMAND, LOGIN, CONTAINER}


def test_hosts_that_cannot_be_reached(cluster: Cluster) -> None:
    folder = Path(cluster.shared, "codes")
    folder.mkdir()
    known = cluster.run(["sh", "-c", "cat ~/.ssh/known_hosts"], check=True).stdout
    keys = {line.split(",")[0]: line.split(None, 1)[1] for line in known.splitlines()}
    (folder / "changed").write_text(f"n1 {keys['n2']}\n")
    (folder / "revoked").write_text(f"n1 {keys['n1']}\n@revoked n1 {keys['n1']}\n")
    blocks = [f"Host {code}\n  {text.format(folder=folder)}\n" for code, text in OF_CONFIG.items()]
    (folder / "config").write_text("".join(blocks))
    # two wait for their time to be up; no other may, however busy the machine is
    for seconds, codes in (("8", WAITING), ("60", OF_CONFIG.keys() - WAITING)):
        done = cluster.run(
            [*DISPATCH, "exec", "-F", str(folder / "config"), "--connect-timeout", seconds,
             "--json", "-w", ",".join(sorted(codes)), "true"],
        )  # fmt: skip
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        told = {row["host"]: row["message_code"] for row in rows if "host" in row}
        assert told == {code: code for code in codes}, done.stderr
        assert f"{len(codes)} hosts failed [{COMMAND}]" in done.stderr
        assert done.returncode == 125


def test_an_account_that_may_not_log_in(cluster: Cluster) -> None:
    argv = [*EXEC, "--rsh", "echo not for {host}", "-w", "n1", "true"]
    done = cluster.run(argv)
    assert json.loads(done.stdout)["message_code"] == LOGIN, done.stderr
    assert "command did not start: exit code 0 before the command started" in done.stderr
    assert "not for n1" in done.stderr


def test_a_host_whose_sudo_refuses(cluster: Cluster) -> None:
    done = cluster.run([*EXEC, "--sudo=nobody-of-that-name", "-w", "n1", "true"])
    assert json.loads(done.stdout.splitlines()[0])["message_code"] == SUDO, done.stderr


def test_hosts_on_which_no_agent_comes_up(cluster: Cluster) -> None:
    for code, text in OF_START.items():
        logs, login = Path(cluster.shared, code), Path(cluster.shared, f"{code}.sh")
        login.write_text(f"#!/bin/sh\nshift\n{text}\n")
        login.chmod(0o755)
        done = cluster.run(
            [*DISPATCH, "--rsh", str(login), "--log-dir", str(logs), "-w", "n1",
             "--python", "/none/python", "--no-python", "true"],
        )  # fmt: skip
        assert done.returncode == 125
        report = json.loads((logs / "latest" / "report.json").read_text())
        told = {host: one["message_code"] for host, one in report["cause"]["failures"].items()}
        assert told == {"n1": code}, done.stderr


def test_a_host_without_the_engine_of_an_image(cluster: Cluster) -> None:
    done = cluster.run([*EXEC, "--container-image", "/none.sif", "-w", "n1", "true"])
    assert json.loads(done.stdout.splitlines()[0])["message_code"] == CONTAINER, done.stderr
