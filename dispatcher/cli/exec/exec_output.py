"""The output of a fan-out command: its sinks, chosen by the options, and its last lines."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.mistakes import Advice
from dispatcher.cli.options.declaration import replace
from dispatcher.cli.options.host_options import login_defaults
from dispatcher.cli.options.option_defaults import value_origin
from dispatcher.cli.run.run_sinks import may_draw, terminals, unhurried
from dispatcher.core.events.exec_events import Exited, Interrupted
from dispatcher.core.events.run_events import Sink
from dispatcher.model.errors import ConflictingOptions, FileUnusable, UsageError, reason
from dispatcher.model.names import plural
from dispatcher.output.buffered import Filtered
from dispatcher.output.exec.exec_progress import ExecNotes, ExecProgress, Passthrough
from dispatcher.output.exec.host_blocks import blocks_of, differences, gather_output, lines_of
from dispatcher.output.exec.host_results import BOTH, HostResult, describe, host_record
from dispatcher.output.terminal.screen import LineFormat, Screen, Writer
from dispatcher.plan.exec_plan import ExecPlan, spelled
from dispatcher.remote.protocol.frames import STDERR, STDOUT


def check(options: ExecOptions) -> None:
    """Check that output can be shown and kept by the options. Raises: UsageError."""
    gather = options.gather or options.gather_all
    if options.as_json and (gather or options.diff or options.line_mode):
        raise ConflictingOptions("--json cannot be used with -b, -B, -L or --diff")
    out, err = options.output_dir, options.error_dir
    for option, name, folder in (("-o", "output_dir", out), ("-e", "error_dir", err)):
        if folder == "":
            raise UsageError(f"{value_origin(name, option)}: an empty folder name")
        if folder is not None and folder.startswith("-"):  # with clush, options of ssh
            raise UsageError(
                f"{value_origin(name, option)}: {folder!r} looks like an option, not a folder",
                hint=f"options of ssh: --ssh-config FILE; a folder of that name: {option} ./-...",
            )
    if out is not None and err is not None and os.path.realpath(out) == os.path.realpath(err):
        raise ConflictingOptions("-o and -e: both name the same folder")


class ExecOutput:
    """The sinks of one exec_plan. say: writes a line on standard error; nobody_reads: see Screen.

    through: the one host's bytes go to our terminal unchanged. Raises: UsageError.
    """

    def __init__(
        self,
        options: ExecOptions,
        exec_plan: ExecPlan,
        say: Callable[[str], None],
        nobody_reads: Callable[[], None],
        *,
        through: bool = False,
    ) -> None:
        check(options)
        gather = options.gather or options.gather_all
        self._options = options
        self._names = names = exec_plan.names
        self._again = spelled(exec_plan.hosts, *login_defaults(options))
        #: whether standard output, standard error or a host's file took no more; already reported
        self.is_full = False
        self._kept_writer = Writer(on_full=self._full)
        self._say = say
        whole = gather or options.diff or options.line_mode
        both = options.as_json or options.gather_all
        #: those whose output is shown when all hosts are done
        self.streams = BOTH if both else frozenset({STDOUT}) if whole else frozenset()
        self._progress: ExecProgress | None = None
        if not through and _may_draw(options):
            self._progress = ExecProgress(names)
        files = self._files(lambda line: screen.say(line))
        screen: Sink = (
            Passthrough(STDOUT, nobody_reads)
            if through
            else self._screen(BOTH - self.streams, nobody_reads)
        )
        notes = ExecNotes(names, screen.say, verbose=options.verbose)
        self.sinks: list[Sink] = [notes, *files]
        if self._progress is not None:
            self.sinks.append(self._progress)
        self.sinks.append(screen)  # closed last: it shows what the others say

    def _files(self, say: Callable[[str], None]) -> list[Sink]:
        found: list[Sink] = []
        options = self._options
        out, err, events = options.output_dir, options.error_dir, options.events
        folders = {n: Path(text) for n, text in ((1, out), (2, err)) if text is not None}
        if folders:
            from dispatcher.output.files.rank_logs import HostFiles

            def warn(line: str) -> None:
                self._full()
                say(line)

            found.append(HostFiles(folders, self._names, warn))
        if events is not None:
            from dispatcher.output.files.journal import Journal

            try:
                found.append(Journal(Path(events), say))
            except OSError as error:
                raise FileUnusable(f"--events {events}: {reason(error)}") from None
        return found

    def _screen(self, streams: frozenset[int], nobody_reads: Callable[[], None]) -> Sink:
        """The sink that shows ``streams``, if any, and all notes."""
        lookers = terminals()
        bare, names = self._options.no_label, self._names
        is_exact = bare and not self._options.timestamps and not self._options.pty
        view = LineFormat(
            lambda node: "" if bare else f"{names[node]}:",
            terminals=lookers,
            coloured=frozenset() if os.environ.get("NO_COLOR") else lookers,
            timestamps=self._options.timestamps,
            mark_errors=False,
            exact=frozenset({STDOUT, STDERR}) - lookers if is_exact else frozenset(),
            is_alone=len(names) == 1,
            by_terminal=self._options.pty,
            who=lambda nodes: names[nodes[0]] if len(nodes) == 1 else plural(len(nodes), "host"),
        )
        # notes go to standard error even where its lines are kept for the end
        fds = {stream: stream for stream in streams | {STDERR}}
        broken = nobody_reads if streams else lambda: None
        writer, footer = Writer(fds, broken, self._full), None
        if self._progress is not None:
            from dispatcher.output.terminal.live_terminal import Terminal

            writer = Terminal(frozenset(filter(os.isatty, fds)), STDERR, fds, broken, self._full)
            footer = self._progress.lines

        screen = Screen(view, writer, footer=footer)
        folders = {STDOUT: self._options.output_dir, STDERR: self._options.error_dir}
        kept = all(folders[stream] is not None for stream in streams)
        reader = STDOUT if STDOUT in streams else STDERR
        overflow = self._options.screen_overflow
        draws = self._progress is not None
        return Filtered(
            unhurried(screen, writer, reader, overflow, kept=kept, draws=draws),
            lambda _, stream: stream in streams,
        )

    def conclude(self, results: Sequence[HostResult]) -> None:
        """Show the kept output, and then the result of each host."""
        if self._options.as_json:
            for one in results:
                self._kept_writer.write(STDOUT, (json.dumps(host_record(one)) + "\n").encode())
        else:
            self._show_blocks(results)
        kept = self._options.output_dir or self._options.error_dir
        unread = Interrupted(signal.SIGPIPE)  # ``| head -1``, which had what it wanted
        told = [
            replace(one, outcome=Exited(0)) if one.outcome == unread and not kept else one
            for one in results
        ]
        for line in describe(told, Advice(self._options), self._again):
            self._say(line)

    def _full(self) -> None:
        self.is_full = True

    def _show_blocks(self, results: Sequence[HostResult]) -> None:
        options, blocks = self._options, blocks_of(results)
        write, label = self._kept_writer.write, not options.no_label
        exact, exact_errors = (fd not in terminals() for fd in (STDOUT, STDERR))
        if options.line_mode:
            gather = options.gather or options.gather_all
            for piece in lines_of(blocks, label=label, gather=gather, exact=exact):
                write(STDOUT, piece)
        elif options.gather or options.gather_all:
            for piece in gather_output(blocks, label=label, exact=exact):
                write(STDOUT, piece)
        if options.gather_all:
            said = blocks_of(results, errors=True)
            for piece in (
                lines_of(said, label=label, gather=True, exact=exact_errors)
                if options.line_mode
                else gather_output(said, label=label, what=", standard error", exact=exact_errors)
            ):
                write(STDERR, piece)
        if options.diff:
            ended = {one.host for one in results if one.code is not None}
            said = {name: block for name, block in blocks.items() if block or name in ended}
            for piece in differences(said, exact=exact):
                write(STDOUT, piece)


def _may_draw(options: ExecOptions) -> bool:
    """Whether progress may be drawn: on a terminal, and no prompt or typing will use it."""
    asks = options.sudo is not None and not options.ask_sudo_password
    types = options.stdin and os.isatty(0)
    return not (options.quiet or asks or types) and may_draw(os.environ)
