"""``dispatch attach``, ``logs`` and ``stop``: what a job shows, has written, and how it is ended.

Ctrl-C detaches, as it ends ``kubectl logs -f`` and ``journalctl -f`` and not what they show. In
``docker attach`` and under ``srun`` it goes to the program; but who attaches to a training job
that has run for a week, and looks on with three others, must not end it by a habit.
"""

from __future__ import annotations

import contextlib
import signal
import time

from dispatcher.cli import say
from dispatcher.cli.jobs.job_screen import Watch, follow, tell_end, written
from dispatcher.cli.options.declaration import Options, argument, converted, dry_run_option, option
from dispatcher.cli.options.output_options import LineOptions, ShowOptions, settings
from dispatcher.core.events.run_events import Sink
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection
from dispatcher.model import errors
from dispatcher.model.errors import ConflictingOptions, JobEnded, NoLogFiles, UsageError


class AttachOptions(LineOptions, section="Output"):
    """Show the output of a job from now on, and its verdict.

    JOB is the beginning of an id that dispatch jobs lists, or latest. If only one job runs you
    need not name it. The exit code is the job's.

    Ctrl-C detaches, with exit code 130. It never ends the job, nor does closing this terminal, and
    up to 16 may be attached at once. A terminal that pauses does not hold the job back: what
    it misses is counted, and is in the files.
    """

    examples = (
        ("dispatch attach", "the only job that runs"),
        ("dispatch attach latest --from-start --fold", "all it has written, equal lines once"),
        ("dispatch attach k3f9x2 --only-ranks 0 --label host", "one rank of the job k3f9x2"),
    )

    job: str | None = argument()
    from_start: bool = option(help="Begin with what the ranks have written so far.")
    quiet: bool = option("-q", help="Show no output, only notes and the verdict.")
    stop_on_interrupt: bool = option(
        help="Let Ctrl-C end the job, as dispatch stop does. A second one kills it, a third one "
        "detaches."
    )


def attach(options: AttachOptions) -> int:
    """Show the job until it ends; its exit code. Raises: UsageError, DispatchError."""
    found = registry.find(options.job)
    from_start = options.from_start
    if from_start and options.timestamps:
        raise ConflictingOptions("--timestamps: the times of earlier lines are not known here")
    watch = Watch(found, settings(converted(options, ShowOptions), found.ranks))
    try:
        if found.state == registry.ENDED:
            return _ended(watch, from_start)
        try:
            call = JobConnection(found)
        except JobEnded:  # just now
            return _ended(watch, from_start)
        with call:
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
        press = self._presses  # the next may come while we are in here
        if press > 2:
            raise KeyboardInterrupt
        with contextlib.suppress(OSError):  # the launcher is gone, as the loop will notice
            self._call.order("stop", now=press == 2)
        what = "ending the job; again to kill it" if press == 1 else "killing the job"
        self._watch.notes.append(f"note: {what}")


def _ended(watch: Watch, from_start: bool) -> int:
    if from_start:
        if watch.ranks is not None:
            watch.placed(watch.ranks)
        written(watch.job).read(watch.screen)
        watch.screen.close()
    return tell_end(registry.find(watch.job.run_id))


class StopOptions(Options):
    """End a job, wait until it has ended, and show the verdict.

    Its ranks get SIGTERM (or the run's --stop-signal), then time to end by themselves (--grace of
    the run), then SIGKILL.

    JOB is the beginning of an id that dispatch jobs lists, or latest. If only one job runs you
    need not name it. It may be one that a program has started, or named, one in another terminal.
    After Ctrl-C it does not wait any longer; the job ends all the same.
    """

    examples = (
        ("dispatch stop", "the only job that runs"),
        ("dispatch stop k3f9x2", "the job whose id has this part"),
        ("dispatch stop --signal USR1", "to a program that saves and ends on SIGUSR1"),
        ("dispatch stop latest --now", "kill at once"),
    )
    epilog = "Exit code: 0 when the job has ended, 130 after Ctrl-C."

    job: str | None = argument()
    now: bool = option(help="Kill the ranks at once, as a second Ctrl-C does.")
    signal: str | None = option(
        metavar="SIGNAL",
        help="Send this signal first. Ranks that go on in spite of it get SIGTERM after --grace.",
        usual="that of the run's --stop-signal, else TERM",
    )
    dry_run: bool = dry_run_option()


def stop(options: StopOptions) -> int:
    """End the job and wait for it; the exit code. Raises: DispatchError."""
    first = _first_signal(options)
    found = registry.find(options.job, programs=True, runs=True)
    if found.state == registry.ENDED:
        tell_end(found)
        return 0
    from dispatcher.cli.options.connect_options import show_only

    does = f"{'kill' if options.now else 'end'} the ranks of {found.run_id}"
    if show_only(options, "stop", ((host, does) for host in found.targets)):
        return 0
    try:
        with JobConnection(found, stops=True) as call:
            call.order("stop", now=options.now, **({} if options.now else {"signal": first}))
            follow(Watch(found, settings(ShowOptions(quiet=True), None)), call)
    except JobEnded:  # just now
        tell_end(registry.find(found.run_id))
    except KeyboardInterrupt:
        say(f"\nnote: job {found.run_id} is being ended; dispatch attach shows it")
        return errors.SIGNAL_BASE + 2
    return 0


def _first_signal(options: StopOptions) -> int:
    """What the ranks get first; 0: the run knows. Raises: UsageError."""
    if options.signal is None:
        return 0
    if options.now:
        raise ConflictingOptions("--now kills at once: --signal contradicts it")
    from dispatcher.plan.job.request import parse_signal

    return parse_signal(options.signal, "--signal")


#: seconds between two looks at the files
LOOK = 0.2
#: states in which more may come; whether a launcher of another machine lives is not known here
GOES_ON = (registry.RUNNING, registry.ELSEWHERE)


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
    found = registry.find(options.job)
    only = None if options.rank is None else _rank(options.rank)
    if only is not None:
        found.check_rank(only)
    shown = ShowOptions(quiet=True, label="rank" if only is None else "none")
    screen: Sink = Watch(found, settings(shown, None)).screen
    reader = written(found, only)
    try:
        while True:
            live = options.follow and registry.find(found.run_id).state in GOES_ON
            any_new = reader.read(screen)
            screen.tick(time.monotonic())
            if not live:
                break
            if not any_new:
                time.sleep(LOOK)
    except FileNotFoundError:
        raise registry.files_gone(found) from None
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
