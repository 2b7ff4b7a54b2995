"""The sinks of a run, opened as its options say, and the ranks' labels: ``[3]``, ``[gpu01:3]``.

docs/design/output.md has the rule of which sinks may block the ranks: files and the only pipe lose
no byte; a terminal, or a pipe beside files that has paused, never holds the ranks back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dispatcher.cli.options.output_options import OutputSettings
from dispatcher.core.events.run_events import TICK, Event, Sink
from dispatcher.model.errors import DispatchError, FileUnusable, reason
from dispatcher.model.hostset import fold
from dispatcher.model.names import fold_numbers
from dispatcher.model.paths import open_anew, write_all
from dispatcher.output.terminal.screen import (
    PARTIAL,
    STATE,
    LineFormat,
    Screen,
    Writer,
    can_pause,
    same_file,
)
from dispatcher.output.text.fold import Folding
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.placement import FIRST, rank_name
from dispatcher.remote.protocol.frames import STDERR, STDOUT

if TYPE_CHECKING:
    from dispatcher.model.paths import RunPaths
    from dispatcher.output.monitor.outliers import StepLines
    from dispatcher.output.monitor.run_picture import Picture
    from dispatcher.output.run_state import RunState
    from dispatcher.output.terminal.footer import Footer


class RankLocations(Protocol):
    """The places of ranks: ``home`` is the host's number and the rank's own number on it.

    program_of: the name of its program among several; "" where there is one.
    """

    def home(self, rank: int) -> tuple[int, int]: ...
    def host_of(self, rank: int) -> str: ...
    def program_of(self, rank: int) -> str: ...


class RankLabels:
    """kind: ``rank``, ``host`` or ``none``. places: of the ranks."""

    def __init__(self, kind: str, places: RankLocations) -> None:
        self._kind = kind
        self._places = places

    def of(self, rank: int) -> str:
        """The label of one rank: ``[3]``, ``[learner 3]``, ``[n2:1]`` by host, or nothing."""
        if self._kind == "none":
            return ""
        if self._kind == "rank":
            return f"[{' '.join(filter(None, (self._places.program_of(rank), rank_name(rank))))}]"
        own = rank_name(rank) if rank >= FIRST else self._places.home(rank)[1]
        return f"[{self._places.host_of(rank)}:{own}]"

    def of_many(self, ranks: Sequence[int]) -> str:
        """One label for several ranks."""
        if self._kind == "none":
            return ""
        if self._kind == "rank":
            by_program: dict[str, list[int]] = {}
            for rank in ranks:
                by_program.setdefault(self._places.program_of(rank), []).append(rank)
            texts = (f"{who} {fold_numbers(own, rank_name)}" for who, own in by_program.items())
            return f"[{', '.join(text.strip() for text in texts)}]"
        return f"[{fold({self._places.host_of(rank) for rank in ranks})}]"

    def hue(self, rank: int) -> int:
        """The number for a label's colour: the host's where labels name hosts, else the rank."""
        by_host = self._kind == "host" and rank < FIRST
        return self._places.home(rank)[0] if by_host else rank


#: seconds after which a program that reads nothing has paused
PAUSED = 2.0


def open_screen(
    output: OutputSettings,
    labels: Labels,
    state: RunState,
    *,
    on_broken: Callable[[], None],
    on_full: Callable[[], None] = lambda: None,
    files_keep_all: bool,
) -> tuple[Sink, RunFooter | None]:
    """The sink that shows the ranks' output, and the footer below it, if there is one.

    The sink's ``say`` shows notes to the user.
    """
    view = view_of(output, labels)
    footer = None
    if not output.quiet and may_draw(os.environ):
        from dispatcher.output.monitor.run_picture import picture_of
        from dispatcher.output.terminal.live_terminal import Terminal

        footer = RunFooter(state.hosts, lambda: picture_of(state))
        writer: Writer = Terminal(terminals(), STDERR, None, on_broken, on_full)
        screen = Screen(view, writer, footer=footer)
    else:
        writer = Writer(None, on_broken, on_full)
        screen = Screen(view, writer)
    sink = unhurried(
        screen,
        writer,
        STDOUT,
        output.screen_overflow,
        kept=files_keep_all,
        draws=footer is not None,
    )
    if output.only is not None:
        from dispatcher.output.buffered import Filtered

        only = output.only
        sink = Filtered(sink, lambda rank, _: rank in only)
    return sink, footer


def unhurried(
    screen: Sink, writer: Writer, fd: int, overflow: str, *, kept: bool, draws: bool = False
) -> Sink:
    """``screen``, on its own thread where the run must not wait for it.

    fd: where it writes. overflow: auto, drop or block. kept: files get every byte. draws: it
    wants a thread in any case, to draw in time.
    """
    program_reads = overflow == "auto" and not os.isatty(fd)
    drop = overflow == "drop" or (
        overflow == "auto" and (os.isatty(fd) or (kept and can_pause(fd)))
    )
    if not drop and not draws:
        return screen
    from dispatcher.output.buffered import BufferedSink

    patience = PAUSED if program_reads else 0.0
    return BufferedSink(screen, "screen", drop=drop, stall_limit=patience, pace=lambda: writer.pace)


def view_of(output: OutputSettings, labels: Labels) -> LineFormat:
    """The form of lines, and which are shown, on the standard streams as they are."""
    streams, after = terminals(), output.partial_after
    is_changed = output.label != "none" or output.timestamps or output.fold or output.pattern
    return LineFormat(
        labels.of,
        labels.hue,
        terminals=streams,
        coloured=frozenset() if os.environ.get("NO_COLOR") else streams,
        timestamps=output.timestamps,
        grep=output.pattern,
        partial_after=PARTIAL if after is None else after,
        state_after=STATE if after is None else after,
        fold=_folding(output) if output.fold else None,
        fold_label=labels.of_many,
        exact=frozenset() if is_changed else frozenset({STDOUT, STDERR}) - streams,
    )


def terminals() -> frozenset[int]:
    """The standard streams that are terminals."""
    return frozenset(stream for stream in (STDOUT, STDERR) if os.isatty(stream))


class Labels(Protocol):
    """The labels of ranks on the screen, and the number for a label's colour."""

    def of(self, rank: int) -> str: ...
    def of_many(self, ranks: Sequence[int]) -> str: ...
    def hue(self, rank: int) -> int: ...


