"""``dispatch logs``: what a job's ranks have written, from the files; ``-f`` goes on with it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from dispatcher.cli.entry import MIXED, enter
from dispatcher.core.events.run_events import Sink
from dispatcher.jobs import registry
from dispatcher.model import errors
from dispatcher.model.errors import DispatchError, UsageError

#: seconds between two looks at the files
LOOK = 0.2

EPILOG = """\b
Examples:
  dispatch logs latest | less
  dispatch logs k3f9x2 -f --rank 0
"""


@click.command("logs", context_settings=MIXED, epilog=EPILOG)
@click.argument("job", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--rank", metavar="N", help="Only rank N, without labels.")
def command(job: str | None, follow: bool, rank: str | None) -> int:
    """Show what a job's ranks have written: rank by rank, then, with -f, as it comes.

    JOB is the start of an id of dispatch jobs, or latest; not needed if only one is known.
    With --log-merge lines are in the order in which they came.
    """
    from dispatcher.cli.jobs.job_screen import Watch, written
    from dispatcher.cli.options.option_classes import ShowOptions
    from dispatcher.cli.options.output_options import settings

    found = registry.find(job)
    only = None if rank is None else _rank(rank)
    options = ShowOptions(quiet=True, label="rank" if only is None else "none")
    screen: Sink = Watch(found, settings(options, None)).screen
    reader = written(found, only)
    try:
        while True:
            live = follow and registry.find(found.run_id).state == registry.RUNNING
            any_new = reader.read(screen)
            screen.tick(time.monotonic())
            if not live:
                break
            if not any_new:
                time.sleep(LOOK)
    except KeyboardInterrupt:
        return errors.SIGNAL_BASE + 2
    finally:
        screen.close()
    if only is not None and not any(reader.taken.values()):
        raise DispatchError(f"rank {only}: has written nothing")
    return 0


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise UsageError(f"--rank: not a rank: {text!r}", hint="--rank 0")
    return int(text)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch logs`` with ``words``; the exit code."""
    return enter(command, words, "dispatch logs")
