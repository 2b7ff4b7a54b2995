"""``dispatch attach``: be the screen of a job in the background, until it ends or Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click

from dispatcher import exitcodes
from dispatcher.cli.door import MIXED, enter, say
from dispatcher.jobs import record
from dispatcher.jobs.caller import Call
from dispatcher.jobs.protocol import Malformed
from dispatcher.plan.worlds import name
from dispatcher.sinks.outlet import Outlet
from dispatcher.sinks.screen import Screen, View


@click.command("attach", context_settings=MIXED)
@click.argument("job", required=False)
@click.option("--from-start", is_flag=True, help="First what the ranks have written so far.")
@click.option("-q", "--quiet", is_flag=True, help="No output; only notes and the verdict.")
def command(job: str | None, from_start: bool, quiet: bool) -> int:
    """Show a job's output from now on and its verdict; exits with the job's exit code.

    JOB is the start of an id of dispatch jobs, or latest; not needed if only one runs.
    Ctrl-C detaches, exit code 130, and the job goes on; any number may be attached. A paused
    terminal does not hold the job back: what it missed is counted, and is in the files.
    """
    found = record.find(job)
    try:
        if found.state == record.ENDED:
            return _ended(found, from_start)
        with Call(found) as call:
            call.order("attach", output=not quiet)
            return watch(found, call, from_start=from_start)
    except KeyboardInterrupt:
        say(f"\nnote: detached; job {found.run_id} goes on; to end it: dispatch stop")
        return exitcodes.SIGNAL_BASE + 2


def _ended(job: record.Job, from_start: bool) -> int:
    if from_start:
        from dispatcher.cli.logs import replay

        screen = open_screen()
        replay(job, screen)
        screen.close()
    return tell_end(job)


def watch(job: record.Job, call: Call, *, from_start: bool = False) -> int:
    """Show what the launcher says, to the end; the job's exit code.

    Raises: DispatchError when the launcher died without a verdict.
    """
    screen = open_screen()
    try:
        for fields, payload in call.frames():
            screen.tick(time.monotonic())
            match fields:
                case {"type": "hello", "passed": passed} if from_start:
                    from dispatcher.cli.logs import replay

                    replay(job, screen, {(rank, stream): size for rank, stream, size in passed})
                case {"type": "output", "rank": int(rank), "stream": 1 | 2 as stream} if payload:
                    screen.output(rank, stream, payload)
                case {"type": "gap", "missing": missing}:
                    screen.gap({(rank, stream): size for rank, stream, size in missing})
                case {"type": "say", "line": str(line)}:
                    screen.say(line)
                case {"type": "verdict"}:
                    break
    except BrokenPipeError:
        raise  # nobody reads what we show
    except (OSError, Malformed):
        pass  # the launcher is gone; the record says what became of it
    finally:
        screen.close()
    return tell_end(record.find(job.run_id))


def tell_end(job: record.Job) -> int:
    """Tell the verdict of the ended ``job``; its exit code.

    Raises: DispatchError if it has none.
    """
    if job.end is None:
        raise record.not_running(job)
    for line in job.end["verdict"]:
        say(str(line))
    say(f"note: job {job.run_id} ended, exit code {job.exit_code}")
    return int(job.end["exit_code"])


def open_screen() -> Screen:
    """The sink that shows ranks' output as a run in the foreground would."""
    terminals = frozenset(stream for stream in (1, 2) if os.isatty(stream))
    view = View(
        lambda rank: f"[{name(rank)}]",
        coloured=frozenset() if os.environ.get("NO_COLOR") else terminals,
    )
    return Screen(view, Outlet(on_broken=_nobody_reads))


def _nobody_reads() -> None:
    raise BrokenPipeError


def main(words: Sequence[str]) -> int:
    """Run ``dispatch attach`` with ``words``; the exit code."""
    return enter(command, words, "dispatch attach")
