"""The command line: from options to a plan to an exit code. ``COMMANDS`` lists the commands.

``console`` is the console script ``dispatch``, ``dsx`` that of the short command, ``main`` the
first as a function. The first word chooses the command; anything else is for ``run``. For a script
with a command's name, type ``./exec`` or ``run exec``. Never here: functions that a program could
also use; they are in ``api``.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # nothing of ours is loaded before ``console`` has begun
    from typing import Any

    from dispatcher.model.errors import DispatchError

#: command -> below this package, the class of its options and the function that does it: by name,
#: since each is loaded when it is needed, and ``--help`` needs the class alone
COMMANDS = {
    "run": ("run.run:RunOptions", "run.launch:launch"),
    "exec": ("exec.exec:ExecOptions", "exec.run_exec:run"),
    "dsx": ("exec.dsx:DsxOptions", "exec.dsx:run"),
    "check": ("checks.check:CheckOptions", "checks.run_check:run"),
    "connect": ("exec.connect:ConnectOptions", "exec.connect:connect"),
    "jobs": ("jobs.jobs:JobsOptions", "jobs.jobs:jobs"),
    "attach": ("jobs.attach:AttachOptions", "jobs.attach:attach"),
    "logs": ("jobs.attach:LogsOptions", "jobs.attach:logs"),
    "again": ("jobs.again:AgainOptions", "jobs.again:again"),
    "diff": ("jobs.diff:DiffOptions", "jobs.diff:diff"),
    "restart": ("jobs.restart:RestartOptions", "jobs.restart:restart"),
    "stop": ("jobs.attach:StopOptions", "jobs.attach:stop"),
    "top": ("jobs.top:TopOptions", "jobs.top:top"),
    "stacks": ("jobs.stacks:StacksOptions", "jobs.stacks:stacks"),
    "profile": ("jobs.profiling:ProfileOptions", "jobs.profiling:profile"),
    "debug": ("jobs.debug:DebugOptions", "jobs.debug:debug"),
    "kill": ("jobs.sweep:KillOptions", "jobs.sweep:kill"),
    "sweep": ("jobs.sweep:SweepOptions", "jobs.sweep:sweep"),
    "get": ("exec.get:GetOptions", "exec.get:get"),
    "report": ("tools.report:ReportOptions", "tools.report:report"),
    "config": ("tools.config:ConfigOptions", "tools.config:config"),
    "completion": ("tools.completion:CompletionOptions", "tools.completion:completion"),
    "explain": ("tools.explain:ExplainOptions", "tools.explain:explain"),
    "hosts": ("tools.hosts:HostsOptions", "tools.hosts:hosts"),
    "import": ("tools.import_:ImportOptions", "tools.import_:translated"),
    "fold": ("tools.fold:FoldOptions", "tools.fold:folded"),
    "put": ("exec.put:PutOptions", "exec.put:put"),
    "shell": ("exec.shell:ShellOptions", "exec.shell:run"),
}

#: new objects until Python looks for cycles: its own 700 costs 3 of 35 ms while modules load, and
#: one look at the 50,000 objects of a loaded launcher 9 ms
LOOK_FOR_CYCLES = 200_000

_LEFT_DEAF = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: the process's own); the exit code.

    Signal handlers are put back, since some commands leave signals ignored.
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
        return int(object_at("tools.completion:answer")(os.environ["_DISPATCH_COMPLETE"]))
    if words == ["help"]:  # as git, docker and kubectl have it
        try:
            print(object_at("help:commands")())
        except OSError as error:
            return not_shown(error)
        return 0
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    command = words.pop(0) if words and words[0] in COMMANDS else ""
    return int(object_at("entry:enter")(command, words))


def object_at(path: str) -> Any:
    """The object at ``module:name``, below this package."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"dispatcher.cli.{module}"), name)


def print_error(error: DispatchError) -> int:
    """Print ``error`` on standard error; its exit code."""
    first, newline, rest = error.message.partition("\n")
    text = f"error: {first} [{error.code}]{newline}{rest}\n"
    if error.hint:
        text += f"  hint: {error.hint}\n"
    _note(harmless(text))
    return error.exit_code


