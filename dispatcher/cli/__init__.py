"""The command line: flags to settings to plan to runner. Thin; one file a command.

``main`` is the console script ``dispatch``. The first word chooses the
command; anything else is the main one, ``run``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: the process's own); returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:
        del words[0]
    from dispatcher.cli.run import main as run

    return run(words)
