"""``dispatch check``: whether the cluster is fit for a job, and which host is not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dispatcher.api.request import cwd_of, python_of
from dispatcher.api.transports import allow_open_files
from dispatcher.checks import report
from dispatcher.checks.check import Asked, Check
from dispatcher.checks.report import CheckReport
from dispatcher.checks.xid import parse_table
from dispatcher.cli import named_files, print_json, print_lines, say
from dispatcher.cli.checks import check_table
from dispatcher.cli.checks.check import CheckOptions
from dispatcher.cli.mistakes import Advice
from dispatcher.cli.options.connect_options import LoginTransports, show_only
from dispatcher.cli.options.host_options import find_hosts
from dispatcher.model import errors
from dispatcher.model.errors import ConflictingOptions, UnexpectedArgument, UsageError
from dispatcher.model.host import Host

if TYPE_CHECKING:
    from dispatcher.api.transports import Ask
    from dispatcher.cli.run.run import RunOptions
    from dispatcher.transport.ssh_auth.passwords import Passwords

#: seconds for all of it
QUICK, FULL, SPEED = 20.0, 60.0, 180.0
#: exit code when a host is not fit
UNFIT = 1
MOST_TABLE = 1 << 20


def run(options: CheckOptions) -> int:
    """Check the hosts of the options in the chosen way (hosts, pairs, NCCL); the exit code.

    Raises: UsageError.
    """
    kinds = [kind for kind in ("full", "pairs", "nccl") if getattr(options, kind)]
    if len(kinds) > 1:
        raise ConflictingOptions(f"--{kinds[0]} and --{kinds[1]} exclude each other")
    if options.words and kinds and not options.full:
        raise ConflictingOptions(f"--{kinds[0]} does not check a script")
    for option, given, kind in (
        ("--backend", options.backend, "pairs"),
        ("--rounds", options.rounds, "pairs"),
        ("--slow", options.slow, "pairs"),
        ("--svg", options.svg, "pairs"),
        ("--apply", options.apply, "nccl"),
    ):
        if given and kind not in kinds:
            raise ConflictingOptions(f"{option} needs --{kind}")
    if options.nccl:
        from dispatcher.cli.checks import nccl

        return nccl.run(options)
    if options.pairs:
        from dispatcher.cli.checks import pairs

        return pairs.run(options)
    return _by_host(options)


def _by_host(options: CheckOptions) -> int:
    words = options.words
    if len(words) > 1:
        raise UnexpectedArgument(f"one script at most: {words[1]!r} is one too many")
    full = options.full
    targets = find_hosts(options, say, slots=full)
    time_limit = limit(options.check_timeout, full=full, speed=options.speed)
    chosen = checks(options.xid_table, options.site_checks, full=full, speed=options.speed)
    asked = Asked(
        cwd_of(options.chdir), words[0] if words else "", options.iface,
        needs_cwd=bool(words) or options.chdir is not None,
    )  # fmt: skip
    want = wanted(
        targets,
        asked,
        options.python or ("python3" if options.container_image else None),
        time_limit,
        options.site_checks,
        full=full,
        speed=options.speed,
    )
    does = f"look for {', '.join(check.name for check in chosen)}"
    if show_only(options, "check", ((host, does) for host in targets)):
        return 0
    began = time.monotonic()
    found = examined(targets, want, chosen, options, time_limit, options.master_port)
    found = replace(found, seconds=round(time.monotonic() - began, 3))
    if options.as_json:
        print_json(found)
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        every, advise = options.verbose, Advice(options)
        print_lines(check_table.lines(found, colour=colour, every=every, advise=advise))
    if any(host.lost for host in found.hosts.values()):
        return errors.CLUSTER
    return 0 if found.fit else UNFIT


def limit(seconds: float | None, *, full: bool, speed: bool = False) -> float:
    """Seconds for the whole check. seconds: from ``--check-timeout``. Raises: UsageError."""
    if seconds is None:
        return SPEED if speed else FULL if full else QUICK
    if seconds < 1:
        raise UsageError(
            f"--check-timeout {seconds:g}: less than a second", hint="--check-timeout 20"
        )
    return seconds


def checks(
    xid_table: str | None = None,
    site_checks: str | None = None,
    *,
    full: bool,
    speed: bool = False,
) -> tuple[Check, ...]:
    """The checks for the options of these names. Raises: UsageError."""
    if not full:
        given_by = {"--xid-table": xid_table, "--site-checks": site_checks, "--speed": speed}
        for option, given in given_by.items():
            if given:
                raise ConflictingOptions(f"{option} needs the full check")
        return report.QUICK
    levels: Mapping[int, str] = {}
    if xid_table:
        who = f"--xid-table {xid_table}"
        text = named_files.read(who, xid_table, MOST_TABLE).decode("utf-8", "backslashreplace")
        levels = parse_table(text, who)
    found = (*report.QUICK, *report.full(levels, site_checks=bool(site_checks)))
    return (*found, *report.SPEED) if speed else found


def wanted(
    hosts: tuple[Host, ...],
    asked: Asked,
    python: str | None,
    seconds: float,
    site_checks: str | None = None,
    *,
    full: bool,
    speed: bool = False,
) -> report.Want:
    """The readings to make on ``hosts``. python: the ranks', None for the usual one."""
    from dispatcher.bootstrap import payload
    from dispatcher.runner.surveys import readings_limit

    script = os.path.join(asked.cwd, asked.script) if asked.script else ""
    return report.Want(
        replace(asked, script=script),
        python or python_of(os.environ),
        {host.name: host.python for host in hosts if host.python},
        readings_limit(seconds),
        full=full,
        site=site_checks or "",
        speed=payload.source("rank.gpu_speed") if speed else "",
    )


def examined(
    hosts: tuple[Host, ...],
    want: report.Want,
    chosen: tuple[Check, ...],
    options: CheckOptions | RunOptions,
    time_limit: float,
    port: int | None,
    ask: Ask | None = None,
    passwords: Passwords | None = None,
) -> CheckReport:
    """The report on ``hosts``, which are visited for it. ask, passwords: as ``LoginTransports``."""
    from dispatcher.runner.surveys import examine

    allow_open_files(len(hosts))
    if not want.asked.script:
        chosen = tuple(check for check in chosen if check.name != "script")
    connect = options.connect_timeout
    if connect is None:  # a run has a limit of its own
        connect = CheckOptions.connect_timeout
    alone = len(hosts) == 1
    with LoginTransports(options, ask, alone=alone, passwords=passwords) as reach:
        return examine(
            hosts, want, chosen, reach.transport_for, seconds=time_limit, connect=connect,
            port=port,
        )  # fmt: skip
