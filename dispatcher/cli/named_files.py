"""Files that the user names, by an option or as an argument: read and written as a whole.

A named file is trusted. ``options.config_file`` reads files that are merely in a folder.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dispatcher.model.errors import FileUnusable, reason
from dispatcher.model.names import size
from dispatcher.model.paths import create_file, open_anew


def read(who: str, path: str, most: int) -> bytes:
    """The bytes of ``path``, ``most`` at most. Raises: UsageError.

    who: the option with its value, as ``--log FILE``; the file itself where no option named it.
    """
    with _worded(who), open(path, "rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise FileUnusable(f"{who}: larger than {size(most)}")
    return found


def expect(who: str, path: str) -> None:
    """Check that ``path`` can be written, before the work for it. Raises: UsageError."""
    with _worded(who):
        folder = os.path.dirname(path) or "."
        os.stat(folder)
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write(who: str, path: str, text: str) -> None:
    """Make ``path`` a file of ``text``. who: as for ``read``. Raises: UsageError."""
    with _worded(who), open(open_anew(path, 0o666), "w", encoding="utf-8") as file:
        file.write(text)


def create(who: str, path: str) -> None:
    """Make the new, empty file ``path``, for ``who`` as in ``read``. Raises: UsageError."""
    with _worded(who):
        os.close(create_file(path, 0o666))


@contextmanager
def _worded(who: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileUnusable(f"{who}: {reason(error)}") from None
    except ValueError as error:  # a NUL byte in its name
        raise FileUnusable(f"{who}: {error}") from None
