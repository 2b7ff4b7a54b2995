"""This machine: the folder we are in, the program named, the Python it would have, open files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from dispatcher.model.errors import UsageError

#: descriptors that one host may take (--transport ssh: three pipes and a process)
FILES_PER_HOST = 4


def cwd_of(chdir: str | None) -> str:
    """The folder the ranks start in, by the name the user's shell gives it.

    A home directory may be a link that leads elsewhere on other hosts, so the
    logical path is kept where it is this folder.
    """
    here = os.getcwd()
    logical = os.environ.get("PWD", "")
    if logical.startswith("/") and os.path.realpath(logical) == os.path.realpath(here):
        here = logical
    return here if chdir is None else os.path.join(here, chdir)


def is_program(path: str) -> bool:
    """Whether the file ``path`` is what Python cannot run: machine code, or a shell's script.

    False in doubt: it may be no file of this machine, and what is a script of Python to some
    begins as one of a shell.
    """
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF" or path.endswith((".sh", ".bash"))
    except (OSError, ValueError):
        return False


def python_of(environ: Mapping[str, str]) -> str:
    """The ranks' Python: the active environment's, else the one dispatch runs in."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = environ.get(name)
        if folder and os.access(path := os.path.join(folder, "bin", "python"), os.X_OK):
            return path
    return sys.executable or "python3"


def allow_open_files(n_hosts: int) -> None:
    """Make room for the descriptors of ``n_hosts`` links, if the soft limit is too low.

    Only then: the limit is inherited, and programs that use select(2) rely on
    the usual one. Raises: UsageError if the hard limit is too low as well.
    """
    import resource

    needed = FILES_PER_HOST * n_hosts + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(
            f"{n_hosts} hosts need {needed} open files, at most {hard} are allowed",
            hint=f"ulimit -n {needed}  # or ask who set the limit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
