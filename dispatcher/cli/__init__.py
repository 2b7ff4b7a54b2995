"""The command line: options to plan to exit code. Thin; one file a command.

``console`` is the console script ``dispatch``, ``main`` the same as a function.
The first word chooses the command; anything else is the main one, ``run``. A
script of a command's name is reached by ``./exec`` or ``run exec``. Never here: what
a program could want as well, which is in ``api``.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence

from dispatcher.cli.command_table import COMMANDS

#: new objects, less those freed, until we look for cycles among them; Python's 700 means a
#: hundred looks, at what is no rubbish, while modules are being loaded: 6 of 100 ms
_LOOK_FOR_CYCLES = 50_000

_LEFT_DEAF = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: the process's own); the exit code.

    Handlers of signals, which some commands leave deaf to the end of the process,
    are afterwards as they were.
    """
    before = {number: signal.getsignal(number) for number in _LEFT_DEAF}
    try:
        return _call(list(sys.argv[1:] if arguments is None else arguments))
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _call(words: list[str]) -> int:
    if "_DISPATCH_COMPLETE" in os.environ:  # a shell asks what may follow
        from dispatcher.cli.tools.completion import answer

        return answer(os.environ["_DISPATCH_COMPLETE"])
    if words[:1] == ["help"]:  # as git, docker and kubectl have it; ``help exec`` too
        words = [*words[1:2], "--help"]
    command = words.pop(0) if words and words[0] in COMMANDS else "run"
    module = importlib.import_module(f"dispatcher.cli.{COMMANDS[command]}")
    code: int = module.main(words)
    return code


def console() -> None:
    """``main`` as a process: exits with its code, without tearing the interpreter down.

    By then every file is closed and every thread has ended or is stuck; taking
    apart the modules of a crypto library would only cost another 30 ms.
    """
    gc.set_threshold(_LOOK_FOR_CYCLES)
    try:
        code = _call(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl-C while we were still being loaded
        code = 128 + 2
    except Exception:  # noqa: BLE001 - a bug of ours must not wait for threads that are stuck
        import traceback

        traceback.print_exc()
        code = 125  # as ``exitcodes`` has it
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 1  # what we had to say did not arrive
    os._exit(code)
