"""``dispatch attach``, ``logs`` and ``stop``: show a job's output, show its files, end it.

Ctrl-C detaches, as with ``kubectl logs -f``: it must not end a long job by habit. The screen is the
one of a run in the foreground. It is fed from the job's files, so a slow reader holds nothing back
and misses nothing; notes, progress and the verdict come from the job's socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

import click

from dispatcher.cli import say
from dispatcher.cli.options.declaration import (
    Options,
    argument,
    converted,
    dry_run_option,
    option,
    preset,
)
from dispatcher.cli.options.output_options import LineOptions, OutputSettings, ShowOptions, settings
from dispatcher.cli.run import run_sinks
from dispatcher.cli.run.run_sinks import RankLabels
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.core.interrupts import KILL, LEAVE, Interrupts
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection, Malformed
from dispatcher.model import errors
from dispatcher.model.errors import (
    ConflictingOptions,
    JobEnded,
    LauncherSilent,
    NoLogFiles,
    UsageError,
)
from dispatcher.model.paths import RunPaths
from dispatcher.output.files.journal import JournalState
from dispatcher.output.files.log_reader import LogReader, MergedLogReader, RankLogReader
from dispatcher.output.monitor.run_picture import Picture, decode_picture
from dispatcher.output.terminal.screen import Screen, Writer
from dispatcher.remote.protocol.frames import STDERR


class AttachOptions(LineOptions, section="Output"):
    """Show the output of a job from now on, and its verdict.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs lists, or latest. If
    only one job runs you need not name it. The exit code is the job's.

    Ctrl-C detaches, with exit code 130. The job goes on, also if you close this terminal. Up to 16
    terminals may attach. The lines come from the job's files, so a paused terminal neither delays
    the job nor misses a line. A job in another terminal may keep no files (--log-dir); then attach
    shows its progress, its notes and the verdict.
    """

    examples = (
        ("dispatch attach", "the only job that runs"),
        ("dispatch attach latest --from-start --fold", "its whole output, equal lines once"),
        ("dispatch attach k3f9x2 --only-ranks 0 --label host", "one rank of the job k3f9x2"),
    )

    job: str | None = argument()
    from_start: bool = preset(help="Begin with the earlier output of the ranks.")
    quiet: bool = preset("-q", help="Show no output, only notes and the verdict.")
    stop_on_interrupt: bool = option(
        help="Let Ctrl-C end the job, as dispatch stop does. A second Ctrl-C kills it, a third "
        "detaches."
    )


def attach(options: AttachOptions) -> int:
    """Show the job until it ends; its exit code. Raises: UsageError, DispatchError."""
    found = registry.find(options.job)
    from_start = options.from_start
    if from_start and options.timestamps:
        raise ConflictingOptions("--timestamps: attach does not know the times of earlier lines")
    watch = Watch(found, settings(converted(options, ShowOptions), found.ranks))
    try:
        keeps_files = found.logs is not None and found.logs.is_dir()
        if from_start or (keeps_files and not options.quiet):
            watch.show(written(found), from_start=from_start)
        if found.state == registry.ENDED:
            return _ended(watch)
        try:
            call = JobConnection(found)
        except JobEnded:  # just now
            return _ended(watch)
        with call:
            if options.stop_on_interrupt:
                signal.signal(signal.SIGINT, Stopping(call, watch))
            if not keeps_files and not options.quiet:
                whose = "program" if found.by_program else "terminal"
                watch.notes.append(
                    f"note: job {found.run_id} keeps no files (--log-dir), so only its {whose} has "
                    "its output"
                )
            call.order("attach", notes=not options.quiet, picture=watch.has_footer)
            return follow(watch, call)
    except KeyboardInterrupt:
        say(f"\nnote: detached; job {found.title} goes on; to end it: dispatch stop")
        return errors.SIGNAL_BASE + 2


class Stopping:
    """Handles Ctrl-C with ``--stop-on-interrupt``."""

    def __init__(self, call: JobConnection, watch: Watch) -> None:
        self._call = call
        self._watch = watch
        self._interrupts = Interrupts()

    def __call__(self, *_: object) -> None:
        level = self._interrupts.hear(signal.SIGINT, time.monotonic())
        if level == LEAVE:
            raise KeyboardInterrupt
        if not level:
            return
        with contextlib.suppress(OSError):  # the launcher is gone, as the loop will notice
            self._call.order("stop", now=level == KILL)
        what = "killing the job" if level == KILL else "ending the job; again to kill it"
        self._watch.notes.append(f"note: {what}")


def _ended(watch: Watch) -> int:
    with closing(watch.screen):
        watch.look()
    return tell_end(registry.find(watch.job.run_id))


class StopOptions(Options):
    """End a job, wait until it has ended, and show the verdict.

    Its ranks get SIGTERM (or the run's --stop-signal), then time to end by themselves (the run's
    --grace), then SIGKILL.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs lists, or latest. If
    only one job runs you need not name it. It may also be a program's job, or one in another
    terminal. After Ctrl-C dispatch stop does not wait any longer; the job still ends.
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
    signal: str | None = preset(
        metavar="SIGNAL",
        help="Send this signal first. Ranks that still run after --grace get SIGTERM.",
        usual="the run's --stop-signal, else TERM",
    )
    dry_run: bool = dry_run_option()


