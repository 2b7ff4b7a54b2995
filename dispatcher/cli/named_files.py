"""Files that the user names, by an option or as an argument: read and written as a whole.

A named file is trusted. Files that only lie in a folder are read by ``options.config_file``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from dispatcher.model.errors import FileUnusable, reason
from dispatcher.model.names import size
from dispatcher.model.paths import anew


def read(who: str, path: str, most: int) -> bytes:
    """The bytes of ``path``, ``most`` at most. Raises: UsageError.

    who: named it, as ``--log FILE``; the file itself where no option did.
    """

    def reading() -> bytes:
        with open(path, "rb") as file:
            return file.read(most + 1)

    found = _worded(who, reading)
    if len(found) > most:
        raise FileUnusable(f"{who}: larger than {size(most)}")
    return found


def expect(who: str, path: str) -> None:
    """See that ``path`` can be written, before the work for it. Raises: UsageError."""

    def looking() -> bytes:
        folder = os.path.dirname(path) or "."
        os.stat(folder)
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return b""

    _worded(who, looking)


def write(who: str, path: str, text: str) -> None:
    """Make ``path`` a file of ``text``. who: as for ``read``. Raises: UsageError."""

    def writing() -> bytes:
        with open(anew(path, 0o666), "w", encoding="utf-8") as file:
            file.write(text)
        return b""

    _worded(who, writing)


def _worded(who: str, work: Callable[[], bytes]) -> bytes:
    try:
        return work()
    except OSError as error:
        raise FileUnusable(f"{who}: {reason(error)}") from None
    except ValueError as error:  # a NUL byte in its name
        raise FileUnusable(f"{who}: {error}") from None
