"""From options to a fan-out command: hosts, limits, transports, sinks, exit code.

The hosts that failed, as a hostfile: written by ``--failed-to``, read by ``--retry-failed``.

Each line has the host as it was named and why it failed as a comment; dispatch
reads it like any hostfile, and it may be edited. When nothing failed the file
holds only its first comment.

From flags to a fan-out command: hosts, command, limits, transports, sinks, runner, exit code.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dispatcher.api.request import allow_open_files
from dispatcher.cli.options import mistakes, sudo, terminal
from dispatcher.cli.options.connect_options import WINDOW, fanout
from dispatcher.cli.options.host_options import find_hosts, hosts_typed, only_typed
from dispatcher.cli.options.option_defaults import said_by, typed
from dispatcher.cli.say import say
from dispatcher.core.events.exec_events import Outcome, is_good
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host, Hostlist
from dispatcher.model.names import parse_count
from dispatcher.output.exec.exec_notes import words
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
from dispatcher.plan.hosts.hostfile import parse_hostfile
from dispatcher.plan.job.request import parse_seconds

if TYPE_CHECKING:
    from dispatcher.cli.options.connect_options import Reach
    from dispatcher.runner.exec.stdio import Keyboard, StdinSpool


_HEAD = "# hosts that failed, by dispatch exec\n"
_MOST = 16 << 20


def read(path: str, said: str) -> Hostlist | None:
    """The hosts in the file that ``said`` names; None: there is none in it. Raises: UsageError."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST)
    except OSError as error:
        why = (error.strerror or "").lower()
        raise UsageError(f"{said}: {path}: {why}") from None
    lines = (line.strip() for line in text.splitlines())
    if text and all(not line or line.startswith(b"#") for line in lines):
        return None
    return parse_hostfile(text, path, slots=False)


def write(path: str, hosts: Sequence[Host], outcomes: Sequence[Outcome]) -> None:
    """Replace the file by the hosts whose outcome was not good. Raises: OSError."""
    lines = [_HEAD]
    for host, outcome in zip(hosts, outcomes, strict=True):
        if is_good(outcome):
            continue
        line = host.name
        if host.user is not None:
            line += f" user={host.user}"
        if host.port is not None:
            line += f" port={host.port}"
        lines.append(f"{line}  # {' '.join(words(outcome).split())}\n")
    beside = f"{path}.{os.getpid()}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(lines)
    os.replace(beside, path)


def run(flags: Mapping[str, Any]) -> int:
    """Plan and run what the flags say; the exit code.

    Raises: UsageError before any host is touched.
    """
    if flags["stdin"] and flags["no_stdin"]:
        raise UsageError("-I and -n exclude each other")
    if hosts_typed():
        if typed("retry_failed"):
            raise UsageError("--retry-failed names the hosts; -H and -w do not go with it")
        flags = {**flags, "retry_failed": None}  # a file's, and the typed hosts are the only ones
    flags = only_typed(flags, elsewhere=flags["retry_failed"] is not None)
    if flags["stdin"] and flags["hostfile"] == "-":
        raise UsageError(f"-I and {said_by('hostfile', '-H')} - both want standard input")
    words = _words(flags)
    left: tuple[Hostlist, ...] = ()
    if flags["retry_failed"] is not None:
        failed = read(flags["retry_failed"], said_by("retry_failed", "--retry-failed"))
        if failed is None:
            say(f"note: {flags['retry_failed']}: no host failed the last time")
            return 0
        left = (failed,)
    hosts = find_hosts(flags, say, left)
    exec_plan = ExecPlan(
        hosts,
        words,
        flags["stdin"],
        limits(flags),
        sudo=sudo.user(flags),
        terminal=terminal.size(flags),
    )
    tree = fanout(flags, exec_plan.hosts)
    allow_open_files(len(exec_plan.hosts))
    from dispatcher.cli.options.connect_options import Reach

    with Reach(flags, tree=tree) as reach:
        return carry_out(exec_plan, flags, reach)


def _words(flags: Mapping[str, Any]) -> tuple[str, ...]:
    words: tuple[str, ...] = flags["words"]
    if flags["shell"] is not None:
        if words:
            raise UsageError("--shell has the whole command; what is this?", hint=repr(words[0]))
        if not flags["shell"].strip():
            raise UsageError("--shell: an empty text")
        return ("/bin/sh", "-c", flags["shell"])
    if not words or not words[0]:
        raise UsageError(
            "no command: what should the hosts run?", hint="dispatch exec -H hostfile -- uptime"
        )
    mistakes.exec_words(words)
    return words


def limits(flags: Mapping[str, Any]) -> ExecLimits:
    given: dict[str, Any] = {}
    for field, name in (
        ("connect", "connect_timeout"),
        ("command", "command_timeout"),
        ("total", "deadline"),
        ("grace", "grace"),
    ):
        if flags[name] is not None:
            given[field] = parse_seconds(flags[name], "--" + name.replace("_", "-"))
    for field, name in (("fan_out", "fanout"), ("serial", "serial"), ("stop_after", "stop_after")):
        if flags[name] is not None:
            given[field] = parse_count(flags[name], "--" + name.replace("_", "-"))
    if flags.get("fanout_tree") is not None:
        given.setdefault("fan_out", WINDOW)
    return ExecLimits(**given)


def carry_out(exec_plan: ExecPlan, flags: Mapping[str, Any], reach: Reach) -> int:
    """Run ``exec_words`` and show it as the flags say; the exit code. Raises: UsageError."""
    from dispatcher.cli.exec.exec_output import Telling
    from dispatcher.core.events.exec_events import exit_code
    from dispatcher.core.events.run_events import SignalReceived
    from dispatcher.runner.exec.exec_loop import ExecRunner

    def nobody_reads() -> None:
        runner.tell(SignalReceived(signal.SIGPIPE))

    interactive = terminal.is_ours(flags, exec_plan)
    telling = Telling(flags, exec_plan.names, say, nobody_reads, through=interactive)
    stdio: StdinSpool | Keyboard | None = None
    if exec_plan.stdin:
        from dispatcher.runner.exec.stdio import StdinSpool

        stdio = StdinSpool(0)
    elif interactive:
        from dispatcher.runner.exec.stdio import Keyboard

        stdio = Keyboard(0, lambda: runner.tell(SignalReceived(signal.SIGHUP)))
    with sudo.password(flags) as ask:
        runner = ExecRunner(
            exec_plan,
            reach.transport_for,
            telling.sinks,
            stdio=stdio,
            ask=ask,
            sink_failed=lambda sink, error: say(f"error: {type(sink).__name__}: {error}"),
        )
        reach.typing = runner.typing
        outcomes = runner.run()
    telling.conclude(outcomes)
    code = exit_code(outcomes, largest=flags["max_code"])
    for path in filter(None, {flags["failed_to"], flags["retry_failed"]}):
        try:
            write(path, exec_plan.hosts, outcomes)
        except OSError as error:
            say(f"error: {path}: {(error.strerror or '').lower()}")
            code = code or 1
    if stdio is not None and stdio.problem is not None:
        say(f"error: {stdio.problem}")
        code = code or 1
    return code