def may_draw(environ: Mapping[str, str]) -> bool:
    """Whether a footer may be drawn: nothing else (``| tee``) writes to the terminal."""
    if environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    if environ.get("NO_COLOR") or environ.get("CI") or not os.isatty(STDERR):
        return False
    return same_file(STDOUT, STDERR) or (not os.isatty(STDOUT) and not can_pause(STDOUT))


def on_screen(lines: Sequence[str]) -> Sequence[str]:
    """The ``lines`` of a verdict, fewer if they do not fit the terminal of standard error."""
    from dispatcher.output.text.verdict_text import fit_window

    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(STDERR)
        return fit_window(lines, columns, rows) if columns > 0 < rows else lines
    return lines


def close_panel(
    lines: Sequence[str], exit_code: int, hosts: int, ranks: int, seconds: float
) -> None:
    """Show how the run ended in place of the footer; nothing for a short run that went well."""
    from dispatcher.output.terminal.live_terminal import FIRST

    if not lines and seconds < FIRST:
        return
    from dispatcher.output.terminal.footer import closing_panel

    try:
        columns = os.get_terminal_size(STDERR).columns - 1
    except OSError:
        columns = 79
    text = closing_panel(
        lines, exit_code=exit_code, hosts=hosts, ranks=ranks, seconds=seconds,
        columns=max(20, columns),
    )  # fmt: skip
    with contextlib.suppress(OSError):  # the terminal went away; the exit code is enough
        write_all(STDERR, b"".join(line + b"\n" for line in text))


class RunFooter:
    """Draws the footer of a run on ``hosts``; see ``Screen``. picture: of the run now."""

    def __init__(self, hosts: Sequence[str], picture: Callable[[], Picture]) -> None:
        self._hosts, self._picture = hosts, picture
        self._made: Footer | None = None
        #: footer of another task of the run, such as a copy
        self.instead: Callable[[object, int], list[tuple[bytes, int]]] | None = None

    def __call__(self, bars: list[tuple[str, bytes]], columns: int) -> list[tuple[bytes, int]]:
        from dispatcher.output.terminal import footer

        if self.instead is not None:
            return self.instead(bars, columns)
        self._made = self._made or footer.Footer(self._hosts)
        return footer.drawn(self._made.lines(self._picture(), bars, columns), columns)


