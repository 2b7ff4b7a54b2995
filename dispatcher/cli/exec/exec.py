"""``dispatch exec``: its options; each class is a section of its help."""

from __future__ import annotations

from typing import Literal

from dispatcher.cli.options.declaration import Options, argument, json_option, option, preset
from dispatcher.cli.options.host_options import (
    ContainerOptions,
    KeepOptions,
    LimitOptions,
    LoginOptions,
    SudoOptions,
    TreeOptions,
    VariableOptions,
    WhereOptions,
    verbose_option,
)


class CommandOptions(Options, section="Command"):
    shell: str | None = option(metavar="TEXT", help="Run TEXT with /bin/sh, instead of COMMAND.")
    script: str | None = option(
        metavar="FILE",
        help="Send the script FILE to the hosts, run it with the words that follow as its "
        "arguments, and remove it in any case. Its first line names its interpreter; without #! "
        "that is /bin/sh.",
    )
    plain: bool = option(
        help="Send the command line as you typed it and nothing else, as ssh does: for logins "
        "that allow only some commands, or read standard input. A command that is ended early "
        "may run on."
    )
    stdin: bool = preset("-I", help="Give every command a copy of standard input.")
    no_stdin: bool = preset("-n", help="Do not read standard input. This is the default.")
    pty: bool = option(help="Give the command a terminal; for a single host, your own.")


class GatherOptions(Options, section="Output"):
    no_label: bool = preset(
        "-N",
        help="Show lines without the names of hosts. A pipe or a file gets the bytes unchanged.",
    )
    gather: bool = preset("-b", help="Show equal output once, below all hosts that gave it.")
    gather_all: bool = preset("-B", help="As -b, and standard error as well.")
    line_mode: bool = preset(
        "-L",
        help="Show all output at the end, in the order of hosts, with a name in every line; with "
        "-b equal output once.",
    )
    diff: bool = preset(help="Show the differences from the output of most hosts.")
    as_json: bool = json_option("the result of each host", ", an object a line")
    timestamps: bool = preset("-T", help="Begin lines with the time at which they arrived.")
    output_dir: str | None = option(
        "-o", metavar="DIR", help="Keep each host's standard output in DIR/HOST."
    )
    error_dir: str | None = option(
        "-e", metavar="DIR", help="Keep each host's standard error in DIR/HOST."
    )
    screen_overflow: Literal["auto", "drop", "block"] = preset(
        default="auto",
        help="When the reader of the output pauses, leave lines out and count them (drop), or let "
        "the commands wait (block). auto: drop if standard output is a terminal or -o and -e keep "
        "everything, else block.",
    )
    quiet: bool = preset("-q", help="Show no progress on a terminal.")
    verbose: bool = verbose_option()
    percent: bool = preset(
        "-P",
        section="Command",
        help="Replace %h in COMMAND with the host's name, %n with its number, from 0, and %u "
        "with its user name, as pdsh does; %% is a percent sign.",
    )
    max_code: bool = preset(
        "-S", section="Results", help="Exit with the largest exit code of all hosts."
    )


class ResultOptions(Options, section="Results"):
    events: str | None = option(
        metavar="FILE", help="Write every event to FILE, which must be new, as JSON lines."
    )
    failed_to: str | None = option(
        metavar="FILE",
        help="Write the hosts that failed or were not started to FILE, as a hostfile. It is up "
        "to date even if dispatch is killed.",
    )
    retry_failed: str | None = option(
        metavar="FILE",
        help="Run only on the hosts in FILE, and leave in it the hosts that fail again or are "
        "not started: a rolling execution goes on where it stopped.",
    )


class ExecOptions(
    WhereOptions,
    CommandOptions,
    VariableOptions,
    SudoOptions,
    LimitOptions,
    GatherOptions,
    ResultOptions,
    ContainerOptions,
    TreeOptions,
    KeepOptions,
    LoginOptions,
):
    """Run COMMAND once on every host, and show its lines with the hosts' names.

    One word with blanks, quotes or |&;<>()$`*?[~ in it is text for the host's /bin/sh, as for ssh.
    Several words are a program and its arguments, which reach the host unchanged.

    The hosts need no Python. Ctrl-C, a time limit or the end of dispatch end the command on all
    hosts.
    """

    examples = (
        ("dispatch exec -H hostfile -- nvidia-smi -L", "a command and its arguments"),
        ("dispatch exec -w 'n[01-16]' -x n07 'dmesg | tail -1'", "text for a shell"),
        ("dispatch exec -H hostfile -b uname -r", "hosts with the same answer together"),
        (
            "dispatch exec -w @gpu --serial 1,10% --max-fail 2 --script restart.sh munge",
            "your own script: on one host, then on a tenth at a time",
        ),
    )
    brief = (
        "hostfile", "lists", "excluded", "script", "stdin", "sudo", "connect_timeout",
        "command_timeout", "fanout", "serial", "gather", "diff", "as_json", "max_code",
        "failed_to",
    )  # fmt: skip
    epilog = """
    Exit code: 0 if every command exited with 0. 1: a command failed; with -S the largest exit code
    of all hosts; 2: the command line is wrong, and no host was touched; 3: so many failed that the
    others were not started; 124: a time limit; 125: a host failed; 130: Ctrl-C.
    """

    words: tuple[str, ...] = argument(last=True, metavar="[--] COMMAND [ARGS]...")
    #: whether several words are text for a shell, as one is
    joined: bool = False
