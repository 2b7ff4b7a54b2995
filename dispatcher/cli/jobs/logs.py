"""``dispatch logs``: what a job's ranks have written, from the files; ``-f`` goes on with it."""

from __future__ import annotations

import time

from dispatcher.cli.options.declaration import Options, argument, option
from dispatcher.core.events.run_events import Sink
from dispatcher.jobs import registry
from dispatcher.model import errors
from dispatcher.model.errors import NoLogFiles, UsageError

#: seconds between two looks at the files
LOOK = 0.2


class LogsOptions(Options):
    """Show what the ranks of a job have written so far, one rank after the other.

    JOB is the beginning of an id that dispatch jobs lists, or latest. If only one job is known you
    need not name it. Lines of a job with --log-merge come in the order in which they were written.
    """

    examples = (
        ("dispatch logs latest | less", "all ranks"),
        ("dispatch logs k3f9x2 --rank 0", "one rank, without labels"),
        ("dispatch logs -f", "what there is, then what comes"),
    )

    job: str | None = argument()
    follow: bool = option("-f", help="Go on with what comes, until the job ends.")
    rank: str | None = option(metavar="N", help="Show rank N alone, without labels.")


def logs(options: LogsOptions) -> int:
    """Show the files of the job; the exit code. Raises: UsageError, DispatchError."""
    from dispatcher.cli.jobs.job_screen import Watch, written
    from dispatcher.cli.options.output_options import ShowOptions, settings

    found = registry.find(options.job)
    only = None if options.rank is None else _rank(options.rank)
    shown = ShowOptions(quiet=True, label="rank" if only is None else "none")
    screen: Sink = Watch(found, settings(shown, None)).screen
    reader = written(found, only)
    try:
        while True:
            live = options.follow and registry.find(found.run_id).state == registry.RUNNING
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
        raise NoLogFiles(f"rank {only}: has written nothing")
    return 0


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise UsageError(f"--rank: not a rank: {text!r}", hint="--rank 0")
    return int(text)
