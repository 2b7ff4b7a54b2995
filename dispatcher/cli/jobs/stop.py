"""``dispatch stop``: end a job in the background as Ctrl-C would, and see it end."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dispatcher.cli.entry import MIXED, enter
from dispatcher.cli.jobs.job_screen import Watch, follow, tell_end
from dispatcher.cli.options.option_classes import ShowOptions
from dispatcher.cli.options.output_options import settings
from dispatcher.cli.say import say
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection
from dispatcher.model import errors

EPILOG = """\b
Examples:
  dispatch stop              the only job that runs
  dispatch stop latest --now
"""


@click.command("stop", context_settings=MIXED, epilog=EPILOG)
@click.argument("job", required=False)
@click.option("--now", is_flag=True, help="Kill at once, as a second Ctrl-C.")
def command(job: str | None, now: bool) -> int:
    """End a job: TERM, its grace, KILL; waits for the end and shows the verdict.

    JOB is the start of an id of dispatch jobs, or latest; not needed if only one runs.
    Exit code: 0 once it has ended; Ctrl-C leaves it ending.
    """
    found = registry.find(job)
    if found.state == registry.ENDED:
        tell_end(found)
        return 0
    try:
        with JobConnection(found) as call:
            call.order("stop", now=now)
            follow(Watch(found, settings(ShowOptions(quiet=True), None)), call)
    except KeyboardInterrupt:
        say(f"\nnote: job {found.run_id} is being ended; dispatch attach shows it")
        return errors.SIGNAL_BASE + 2
    return 0


def main(words: Sequence[str]) -> int:
    """Run ``dispatch stop`` with ``words``; the exit code."""
    return enter(command, words, "dispatch stop")
