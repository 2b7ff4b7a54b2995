"""From options to a fan-out command: hosts, limits, terminal, transports, sinks, exit code."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dispatcher.api.transports import allow_open_files
from dispatcher.cli import mistakes, named_files, say
from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.options.connect_options import WINDOW, fanout_tree, show_only
from dispatcher.cli.options.declaration import carried, replace, values_given
from dispatcher.cli.options.host_options import (
    LimitOptions,
    TreeOptions,
    env_variables,
    find_hosts,
    hosts_typed,
    only_typed,
    sudo_password,
    sudo_user,
)
from dispatcher.cli.options.option_defaults import typed, value_origin
from dispatcher.model.errors import ConflictingOptions, MissingArgument, UsageError, reason
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan, Script
from dispatcher.plan.hosts.hostfile import parse_hostfile
from dispatcher.transport.base import LOGIN_GRACE

if TYPE_CHECKING:
    from dispatcher.cli.options.connect_options import LoginTransports
    from dispatcher.core.events.run_events import Sink
    from dispatcher.output.exec.host_results import HostResult
    from dispatcher.runner.exec.stdio import Keyboard, StdinSpool


_MOST = 16 << 20
#: bytes of a script; a shell reads them one by one
_MOST_SCRIPT = 256 << 10


def read(path: str, option: str) -> Hostlist | None:
    """The hosts in the file of ``option``, None if it has none. Raises: UsageError."""
    text = named_files.read(f"{option}: {path}", path, _MOST)
    lines = (line.strip() for line in text.splitlines())
    if text and all(not line or line.startswith(b"#") for line in lines):
        return None
    return parse_hostfile(text, path, slots=False)


def run(options: ExecOptions) -> int:
    """Plan and run; the exit code. Raises: UsageError before any host is touched."""
    options = _typed_wins(options)
    if options.stdin and options.no_stdin:
        raise ConflictingOptions("-I and -n exclude each other")
    if hosts_typed():
        if typed("retry_failed"):
            raise ConflictingOptions(
                "--retry-failed names the hosts: -H and -w cannot be given as well"
            )
        options = replace(
            options, retry_failed=None
        )  # a file's, and the typed hosts are the only ones
    options = only_typed(options, elsewhere=options.retry_failed is not None)
    if options.stdin and "-" in (*options.hostfile, *options.lists):
        option = value_origin("hostfile", "-H") if options.hostfile else "-w"
        raise ConflictingOptions(f"-I and {option} - both want standard input")
    script = _script(options)
    words = _words(options) if script is None else (*script.words, *options.words)
    left: tuple[Hostlist, ...] = ()
    if options.retry_failed is not None:
        failed = read(options.retry_failed, value_origin("retry_failed", "--retry-failed"))
        if failed is None:
            say(f"note: {options.retry_failed}: no host failed the last time")
            return 0
        left = (failed,)
    from dispatcher.cli.exec import exec_output

    hosts = find_hosts(options, say, left)
    names = {host.name for host in hosts}
    stay = [host for one in left for host in one.hosts if host.name not in names]
    tails: tuple[tuple[str, ...], ...] = ()
    if options.percent:
        own = 0 if script is None else len(script.words)
        tails = tuple(percent(words[own:], node, host) for node, host in enumerate(hosts))
        words = words[:own]
    exec_plan = ExecPlan(
        hosts,
        words,
        options.stdin,
        limits(options),
        tails,
        sudo=sudo_user(options),
        terminal=terminal_size(options),
        script=script,
        one_pipe=is_one_pipe(options),
        exports=env_variables(options),
        plain=options.plain,
    )
    for name in ("script", "sudo", "pty", "env", "fanout_tree"):
        if options.plain and getattr(options, name) not in (None, False, ()):
            raise ConflictingOptions(f"--plain and --{name.replace('_', '-')} exclude each other")
    exec_output.check(options)
    if options.sudo is not None and options.container_image is not None:
        raise ConflictingOptions("--sudo and --container-image exclude each other")
    if options.pty and options.fanout_tree is not None:
        raise ConflictingOptions("--fanout-tree and --pty exclude each other")
    if options.fanout == 1 and options.serial is None and typed("fanout"):
        say("note: -f 1 connects to one host at a time; to run on one at a time: --serial 1")
    tree = fanout_tree(options, exec_plan.hosts)
    user = f" as {exec_plan.sudo}" if exec_plan.sudo else ""
    verb = f"send {options.script} and run" if script is not None else "run"
    deeds = (f"{verb} {shlex.join(exec_plan.words_for(node))}{user}" for node in range(len(hosts)))
    if show_only(options, "exec", zip(hosts, deeds, strict=True), tree, exec_plan.limits):
        return 0
    allow_open_files(len(exec_plan.hosts))
    from dispatcher.cli.options.connect_options import LoginTransports

    with LoginTransports(options, tree=tree, alone=len(hosts) == 1) as reach:
        return carry_out(exec_plan, options, reach, stay=stay)[0]


#: options that exclude others, and these
_EXCLUDE = (
    (("as_json",), ("gather", "gather_all", "line_mode", "diff")),
    (("stdin",), ("no_stdin", "pty")),
)


def _typed_wins(options: ExecOptions) -> ExecOptions:
    """``options`` without those from a file that an option on the command line excludes."""
    for pair in _EXCLUDE:
        for ours, others in (pair, pair[::-1]):
            if any(getattr(options, name) and typed(name) for name in ours):
                loose: Any = {name: False for name in others if not typed(name)}
                options = replace(options, **loose)
    return options


def _script(options: ExecOptions) -> Script | None:
    path = options.script
    if path is None:
        return None
    if options.shell is not None:
        raise ConflictingOptions("--script and --shell exclude each other")
    content = named_files.read(f"--script: {path}", path, _MOST_SCRIPT)
    return Script(os.path.basename(path), content)


def _words(options: ExecOptions) -> tuple[str, ...]:
    words = options.words
    if options.shell is not None:
        if words:
            raise ConflictingOptions(
                "--shell takes the whole command: remove the other words", hint=repr(words[0])
            )
        if not options.shell.strip():
            raise UsageError("--shell: an empty text")
        return (options.shell,) if options.plain else ("/bin/sh", "-c", options.shell)
    if not words or not words[0]:
        raise MissingArgument("no command given", hint="dispatch exec -H hostfile -- uptime")
    if options.joined:
        words = (" ".join(words),)
    if not options.plain:
        if options.joined or (len(words) == 1 and mistakes.is_quoted(words[0])):
            return ("/bin/sh", "-c", words[0])
        mistakes.exec_words(words)
    return words


def percent(words: Sequence[str], node: int, host: Host) -> tuple[str, ...]:
    """``words`` for ``host``, the percent signs in them replaced as pdsh does (pipecmd.c)."""
    import getpass

    told = {"h": host.name, "n": str(node), "u": host.user or getpass.getuser(), "%": "%"}
    return tuple(re.sub("%([hnu%])", lambda found: told[found[1]], word) for word in words)


def limits(options: LimitOptions) -> ExecLimits:
    """The limits that the options set. Raises: UsageError."""
    if options.delay is not None and options.serial is None:
        raise ConflictingOptions("--delay needs --serial")
    by_tree = isinstance(options, TreeOptions) and options.fanout_tree is not None
    waits = options.connect_timeout is None and not by_tree
    own = values_given(
        connect=options.connect_timeout,
        login=LOGIN_GRACE if waits else None,
        command=options.command_timeout,
        total=options.deadline,
        fanout=options.fanout or (WINDOW if by_tree else None),
    )
    return ExecLimits(**{**carried(options, ExecLimits), **own})


#: of a terminal whose size is unknown: columns and rows
USUAL_SIZE = (80, 24)


def terminal_size(options: ExecOptions) -> tuple[int, int] | None:
    """(columns, rows) of each command's terminal; None without ``--pty``. Raises: UsageError."""
    if not options.pty:
        return None
    if options.stdin:
        raise ConflictingOptions("-I and --pty exclude each other: a terminal changes bytes")
    for fd in (1, 0, 2):
        try:
            found = os.get_terminal_size(fd)
        except OSError:
            continue
        if found.columns > 0 and found.lines > 0:
            return found.columns, found.lines
    return USUAL_SIZE


