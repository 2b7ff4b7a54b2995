"""Keys and configuration files of sshd and of its clients.

sshd's defaults get in the way of a launcher in ways that should be chosen, not met by chance:
``MaxStartups`` drops connections at random above 10 at once, so it is set on purpose here and
may be set low by a test of exactly that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from .entry import roots_path
from .layout import Member, RigError

MAX_STARTUPS = "100:30:200"


def binary() -> str:
    """The absolute path of sshd, which it needs to start itself anew.

    Raises: RigError when OpenSSH's server is not installed.
    """
    path = shutil.which("sshd", path=roots_path())
    if path is None:
        raise RigError("sshd: not found: the rig needs it\n  hint: apt-get install openssh-server")
    return path


def new_key(path: str, comment: str) -> str:
    """Make an ed25519 key without passphrase at ``path``; return the public line."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    with open(path + ".pub") as file:
        return file.read().strip()


def known_hosts_line(member: Member, public: str) -> str:
    names = [member.name, member.address]
    if member.port != 22:
        names = [f"[{name}]:{member.port}" for name in names]
    return f"{','.join(names)} {' '.join(public.split()[:2])}\n"


def server_config(*, listen: str, port: int, host_key: str, keys: str, more: Iterable[str]) -> str:
    """The text of one host's sshd_config; lines of ``more`` replace ours of the same keyword."""
    lines = [
        f"ListenAddress {listen}",
        f"Port {port}",
        f"HostKey {host_key}",
        f"AuthorizedKeysFile {keys}",
        "PidFile none",
        "UsePAM no",
        "UseDNS no",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        f"MaxStartups {MAX_STARTUPS}",
        "ClientAliveInterval 0",
        "PrintMotd no",
        "PrintLastLog no",
        "AcceptEnv LANG LC_*",
        "Subsystem sftp internal-sftp",
    ]
    # Not by order: for most keywords sshd takes the first line, for MaxStartups the last.
    chosen = list(more)
    said = {line.split()[0].lower() for line in chosen}
    chosen += [line for line in lines if line.split()[0].lower() not in said]
    return "\n".join(chosen) + "\n"


def write_private(path: str, text: str) -> str:
    """Write ``text`` readable by its owner only, replacing what was there; return ``path``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
    return path


def listening(port: int, address: str | None = None) -> bool:
    """Whether a TCP socket of this network namespace listens on ``port`` (and IPv4 ``address``)."""
    wanted = f":{port:04X}"
    if address is not None:
        wanted = "".join(f"{int(part):02X}" for part in reversed(address.split("."))) + wanted
    with open("/proc/net/tcp") as file:
        for line in file:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A" and fields[1].endswith(wanted):
                return True
    return False
