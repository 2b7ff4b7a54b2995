"""Why nobody was let in, and what to do about it: a login that is refused, in words to paste.

The same for the built-in client and for the system's ``ssh``. That one is run with BatchMode and
types no passwords either, so it is no way out for a host that takes nothing else.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from dispatcher.transport.base import Failure, Kind
from dispatcher.transport.ssh_auth.identities import Candidate, Identities
from dispatcher.transport.ssh_config.host_config import HostConfig

#: a login by these needs somebody who types
_TYPED = frozenset({"password", "keyboard-interactive"})
_KERBEROS = "--transport ssh  # the system's ssh can log in by Kerberos"
#: methods that a host is let name, and letters of each
_MOST, _LONGEST = 8, 40


def methods(offered: Sequence[str]) -> tuple[str, ...]:
    """The ways to log in that a host has ``offered``, made fit for a message."""
    named = ("".join(c for c in name if c.isascii() and c.isprintable()) for name in offered)
    return tuple(name[:_LONGEST] for name in named if name)[:_MOST]


def refused(
    config: HostConfig,
    identities: Identities,
    tried: Sequence[Candidate],
    offered: tuple[str, ...],
    *,
    more: bool,
) -> Failure:
    """The failure of a login with the keys ``tried`` on a host that takes what it ``offered``.

    more: a key was right, but not enough.
    """
    user, login, port = config.user, f"{config.user}@{config.name}", config.port
    if more:
        why = f"{user}: a key is not enough for this host: it wants {', '.join(offered)} as well"
        return Failure(Kind.AUTH, why, _wants_more(offered))
    if offered and "publickey" not in offered:
        why = f"{user}: this host takes no keys, only {', '.join(offered)}"
        return Failure(Kind.AUTH, why, takes_no_key(offered))
    unusable = {
        path: notice
        for notice in identities.notices
        for path in config.identity_files
        if notice.startswith((f"{path}:", f"{path}-cert.pub:"))
    }
    said = [f"refused: {', '.join(one.label for one in tried)}"] if tried else []
    why = f"{user}: {'; '.join([*said, *list(unusable.values())[:3]])}"
    for path, notice in unusable.items():
        if "passphrase" in notice:
            return Failure(Kind.AUTH, why, f"ssh-add {shlex.quote(path)}")
    if tried:
        files = [one.path for one in tried if one.path is not None]
        return Failure(Kind.AUTH, why, refused_key(login, port, offered, files[0] if files else ""))
    if unusable:
        return Failure(Kind.AUTH, why, f"ssh -v {shlex.quote(config.name)} true")
    why = f"{user}: there is no key to log in with: {identities.missing(config)}"
    hint = "ssh-keygen -t ed25519"
    if _TYPED.intersection(offered):
        hint += f" && {shlex.join(['ssh-copy-id', *_port(port), login])}"
    else:
        hint += "  # and have its public half put into the authorized_keys there"
    return Failure(Kind.AUTH, why, hint)


def refused_key(login: str, port: int | None, offered: Sequence[str], file: str = "") -> str:
    """What to do where all our keys were refused. login: ``me@n1``; file: of one of them."""
    user, _, host = login.rpartition("@")
    other = "or is it another user there? --user NAME"
    public = f"{file}.pub" if file and os.path.exists(f"{file}.pub") else ""
    if _TYPED.intersection(offered):  # ssh-copy-id asks for what is to be typed
        words = ["ssh-copy-id", *(("-i", public) if public else ()), *_port(port), login]
        return f"{shlex.join(words)}  # {other}"
    if public:
        where = f"~{user}/.ssh/authorized_keys" if user else "authorized_keys"
        return f"cat {shlex.quote(public)}  # has to be a line of {where} there; {other}"
    return f"ssh -v {shlex.quote(host)} true  # {other}"


def takes_no_key(offered: Sequence[str]) -> str:
    """What to do about a host that lets nobody in by a key."""
    if _has_kerberos(offered):
        return _KERBEROS
    return "PubkeyAuthentication yes  # in its sshd_config: nobody types a password for dispatch"


def _wants_more(offered: Sequence[str]) -> str:
    if _has_kerberos(offered):
        return _KERBEROS
    return "AuthenticationMethods publickey  # in its sshd_config: nobody answers its prompts here"


def _has_kerberos(offered: Sequence[str]) -> bool:
    return any(name.startswith("gssapi") for name in offered)


def _port(port: int | None) -> tuple[str, ...]:
    return () if port in (None, 22) else ("-p", str(port))
