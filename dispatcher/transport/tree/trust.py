"""What an inner host is told to reach one below it: the words of its ``ssh``, and host keys.

The inner host's own configuration, keys and names count; whom to trust does not depend on
it. It gets the lines of *our* known_hosts for the host (revoked keys and authorities too),
under one name, and nothing else: no file of its own, no key learned, no connection shared.
A host that we have no key of is not reached through anybody.

The key exchange is the one we use ourselves, unless ssh_config here names another: that
which OpenSSH 9 prefers costs 60 ms of processor time a connection, curve25519 a few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dispatcher.model.failure import Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.transport.base import Target
from dispatcher.transport.ssh_auth.known_hosts import KnownHostsFiles, lookup_name
from dispatcher.transport.ssh_config.ssh_config import SshConfig

#: sh of any login shell reads what to run, so no quoting of it depends on that shell
COMMAND = "exec /bin/sh -c 'IFS= read -r s;eval \"$s\"'"
_MARKER = SYNC.replace(b"\0", b"\\000").replace(b"\n", b"\\n").decode()

_OPTIONS = {
    "BatchMode": "yes",
    "ServerAliveInterval": "0",  # the agent's heartbeat decides who is lost
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "ControlMaster": "no",  # a shared connection was judged by somebody else's keys
    "ControlPath": "none",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "CheckHostIP": "no",
    "VerifyHostKeyDNS": "no",
    "UpdateHostKeys": "no",
    "LogLevel": "ERROR",  # a banner is no reason
}

_EXCHANGE = "^curve25519-sha256"


@dataclass(frozen=True)
class Trusted:
    """A host's name in ``lines`` of known_hosts. exchange: the key exchange to prefer, or None."""

    alias: str
    lines: str
    exchange: str | None


class Trust:
    """Looks up host keys as ``ssh_config`` says. config: as ``ssh -F``, None for the usual."""

    def __init__(self, config: str | None = None) -> None:
        self._config = SshConfig(config)
        self._files = KnownHostsFiles()

    def of(self, target: Target) -> Trusted | Failure:
        """What is known here of ``target``."""
        config = self._config.resolve(target)
        if isinstance(config, Failure):
            return config
        index = self._files.index((*config.user_known_hosts, *config.global_known_hosts))
        name = lookup_name(config.host, config.port, config.known_as)
        found = index.keys_of(name)
        if not found and config.known_as is None and config.port != 22:
            revoked = found.revoked
            found = index.keys_of(config.host)  # a key of the bare name serves every port
            found = replace(found, revoked=(*revoked, *found.revoked))
        if not found:
            return Failure(Kind.HOST_KEY_UNKNOWN, f"no key of {name} is on file here")
        alias = config.known_as or config.host
        lines = [
            f"{entry.marker} {alias} {entry.kind} {entry.text}\n".lstrip()
            for entry in (*found.revoked, *found.authorities, *found.keys)
        ]
        exchange = None if "kexalgorithms" in dict(config.algorithms) else _EXCHANGE
        return Trusted(alias, "".join(lines), exchange)


def ssh(target: Target, known: Trusted, seconds: float, program: tuple[str, ...]) -> list[str]:
    """The words by which an inner host reaches ``target``. seconds: to connect."""
    words = [*program, "-T", "-o", tree_relay.KNOWN.decode()]
    options = {
        **_OPTIONS,
        "HostKeyAlias": known.alias,
        "ConnectTimeout": str(max(1, math.ceil(seconds))),
    }
    if known.exchange is not None:
        options["KexAlgorithms"] = known.exchange
    for option, value in options.items():
        words += ["-o", f"{option}={value}"]
    if target.user is not None:
        words += ["-l", target.user]
    if target.port is not None:
        words += ["-p", str(target.port)]
    return [*words, "--", target.host, COMMAND]


def opening(command: str) -> bytes:
    """What that ssh's command reads first: say that we are there, then run ``command``."""
    return f"printf '{_MARKER}';unset s;{command}\n".encode("utf-8", "surrogateescape")
