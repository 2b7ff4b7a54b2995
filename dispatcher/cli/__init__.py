"""The command line: flags to settings to plan to runner. Thin; one file a command.

``console`` is the console script ``dispatch``, ``main`` the same as a function.
The first word chooses the command; anything else is the main one, ``run``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: the process's own); returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:
        del words[0]
    from dispatcher.cli.run import main as run

    return run(words)


def console() -> None:
    """``main`` as a process: exits with its code, without tearing the interpreter down.

    By then every file is closed and every thread has ended or is stuck; taking
    apart the modules of a crypto library would only cost another 30 ms.
    """
    try:
        code = main()
    except KeyboardInterrupt:  # Ctrl-C while we were still being loaded
        code = 128 + 2
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 1  # what we had to say did not arrive
    os._exit(code)
