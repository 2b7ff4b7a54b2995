"""``dispatch attach``, ``logs`` and ``stop``: show a job's output, show its files, end it.

Ctrl-C detaches, as with ``kubectl logs -f``: it must not end a long job by habit. The screen is the
one of a run in the foreground, fed from a socket and files; a slow reader holds nothing back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from dataclasses import replace
from typing import Any

import click

from dispatcher.cli import say
from dispatcher.cli.jobs.stacks import JournalLocations
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
from dispatcher.output.files.log_reader import LogReader, MergedLogReader, RankLogReader, rest_of
from dispatcher.output.monitor.run_picture import RemoteProgress
from dispatcher.output.terminal.screen import Screen, Writer
from dispatcher.remote.protocol.frames import STDERR


class AttachOptions(LineOptions, section="Output"):
    """Show the output of a job from now on, and its verdict.

    JOB is the beginning of an id that dispatch jobs lists, or latest. If only one job runs you
    need not name it. The exit code is the job's.

    Ctrl-C detaches, with exit code 130. The job goes on, also if you close this terminal. Up to 16
    terminals may attach. A paused terminal does not delay the job: attach counts the output that
    it misses, and the files have it.
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


def _ended(watch: Watch, from_start: bool) -> int:
    if from_start:
        if watch.ranks is not None:
            watch.placed(watch.ranks)
        written(watch.job).read(watch.screen)
        watch.screen.close()
    return tell_end(registry.find(watch.job.run_id))


