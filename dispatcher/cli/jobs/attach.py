"""``dispatch attach``: be the screen of a job in the background, until it ends or Ctrl-C.

Ctrl-C detaches, as it ends ``kubectl logs -f`` and ``journalctl -f`` and not what they show. In
``docker attach`` and under ``srun`` it goes to the program; but who attaches to a training job
that has run for a week, and looks on with three others, must not end it by a habit.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence

import click

from dispatcher.cli import entry
from dispatcher.cli.entry import MIXED, enter
from dispatcher.cli.jobs.job_screen import Watch, follow, tell_end, written
from dispatcher.cli.options.option_classes import AttachOptions
from dispatcher.cli.options.output_options import line_options, settings
from dispatcher.cli.say import say
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection
from dispatcher.model import errors
from dispatcher.model.errors import UsageError

EPILOG = """\b
Examples:
  dispatch attach                              the only job that runs
  dispatch attach latest --from-start --fold   all it has written, equal lines once
  dispatch attach k3f9x2 --only-ranks 0 --label host
"""


@entry.command("attach", AttachOptions, context_settings=MIXED, epilog=EPILOG)
@click.argument("job", required=False)
@click.option("--from-start", is_flag=True, help="First what the ranks have written so far.")
@line_options
@click.option("-q", "--quiet", is_flag=True, help="No output; only notes and the verdict.")
@click.option(
    "--stop-on-interrupt",
    is_flag=True,
    help="Ctrl-C ends the job as dispatch stop does, a second one kills it, a third detaches.",
)
def command(options: AttachOptions) -> int:
    """Show a job's output from now on and its verdict; exits with the job's exit code.

    JOB is the start of an id of dispatch jobs, or latest; not needed if only one runs.
    Ctrl-C detaches, exit code 130: it never ends the job, which goes on, as it does when this
    terminal is closed; any number may be attached. A paused terminal does not hold the job back:
    what it missed is counted, and is in the files.
    """
    found = registry.find(options.job)
    from_start = options.from_start
    if from_start and options.timestamps:
        raise UsageError("--timestamps: the times of earlier lines are not known here")
    watch = Watch(found, settings(options, found.ranks))
    try:
        if found.state == registry.ENDED:
            return _ended(watch, from_start)
        with JobConnection(found) as call:
            if options.stop_on_interrupt:
                signal.signal(signal.SIGINT, Stopping(call, watch))
            call.order(
                "attach", output=not options.quiet, rests=from_start, picture=watch.has_footer
            )
            return follow(watch, call, from_start=from_start)
    except KeyboardInterrupt:
        say(f"\nnote: detached; job {found.run_id} goes on; to end it: dispatch stop")
        return errors.SIGNAL_BASE + 2


class Stopping:
    """What Ctrl-C does with ``--stop-on-interrupt``."""

    def __init__(self, call: JobConnection, watch: Watch) -> None:
        self._call = call
        self._watch = watch
        self._presses = 0

    def __call__(self, *_: object) -> None:
        self._presses += 1
        if self._presses > 2:
            raise KeyboardInterrupt
        with contextlib.suppress(OSError):  # the launcher is gone, as the loop will notice
            self._call.order("stop", now=self._presses == 2)
        what = "ending the job; again to kill it" if self._presses == 1 else "killing the job"
        self._watch.notes.append(f"note: {what}")


def _ended(watch: Watch, from_start: bool) -> int:
    if from_start:
        if watch.ranks is not None:
            watch.placed(watch.ranks)
        written(watch.job).read(watch.screen)
        watch.screen.close()
    return tell_end(watch.job)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch attach`` with ``words``; the exit code."""
    return enter(command, words, "dispatch attach")
