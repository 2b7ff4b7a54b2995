"""The part that ``put`` and ``get`` share: a fan-out command with a stdio, and its last lines."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dispatcher.api.exec_session import ExecSession
from dispatcher.api.transports import allow_open_files
from dispatcher.cli import print_json, say
from dispatcher.cli.mistakes import Advice
from dispatcher.cli.options.connect_options import LoginTransports
from dispatcher.cli.options.declaration import Options, json_option, option, preset
from dispatcher.cli.options.host_options import (
    KeepOptions,
    LimitOptions,
    LoginOptions,
    SudoOptions,
    WhereOptions,
    login_defaults,
    sudo_password,
)
from dispatcher.cli.run.run_sinks import may_draw, terminals
from dispatcher.core.events.exec_events import (
    Failed,
    Interrupted,
    NotCopied,
    Outcome,
    TimedOut,
    exit_code,
    is_good,
)  # fmt: skip
from dispatcher.core.events.run_events import SignalReceived, Sink
from dispatcher.model.errors import CannotCopy
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host
from dispatcher.output.exec.exec_progress import CopyProgress, ExecNotes
from dispatcher.output.exec.host_results import HostResult, about, describe, exec_summary
from dispatcher.output.terminal.screen import LineFormat, Screen, Writer
from dispatcher.plan.exec_plan import ExecPlan, spelled
from dispatcher.remote.copy.disk import NotGiven, at_home
from dispatcher.runner.exec.stdio import StdioHandler
from dispatcher.transfer.host_copy import HostCopy

if TYPE_CHECKING:
    from dispatcher.model import formats


class FileOptions(Options, section="Files"):
    checksum: bool = preset(help="Compare files by their SHA-256, not by size and time.")
    no_resume: bool = preset(
        "-W",
        "--no-resume",
        "--whole-file",
        help="Send files whole: do not read the host's old or unfinished file, and keep nothing "
        "of an interrupted copy.",
    )


class CopyOptions(
    WhereOptions, LimitOptions, FileOptions, KeepOptions, LoginOptions, SudoOptions, section="Files"
):
    """The options that ``put`` and ``get`` share."""

    sudo: str | None = option(
        metavar="[=USER]",
        bare="root",
        help="Read and write the host's files with sudo as USER, or as root. You type one "
        "password, for all hosts.",
    )
    as_json: bool = json_option("the result of each host", ", an object a line")
    quiet: bool = preset("-q", section="Other", help="Show no progress on a terminal.")
    paths: tuple[str, ...] = ()
    verbose: bool = False


#: the end of an error of a host that root might not get
_DENIED = "permission denied"
_HOME = re.compile(r"~([A-Za-z_][A-Za-z0-9_.-]*)?(/|\Z)")


def there(path: str) -> str:
    """``path`` that cannot be read as an option; the host expands its ``~``. Raises: UsageError."""
    if path.startswith("~") and not _HOME.match(path):
        raise CannotCopy(
            f"{path}: no valid user name after ~",
            hint=f"for a file of that name: {shlex.quote('./' + path)}",
        )
    return f"./{path}" if path.startswith("-") else path


def here(path: str) -> str:
    """``path`` of this machine, its ``~`` expanded. Raises: UsageError."""
    try:
        return at_home(there(path))
    except NotGiven as bad:
        raise CannotCopy(str(bad)) from None


def run_copy(
    exec_plan: ExecPlan, options: CopyOptions, talk: StdioHandler, copies: Sequence[HostCopy]
) -> list[Outcome]:
    """Carry out ``exec_plan``, whose hosts ``talk`` talks with; one outcome a host.

    copies: the state of each host's copy, for the progress that a terminal shows.
    """
    allow_open_files(len(exec_plan.hosts))
    names = exec_plan.names

    def nobody_reads() -> None:
        session.tell(SignalReceived(signal.SIGPIPE))

    sinks: list[Sink] = []
    writer, footer = Writer({2: 2}, nobody_reads), None
    asks = options.sudo is not None and not options.ask_sudo_password
    if may_draw(os.environ) and not (options.quiet or asks):
        from dispatcher.output.terminal.live_terminal import Terminal

        progress = CopyProgress(copies)
        sinks.append(progress)
        writer = Terminal(frozenset({2}), 2, {2: 2}, nobody_reads)
        footer = progress.lines

    # standard output carries the copy itself; standard error is for the user
    view = LineFormat(lambda node: f"{names[node]}:", terminals=terminals())
    screen = Screen(view, writer, footer=footer)
    alone = len(names) == 1
    with LoginTransports(options, alone=alone) as reach, sudo_password(options) as ask:
        sinks = [ExecNotes(names, screen.say, verbose=options.verbose), screen, *sinks]
        session = ExecSession(exec_plan, reach.transport_for, sinks, stdio=talk, ask=ask, say=say)
        return [one.outcome for one in session.run()]


def conclude(
    hosts: tuple[Host, ...],
    outcomes: Sequence[Outcome],
    copies: Sequence[HostCopy],
    seconds: float,
    verb: str,
    options: CopyOptions,
) -> int:
    """Report the result of each host; the exit code."""
    results: list[HostResult] = []
    for name, outcome, one in zip(ExecPlan(hosts, ("copy",)).names, outcomes, copies, strict=True):
        if isinstance(outcome, Interrupted | TimedOut):
            pass
        elif one.error is not None:
            failure = Failure(Kind.PROTOCOL, one.error)
            denied = verb == "sent" and options.sudo is None and one.error.endswith(_DENIED)
            hint = "--sudo  # as root on the host, if you may" if denied else None
            outcome = Failed(failure) if one.hostile else NotCopied(one.error, hint)
        elif is_good(outcome) and one.python is not False and one.sent is None:
            outcome = NotCopied("it ended before all was copied")
        results.append(HostResult(name, len(results), outcome))
    if options.as_json:
        for result, one in zip(results, copies, strict=True):
            found: formats.Copied = {
                "schema": "copy/1",
                **about(result),
                "files": one.sent,
                "equal": one.equal,
                "bytes": one.bytes,
                "left_out": one.left_out,
            }
            print_json(found, indent=None)
    lines = describe(results, Advice(options), spelled(hosts, *login_defaults(options)))
    for line in lines + exec_summary(results, copies, seconds, verb):
        say(line)
    return exit_code(one.outcome for one in results)
