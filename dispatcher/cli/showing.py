"""How a run is told: the options of the screen and the log files, and what they mean.

``options`` adds them to a command, ``settings`` reads them; ``cli.sinks`` acts on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dispatcher.errors import UsageError

if TYPE_CHECKING:
    from dispatcher.sinks.choice import Ranks

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--label",
        type=click.Choice(["rank", "host", "none"]),
        default="rank",
        help="Label lines [rank], [host:local rank], or not at all.",
    ),
    click.option("--timestamps", is_flag=True, help="Time of arrival before each line."),
    click.option("--only-ranks", metavar="LIST", help="Show only these ranks: 0,3-5, or none."),
    click.option("--rank0", is_flag=True, help="Show only rank 0."),
    click.option("--grep", metavar="RE", help="Show only lines in which RE is found."),
    click.option(
        "--partial-after",
        metavar="S",
        help="Seconds until an unfinished line is shown; 0 never [0.2 on a terminal, else 2].",
    ),
    click.option(
        "--screen-overflow",
        type=click.Choice(["auto", "drop", "block"]),
        default="auto",
        help="A paused reader: leave out and count, or hold the ranks back [auto: drop where "
        "stdout is a terminal or --log-dir keeps all].",
    ),
    click.option("--log-dir", metavar="DIR", help="Keep per-rank files, journal and report there."),
    click.option(
        "--log-overflow",
        type=click.Choice(["block", "spool", "drop"]),
        default="block",
        help="A slow log disk: hold the ranks back, keep up to 4 GiB in TMPDIR meanwhile, or "
        "leave out and mark.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="No notes; only the ranks and the verdict."),
    click.option("-v", "--verbose", is_flag=True, help="Say every step on standard error."),
)


def options(command: Command) -> Command:
    """``command`` with these options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Showing:
    """The options, checked. partial_after: None for what suits the reader."""

    label: str
    timestamps: bool
    only: Ranks | None
    grep: re.Pattern[bytes] | None
    partial_after: float | None
    screen_overflow: str
    log_overflow: str
    quiet: bool
    verbose: bool


def settings(flags: Mapping[str, Any], world_size: int | None) -> Showing:
    """What the flags say. world_size: None if it is not known yet. Raises: UsageError."""
    from dispatcher.cli.launch import parse_seconds

    if flags["quiet"] and flags["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    if flags["log_overflow"] != "block" and not flags["log_dir"]:
        raise UsageError("--log-overflow goes with --log-dir")
    partial = flags["partial_after"]
    return Showing(
        label=flags["label"],
        timestamps=flags["timestamps"],
        only=_only(flags, world_size),
        grep=_pattern(flags["grep"]),
        partial_after=None if partial is None else parse_seconds(partial, "--partial-after"),
        screen_overflow=flags["screen_overflow"],
        log_overflow=flags["log_overflow"],
        quiet=flags["quiet"],
        verbose=flags["verbose"],
    )


def _only(flags: Mapping[str, Any], world_size: int | None) -> Ranks | None:
    from dispatcher.sinks.choice import parse_ranks

    if flags["rank0"] and flags["only_ranks"] is not None:
        raise UsageError("--rank0 and --only-ranks exclude each other")
    if flags["rank0"]:
        return parse_ranks("0", "--rank0")
    if flags["only_ranks"] is not None:
        return parse_ranks(flags["only_ranks"], "--only-ranks", world_size)
    return None


def _pattern(text: str | None) -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise UsageError(f"--grep: {error}: {text!r}") from None
