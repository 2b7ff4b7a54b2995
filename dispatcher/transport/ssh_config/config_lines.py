"""``%`` tokens, ``${VARIABLES}`` and ``~`` in the values of an ``ssh_config``.

Each option allows its own set of tokens; any other is an error, as in ssh.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.transport.host_names import shell_safe
from dispatcher.transport.ssh_config.config_lines_part import ConfigProblem

HOSTNAME = "h"
PROXY = "hnpr"
FILES = "CdhijkLlnpru"

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True)
class Local:
    """This side of the connection: who and where we are."""

    user: str
    uid: int
    home: str
    host: str

    @classmethod
    def here(cls) -> Local:
        """The facts of this process. The home is the account's, as in ssh, not ``$HOME``."""
        uid = os.getuid()
        try:
            entry = pwd.getpwuid(uid)
            user, home = entry.pw_name, entry.pw_dir
        except KeyError:
            user, home = os.environ.get("USER", str(uid)), os.path.expanduser("~")
        return cls(user, uid, home, socket.gethostname())


def token_values(
    local: Local, *, original: str, host: str, port: str, user: str, alias: str | None, jump: str
) -> dict[str, str]:
    """What each token stands for, for one host."""
    seen = local.host + host + port + user + jump
    return {
        "C": hashlib.sha1(seen.encode(), usedforsecurity=False).hexdigest(),
        "d": local.home,
        "h": host,
        "i": str(local.uid),
        "j": jump,
        "k": alias or original,
        "L": local.host.partition(".")[0],
        "l": local.host,
        "n": original,
        "p": port,
        "r": user,
        "u": local.user,
    }


def expand(text: str, values: Mapping[str, str], allowed: str, place: str) -> str:
    """The text with its tokens replaced.

    Raises: ConfigProblem for a token that is unknown or not allowed here.
    """
    return _expand(text, values, allowed, place, for_shell=False)


def expand_for_shell(text: str, values: Mapping[str, str], allowed: str, place: str) -> str:
    """As ``expand``, for a line that a shell will read.

    Raises: ConfigProblem also when a value would not stay one plain word there.
    """
    return _expand(text, values, allowed, place, for_shell=True)


def _expand(
    text: str, values: Mapping[str, str], allowed: str, place: str, *, for_shell: bool
) -> str:
    parts = []
    at = 0
    while (found := text.find("%", at)) >= 0:
        parts.append(text[at:found])
        at = found + 2
        letter = text[found + 1 : at]
        if letter == "%":
            parts.append("%")
        elif letter and letter in allowed and letter in values:
            if for_shell and not shell_safe(values[letter]):
                raise ConfigProblem(
                    f"{place}: %{letter} stands for {values[letter][:80]!r}, "
                    "which a shell would not take as one word"
                )
            parts.append(values[letter])
        else:
            raise ConfigProblem(f"{place}: token %{letter} is not allowed here")
    parts.append(text[at:])
    return "".join(parts)


def expand_variables(text: str, environ: Mapping[str, str], place: str) -> str:
    """The text with each ``${NAME}`` replaced.

    Raises: ConfigProblem when a variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in environ:
            raise ConfigProblem(f"{place}: ${{{name}}} is not set")
        return environ[name]

    return _VARIABLE.sub(value, text)


def expand_home(path: str, local: Local, place: str) -> str:
    """The path with a leading ``~`` or ``~user`` replaced.

    Raises: ConfigProblem for a user that does not exist.
    """
    if not path.startswith("~"):
        return path
    user, slash, rest = path[1:].partition("/")
    if not user:
        return local.home.rstrip("/") + slash + rest if slash else local.home
    try:
        return pwd.getpwnam(user).pw_dir.rstrip("/") + slash + rest
    except KeyError:
        raise ConfigProblem(f"{place}: ~{user}: no such user") from None
