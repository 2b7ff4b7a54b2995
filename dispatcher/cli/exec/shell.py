"""``dispatch shell``: a prompt for many hosts, whose connections stay open.

Lines at the prompt::

    uptime -p         a command for the hosts, as shell text
    cd /tmp           the folder of the next commands;  cd  as at the start
    !!                the last command again
    !ls               a command of this machine
    +n05  -n07        more hosts, fewer hosts
    @gpu  =n[1-4]     only these hosts;  =all the hosts of the start
    ?                 the present hosts, and these lines
    :gather :no-gather    equal output once, or lines as they come
    quit              the end, like Ctrl-D

Every line runs its own fan-out command, over connections that the shell keeps. So the state of one
is gone with it, except for the folder: a host is asked once where a cd leads, and each
command goes there. The standard library's readline edits the line; the history is the user's alone
(0600). Without a terminal, the lines of standard input are the commands.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dispatcher.api.transports import allow_open_files
from dispatcher.bootstrap.shell import COMMAND
from dispatcher.cli import print_error, say
from dispatcher.cli.exec.exec import ExecOptions, GatherOptions
from dispatcher.cli.exec.run_exec import carry_out, is_one_pipe, limits, percent
from dispatcher.cli.options.connect_options import LoginTransports, show_only
from dispatcher.cli.options.declaration import converted, preset, replace
from dispatcher.cli.options.host_options import (
    KeepOptions,
    LimitOptions,
    LoginOptions,
    SudoOptions,
    VariableOptions,
    WhereOptions,
    env_variables,
    find_hosts,
    login_defaults,
    sudo_user,
)
from dispatcher.model.errors import DispatchError, NoHosts, UsageError
from dispatcher.model.host import Host, Hostlist
from dispatcher.model.hostset import fold
from dispatcher.model.paths import private_folder, state_folder
from dispatcher.plan.exec_plan import ExecPlan, target_hosts
from dispatcher.plan.hosts.hostfile import parse_inline
from dispatcher.remote.protocol.frames import STDOUT

if TYPE_CHECKING:
    from dispatcher.output.exec.host_results import HostResult


class PromptOptions(GatherOptions, section="Output"):
    """The form of the output; options that keep the output of one command are left out."""

    as_json: bool = False
    output_dir: str | None = None
    error_dir: str | None = None
    no_gather: bool = preset(
        help="Show lines as they come, like -N and -T.",
        usual="equal output once, when the command has ended",
    )


class ShellOptions(
    WhereOptions,
    VariableOptions,
    SudoOptions,
    LimitOptions,
    PromptOptions,
    KeepOptions,
    LoginOptions,
):
    """Run commands on all hosts, one after the other, as you type them.

    The first command connects to the hosts, and the next commands use its connections. The exit
    code is the last command's.

    \b
    At the prompt:
      uptime            a command for the hosts, as shell text; Ctrl-C ends it
      cd /tmp           the folder of the next commands
      !!                the last command again
      !ls               a command of this machine
      +n05  -n07        more hosts, fewer hosts
      @gpu  =n[1-4]     only these hosts;  =all  the hosts of the start
      ?                 the present hosts, and these lines
      :no-gather  :gather    show lines as they come, or equal output once
      quit              the end, like Ctrl-D
    """

    examples = (
        ("dispatch shell -H hostfile", "all hosts of the file"),
        ("dispatch shell -w @gpu --sudo", "as root; asks for one password"),
        ("echo uptime | dispatch shell -w 'n[1-4]'", "commands from a file or a pipe"),
    )
    brief = (
        "hostfile", "lists", "excluded", "sudo", "connect_timeout", "command_timeout", "fanout",
        "serial", "no_gather", "keep", "user",
    )  # fmt: skip


HELP = (__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0]
#: a cd and nothing else
_ENTER = re.compile(r"cd(?:\s[^;&|<>\n]*)?\Z")
#: where a command begins, if not where the login does, and where its ``cd -`` leads
_THERE = '[ -z "$1" ] || cd -- "$1" || exit; OLDPWD=${2:-$OLDPWD}; shift 2'
#: go on from there, each word its own cd, and print where that is
_GO = 'exec 3>&1 >/dev/null; for step; do eval "$step" || exit; done; pwd >&3'
#: bytes of the path of a folder (PATH_MAX of limits.h)
_LONGEST = 4096
WORDS = ("quit", "exit", ":gather", ":no-gather", ":quit", "=all", "?")


def aimed(mark: str, rest: str, hosts: Sequence[Host], first: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts after a ``mark`` of ``+-=@`` and the list ``rest`` were typed.

    hosts: the present ones; first: those of the start. Raises: UsageError.
    """
    if mark == "=" and rest == "all":
        return tuple(first)
    if not rest:
        raise NoHosts(f"{mark}: which hosts?", hint=f"{mark}n[1-4], or ? for help")
    named = parse_inline("@" + rest if mark == "@" else rest, "", slots=False).hosts
    # a host that was there before is reached as it was: with its user and its port
    known = {host.name: host for host in (*first, *hosts)}
    named = tuple(known.get(host.name, host) for host in named)
    names = {host.name for host in named}
    if mark == "-":
        left = tuple(host for host in hosts if host.name not in names)
        if not left:
            raise NoHosts("no host would be left")
        return left
    if mark == "+":
        there = {host.name for host in hosts}
        return (*hosts, *(host for host in named if host.name not in there))
    return named


