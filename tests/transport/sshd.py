"""A real sshd of our own: own keys, own address, started and stopped by the test."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rig import wait_for

ADDRESS = "127.0.0.41"


def keygen(path: Path, *options: str) -> Path:
    """Make a key pair at ``path``."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run([*command, *options], check=True, stdin=subprocess.DEVNULL)
    return path


@dataclass
class Sshd:
    """A running sshd with one host key and one accepted user key."""

    folder: Path
    host_key: Path
    user_key: Path
    port: int
    process: subprocess.Popen[bytes]
    address: str = ADDRESS
    user: str = field(default_factory=getpass.getuser)

    @property
    def log(self) -> list[str]:
        """The lines that it has written until now; a file has them, so none is still on its way."""
        return (self.folder / "log").read_text(errors="replace").splitlines()

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def known_name(self) -> str:
        return f"[{self.address}]:{self.port}"

    def public(self, key: Path | None = None) -> str:
        """Type and base64 of a public key (the host's by default)."""
        words = (key or self.host_key).with_suffix(".pub").read_text().split()
        return " ".join(words[:2])

    def trust(self) -> None:
        """Put the host's key into the known_hosts file."""
        self.known_hosts.write_text(f"{self.known_name} {self.public()}\n")

    def config(self, name: str = "node", extra: str = "", key: Path | None = None) -> str:
        """A config file with this sshd under a host name; returns its path."""
        path = self.folder / f"config-{name}"
        path.write_text(
            f"{extra}\n"
            f"Host {name}\n"
            f"  HostName {self.address}\n"
            f"  Port {self.port}\n"
            f"  User {self.user}\n"
            f"  IdentityFile {key or self.user_key}\n"
            "Host *\n"
            "  IdentitiesOnly yes\n"
            "  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.known_hosts}\n"
            "  GlobalKnownHostsFile none\n"
        )
        return str(path)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def __enter__(self) -> Sshd:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port(address: str = ADDRESS) -> int:
    """A port of the address nobody listens on now."""
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


def start_sshd(folder: Path, *options: str, host_key: Path | None = None) -> Sshd:
    """Start an sshd with extra configuration lines; skips the test where there is none."""
    program = shutil.which("sshd") or "/usr/sbin/sshd"
    if not os.path.exists(program) or shutil.which("ssh-keygen") is None:
        pytest.skip("needs OpenSSH's sshd and ssh-keygen")
    if os.getuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    host_key = host_key or keygen(folder / "host_key")
    user_key = keygen(folder / "user_key")
    accepted = folder / "authorized_keys"
    accepted.write_text(user_key.with_suffix(".pub").read_text())
    port = free_port()
    config = folder / "sshd_config"
    lines = [
        *options,
        f"ListenAddress {ADDRESS}:{port}",
        f"HostKey {host_key}",
        f"AuthorizedKeysFile {accepted}",
        f"SetEnv HOME={folder}",  # where no shell finds the user's start files, and what they start
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "LogLevel VERBOSE",
    ]
    if not any(option.startswith("MaxStartups") for option in options):
        lines.append("MaxStartups 200:30:300")  # of this option the last line wins, not the first
    config.write_text("\n".join(lines) + "\n")
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [program, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    sshd = Sshd(folder, host_key, user_key, port, process)
    _wait_until_listening(sshd)
    sshd.trust()
    return sshd


def _wait_until_listening(sshd: Sshd) -> None:
    def listens() -> bool:
        assert sshd.process.poll() is None, "\n".join(sshd.log)
        return any("Server listening" in line for line in sshd.log)

    wait_for(listens, 60, "sshd is up")
