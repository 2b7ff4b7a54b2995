"""The prompt of ``dispatch shell``: read a line, do what it says, again.

Every command is an errand of its own, over connections that the shell keeps. The
standard library's readline edits the line; the history is the user's alone (0600).
Where standard input is no terminal its lines are commands all the same.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from dispatcher.api.here import allow_open_files
from dispatcher.bootstrap import shell as lifeline
from dispatcher.cli.entry import complain, say
from dispatcher.cli.exec import shell_lines
from dispatcher.cli.exec.run_exec import carry_out, limits
from dispatcher.cli.options import becoming
from dispatcher.cli.options.host_options import find_hosts, login
from dispatcher.cli.options.reach import Reach
from dispatcher.jobs.registry import private, state_folder
from dispatcher.model.errors import DispatchError
from dispatcher.model.host_part import Host, Hostlist
from dispatcher.model.hostset import fold
from dispatcher.plan.exec_plan import Errand, targets

MOST_LINES = 1000
#: columns of the hosts' names in the prompt
WIDEST = 40


def run(flags: Mapping[str, Any]) -> int:
    """Read and run commands until the end; the last one's exit code. Raises: UsageError."""
    hosts = find_hosts(flags, say)
    becoming.user(flags)
    limits(flags)
    allow_open_files(len(hosts))
    with Reach(flags, keep=True) as reach:
        shell = Shell(hosts, flags, reach)
        if not os.isatty(0):
            for line in sys.stdin:
                if not shell.obey(line):
                    break
        else:
            with edited(shell.words) as history:
                shell.talk(history)
    return shell.code


class Shell:
    """The state of one shell: its hosts, how it shows output, the last exit code."""

    def __init__(self, hosts: Sequence[Host], flags: Mapping[str, Any], reach: Reach) -> None:
        self._first = self._hosts = tuple(hosts)
        self._flags = flags
        self._reach = reach
        self._login = login(flags)
        self._gather = not flags["live"]
        self.code = 0

    def talk(self, keep: Callable[[], None]) -> None:
        """Read lines at the terminal until the user leaves."""
        while True:
            self._reach.rest(lifeline.COMMAND)
            try:
                line = input(self._prompt())
            except KeyboardInterrupt:
                print()  # the line is forgotten
                continue
            except EOFError:
                print()
                return
            keep()
            if not self.obey(line):
                return

    def obey(self, line: str) -> bool:
        """Do what ``line`` says; False when that is to leave."""
        try:
            match shell_lines.order(line, self._hosts, self._first):
                case shell_lines.Quit():
                    return False
                case shell_lines.Help():
                    print(f"{fold(h.name for h in self._hosts)} ({len(self._hosts)})")
                    print(shell_lines.HELP)
                case shell_lines.Show(gather):
                    self._gather = gather
                case shell_lines.Aim(named):
                    hosts = self._hosts = targets([Hostlist(named)], (), *self._login)
                    allow_open_files(len(hosts))
                    if not os.isatty(0):
                        return True
                    print(f"{fold(host.name for host in hosts)} ({len(hosts)})")
                case shell_lines.Command(text, local=True):
                    self.code = _local(text)
                case shell_lines.Command(text):
                    self.code = self._run(text)
        except DispatchError as error:
            self.code = complain(error)
        return True

    def _run(self, text: str) -> int:
        errand = Errand(
            self._hosts,
            ("/bin/sh", "-c", text),
            limits=limits(self._flags),
            sudo=becoming.user(self._flags),
        )
        shown = {**UNASKED, **self._flags, "gather": self._gather}
        sys.stdout.flush()
        return carry_out(errand, shown, self._reach)

    def _prompt(self) -> str:
        names = fold(host.name for host in self._hosts)
        if len(names) > WIDEST:
            names = f"{len(self._hosts)} hosts"
        return f"{names}> "

    def words(self) -> list[str]:
        """What may complete a word."""
        names = [host.name for host in (*self._first, *self._hosts)]
        return sorted({*shell_lines.WORDS, *names, *(m + name for name in names for m in "+-=")})


#: the flags of exec that the shell does not have
UNASKED: Mapping[str, Any] = {
    "stdin": False, "no_stdin": True, "pty": False, "max_code": False, "no_label": False,
    "gather_all": False, "diff": False, "as_json": False, "timestamps": False,
    "output_dir": None, "error_dir": None, "quiet": False,
    "screen_overflow": "auto", "events": None, "failed_to": None, "retry_failed": None,
}  # fmt: skip


def _local(text: str) -> int:
    """Run ``text`` here; its exit code. Ctrl-C is its own."""
    process = subprocess.Popen(["/bin/sh", "-c", text])
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue
        return code if code >= 0 else 128 - code


@contextmanager
def edited(words: Callable[[], list[str]]) -> Iterator[Callable[[], None]]:
    """Lines can be edited and completed, and are remembered; gives what saves the last one."""
    try:
        import readline
    except ImportError:  # a Python that was built without it
        yield lambda: None
        return
    history = private(state_folder()) / "shell_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(MOST_LINES)
    readline.set_completer_delims(" \t\n;|&")
    readline.set_completer(_completer(words, readline))
    readline.parse_and_bind("tab: complete")
    # Python's marks around pasted text are not for a prompt that is not Python's
    readline.parse_and_bind("set enable-bracketed-paste off")

    def save() -> None:
        with contextlib.suppress(OSError):
            os.close(os.open(history, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            readline.write_history_file(history)

    try:
        yield save
    finally:
        readline.set_completer(None)


def _completer(
    words: Callable[[], list[str]], readline: ModuleType
) -> Callable[[str, int], str | None]:
    found: list[str] = []

    def complete(text: str, state: int) -> str | None:
        if state == 0:
            at_start = not readline.get_line_buffer()[: readline.get_begidx()].strip()
            found[:] = [word for word in words() if word.startswith(text)]
            if at_start and not found and text:
                found[:] = _programs(text)
        return found[state] if state < len(found) else None

    return complete


def _programs(start: str) -> list[str]:
    """Programs of this machine whose names begin so: those of the hosts are like them."""
    names: set[str] = set()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        with contextlib.suppress(OSError):
            names |= {name for name in os.listdir(Path(folder)) if name.startswith(start)}
    return sorted(names)