class StopOptions(Options):
    """End a job, wait until it has ended, and show the verdict.

    Its ranks get SIGTERM (or the run's --stop-signal), then time to end by themselves (the run's
    --grace), then SIGKILL.

    JOB is the beginning of an id that dispatch jobs lists, or latest. If only one job runs you
    need not name it. It may also be a program's job or, if you name it, a job in another terminal.
    After Ctrl-C dispatch stop does not wait any longer; the job still ends.
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
    """The number of the first signal for the ranks; 0: the run knows it. Raises: UsageError."""
    if options.signal is None:
        return 0
    if options.now:
        raise ConflictingOptions("--now and --signal exclude each other: --now kills at once")
    from dispatcher.plan.job.request import parse_signal

    return parse_signal(options.signal, "--signal")


#: seconds between two looks at the files
LOOK = 0.2
#: states in which more may come; whether a launcher of another machine lives is not known here
GOES_ON = (registry.RUNNING, registry.ELSEWHERE)


class LogsOptions(Options):
    """Show the output of a job's ranks so far, one rank after the other.

    JOB is the beginning of an id that dispatch jobs lists, or latest. If only one job is known you
    need not name it. Lines of a job with --log-merge come in the order in which they were written.
    """

    examples = (
        ("dispatch logs latest | less", "all ranks"),
        ("dispatch logs k3f9x2 --rank 0", "one rank, without labels"),
        ("dispatch logs -f", "all output, then new output"),
    )

    job: str | None = argument()
    follow: bool = preset("-f", help="Go on with new output, until the job ends.")
    rank: str | None = preset(metavar="N", help="Show only rank N, without labels.")


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


#: seconds that the files may be late by the launcher's count (--log-overflow drop)
BEHIND = 5.0
#: seconds between two looks at them
RETRY = 0.1


class Watch:
    """The screen that shows ``job``; ``notes`` are lines to print at the next ``tick``."""

    def __init__(self, job: registry.Job, output: OutputSettings) -> None:
        hosts = [name for name, _, _ in job.hosts]
        self.job = job
        self.notes: deque[str] = deque()
        self.ranks = job.ranks
        self.has_footer = not output.quiet and run_sinks.may_draw(os.environ)
        self.remote_progress = RemoteProgress(len(hosts), time.monotonic)
        logs = RunPaths(job.logs or job.folder)
        self._homes = JournalLocations(logs.journal, hosts)
        view = run_sinks.view_of(output, RankLabels(output.label, self._homes))
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

    def placed(self, world_size: int, restart: int = 0) -> None:
        """Prepare for ranks that are about to run, perhaps again."""
        self.ranks = world_size
        self._homes.forget()
        self._happened(ev.RanksPlaced(world_size, "", 0, restart))

    def ended(self, rank: int, stream: int) -> None:
        """Mark one stream of a rank as complete."""
        self._happened(ev.OutputEnded(0, rank, stream, 0, 0))

    def _happened(self, event: ev.Event) -> None:
        self.screen.event(Entry(0, 0.0, event))

    def tick(self) -> None:
        """Print the waiting notes, and let the screen see the time."""
        while self.notes:
            self.screen.say(self.notes.popleft())
        self.screen.tick(time.monotonic())


def follow(watch: Watch, call: JobConnection, *, from_start: bool = False) -> int:
    """Show the launcher's messages, to the end; the job's exit code.

    from_start: first the earlier output, from the files.
    Raises: DispatchError when the launcher died without a verdict, or has no room for us.
    """
    screen = watch.screen
    hello: dict[str, Any] = {}
    rests: dict[tuple[int, int], bytes] = {}
    end: dict[str, Any] | None = None
    try:
        for fields, payload in call.frames():
            watch.tick()
            match fields:
                case {"type": "hello"}:
                    hello = fields
                    if isinstance(size := hello.get("world_size"), int):
                        watch.placed(size)
                    _begin(watch, hello, rests, from_start)
                case {"type": "rest", "rank": int(rank), "stream": 1 | 2 as stream}:
                    rests[rank, stream] = payload
                    _begin(watch, hello, rests, from_start)
                case {"type": "output", "rank": int(rank), "stream": 1 | 2 as stream} if payload:
                    screen.output(rank, stream, payload)
                case {"type": "gap", "missing": missing}:
                    screen.gap({(rank, stream): size for rank, stream, size in missing})
                case {"type": "ended", "rank": int(rank), "stream": 1 | 2 as stream}:
                    watch.ended(rank, stream)
                case {"type": "placed", "world_size": int(size), "restart": int(restart)}:
                    watch.placed(size, restart)
                case {"type": "picture", "picture": dict(picture)}:
                    watch.remote_progress.hear(picture)
                case {"type": "say", "line": str(line)}:
                    screen.say(line)
                case {"type": "refused", "why": str(why)}:
                    raise LauncherSilent(f"job {watch.job.run_id}: {why}")
                case {"type": "verdict", "exit_code": int(code), "lines": list(lines)}:
                    end = {"exit_code": code, "verdict": lines, "ended": time.time()}
                    break
    except BrokenPipeError:
        raise  # the reader of our output has gone
    except (OSError, Malformed):
        pass  # the launcher is gone; the record says what became of it
    finally:
        screen.close()
    job = registry.find(watch.job.run_id)
    if job.end is None and end is not None:  # the disk that takes the record is full
        job = replace(job, end=end)
    return tell_end(job, watch)


def _begin(
    watch: Watch, hello: dict[str, Any], rests: dict[tuple[int, int], bytes], from_start: bool
) -> None:
    """Once all earlier output has come: show it if it is wanted."""
    if len(rests) != hello.get("rests", 0):
        return
    if from_start:
        replay(watch.job, watch.screen, hello, rests)
    for rank, stream in hello.get("ended", ()):
        watch.ended(rank, stream)


def replay(
    job: registry.Job, sink: Sink, hello: dict[str, Any], rests: dict[tuple[int, int], bytes]
) -> None:
    """Give ``sink`` the output of ``job`` up to ``hello``. Raises: DispatchError."""
    most = {(rank, stream): count for rank, stream, count in hello["passed"]}
    reader = written(job, until=hello.get("until"))
    end = time.monotonic() + BEHIND
    while True:
        reader.read(sink, most)
        if isinstance(reader, MergedLogReader) and reader.is_trimmed:  # no count is possible
            missing = {key: len(rest) for key, rest in rests.items()}
            break
        missing = {key: count - reader.taken.get(key, 0) for key, count in most.items()}
        late = any(count > len(rests.get(key, b"")) for key, count in missing.items())
        if not late or time.monotonic() > end:
            break
        time.sleep(RETRY)
    for key, count in missing.items():
        rest = rest_of(rests, key, count)
        if count > len(rest):
            sink.gap({key: count - len(rest)})
        if rest:
            sink.output(*key, rest)


def written(job: registry.Job, only: int | None = None, until: float | None = None) -> LogReader:
    """The reader of the output files of ``job``. only: the one rank to read; until: see
    ``MergedLogReader``. Raises: DispatchError if there are no files.
    """
    if job.logs is None:
        raise NoLogFiles(f"job {job.run_id}: it keeps no files", hint="--log-dir DIR")
    if not job.logs.is_dir():
        raise registry.files_gone(job)
    merged = RunPaths(job.logs).merged
    if merged.exists() or any(job.logs.glob(f"{merged.name}.*")):
        return MergedLogReader(merged, only, until)
    return RankLogReader(job.logs, only)


def tell_end(job: registry.Job, watch: Watch | None = None) -> int:
    """Print the verdict of the ended ``job``; its exit code. Raises: DispatchError if none."""
    if job.end is None:
        raise registry.not_running(job)
    lines = run_sinks.on_screen([str(line) for line in job.end["verdict"]])
    code = int(job.end["exit_code"])
    if watch is not None and watch.has_footer:
        seconds = float(job.end["ended"]) - job.began
        run_sinks.close_panel(lines, code, len(job.hosts), watch.ranks or 0, seconds)
    else:
        for line in lines:
            say(line)
    say(f"note: job {job.run_id} ended, exit code {code}")
    return code


def _nobody_reads() -> None:
    raise BrokenPipeError


def _is_full() -> None:
    """End the display, and not the job."""
    raise click.exceptions.Exit(1)
