"""Options of the screen, the log files and the monitoring of a run, and their checked values.

``settings`` reads them; ``cli.run.run_sinks`` acts on them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from dispatcher.cli.options.declaration import Options, converted, option, preset
from dispatcher.cli.options.host_options import verbose_option
from dispatcher.model.errors import ConflictingOptions, UsageError

if TYPE_CHECKING:
    from dispatcher.model.paths import Rotation
    from dispatcher.plan.job.placement import Ranks

#: bytes of a piece of a log file at least
SMALLEST = 4096

#: seconds between two samples: with --metrics, and at least
METRICS_EVERY, LEAST_EVERY = 5.0, 0.2


class LineOptions(Options, section="Output"):
    label: Literal["rank", "host", "none"] = preset(
        default="rank",
        help="Begin lines with [rank], with [host:local rank], or with no label. Without labels "
        "a pipe or a file gets the bytes unchanged.",
    )
    timestamps: bool = preset(help="Begin lines with the time at which they arrived.")
    only_ranks: str | None = preset(
        metavar="LIST", help="Show only the lines of these ranks: 0,3-5, or none."
    )
    rank0: bool = preset(help="Show only the lines of rank 0.")
    fold: bool = preset(help="Show equal lines of many ranks once, as [0-63] and the line.")
    fold_numbers: bool = preset(help="Also fold lines that differ only in numbers.")
    grep: str | None = preset(
        metavar="REGEX", help="Show only lines that match REGEX, a regular expression."
    )
    partial_after: float | None = preset(
        metavar="SECONDS",
        help="Show an unfinished line, such as a prompt or a progress bar, after SECONDS and again "
        "every SECONDS. 0: never.",
        usual="30; on a terminal 0.2, with progress bars in the footer",
    )


class ScreenOptions(Options, section="Output"):
    """Other output on the screen, and the rule for a reader that pauses."""

    screen_overflow: Literal["auto", "drop", "block"] = preset(
        default="auto",
        help="When the reader of the output pauses, leave lines out and count them (drop), or let "
        "the ranks wait (block). auto: drop if standard output is a terminal or --log-dir keeps "
        "everything, else block.",
    )
    quiet: bool = preset("-q", help="Show only the ranks' output, and the verdict.")
    verbose: bool = verbose_option()


class MonitoringOptions(Options, section="Monitoring"):
    stall_after: float | None = preset(
        metavar="SECONDS",
        help="Name the ranks that have written nothing for SECONDS.",
        usual="never",
    )
    step_line: str | None = preset(
        metavar="REGEX",
        help="Name the ranks that are slower than the others, by a line that each writes once per "
        "step. If REGEX has a group, it is the seconds of the rank's own part. dispatch top shows "
        "the slow ranks while they run, the verdict at the end.",
    )
    sample: float | None = preset(
        metavar="SECONDS",
        help="Measure CPU, memory and GPU use of the ranks every SECONDS, for the journal and "
        "--metrics, and name ranks that are far from the others.",
        usual="5 with --metrics, else never",
    )
    metrics: str | None = option(
        metavar="PATH",
        help="Keep a file for Prometheus with the state of each rank. unix:PATH answers at a "
        "socket instead.",
    )


class LogOptions(Options, section="Log files"):
    log_dir: str | None = preset(
        metavar="DIR",
        help="Keep logs in DIR. There is a file per rank, the journal of the run, and its report.",
    )
    log_merge: bool = preset(help="Keep one file, merged.log, not one per rank.")
    log_size: str | None = preset(
        metavar="SIZE",
        help="Begin a new file every SIZE bytes: 64M, 1G.",
        usual="one file, however large",
    )
    log_keep: str | None = preset(
        metavar="N", help="Keep only the last N full files, with --log-size.", usual="all"
    )
    log_overflow: Literal["block", "drop"] = preset(
        default="block",
        help="When the disk is slow, let the ranks wait (block), or leave output out and mark "
        "the place (drop).",
    )


class ShowOptions(LineOptions, ScreenOptions, MonitoringOptions, LogOptions):
    """The output of a run on the screen and in files."""


class OutputSettings(ShowOptions):
    """The options, checked, and the values that some of them stand for."""

    only: Ranks | None
    pattern: re.Pattern[bytes] | None  # of --grep
    steps: re.Pattern[bytes] | None  # of --step-line
    rotation: Rotation


def settings(options: ShowOptions, world_size: int | None) -> OutputSettings:
    """The options, checked. world_size: None if it is not known yet. Raises: UsageError."""
    if options.quiet and options.verbose:
        raise ConflictingOptions("--quiet and --verbose exclude each other")
    if not options.log_dir:
        _alone(options)
    return converted(
        options,
        OutputSettings,
        only=_only(options, world_size),
        pattern=_pattern(options.grep),
        steps=_pattern(options.step_line, "--step-line"),
        fold=options.fold or options.fold_numbers,
        stall_after=options.stall_after or None,
        sample=_sample(options),
        rotation=_rotation(options),
    )


def _alone(options: ShowOptions) -> None:
    """Raises: UsageError for an option about files without ``--log-dir``."""
    for name, given in (
        ("--log-overflow", options.log_overflow != "block"),
        ("--log-merge", options.log_merge),
        ("--log-size", options.log_size is not None),
        ("--log-keep", options.log_keep is not None),
    ):
        if given:
            raise ConflictingOptions(f"{name} needs --log-dir")


def _sample(options: ShowOptions) -> float | None:
    """Seconds between two samples; None for none."""
    if options.sample is None:
        return METRICS_EVERY if options.metrics else None
    every = options.sample
    if every < LEAST_EVERY:
        raise UsageError(
            f"--sample: every {every:g} s is too often", hint=f"--sample {LEAST_EVERY:g}"
        )
    return every


def _rotation(options: ShowOptions) -> Rotation:
    from dispatcher.model.paths import Rotation

    size, keep = options.log_size, options.log_keep
    if keep is not None and size is None:
        raise ConflictingOptions("--log-keep needs --log-size")
    if keep is not None and not (keep.isascii() and keep.isdigit() and len(keep) < 7):
        raise UsageError(f"--log-keep: not a count: {keep!r}", hint="--log-keep 4")
    return Rotation(
        None if size is None else parse_size(size, "--log-size"),
        None if keep is None else int(keep),
    )


def parse_size(text: str, flag: str, least: int = SMALLEST) -> int:
    """A number of bytes: ``4096``, ``64K``, ``1G`` (powers of 1024). Raises: UsageError."""
    match = re.fullmatch(r"([0-9]{1,15})([kmgt]?)(?:i?b)?", text.lower(), re.ASCII)
    size = int(match[1]) << 10 * " kmgt".index(match[2] or " ") if match else -1
    if size < least:
        bound = f" of at least {least} bytes" if least else ""
        raise UsageError(f"{flag}: not a size{bound}: {text!r}", hint=f"{flag} 64M")
    return size


def _only(options: ShowOptions, world_size: int | None) -> Ranks | None:
    from dispatcher.plan.job.placement import parse_ranks

    if options.rank0 and options.only_ranks is not None:
        raise ConflictingOptions("--rank0 and --only-ranks exclude each other")
    if options.rank0:
        return parse_ranks("0", "--rank0")
    if options.only_ranks is not None:
        return parse_ranks(options.only_ranks, "--only-ranks", world_size)
    return None


def _pattern(text: str | None, flag: str = "--grep") -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise UsageError(f"{flag}: {error}: {text!r}") from None