def say(line: str) -> None:
    """Print a note of a command on standard error, one line in one write."""
    _note(harmless(line) + "\n")


def _note(text: str) -> None:
    """Write on standard error, after earlier output; the command goes on where that fails."""
    try:
        if sys.stdout is not None:  # as it is in a program whose standard output is closed
            sys.stdout.flush()
    except OSError:
        pass  # the flush at the end fails as well, and reports it
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - to the end of the process


def print_lines(lines: Iterable[str]) -> None:
    """Print the output of a command on standard output, ``lines`` in one write."""
    sys.stdout.write(harmless("".join(f"{line}\n" for line in lines)))


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """``rows`` as lines with aligned columns. right: the columns of numbers."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(wide[at]) if at in right else cell.ljust(wide[at])
            for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def not_shown(error: OSError) -> int:
    """Say why standard output takes no more, unless its reader left (``| head``); the exit code."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - to the end of the process
    if isinstance(error, BrokenPipeError):
        return 128 + 13
    from dispatcher.model.paths import stream_error

    say(f"error: {stream_error(error)}")
    return 1


def harmless(text: str) -> str:
    """``text`` without the control characters that hosts and files may have put into it."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    from dispatcher.output.text.sanitize import sanitize_paragraph  # for few lines only

    return sanitize_paragraph(text)


def print_json(value: object, indent: int | None = 2) -> None:
    """Print a document, or a list of them, as JSON on standard output, for programs."""
    import json  # most commands print none

    from dispatcher.model.frozen import json_of

    sys.stdout.write(json.dumps(json_of(value), indent=indent) + "\n")


def dsx() -> None:
    """``console`` for the short command."""
    sys.argv.insert(1, "dsx")
    console()


class _StandardStream(io.FileIO):
    """Standard output or error: waits for room where the descriptor does not block."""

    def write(self, data: Any) -> int:
        """Write some of ``data``; the number of bytes written."""
        while (count := super().write(data)) is None:
            # not loaded before every write: loading may itself write (PYTHONVERBOSE)
            from dispatcher.model.paths import await_room

            await_room(self.fileno())
        return count


def _open_standard_streams() -> None:
    """Put /dev/null where a descriptor is closed (``>&-``), and streams that wait for room.

    ``sys.stdin`` stays None: commands that want to read it say that it is closed.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest one that is free
    if sys.stdout is sys.__stdout__:  # else the caller of ``main`` has put another in its place
        sys.stdout = _stream(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(2, sys.stderr)


def _stream(fd: int, before: Any) -> io.TextIOWrapper:
    """A stream to ``fd`` in the place of ``before`` (None: it was closed). It writes characters
    that the locale's encoding lacks as escapes.
    """
    raw = io.BufferedWriter(_StandardStream(fd, "w", closefd=False))
    if before is None:
        return io.TextIOWrapper(raw)
    errors = before.errors.replace("strict", "backslashreplace")
    at_once = before.line_buffering or before.write_through  # a terminal; PYTHONUNBUFFERED
    return io.TextIOWrapper(raw, before.encoding, errors, line_buffering=at_once)


def console() -> None:
    """Run ``main`` as a process: exit with its code, without 30 ms to tear the interpreter down."""
    gc.set_threshold(LOOK_FOR_CYCLES)
    _open_standard_streams()
    # our parent may ignore it, and then each child's exit code would read as 0
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # ``stty tostop``: stopped, we would lose ranks
    try:
        code = _call(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl-C while we were still being loaded
        code = 128 + 2
    except Exception:  # noqa: BLE001 - a bug of ours must not wait for threads that are stuck
        import traceback

        say(traceback.format_exc().rstrip("\n"))
        code = 125  # as ``model.errors`` has it
    try:
        sys.stdout.flush()
    except OSError as error:
        lost = not_shown(error)
        code = code or lost
    _note("")  # which sends text that others have written to it
    os._exit(code)
