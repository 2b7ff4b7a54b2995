"""The screen of a job in the background: what attach, stop and logs show of it.

As a run in the foreground shows it, footer and verdict included; what differs is where it comes
from, a socket and files. Nothing here can hold the job back: who reads slowly is told by
the launcher what was left out.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import replace
from typing import Any

import click

from dispatcher.cli import say
from dispatcher.cli.jobs.stacks import JournalLocations
from dispatcher.cli.options.output_options import OutputSettings
from dispatcher.cli.run import run_sinks
from dispatcher.cli.run.run_sinks import RankLabels
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection, Malformed
from dispatcher.model.errors import LauncherSilent, NoLogFiles
from dispatcher.model.paths import RunPaths
from dispatcher.output.files.log_reader import LogReader, MergedLogReader, RankLogReader, rest_of
from dispatcher.output.monitor.run_progress import RemoteProgress
from dispatcher.output.terminal.screen import Screen, Writer
from dispatcher.remote.protocol.frames import STDERR

#: seconds that the files may be behind the launcher's word (--log-overflow drop)
BEHIND = 5.0
#: seconds between two looks at the files
LOOK = 0.1


class Watch:
    """The screen that shows ``job``; ``notes`` are lines to be said when there is time."""

    def __init__(self, job: registry.Job, output: OutputSettings) -> None:
        hosts = [name for name, _, _ in job.hosts]
        self.job = job
        self.notes: deque[str] = deque()
        self.ranks = job.ranks
        self.has_footer = not output.quiet and run_sinks.may_draw(os.environ)
        self.remote_progress = RemoteProgress(len(hosts), time.monotonic)
        logs = RunPaths(job.logs or job.folder)
        self._homes = JournalLocations(logs.journal, hosts)
        view = run_sinks.view_of(output, RankLabels(output.label, lambda: self._homes))
        if self.has_footer:
            from dispatcher.output.terminal.live_terminal import Terminal

            writer: Writer = Terminal(run_sinks.terminals(), STDERR, None, _nobody_reads, _is_full)
            draw = run_sinks.footer_of(hosts, self.remote_progress.picture)
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
        """The ranks are about to run, perhaps again."""
        self.ranks = world_size
        self._homes.forget()
        self._happened(ev.RanksPlaced(world_size, "", 0, restart))

    def ended(self, rank: int, stream: int) -> None:
        """One stream of a rank is complete."""
        self._happened(ev.OutputEnded(0, rank, stream, 0, 0))

    def _happened(self, event: ev.Event) -> None:
        self.screen.event(Entry(0, 0.0, event))

    def tick(self) -> None:
        """Time has passed."""
        while self.notes:
            self.screen.say(self.notes.popleft())
        self.screen.tick(time.monotonic())


def follow(watch: Watch, call: JobConnection, *, from_start: bool = False) -> int:
    """Show what the launcher says, to the end; the job's exit code.

    from_start: first what the files have of what went before.
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
        raise  # nobody reads what we show
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
    """Once all is known of what went before the call: show that if it is wanted."""
    if len(rests) != hello.get("rests", 0):
        return
    if from_start:
        replay(watch.job, watch.screen, hello, rests)
    for rank, stream in hello.get("ended", ()):
        watch.ended(rank, stream)


def replay(
    job: registry.Job,
    sink: Sink,
    hello: dict[str, Any],
    rests: dict[tuple[int, int], bytes],
) -> None:
    """Give ``sink`` what ``job`` had written by the time of ``hello``, none of it twice.

    Raises: DispatchError if its files are gone.
    """
    most = {(rank, stream): count for rank, stream, count in hello["passed"]}
    reader = written(job, until=hello.get("until"))
    end = time.monotonic() + BEHIND
    while True:
        reader.read(sink, most)
        if isinstance(reader, MergedLogReader) and reader.is_trimmed:  # nobody can count here
            missing = {key: len(rest) for key, rest in rests.items()}
            break
        missing = {key: count - reader.taken.get(key, 0) for key, count in most.items()}
        late = any(count > len(rests.get(key, b"")) for key, count in missing.items())
        if not late or time.monotonic() > end:
            break
        time.sleep(LOOK)
    for key, count in missing.items():
        rest = rest_of(rests, key, count)
        if count > len(rest):
            sink.gap({key: count - len(rest)})
        if rest:
            sink.output(*key, rest)


def written(job: registry.Job, only: int | None = None, until: float | None = None) -> LogReader:
    """The reader of what ``job`` has written.

    only: the one rank to read. until: see ``MergedLogReader``.
    Raises: DispatchError if there are no files.
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
    """Tell the verdict of the ended ``job``; its exit code. watch: the screen it was shown on.

    Raises: DispatchError if it has none.
    """
    if job.end is None:
        raise registry.not_running(job)
    lines = [str(line) for line in job.end["verdict"]]
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
    """End the show, and not the job."""
    raise click.exceptions.Exit(1)