MOST_LINES = 1000
#: columns of the hosts' names in the prompt
WIDEST = 40


def run(options: ShellOptions) -> int:
    """Read and run commands until the end; the last one's exit code. Raises: UsageError."""
    hosts = find_hosts(options, say)
    sudo_user(options), env_variables(options)
    bounds = limits(options)
    deeds = ((host, "run what you type") for host in hosts)
    if show_only(options, "shell", deeds, limits=bounds):
        return 0
    allow_open_files(len(hosts))
    with LoginTransports(options, keep=True, alone=len(hosts) == 1) as reach:
        shell = Shell(hosts, options, reach)
        if not os.isatty(0):
            for line in sys.stdin or ():  # None: it is closed
                if not shell.obey(line):
                    break
        else:
            with edited(shell.words) as history:
                shell.talk(history)
    return shell.code


class Shell:
    """The state of one shell: its hosts, how it shows output, the last exit code."""

    def __init__(
        self, hosts: Sequence[Host], options: ShellOptions, reach: LoginTransports
    ) -> None:
        self._first = self._hosts = tuple(hosts)
        self._options = options
        self._reach = reach
        self._login = login_defaults(options)
        apart = (options.no_gather, options.no_label, options.timestamps)
        self._gather = options.gather or not any((*apart, options.line_mode, options.diff))
        self._cds: tuple[str, ...] = ()  # lead to the folder where commands begin
        self._places: dict[tuple[str, int | None], tuple[str, str]] = {}  # that, and where before
        self._last = ""
        self._orders = {
            "": lambda: None, "!": lambda: None, "?": self._help, "!!": self._again,
        }  # fmt: skip
        self.code = 0

    def talk(self, keep: Callable[[], None]) -> None:
        """Read lines at the terminal until the user leaves."""
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)  # only the foreground may edit a line
        while True:
            self._reach.prepare(COMMAND)
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
        """Carry out ``line``; False if the user wants to leave."""
        text = line.strip()
        if text in ("quit", "exit", ":quit", ":exit"):
            return False
        mark, rest = text[:1], text[1:].strip()
        try:
            if text in self._orders:
                self._orders[text]()
            elif _ENTER.match(text):
                self._enter(text)
            elif mark == "!":
                self.code = _local(rest)
            elif mark == ":":
                self._show(text, rest)
            elif mark in "+-=@":
                named = aimed(mark, rest, self._hosts, self._first)
                self._aim(target_hosts([Hostlist(named)], (), *self._login))
            else:
                self._last = text
                self._run(text)
        except DispatchError as error:
            self.code = print_error(error)
        return True

    def _help(self) -> None:
        print(f"{fold(host.name for host in self._hosts)} ({len(self._hosts)})")
        print(HELP)

    def _again(self) -> None:
        if not self._last:
            raise UsageError("!!: there was no command yet")
        print(self._last, flush=True)
        self._run(self._last)

    def _show(self, text: str, word: str) -> None:
        if word not in ("gather", "no-gather"):
            hint = ":gather, :no-gather, :quit or ?"
            raise UsageError(f"{text}: unknown word", hint=hint)
        self._gather = word == "gather"

    def _aim(self, hosts: tuple[Host, ...]) -> None:
        """Make these the hosts, if the new ones can go where commands begin."""
        allow_open_files(len(hosts))
        new = [host for host in hosts if self._cds and host.place not in self._places]
        if new and not self._go(new, self._cds):
            return
        self._hosts = hosts
        if os.isatty(0):
            print(f"{fold(host.name for host in hosts)} ({len(hosts)})")

    def _enter(self, text: str) -> None:
        """Go where ``text`` leads, if every host can; show where that is."""
        target = text[2:].strip()
        if not target:
            self._cds = ()
            self._places = {one: ("", now) for one, (now, _) in self._places.items()}
            self._run("pwd")
        elif self._go(self._hosts, (text,)):
            is_new = target.startswith(("/", "~", "$"))
            self._cds = (text,) if is_new else (*self._cds, text)
            now = {host.place for host in self._hosts}  # others go all the way when they come
            self._places = {one: place for one, place in self._places.items() if one in now}

    def _go(self, hosts: Sequence[Host], steps: Sequence[str]) -> bool:
        """Learn where ``steps`` lead each of ``hosts``, once; whether all can go there."""
        results = self._run(_GO, hosts, steps)
        if self.code:
            return False
        found = {}
        for host, one in zip(hosts, results, strict=True):
            folder = os.fsdecode(one.stdout.removesuffix(b"\n"))
            if not folder.startswith("/") or len(folder) > _LONGEST or "\0" in folder:
                raise UsageError(f"{host.name}: it did not report its folder after {steps[-1]}")
            found[host.place] = folder, self._places.get(host.place, ("", ""))[0]
        self._places.update(found)
        return True

    def _run(
        self, text: str, hosts: Sequence[Host] = (), steps: Sequence[str] = ()
    ) -> tuple[HostResult, ...]:
        """Run ``text`` on ``hosts``. steps: cds, whose output is in the results."""
        hosts = tuple(hosts or self._hosts)
        words: tuple[str, ...] = ("/bin/sh", "-c", text)
        tails: tuple[tuple[str, ...], ...] = ()
        if self._places or steps:
            words = ("/bin/sh", "-c", f"{_THERE}\n{text}", "sh")
            tails = tuple((*self._places.get(host.place, ("", "")), *steps) for host in hosts)
        if self._options.percent:  # in what was typed, and not in the paths of folders
            typed = (percent((words[2], *steps), node, host) for node, host in enumerate(hosts))
            behind = tails or ((),) * len(hosts)
            tails = tuple(
                (own[0], *words[3:], *tail[:2], *own[1:])
                for own, tail in zip(typed, behind, strict=True)
            )
            words = words[:2]
        shown = replace(converted(self._options, ExecOptions), gather=self._gather)
        exec_plan = ExecPlan(
            hosts,
            words,
            limits=limits(self._options),
            tails=tails,
            sudo=sudo_user(self._options),
            exports=env_variables(self._options),
            one_pipe=is_one_pipe(shown) and not steps,
        )
        sys.stdout.flush()
        streams = frozenset({STDOUT} if steps else ())
        self.code, results = carry_out(exec_plan, shown, self._reach, streams)
        return results

    def _prompt(self) -> str:
        names = fold(host.name for host in self._hosts)
        if len(names) > WIDEST:
            names = f"{len(self._hosts)} hosts"
        folders = "".join(f" {folder[2:].strip()}" for folder in self._cds)
        return f"{names}{folders}> "

    def words(self) -> list[str]:
        """The words that the Tab key may complete."""
        names = [host.name for host in (*self._first, *self._hosts)]
        return sorted({*WORDS, *names, *(m + name for name in names for m in "+-=")})


def _local(text: str) -> int:
    """Run ``text`` on this machine; its exit code. Ctrl-C reaches it alone."""
    process = subprocess.Popen(["/bin/sh", "-c", text])
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue
        return code if code >= 0 else 128 - code


@contextmanager
def edited(words: Callable[[], list[str]]) -> Iterator[Callable[[], None]]:
    """Let lines be edited, completed and remembered; gives a function that saves the last one."""
    try:
        import readline
    except ImportError:  # a Python that was built without it
        yield lambda: None
        return
    history = private_folder(state_folder()) / "shell_history"
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
    """Programs of this machine whose names begin so: the hosts' programs are like them."""
    names: set[str] = set()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        with contextlib.suppress(OSError):
            names |= {name for name in os.listdir(Path(folder)) if name.startswith(start)}
    return sorted(names)
