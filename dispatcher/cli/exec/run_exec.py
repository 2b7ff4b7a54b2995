"""From flags to an errand: hosts, command, limits, transports, sinks, runner, exit code."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dispatcher.api.here import allow_open_files
from dispatcher.cli.entry import say
from dispatcher.cli.exec import again
from dispatcher.cli.options import becoming, mistakes, terminal_part
from dispatcher.cli.options.config_file import said_by, typed
from dispatcher.cli.options.connect_options import WINDOW, fanout
from dispatcher.cli.options.host_options import find_hosts, hosts_typed, only_typed
from dispatcher.model.errors import UsageError
from dispatcher.model.host_part import Hostlist
from dispatcher.plan.exec_plan import Errand, ErrandLimits
from dispatcher.plan.job.request import parse_count, parse_seconds

if TYPE_CHECKING:
    from dispatcher.cli.options.reach import Reach
    from dispatcher.runner.exec.broadcast import Broadcast
    from dispatcher.runner.exec.stdio import Keyboard


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
        failed = again.read(flags["retry_failed"], said_by("retry_failed", "--retry-failed"))
        if failed is None:
            say(f"note: {flags['retry_failed']}: no host failed the last time")
            return 0
        left = (failed,)
    hosts = find_hosts(flags, say, left)
    errand = Errand(
        hosts,
        words,
        flags["stdin"],
        limits(flags),
        sudo=becoming.user(flags),
        terminal=terminal_part.size(flags),
    )
    tree = fanout(flags, errand.hosts)
    allow_open_files(len(errand.hosts))
    from dispatcher.cli.options.reach import Reach

    with Reach(flags, tree=tree) as reach:
        return carry_out(errand, flags, reach)


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
    mistakes.errand(words)
    return words


def limits(flags: Mapping[str, Any]) -> ErrandLimits:
    given: dict[str, Any] = {}
    for field, name in (
        ("connect", "connect_timeout"),
        ("command", "command_timeout"),
        ("total", "deadline"),
        ("grace", "grace"),
    ):
        if flags[name] is not None:
            given[field] = parse_seconds(flags[name], "--" + name.replace("_", "-"))
    for name in ("fan_out", "serial", "stop_after"):
        if flags[name] is not None:
            given[name] = parse_count(flags[name], "--" + name.replace("_", "-"))
    if flags.get("fanout_tree") is not None:
        given.setdefault("fan_out", WINDOW)
    return ErrandLimits(**given)


def carry_out(errand: Errand, flags: Mapping[str, Any], reach: Reach) -> int:
    """Run ``errand`` and show it as the flags say; the exit code. Raises: UsageError."""
    from dispatcher.cli.exec.exec_output import Telling
    from dispatcher.core.events.exec_events import exit_code
    from dispatcher.core.events.run_events import SignalReceived
    from dispatcher.runner.exec.exec_loop import ErrandRunner

    def nobody_reads() -> None:
        runner.tell(SignalReceived(signal.SIGPIPE))

    interactive = terminal_part.is_ours(flags, errand)
    telling = Telling(flags, errand.names, say, nobody_reads, through=interactive)
    dialogue: Broadcast | Keyboard | None = None
    if errand.stdin:
        from dispatcher.runner.exec.broadcast import Broadcast

        dialogue = Broadcast(0)
    elif interactive:
        from dispatcher.runner.exec.stdio import Keyboard

        dialogue = Keyboard(0, lambda: runner.tell(SignalReceived(signal.SIGHUP)))
    with becoming.password(flags) as ask:
        runner = ErrandRunner(
            errand,
            reach.transport_for,
            telling.sinks,
            dialogue=dialogue,
            ask=ask,
            sink_failed=lambda sink, error: say(f"error: {type(sink).__name__}: {error}"),
        )
        reach.typing = runner.typing
        outcomes = runner.run()
    telling.conclude(outcomes)
    code = exit_code(outcomes, largest=flags["max_code"])
    for path in filter(None, {flags["failed_to"], flags["retry_failed"]}):
        try:
            again.write(path, errand.hosts, outcomes)
        except OSError as error:
            say(f"error: {path}: {(error.strerror or '').lower()}")
            code = code or 1
    if dialogue is not None and dialogue.problem is not None:
        say(f"error: {dialogue.problem}")
        code = code or 1
    return code
