"""``dispatch exec``: what it takes; each class is a section of its help."""

from __future__ import annotations

from typing import Literal

from dispatcher.cli.options.declaration import Options, argument, option
from dispatcher.cli.options.host_options import (
    KeepOptions,
    LimitOptions,
    LoginOptions,
    SudoOptions,
    TreeOptions,
    WhereOptions,
    verbose_option,
)


class CommandOptions(Options, section="Command"):
    """What runs."""

    shell: str | None = option(metavar="TEXT", help="Run TEXT with /bin/sh, instead of COMMAND.")
    stdin: bool = option("-I", help="Give every command a copy of standard input.")
    no_stdin: bool = option("-n", help="Leave standard input alone [the default].")
    pty: bool = option(help="Run it on a terminal; on a single host, on your own.")


class GatherOptions(Options, section="Output"):
    """What is shown of it."""

    no_label: bool = option("-N", help="Do not label lines.")
    gather: bool = option("-b", help="Show equal output once, with the hosts folded.")
    gather_all: bool = option("-B", help="Like -b, and the same for standard error.")
    diff: bool = option(help="Show how output differs from that of most hosts.")
    as_json: bool = option("--json", help="One JSON object per host, when it has ended.")
    timestamps: bool = option("-T", help="Put the time before every line.")
    output_dir: str | None = option(
        "-o", metavar="DIR", help="Keep each host's output in DIR/HOST."
    )
    error_dir: str | None = option(
        "-e", metavar="DIR", help="Keep each host's standard error in DIR/HOST."
    )
    screen_overflow: Literal["auto", "drop", "block"] = option(
        default="auto",
        help="When the reader is paused: leave output out and count it (drop), or block the "
        "commands [auto: drop if stdout is a terminal or -o and -e keep everything].",
    )
    quiet: bool = option("-q", help="Show no progress on a terminal.")
    verbose: bool = verbose_option()


class ResultOptions(Options, section="Results"):
    """What is known at the end."""

    max_code: bool = option("-S", help="Exit with the largest exit code of all hosts.")
    events: str | None = option(
        metavar="FILE", help="Write every event to a new FILE, as JSON lines."
    )
    failed_to: str | None = option(metavar="FILE", help="Write the failed hosts, as a hostfile.")
    retry_failed: str | None = option(
        metavar="FILE", help="Run only on the hosts in FILE, and update it."
    )


class ExecOptions(
    WhereOptions,
    CommandOptions,
    SudoOptions,
    LimitOptions,
    GatherOptions,
    ResultOptions,
    TreeOptions,
    KeepOptions,
    LoginOptions,
):
    """Run COMMAND once on every host, exactly as given, and show its lines labelled.

    No Python is needed there. Ctrl-C, a time limit or the end of dispatch end it on all hosts.
    """

    epilog = """\b
    Examples:
      dispatch exec -H hostfile -- nvidia-smi -L
      dispatch exec -w 'n[01-16]' -x n07 --shell 'dmesg | grep -i xid | tail -1'
      dispatch exec -w @gpu --serial 4 --stop-after 1 -- systemctl restart munge
    Exit code: 0 when every command exited 0; 1 a command failed; 2 usage; 124 a time limit;
    125 a host failed; 130 Ctrl-C. With -S the largest exit code of all hosts.
    """

    words: tuple[str, ...] = argument(last=True, metavar="[--] COMMAND [ARGS]...")
