"""Looks at the files that a program's arguments name, and for the modules that its script imports.

It travels only to the hosts of a run that has some. It imports no module and starts no Python: it
looks into the folders that the ranks' Python would search, for a limited time.
"""

from __future__ import annotations

import os
from time import monotonic
from zlib import crc32

from dispatcher.remote.host.process import expand, program_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: seconds for all files, and for all modules
SECONDS = 0.05
#: files of a folder at most; bytes that are read of each, and of a file that is named itself
MOST_FILES, MOST_BYTES, MOST_ALONE = 1000, 64 << 10, 1 << 20


def compared(
    check: dict[str, bytes], cwd: bytes, path: bytes | None, about: Callable[[bytes], object]
) -> tuple[list[list[Any]], list[bool]]:
    """The facts about ``check["named"]`` and ``check["modules"]``; cwd, path: of the ranks.

    about: called with a path before it is read, because that read may never return.
    """
    until, rows = monotonic() + SECONDS, []
    for name in check["named"].split(b"\0") if "named" in check else ():
        about(os.path.join(cwd, name))
        rows.append(look(os.path.join(cwd, name), until))
    about(cwd)
    python = [os.path.join(cwd, one) for one in program_paths(check.get("program", b""), path)]
    paths = check.get("pythonpath", os.environb.get(b"PYTHONPATH", b""))
    own = [check.get("code", b""), *filter(None, expand(paths).split(b":"))]
    try:
        if "modules" in check:
            folders = next((searched(one) for one in python if os.access(one, os.X_OK)), [])
            folders += [os.path.join(cwd, one) for one in own if folders]
            return rows, present(check["modules"].split(), folders)
    except OSError:
        pass  # not known
    return rows, []


def look(path: bytes, until: float) -> list[Any]:
    """[CRC-32 of the content, the same of what only this very file has, whether all was read].

    The first is None if there was no time, the second if the file is not there. Hosts that share a
    file system have the second in common.
    """
    try:
        status = os.stat(path)
    except OSError:
        return [None, None, True]
    known, left = status.st_mode >> 12, [MOST_FILES]
    itself = crc32(b"%d %d" % (status.st_ino, status.st_ctime_ns))
    try:
        if known == 4:
            known = _folder(path, 0, until, left)
        elif known == 8:  # a pipe would wait for its writer
            known = crc32(_read(path, until, MOST_ALONE), status.st_size & 0xFFFFFFFF)
    except OSError:
        return [None, itself, False]
    return [known, itself, left[0] >= 0]


def _folder(folder: bytes, total: int, until: float, left: list[int]) -> int:
    """``total`` with the names, sizes and beginnings of the files below ``folder``.

    left: how many files may be looked at; less than 0 if there are more. Equal folders give
    equal results then, too. Raises: OSError, also when time is up.
    """
    items = []
    with os.scandir(folder) as there:
        for item in there:
            items.append(item)
            if len(items) > left[0]:
                left[0] = -1
                return total
    for item in sorted(items, key=lambda item: item.name):
        if item.name[:1] != b"." and item.name != b"__pycache__":
            total = crc32(item.name, total)
            if item.is_dir(follow_symlinks=False):
                total = _folder(item.path, total, until, left)
            elif item.is_file():
                left[0] -= 1
                total = crc32(b"%d" % item.stat().st_size, total)
                total = crc32(_read(item.path, until), total)
    return total


def searched(python: bytes) -> list[bytes]:
    """The folders of the Python at the path ``python``; [] for a script. Raises: OSError."""
    real, own = os.path.realpath(python), os.path.dirname(os.path.dirname(python))
    if _read(python)[:4] != b"\x7fELF":
        return []
    places, prefixes, config = [], [own], own + b"/pyvenv.cfg"  # of a virtual environment
    text = _read(config).replace(b" ", b"") if os.path.isfile(config) else b""
    if not text or b"include-system-site-packages=true" in text:
        prefixes += [os.path.dirname(os.path.dirname(real)), os.path.expanduser(b"~/.local")]
    for lib in [one + two for one in prefixes for two in (b"/lib/", b"/lib64/", b"/local/lib/")]:
        for name in os.listdir(lib) if os.path.isdir(lib) else ():
            if name in (os.path.basename(real), b"python3") or (text and name[:7] == b"python3"):
                inner = lib + name
                places += [inner, inner + b"/site-packages", inner + b"/dist-packages"]
    return places


def present(names: list[bytes], folders: list[bytes]) -> list[bool]:
    """Whether each of ``names`` is in one of ``folders``; [] without folders. Raises: OSError."""
    until, links = monotonic() + SECONDS, b""
    there: set[bytes] = set()
    for folder in filter(os.path.isdir, folders):
        for name in os.listdir(folder):
            there.add(name.partition(b".")[0])
            if name[-4:] == b".pth":  # lines that are folders; others are code
                lines = _read(os.path.join(folder, name), until).split()
                more = [os.path.join(folder, line) for line in lines]
                folders += [one for one in more if one not in folders]
            elif name[:12] == b"__editable__":
                links += _read(os.path.join(folder, name), until)
    return [name in there or b"'%s'" % name in links for name in names if folders]


def _read(path: bytes, until: float = float("inf"), most: int = MOST_BYTES) -> bytes:
    """The beginning of a file. Raises: OSError, also when time is up."""
    if monotonic() > until:
        raise TimeoutError
    with open(path, "rb") as file:
        return file.read(most)