def stop(options: StopOptions) -> int:
    """End the job and wait for it; the exit code. Raises: DispatchError."""
    first = _first_signal(options)
    found = registry.find(options.job, runs=True)
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
    """The number of the first signal for the ranks; 0: the run knows it. Raises: UsageError."""
    if options.signal is None:
        return 0
    if options.now:
        raise ConflictingOptions("--now and --signal exclude each other: --now kills at once")
    from dispatcher.plan.job.request import parse_signal

    return parse_signal(options.signal, "--signal")


#: seconds between two looks at the files, or four times as long as a look takes
LOOK = 0.1
#: states in which more may come; whether a launcher of another machine lives is not known here
GOES_ON = (registry.RUNNING, registry.ELSEWHERE)


class LogsOptions(Options):
    """Show the output of a job's ranks so far, one rank after the other.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs lists, or latest. If
    only one job is known you need not name it. Lines of a job with --log-merge come in the order in
    which they were written.
    """

    examples = (
        ("dispatch logs latest | less", "all ranks"),
        ("dispatch logs k3f9x2 --rank 0", "one rank, without labels"),
        ("dispatch logs -f", "all output, then new output"),
        ("dispatch logs --grep 'loss|error' --since 10m", "these lines of the last ten minutes"),
    )

    job: str | None = argument()
    follow: bool = preset("-f", help="Go on with new output, until the job ends.")
    rank: str | None = preset(metavar="N", help="Show only rank N, without labels.")
    grep: str | None = preset(
        metavar="REGEX", help="Show only lines that match REGEX, a regular expression."
    )
    since: str | None = option(
        metavar="TIME",
        help="Show only lines that came after TIME: 10m (ago), 14:30 (the last), 2026-01-31T14:30. "
        "Only a job with --log-merge keeps the times of its lines.",
    )


def logs(options: LogsOptions) -> int:
    """Show the files of the job; the exit code. Raises: UsageError, DispatchError."""
    found = registry.find(options.job)
    only = None if options.rank is None else _rank(options.rank)
    if only is not None:
        found.check_rank(only)
    label: Literal["rank", "none"] = "rank" if only is None else "none"
    shown = settings(ShowOptions(quiet=True, label=label, grep=options.grep), None)
    since = None if options.since is None else _since(options.since)
    watch = Watch(found, shown)
    watch.show(written(found, only, since))
    try:
        with closing(watch.screen):
            while options.follow and registry.find(found.run_id).state in GOES_ON:
                watch.look()
                watch.screen.tick(time.monotonic())
                time.sleep(LOOK)
            watch.look()
    except KeyboardInterrupt:
        return errors.SIGNAL_BASE + 2
    if only is not None and not watch.has_shown:
        raise NoLogFiles(f"rank {only}: has written nothing")
    return 0


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise UsageError(f"--rank: not a rank: {text!r}", hint="--rank 0")
    return int(text)


