"""Local files and trees as one tar, complete before any host is touched."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from dispatcher.model.errors import UsageError


@dataclass(frozen=True)
class Packed:
    """A tar of ``names`` in ``file``, an unlinked temporary file at its start; ``size`` bytes."""

    file: BinaryIO
    names: tuple[str, ...]
    size: int

    def read(self, at: int, size: int) -> bytes:
        """Up to ``size`` bytes of the tar from byte ``at``; from any thread."""
        return os.pread(self.file.fileno(), size, at)


def pack(paths: Sequence[str]) -> Packed:
    """The files and trees at ``paths``, each under its last part; links stay links.

    Modes and times (whole seconds) are kept, owners are not.
    Raises: UsageError when one cannot be read, is no file, folder or link, or
    when two have the same name.
    """
    names: list[str] = []
    file = tempfile.TemporaryFile(prefix="dispatch-put-")  # noqa: SIM115 - it is our result
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in paths:
            name = os.path.basename(os.path.abspath(path))
            if not name:
                raise UsageError(f"{path}: cannot be sent as a whole")
            if name in names:
                raise UsageError(f"{path}: there are two of that name: {name}")
            names.append(name)
            _add(archive, path, name)
    size = file.tell()
    file.seek(0)
    return Packed(file, tuple(names), size)


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    try:
        member = archive.gettarinfo(path, name)
        if member is None or not (member.isreg() or member.isdir() or member.issym()):
            if member is None or not member.islnk():
                raise UsageError(f"{path}: not a file, a folder or a link")
            member.type, member.size = tarfile.REGTYPE, os.stat(path).st_size
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        if not member.isreg():
            archive.addfile(member)
        else:
            with open(path, "rb") as content:
                archive.addfile(member, content)
        if member.isdir():
            for entry in sorted(os.listdir(path)):
                _add(archive, os.path.join(path, entry), f"{name}/{entry}")
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
