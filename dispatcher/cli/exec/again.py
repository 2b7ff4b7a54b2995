"""The hosts that failed, as a hostfile: written by ``--failed-to``, read by ``--retry-failed``.

Each line has the host as it was named and why it failed as a comment; dispatch
reads it like any hostfile, and it may be edited. When nothing failed the file
holds only its first comment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dispatcher.core.events.exec_events import Outcome, is_good
from dispatcher.model.errors import UsageError
from dispatcher.model.host_part import Host, Hostlist
from dispatcher.output.exec.exec_notes import words
from dispatcher.plan.hosts.hostfile import parse_hostfile

_HEAD = "# hosts that failed, by dispatch exec\n"
_MOST = 16 << 20


def read(path: str, said: str) -> Hostlist | None:
    """The hosts in the file that ``said`` names; None: there is none in it. Raises: UsageError."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST)
    except OSError as error:
        why = (error.strerror or "").lower()
        raise UsageError(f"{said}: {path}: {why}") from None
    lines = (line.strip() for line in text.splitlines())
    if text and all(not line or line.startswith(b"#") for line in lines):
        return None
    return parse_hostfile(text, path, slots=False)


def write(path: str, hosts: Sequence[Host], outcomes: Sequence[Outcome]) -> None:
    """Replace the file by the hosts whose outcome was not good. Raises: OSError."""
    lines = [_HEAD]
    for host, outcome in zip(hosts, outcomes, strict=True):
        if is_good(outcome):
            continue
        line = host.name
        if host.user is not None:
            line += f" user={host.user}"
        if host.port is not None:
            line += f" port={host.port}"
        lines.append(f"{line}  # {' '.join(words(outcome).split())}\n")
    beside = f"{path}.{os.getpid()}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(lines)
    os.replace(beside, path)
