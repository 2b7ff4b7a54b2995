"""Which host and user names may come near a connection: ``bad_target``.

The rules are OpenSSH's own (since 9.6), a little stricter: a name that starts
with ``-`` would be read as an option, and shell characters would live on in a
``ProxyCommand``. Names are checked where the user wrote them and once more
after every expansion, because a harmless pattern can expand to a harmful name.
"""

from __future__ import annotations

import re

from dispatcher.transport.base import Failure, Kind, Target

_HOST = re.compile(r"[A-Za-z0-9_.:%-]{1,255}")  # no "@" and no "/": ssh reads those as more
_USER = re.compile(r"[A-Za-z0-9_.:%@+=~,/^!*?#\\-]{1,255}")
#: What may be put into a shell line without quotes and stay one plain word.
_SHELL_SAFE = re.compile(r"[A-Za-z0-9_.:%@+=,/-]*")


def valid_host(name: str) -> bool:
    """True for a host name or address that is safe as an argument and in a token."""
    return _HOST.fullmatch(name) is not None and not name.startswith("-")


def valid_user(name: str) -> bool:
    """True for a user name that is safe as an argument and in a token."""
    return (
        _USER.fullmatch(name) is not None and not name.startswith("-") and not name.endswith("\\")
    )


def shell_safe(text: str) -> bool:
    """True when a shell takes ``text`` for one word that means itself."""
    return _SHELL_SAFE.fullmatch(text) is not None


def bad_target(target: Target) -> Failure | None:
    """Why no connection to ``target`` may be tried, or ``None``."""
    if not valid_host(target.host):
        return Failure(Kind.CONFIG, f"bad host name: {target.host[:80]!r}")
    if target.user is not None and not valid_user(target.user):
        return Failure(Kind.CONFIG, f"bad user name: {target.user[:80]!r}")
    if target.port is not None and not 0 < target.port < 65536:
        return Failure(Kind.CONFIG, f"bad port: {target.port}")
    return None
