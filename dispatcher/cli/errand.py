"""From flags to an errand: hosts, command, limits, transports, sinks, runner, exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from dispatcher.cli.launch import allow_open_files, parse_seconds, say
from dispatcher.cli.targets import find_hosts
from dispatcher.errors import UsageError
from dispatcher.plan.errand import Errand, ErrandLimits
from dispatcher.plan.request import parse_count


def run(flags: Mapping[str, Any]) -> int:
    """Plan and run what the flags say; the exit code.

    Raises: UsageError before any host is touched.
    """
    if flags["stdin"] and flags["no_stdin"]:
        raise UsageError("-I and -n exclude each other")
    if flags["stdin"] and flags["hostfile"] == "-":
        raise UsageError("-I and -H - both want standard input")
    words = _words(flags)
    errand = Errand(find_hosts(flags, say), words, flags["stdin"], _limits(flags))
    allow_open_files(len(errand.hosts))
    return _run(errand, flags)


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
    return words


def _limits(flags: Mapping[str, Any]) -> ErrandLimits:
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
    return ErrandLimits(**given)


def _run(errand: Errand, flags: Mapping[str, Any]) -> int:
    from dispatcher.cli.reach import Reach
    from dispatcher.core.events import SignalReceived
    from dispatcher.core.visits import exit_code
    from dispatcher.runner.broadcast import Broadcast
    from dispatcher.runner.errand import ErrandRunner
    from dispatcher.sinks.base import Sink
    from dispatcher.sinks.errand import ErrandNotes, describe
    from dispatcher.sinks.screen import Screen

    names = errand.names
    colour = frozenset(
        stream for stream in (1, 2) if os.isatty(stream) and not os.environ.get("NO_COLOR")
    )

    def nobody_reads() -> None:
        runner.tell(SignalReceived(signal.SIGPIPE))

    label = (lambda node: "") if flags["no_label"] else (lambda node: f"{names[node]}:")
    sinks: list[Sink] = [
        ErrandNotes(names, say, verbose=flags["verbose"]),
        Screen(label, colour=colour, on_broken=nobody_reads),
    ]
    broadcast = Broadcast(0) if errand.stdin else None
    with Reach(flags) as reach:
        runner = ErrandRunner(
            errand,
            reach.transport_for,
            sinks,
            broadcast=broadcast,
            sink_failed=lambda sink, error: say(f"error: {type(sink).__name__}: {error}"),
        )
        outcomes = runner.run()
    for line in describe(outcomes, names):
        say(line)
    code = exit_code(outcomes, largest=flags["max_code"])
    if broadcast is not None and broadcast.problem is not None:
        say(f"error: {broadcast.problem}")
        return code or 1
    return code
