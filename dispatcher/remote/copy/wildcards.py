"""Paths with wildcards: what they stand for on a host, and whether a name can be one of theirs.

As in shells: ``*`` and ``?`` stand for anything in a name but a dot at its beginning, ``[a-c]`` for
one of these. Both ends judge by the same rules. Sent only where it is needed.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def has_wildcards(path: str) -> bool:
    """Whether ``path`` has a character that may stand for others."""
    return any(char in path for char in "*?[")


def split(path: str) -> tuple[str, list[str]]:
    """The folder before the first part with wildcards, and all parts from that on."""
    parts = path.split("/")
    first = next(at for at, part in enumerate(parts) if has_wildcards(part))
    folder = "/".join(parts[:first])
    rest = [part for part in parts[first:] if part not in ("", ".")]
    return (folder or "/") if first else "", rest


def matches(name: str, part: str) -> bool:
    """Whether ``part`` of a path with wildcards stands for ``name``."""
    from fnmatch import fnmatchcase

    if not has_wildcards(part):
        return name == part
    return name.startswith(".") <= part.startswith(".") and fnmatchcase(name, part)


def asked_for(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether ``names``, of a file or of one in a folder that matches, begin as ``parts`` say."""
    return len(names) >= len(parts) and all(map(matches, names, parts))


def expand(folder: str, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What ``parts`` stand for in ``folder``, sorted: where each is, and its path from there on.

    Folders that cannot be listed are empty, as they are to a shell.
    """
    inner, rest = parts[0], parts[1:]
    if has_wildcards(inner):
        try:
            found = sorted(name for name in os.listdir(folder or ".") if matches(name, inner))
        except OSError:
            return
    else:
        found = [inner] if os.path.lexists(os.path.join(folder, inner)) else []
    for name in found:
        place = os.path.join(folder, name)
        if not rest:
            yield place, name
            continue
        for deeper, path in expand(place, rest):
            yield deeper, f"{name}/{path}"