def _since(text: str) -> float:
    """``--since`` in seconds since the epoch. Raises: UsageError."""
    from datetime import datetime

    from dispatcher.plan.job.request import parse_time

    now = time.time()
    day = "" if "-" in text else f"{datetime.now():%Y-%m-%d}T"
    try:
        if day and ":" not in text:
            return now - parse_time(text, "--since")
        when = datetime.fromisoformat(day + text.replace("Z", "+00:00")).timestamp()
    except (UsageError, ValueError, OverflowError):
        hint = "--since 10m, --since 14:30, --since 2026-01-31T14:30"
        raise UsageError(f"--since: not a time: {text!r}", hint=hint) from None
    return when - 86400 if day and when > now else when


class RemoteProgress:
    """The run of another process, for a footer: ``picture`` is the last one, with later times.

    hosts: how many the run has. clock: seconds, monotonic.
    """

    def __init__(self, hosts: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_at = clock()
        self._hosts = hosts
        self._last = Picture({}, (), {}, 0, 0.0, None)
        self.heard = False

    def hear(self, plain: Mapping[str, Any]) -> None:
        """Take an encoded picture; an invalid one, or one of other hosts, is ignored."""
        picture = decode_picture(plain)
        if picture is not None and all(0 <= node < self._hosts for node in picture.pending):
            self._last, self._heard_at = picture, self._clock()
            self.heard = True

    def picture(self) -> Picture:
        """The last picture, with its times moved to now."""
        last, age = self._last, self._clock() - self._heard_at
        since = None if last.since_line is None else last.since_line + age
        left = None if last.left is None else max(0.0, last.left - age)
        return replace(last, seconds=last.seconds + age, since_line=since, left=left)


class Watch:
    """The screen that shows ``job``; ``notes`` are lines to print at the next ``tick``."""

    def __init__(self, job: registry.Job, output: OutputSettings) -> None:
        hosts = [name for name, _, _ in job.hosts]
        self.job = job
        self.notes: deque[str] = deque()
        self.has_footer = not output.quiet and run_sinks.may_draw(os.environ)
        self.remote_progress = RemoteProgress(len(hosts), time.monotonic)
        self.has_shown = False  # whether a rank has written anything
        self._reader: LogReader | None = None
        self._state = JournalState(RunPaths(job.logs or job.folder).journal, hosts)
        self._next_look = 0.0
        view = run_sinks.view_of(output, RankLabels(output.label, self._state))
        if self.has_footer:
            from dispatcher.output.terminal.live_terminal import Terminal

            writer: Writer = Terminal(run_sinks.terminals(), STDERR, None, _nobody_reads, _is_full)
            draw = run_sinks.RunFooter(hosts, self.remote_progress.picture)
            self.screen: Sink = Screen(
                view, writer, footer=lambda *what: draw(*what) if self.remote_progress.heard else []
            )
        else:
            self.screen = Screen(view, Writer(None, _nobody_reads, _is_full))
        if output.only is not None:
            from dispatcher.output.buffered import Filtered

            only = output.only
            self.screen = Filtered(self.screen, lambda rank, _: rank in only)

    @property
    def ranks(self) -> int:
        """How many there are, as far as that is known."""
        return self._state.world_size or self.job.ranks or 0

    def show(self, reader: LogReader, *, from_start: bool = True) -> None:
        """Show what ``reader`` gives from now on. from_start: and has so far."""
        self._reader = reader
        if not from_start:
            reader.skip()

    def tick(self) -> None:
        """Show waiting notes and new output, and let the screen see the time."""
        while self.notes:
            self.screen.say(self.notes.popleft())
        began = time.monotonic()
        if began >= self._next_look:
            self.look()
            now = time.monotonic()
            self._next_look = now + max(LOOK, 4 * (now - began))
        self.screen.tick(time.monotonic())

    def look(self) -> None:
        """Show the new output. Raises: NoLogFiles if the files were removed."""
        if self._reader is None:
            return
        ended: list[Entry] = []
        for entry in self._state.news():
            if isinstance(entry.event, ev.RanksPlaced):
                ended.clear()
                self.screen.event(entry)
            elif isinstance(entry.event, ev.OutputEnded):
                ended.append(entry)
        try:
            self.has_shown |= self._reader.read(self.screen)
        except FileNotFoundError:
            raise registry.files_gone(self.job) from None
        for entry in ended:  # now that all of it has been read
            self.screen.event(entry)


def follow(watch: Watch, call: JobConnection) -> int:
    """Show the job and the launcher's messages, to the end; the job's exit code.

    Raises: DispatchError when the launcher died without a verdict, or has no room for us.
    """
    with closing(watch.screen):
        end = _until_the_end(watch, call)
        watch.look()
    job = registry.find(watch.job.run_id)
    if job.end is None and end is not None:  # the disk that takes the record is full
        job = replace(job, end=end)
    return tell_end(job, watch)


def _until_the_end(watch: Watch, call: JobConnection) -> dict[str, Any] | None:
    """Show the job until its launcher is gone; the end that it sent, in the form of the record."""
    try:
        for fields in call.frames():
            watch.tick()
            match fields:
                case {"type": "picture", "picture": dict(picture)}:
                    watch.remote_progress.hear(picture)
                case {"type": "say", "line": str(line)}:
                    watch.screen.say(line)
                case {"type": "refused", "why": str(why)}:
                    raise LauncherSilent(f"job {watch.job.run_id}: {why}")
                case {"type": "verdict", "exit_code": int(code), "lines": list(lines)}:
                    return {"exit_code": code, "verdict": lines, "ended": time.time()}
    except BrokenPipeError:
        raise  # the reader of our output has gone
    except (OSError, Malformed):
        pass  # the launcher is gone; the record says what became of it
    return None


def written(job: registry.Job, only: int | None = None, since: float | None = None) -> LogReader:
    """The reader of the output files of ``job``. only: the one rank to read; since: leave out
    lines from before this time.

    Raises: DispatchError if there are no files, or none with times.
    """
    if job.logs is None:
        raise NoLogFiles(f"job {job.run_id}: it keeps no files", hint="--log-dir DIR")
    if not job.logs.is_dir():
        raise registry.files_gone(job)
    merged = RunPaths(job.logs).merged
    if merged.exists() or any(job.logs.glob(f"{merged.name}.*")):
        return MergedLogReader(merged, only, since or 0.0)
    if since is not None:
        raise ConflictingOptions(
            f"--since: job {job.run_id}: its files do not have the times of lines",
            hint="a job with --log-merge keeps them",
        )
    return RankLogReader(job.logs, only)


def tell_end(job: registry.Job, watch: Watch | None = None) -> int:
    """Print the verdict of the ended ``job``; its exit code. Raises: DispatchError if none."""
    if job.end is None:
        raise registry.not_running(job)
    lines = run_sinks.on_screen([str(line) for line in job.end["verdict"]])
    code = int(job.end["exit_code"])
    if watch is not None and watch.has_footer:
        seconds = float(job.end["ended"]) - job.began
        run_sinks.close_panel(lines, code, len(job.hosts), watch.ranks, seconds)
    else:
        for line in lines:
            say(line)
    say(f"note: job {job.title} ended, exit code {code}")
    return code


def _nobody_reads() -> None:
    raise BrokenPipeError


def _is_full() -> None:
    """End the display, and not the job."""
    raise click.exceptions.Exit(1)
