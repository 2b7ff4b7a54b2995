"""Names that this machine knows: of hosts, groups, jobs, profiles; for shells and for suggestions.

Hosts come from ssh's own files, read as plain text: names that are hashed there, or patterns, are
nobody's to know. Nothing here fails; what cannot be read is not known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from dispatcher.model.errors import UsageError

_MOST_BYTES = 4 << 20
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_ADDRESS = re.compile(r"[0-9.]+\Z")
#: of a line of a hostfile, in any dialect, its first word
_FIRST = re.compile(r"\s*(?:[\w.-]+@)?([A-Za-z0-9][\w.-]*)")


def hosts(config: str | None = None) -> list[str]:
    """Names of hosts in known_hosts and ssh_config, sorted. config: the file of ``-F``."""
    folder = os.path.expanduser("~/.ssh")
    config = config or os.environ.get("DISPATCH_SSH_CONFIG")
    files = (
        (_of_known_hosts, "/etc/ssh/ssh_known_hosts"),
        (_of_known_hosts, os.path.join(folder, "known_hosts")),
        (_of_config, "/etc/ssh/ssh_config"),
        (_of_config, config or os.path.join(folder, "config")),
    )
    names: dict[str, None] = {}
    for reader, path in files:
        names |= dict.fromkeys(name for name in reader(_lines(path)) if _PLAIN.match(name))
    return sorted(names)


def hosts_of(hostfile: str) -> list[str]:
    """The first word of each line of ``hostfile``, where that may be a host."""
    found = (_FIRST.match(line.partition("#")[0]) for line in _lines(hostfile))
    return [match[1] for match in found if match]


def groups(typed: str = "@") -> list[str]:
    """Groups of ClusterShell's files, as ``@name``; with a source if ``typed`` begins with one."""
    from dispatcher.model.hostset import group_names

    return group_names(typed)


def jobs() -> list[tuple[str, str]]:
    """(run id, state and program) of each job on record, the newest first."""
    from dispatcher.jobs import registry
    from dispatcher.output.text.sanitize import sanitize_text

    return [
        (job.run_id, f"{job.phase}: {sanitize_text(' '.join(job.program))}")
        for job in reversed(registry.jobs())
    ]


def profiles() -> list[str]:
    """Profiles of the files that there are."""
    from dispatcher.cli.options.option_defaults import read

    try:
        return sorted({name for file in read() for name in file.profiles})
    except UsageError:
        return []


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES).splitlines()
    except (OSError, ValueError):
        return []


def _of_known_hosts(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        words = line.split()
        if words and words[0].startswith("@"):
            words = words[1:]
        if words and not words[0].startswith(("#", "|")):
            for name in words[0].split(","):
                yield name.partition("]")[0].lstrip("[")


def _of_config(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        words = re.split(r"[\s=]+", line.strip())
        if words[0].lower() == "host":
            yield from words[1:]
