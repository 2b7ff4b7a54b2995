"""``dispatch top``: the table of all ranks of a running job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

import click

from dispatcher.cli import print_json, say
from dispatcher.cli.options.declaration import Options, argument, json_option, preset
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import LEAST_EVERY, JobConnection
from dispatcher.model import errors
from dispatcher.model.errors import LauncherSilent
from dispatcher.output.monitor.run_picture import Snapshot
from dispatcher.output.terminal.screen import same_file
from dispatcher.remote.protocol.frames import STDERR, STDOUT

#: seconds to wait for the first table of a launcher
REPLY_TIMEOUT = 10.0

Shown = Callable[[Snapshot | None], bool]


class TopOptions(Options):
    """Show what each rank of a job does: state, CPU, memory, GPU, last line, silence.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs lists, or latest. If
    only one job runs you need not name it. The key q or Ctrl-C leaves the table; the job goes on,
    and its hosts go on measuring. If standard output is not a terminal, it prints the table once.
    """

    examples = (
        ("dispatch top", "the only job that runs"),
        ("dispatch top latest --sample 0.5", "twice a second"),
        ("dispatch top k3f9x2 | cat", "the table once"),
    )

    job: str | None = argument()
    sample: float = preset(
        metavar="SECONDS",
        type=click.FloatRange(LEAST_EVERY, 3600),
        default=2.0,
        help=f"Measure every SECONDS, from {LEAST_EVERY:g} to 3600. A job that measures more often "
        "goes on with that.",
        usual="2",
    )
    as_json: bool = json_option("the table", ", once")


def top(options: TopOptions) -> int:
    """Show the table until the user leaves or the job ends; the exit code."""
    found = registry.find_running(options.job)
    try:
        with JobConnection(found) as call:
            call.order("attach", table=options.sample)
            if is_screen() and not options.as_json:
                ended = _live(found, call)
            else:
                show = print_json if options.as_json else print_table
                ended = _follow(found, call, _once(show, 3 * options.sample + 2))
    except KeyboardInterrupt:
        return errors.SIGNAL_BASE + signal.SIGINT
    if ended is not None:
        say(f"note: job {found.title} ended, exit code {ended}")
    return 0


def is_screen() -> bool:
    """Whether standard output and standard error are one terminal that can draw."""
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown", "")
    return not dumb and os.isatty(STDOUT) and os.isatty(STDERR) and same_file(STDOUT, STDERR)


def _live(job: registry.Job, call: JobConnection) -> int | None:
    """Show the table on the whole screen until q, or the end of the job: then its exit code."""
    from dispatcher.output.terminal.rank_table import AltScreen, TableView

    latest: list[Snapshot] = []
    hosts = [name for name, _, _ in job.hosts]
    view = TableView(AltScreen(STDOUT), hosts, lambda: latest[-1], job.name)

    def show(snapshot: Snapshot | None) -> bool:
        if snapshot is not None:
            latest[:] = [snapshot]
        return not latest or view.turn(time.monotonic())

    def stop(signum: int, frame: FrameType | None) -> None:
        view.alt_screen.leave()
        os.kill(os.getpid(), signal.SIGSTOP)

    def end(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTSTP, stop)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, end)
    try:
        return _follow(job, call, show)
    finally:
        view.alt_screen.close()


def print_table(snapshot: Snapshot) -> None:
    """Print the table for people."""
    from dispatcher.output.terminal.rank_table import table

    for line in table(snapshot.ranks, snapshot.ranks):
        click.echo(line.plain.rstrip())


def _once(write: Callable[[Snapshot], None], patience: float) -> Shown:
    """Write the first table in which every rank has figures, or one after ``patience`` seconds."""
    until = time.monotonic() + patience

    def show(snapshot: Snapshot | None) -> bool:
        if snapshot is None:
            return True
        known = all(row.cpu is not None for row in snapshot.ranks if row.alive)
        if not known and time.monotonic() < until:
            return True
        write(snapshot)
        return False

    return show


def _follow(job: registry.Job, call: JobConnection, show: Shown) -> int | None:
    """Give ``show`` each table, and None between them, until it wants no more (None) or the job
    has ended (its exit code). Raises: DispatchError if the launcher does not answer.
    """
    heard, until = False, time.monotonic() + REPLY_TIMEOUT
    while heard or time.monotonic() <= until:
        snapshot = None
        match call.answer():
            case {"type": "table", "table": dict(table)}:
                try:
                    heard, snapshot = True, Snapshot.of_plain(table)
                except ValueError:
                    break
            case {"type": "refused", "why": str(why)}:
                raise LauncherSilent(f"job {job.run_id}: {why}")
            case {"type": "verdict", "exit_code": int(code)}:
                return code
        if not show(snapshot):
            return None
    raise registry.not_running(registry.find(job.run_id))
