"""``dispatch check``: all hosts before all checks, and which of them are fit for a job."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from dispatcher.api.here import allow_open_files, cwd_of, python_of
from dispatcher.checks import report
from dispatcher.checks.check import Asked, Check
from dispatcher.checks.ruling import Ruling
from dispatcher.checks.xid import parse_table
from dispatcher.cli.checks import check_table
from dispatcher.cli.entry import say
from dispatcher.cli.hints import Advice
from dispatcher.cli.options.host_options import find_hosts
from dispatcher.cli.options.reach import Reach
from dispatcher.model import exitcodes
from dispatcher.model.errors import UsageError
from dispatcher.model.host_part import Host
from dispatcher.plan.job.request import parse_count, parse_seconds

#: seconds for all of it
QUICK, FULL = 20.0, 60.0
#: exit code when a host is not fit
UNFIT = 1
MOST_TABLE = 1 << 20


def run(flags: Mapping[str, Any]) -> int:
    """Check the hosts that the flags name; the exit code. Raises: UsageError."""
    words = flags["words"]
    if len(words) > 1:
        raise UsageError(f"one script at most: {words[1]!r} is a second word")
    full = flags["full"]
    targets = find_hosts(flags, say, slots=full)
    seconds, chosen = limit(flags["check_timeout"], full=full), checks(flags, full=full)
    port = flags["master_port"]
    asked = Asked(cwd_of(flags["chdir"]), words[0] if words else "", flags["iface"])
    want = wanted(targets, asked, flags["python"], seconds, flags, full=full)
    began = time.monotonic()
    ruling = examined(
        targets, want, chosen, flags, seconds,
        None if port is None else parse_count(port, "--master-port", 65535),
    )  # fmt: skip
    took = time.monotonic() - began
    if flags["as_json"]:
        sys.stdout.write(json.dumps(check_table.record(ruling, took), indent=2) + "\n")
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        shown = check_table.lines(
            ruling, took, colour=colour, every=flags["verbose"], advise=Advice(flags)
        )
        sys.stdout.write("".join(f"{line}\n" for line in shown))
    if ruling.lost:
        return exitcodes.CLUSTER
    return 0 if all(ruling.fit(host) for host in ruling.hosts) else UNFIT


def limit(text: str | None, *, full: bool) -> float:
    """Seconds that everything may take. Raises: UsageError."""
    if text is None:
        return FULL if full else QUICK
    seconds = parse_seconds(text, "--check-timeout")
    if seconds < 1:
        raise UsageError(f"--check-timeout {text}: less than a second", hint="--check-timeout 20")
    return seconds


def checks(flags: Mapping[str, Any], *, full: bool) -> tuple[Check, ...]:
    """The checks that the flags ask for. Raises: UsageError."""
    if not full:
        for flag in ("xid_table", "site_checks"):
            if flags[flag]:
                raise UsageError(f"--{flag.replace('_', '-')} goes with the full check")
        return report.QUICK
    levels: Mapping[int, str] = {}
    path = flags["xid_table"]
    if path:
        try:
            with open(path, encoding="utf-8", errors="backslashreplace") as file:
                levels = parse_table(file.read(MOST_TABLE), f"--xid-table {path}")
        except OSError as error:
            raise UsageError(f"--xid-table {path}: {(error.strerror or '').lower()}") from None
    return (*report.QUICK, *report.full(levels, site_checks=bool(flags["site_checks"])))


def wanted(
    hosts: tuple[Host, ...],
    asked: Asked,
    python: str | None,
    seconds: float,
    flags: Mapping[str, Any],
    *,
    full: bool,
) -> report.Want:
    """What must be read on ``hosts``. python: the ranks', None for the usual one."""
    from dispatcher.runner.examine import readings_limit

    script = os.path.join(asked.cwd, asked.script) if asked.script else ""
    return report.Want(
        Asked(asked.cwd, script, asked.iface),
        python or python_of(os.environ),
        {host.name: host.python for host in hosts if host.python},
        readings_limit(seconds),
        full=full,
        site=flags["site_checks"] or "",
    )


def examined(
    hosts: tuple[Host, ...],
    want: report.Want,
    chosen: tuple[Check, ...],
    flags: Mapping[str, Any],
    seconds: float,
    port: int | None,
) -> Ruling:
    """The ruling on ``hosts``, which are visited for it."""
    from dispatcher.runner.examine import examine

    allow_open_files(len(hosts))
    if not want.asked.script:
        chosen = tuple(check for check in chosen if check.name != "script")
    connect = 10.0
    if flags["connect_timeout"] is not None:
        connect = parse_seconds(flags["connect_timeout"], "--connect-timeout")
    with Reach(flags) as reach:
        return examine(
            hosts, want, chosen, reach.transport_for, seconds=seconds, connect=connect, port=port
        )