def is_one_pipe(options: ExecOptions) -> bool:
    """Whether a command's outputs may share a pipe: they are shown as they come, in one place."""
    from dispatcher.output.terminal.screen import same_file

    apart = (
        options.gather, options.gather_all, options.line_mode, options.diff, options.as_json,
        options.output_dir, options.error_dir, options.pty,
    )  # fmt: skip
    return same_file(1, 2) and not any(apart)


def is_our_terminal(options: ExecOptions, exec_plan: ExecPlan) -> bool:
    """Whether the only host's terminal is the user's own: its bytes pass as with ``ssh -t``."""
    lines = (
        options.gather, options.gather_all, options.diff, options.as_json, options.timestamps,
        options.output_dir, options.error_dir, options.no_stdin,
    )  # fmt: skip
    return (
        exec_plan.terminal is not None
        and len(exec_plan.hosts) == 1
        and os.isatty(0)
        and os.isatty(1)
        and not any(lines)
    )


def carry_out(
    exec_plan: ExecPlan,
    options: ExecOptions,
    reach: LoginTransports,
    streams: frozenset[int] = frozenset(),
    stay: Sequence[Host] = (),
) -> tuple[int, tuple[HostResult, ...]]:
    """Run ``exec_plan`` and show it as the options say; the exit code, and the hosts' results.

    streams: whose output the results hold at least. stay: other hosts of ``--retry-failed``, left
    out now. Raises: UsageError.
    """
    from dispatcher.api.exec_session import ExecSession
    from dispatcher.cli.exec.exec_output import ExecOutput
    from dispatcher.core.events.exec_events import exit_code
    from dispatcher.core.events.run_events import SignalReceived
    from dispatcher.output.files.hosts_left import HostsLeft, write_hosts

    def nobody_reads() -> None:
        session.tell(SignalReceived(signal.SIGPIPE))

    interactive = is_our_terminal(options, exec_plan)
    output = ExecOutput(options, exec_plan, say, nobody_reads, through=interactive)
    lists: dict[str, Sequence[Host]] = {}
    if options.failed_to:
        lists[options.failed_to] = exec_plan.hosts
    if options.retry_failed:
        lists[options.retry_failed] = (*exec_plan.hosts, *stay)
    kept: list[Sink] = [HostsLeft(lists)] if lists else []
    stdio: StdinSpool | Keyboard | None = None
    if exec_plan.stdin:
        from dispatcher.runner.exec.stdio import StdinSpool

        stdio = StdinSpool(0)
    elif interactive:
        from dispatcher.runner.exec.stdio import Keyboard

        signal.signal(signal.SIGTTOU, signal.SIG_DFL)  # raw mode is only for the foreground
        stdio = Keyboard(0, lambda: session.tell(SignalReceived(signal.SIGHUP)))
    with sudo_password(options) as ask:
        session = ExecSession(
            exec_plan, reach.transport_for, [*kept, *output.sinks],
            streams=output.streams | streams, stdio=stdio, ask=ask, say=say,
        )  # fmt: skip
        results = session.run()
    output.conclude(results)
    outcomes = {one.index: one.outcome for one in results}
    code = exit_code(outcomes.values(), largest=options.max_code) or int(output.is_full)
    for path, hosts in lists.items():
        try:
            write_hosts(path, hosts, outcomes)
        except OSError as error:
            say(f"error: {path}: {reason(error)}")
            code = code or 1
    if stdio is not None and stdio.problem is not None:
        say(f"error: {stdio.problem}")
        code = code or 1
    return code, results