def _folding(output: OutputSettings) -> Callable[[int], Folding[int]]:
    def fold(world_size: int) -> Folding[int]:
        shown = output.only
        ranks = range(world_size)
        speakers = world_size if shown is None else sum(rank in shown for rank in ranks)
        return Folding(speakers, mask=output.fold_numbers)

    return fold


def files_keep_all(output: OutputSettings, paths: RunPaths | None) -> bool:
    """Whether a file will hold every byte of the ranks."""
    bounded = output.log_overflow == "drop" or output.rotation.keep is not None
    return paths is not None and not bounded


class Monitoring:
    """The monitoring that ``output`` asks for; loads nothing unless it asks for some.

    sinks: receive the run's events. tell: called with their findings.
    """

    def __init__(
        self,
        plan: JobPlan,
        output: OutputSettings,
        state: RunState,
        tell: Callable[[Event], None],
    ) -> None:
        self.sinks: list[Sink] = []
        self._state = state
        self._output = output
        self._job = plan.run_id, plan.name
        self._steps: StepLines | None = None
        pattern = output.steps
        if pattern is not None:
            from dispatcher.output.monitor.outliers import StepLines

            self._steps = StepLines(pattern, state)
            self.sinks.append(self._steps)
        if output.sample is not None:
            from dispatcher.output.monitor.outliers import SampleOutliers

            self.sinks.append(SampleOutliers(state, tell))
        if output.sample is not None or plan.limits.hang_timeout:
            from dispatcher.output.monitor.notices import GpuNotes

            self.sinks.append(GpuNotes(tell))
        if output.stall_after is not None:
            from dispatcher.output.monitor.notices import StallDetector

            self.sinks.append(StallDetector(state, output.stall_after, tell))

    def slow(self) -> tuple[str, ...]:
        """Ranks that are slower than the others, as text."""
        return () if self._steps is None else self._steps.words()

    def metrics(self, warn: Callable[[str], None]) -> list[Sink]:
        """The sink that writes metrics, if any. Raises: UsageError if it cannot begin."""
        state, path = self._state, self._output.metrics
        if path is None:
            return []
        state.counts_lines = True  # from the beginning, before the first look
        from dispatcher.output.buffered import BufferedSink
        from dispatcher.output.monitor.metrics import Metrics, exposition
        from dispatcher.output.monitor.run_picture import snapshot_of

        every = self._output.sample or TICK
        try:
            sink = Metrics(
                lambda: exposition(snapshot_of(state, self.slow()), *self._job), warn, every, path
            )
        except OSError as error:
            raise FileUnusable(f"--metrics {path}: {reason(error)}") from None
        return [BufferedSink(sink, "metrics")]  # a slow disk or caller does not delay the run


class TraceFile:
    """Writes ``--trace`` at the end, from the journal of the run at ``paths`` or a nameless one.

    path: None for no trace. before: seconds from the start of the process to that of the run.
    Raises: UsageError.
    """

    def __init__(
        self, path: str | None, paths: RunPaths | None, before: float, say: Callable[[str], None]
    ) -> None:
        self.sinks: list[Sink] = []
        self._path, self._before, self._say = path, before, say
        self._journal = None if paths is None else paths.journal
        if path is None:
            return
        try:
            self._file = open(open_anew(path), "w")  # noqa: SIM115
            if paths is None:
                self._keep_journal()
        except OSError as error:
            raise FileUnusable(f"--trace {path}: {error.strerror}") from None

    def _keep_journal(self) -> None:
        from tempfile import TemporaryDirectory

        from dispatcher.output.files.journal import Journal

        with TemporaryDirectory(prefix="dispatch-") as place:
            self.sinks.append(Journal(Path(place, "journal"), self._say))
            fd = os.open(Path(place, "journal"), os.O_RDONLY | os.O_CLOEXEC)
        self._journal = Path(f"/proc/self/fd/{fd}")

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is None or self._journal is None:
            return
        import json

        from dispatcher.output.files import journal
        from dispatcher.output.timeline import History, chrome_trace

        history = History()
        try:
            for entry in journal.read(self._journal, may_break_off=True):
                history.event(entry)
            with self._file as file:
                for number, element in enumerate(chrome_trace(history, self._before)):
                    file.write((",\n" if number else "[\n") + json.dumps(element))
                file.write("\n]\n")
        except DispatchError as error:
            self._say(f"note: --trace {self._path}: {error.message}")
        except OSError as error:
            self._say(f"note: {self._path}: trace cannot be written: {reason(error)}")
