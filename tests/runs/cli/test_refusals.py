"""Keys that are unknown and logins that are refused on every host: one row, one remedy."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import promises
import pytest
from rig import Cluster

from ..conftest import PROGRAM

COMMANDS = {
    "run": ["-H", "n[1-4]", "--no-python", "true"],
    "exec": ["exec", "-w", "n[1-4]", "true"],
    "put": ["put", "-w", "n[1-4]", "/etc/hostname", "/tmp/"],
    "get": ["get", "-w", "n[1-4]", "/etc/hostname", "."],
    "check": ["check", "-w", "n[1-4]"],
}


def dispatch(
    cluster: Cluster, command: Sequence[str], config: str
) -> subprocess.CompletedProcess[str]:
    Path(cluster.shared, "config").write_text(config)
    given = [*PROGRAM, *command]
    return cluster.run(["sh", "-c", f"cd {cluster.shared} && {shlex.join(given)} 2>&1"])


def with_options(name: str, *options: str) -> list[str]:
    """The command of that name, reading its ssh_config where it stands."""
    words = list(COMMANDS[name])
    at = 0 if words[0].startswith("-") else 1
    return [*words[:at], "-F", "config", "--connect-timeout", "60", *options, *words[at:]]


def row(said: str, text: str) -> str:
    """The one line that holds ``text``."""
    (line,) = [line for line in said.splitlines() if text in line]
    return line


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_keys_are_one_row(cluster: Cluster, name: str) -> None:
    known = f"{cluster.shared}/known-{name}"
    config = f"Host *\n UserKnownHostsFile {known}\n GlobalKnownHostsFile none\n"
    done = dispatch(cluster, with_options(name), config)
    assert done.returncode == 125
    line = row(done.stdout, "host key unknown")
    assert "n[1-4]" in line
    assert "no key of {host} is on file; it shows ssh-ed25519 {fingerprint}" in line
    hint = row(done.stdout, "hint:")
    assert "--host-keys accept-new  # trusts the key shown now" in hint
    assert f"ssh-keyscan n1 >> {known}" in hint
    again = dispatch(cluster, with_options(name, "--host-keys", "accept-new"), config)
    assert "host key unknown" not in again.stdout
    assert len(Path(known).read_text().splitlines()) == 4


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("transport", ["paramiko", "ssh"])
def test_refused_logins_are_one_row(cluster: Cluster, name: str, transport: str) -> None:
    key = Path(cluster.shared, "stranger")
    if not key.exists():
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    config = f"Host *\n IdentityFile {key}\n IdentitiesOnly yes\n"
    done = dispatch(cluster, with_options(name, "--transport", transport), config)
    assert done.returncode == 125
    line = row(done.stdout, "authentication failed")
    assert "n[1-4]" in line
    if transport == "paramiko":
        assert f"refused: {key}" in line
        assert f"hint: cat {key}.pub  # has to be a line of" in done.stdout
    else:
        assert "@{host}: Permission denied (publickey)" in line
    assert sum("hint:" in one for one in done.stdout.splitlines()) == 1


def test_password_only_hosts_are_told_from_refused_keys(new_cluster: Any) -> None:
    cluster = new_cluster(2, "--sshd", "PubkeyAuthentication no", "--sshd",
                          "PasswordAuthentication yes")  # fmt: skip
    done = cluster.run([*PROGRAM, "exec", "-t", "60", "-w", "n1,n2", "true"])
    assert "n[1-2]  authentication failed: " in done.stderr
    assert "this host takes no keys, only password" in done.stderr
    assert "--transport ssh" not in done.stderr


def test_each_hosts_own_words_are_told_by_v(cluster: Cluster) -> None:
    done = cluster.run([*PROGRAM, "exec", "-v", "-w", "nosuch[1-2]", "true"])
    assert "nosuch[1-2]  name not found: " in done.stderr
    for name in ("nosuch1", "nosuch2"):
        assert f" s: {name}: name not found: {name}: " in done.stderr
    found = cluster.run([*PROGRAM, "check", "-v", "-w", "nosuch[1-2]"]).stdout
    assert found.count("critical: ") == 2


def test_programs_still_read_each_hosts_own_words(cluster: Cluster) -> None:
    done = cluster.run([*PROGRAM, "check", "--json", "-w", "nosuch[1-2]"])
    hosts = promises.told(done.stdout)["hosts"]
    assert hosts["nosuch2"]["problem"].startswith("name not found: nosuch2: ")
