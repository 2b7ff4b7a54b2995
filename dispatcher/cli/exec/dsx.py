"""``dsx``: commands on many hosts with the options of pdsh and clush, as a short command.

It is ``dispatch exec``, ``put`` with ``--copy``, ``get`` with ``--rcopy``, and ``shell`` without a
command. A letter means what it means to pdsh(1) 2.34 and clush(1) 1.9; docs/guides/dsx.md lists
the differences. As with them and with ssh, the hosts' shell reads the words of a command.
"""

from __future__ import annotations

import os
import random
from typing import Any, Literal

from dispatcher import __version__
from dispatcher.cli import say
from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.options.declaration import (
    Kind,
    Share,
    argument,
    converted,
    declared,
    names_of,
    option,
    preset,
    replace,
)
from dispatcher.cli.options.host_options import SendOptions, find_hosts, login_defaults
from dispatcher.cli.options.option_defaults import set_typed, typed
from dispatcher.model.errors import ConflictingOptions, MissingArgument
from dispatcher.plan.exec_plan import spelled


class DsxOptions(ExecOptions, SendOptions, section="Hosts"):
    """Run COMMAND once on every host, as pdsh and clush do; without COMMAND, ask for commands.

    The shell /bin/sh of the hosts reads all words of COMMAND, as with pdsh, clush and ssh. (With
    dispatch exec no shell reads several words.)

    Letters mean the same as in pdsh and clush. dsx also has all options of dispatch exec.
    """

    examples = (
        ("dsx -w 'n[1-3]' uname -r", "a command"),
        ("dsx -bg gpu 'df -h | tail -1'", "hosts of a group; the same answer once"),
        ("dsx -a -f 4 -- systemctl restart munge", "all groups, 4 hosts at a time"),
        ("dsx -w 'n[1-3]' --copy node.conf --dest /etc/", "a file to all hosts"),
    )
    brief = (
        "lists", "excluded", "everyone", "group", "left_out", "stdin", "sudo", "command_timeout",
        "serial", "gather", "line_mode", "diff", "no_label", "copy", "dest",
    )  # fmt: skip

    words: tuple[str, ...] = argument(last=True, metavar="[--] [COMMAND] [ARGS]...")
    joined = True
    everyone: bool = option("-a", "--all", help="Take the hosts of all groups: -w '@*'.")
    group: tuple[str, ...] = preset(
        "-g",
        metavar="NAME[,NAME]...",
        help="Take the hosts of these groups: -w @NAME. May be repeated.",
    )
    left_out: tuple[str, ...] = preset(
        "-X",
        "--exclude-group",
        metavar="NAME[,NAME]...",
        help="Leave the hosts of these groups out: -x @NAME. May be repeated.",
    )
    pick: int | None = preset(metavar="N", help="Take N of the hosts, at random.", usual="all")
    worker: Literal["ssh"] = preset(
        "-R",
        "--worker",
        default="ssh",
        section="Connections",
        help="Reach hosts by ssh, as always.",
    )
    color: Literal["auto", "never"] = preset(
        default="auto", section="Output", help="Show no colours (never)."
    )
    quiet: bool = preset(section="Output", help="Show no progress on a terminal.")
    needless: bool = preset(
        "-r",
        "--progress",
        section="Output",
        help="Copy folders whole, show progress. dispatch always does both.",
    )
    version: bool = preset("-V", section="Other", help="Show the version and exit.")
    dry_run: bool = preset(
        "-q", "--dry-run", section="Other", help="Show the plan, and contact no host."
    )
    fanout: int | None = preset(
        metavar="N", section="Limits", help="Connect to at most N hosts at once.", usual="64"
    )
    serial: str | None = preset(
        "-f",
        metavar="N|P%[,...]",
        section="Limits",
        help="Run on at most N hosts at once, or P% of them, as -f of pdsh and clush does. With "
        "1,10%,50% it makes batches: one host, then a tenth of all, then half of them at a time; "
        "a batch begins when the previous batch is done, unless all hosts of that batch failed. "
        "(-f of dispatch exec only limits connecting.)",
        usual="all hosts",
        type=Share(several=True),
    )
    ask_pass: bool = option(
        section="Connections",
        help="Ask on the terminal for one password for all hosts, and show their other "
        "questions, such as one-time codes.",
    )
    copy: bool = option(
        "-c",
        section="Files",
        help="Copy the named files to every host: dispatch put.",
    )
    rcopy: bool = option(
        section="Files",
        help="Copy the named files from every host to DIR/HOST/ on this machine: dispatch get.",
    )
    dest: str | None = option(
        section="Files",
        metavar="PATH",
        help="Copy to PATH, with --copy or --rcopy.",
        usual="the folder of each file",
    )


#: options that change nothing for a copy or a prompt: neither reads standard input, a copy shows no
#: output, and its exit code is not 0 if any host fails
_NOTHING = ("no_stdin", "no_label", "gather", "gather_all", "line_mode", "max_code")


def run(options: DsxOptions) -> int:
    """Do what the options say; the exit code. Raises: UsageError before any host is touched."""
    if options.version:
        print(f"dispatch {__version__}")
        return 0
    if options.color == "never":
        os.environ["NO_COLOR"] = "1"
    options = _aimed(options)
    if options.copy and options.rcopy:
        raise ConflictingOptions("--copy and --rcopy exclude each other")
    if options.copy or options.rcopy:
        return _copied(options)
    if options.dest is not None:
        raise ConflictingOptions("--dest needs --copy or --rcopy")
    if not options.words and options.shell is None and options.script is None:
        from dispatcher.cli.exec import shell

        return shell.run(_as(options, shell.ShellOptions, "needs a command: this is a prompt"))
    from dispatcher.cli.exec import run_exec

    _as(options, ExecOptions, "")
    if options.percent and options.words and "%h" not in " ".join(options.words):
        say("note: -P replaces %h, %n and %u in the command; progress is shown without it")
    return run_exec.run(options)


def _aimed(options: DsxOptions) -> DsxOptions:
    """``options`` with groups as the lists that they stand for."""
    lists = [f"@{name}" for text in options.group for name in text.split(",")]
    lists += ["@*"] * options.everyone
    excluded = [f"@{name}" for text in options.left_out for name in text.split(",")]
    if lists:
        own = options.lists if typed("lists") else ()
        options = replace(options, lists=(*own, *lists))
        how = [*["-w"] * bool(own), *["-a"] * options.everyone, *["-g"] * bool(options.group)]
        set_typed("lists", ", ".join(how))
    if excluded:
        set_typed("excluded", "-x, -X" if typed("excluded") else "-X")
        options = replace(options, excluded=(*options.excluded, *excluded))
    if options.pick is not None:
        hosts = find_hosts(options, say)
        named = zip(hosts, spelled(hosts, *login_defaults(options)), strict=True)
        lists = [name or f"{host.name} port={host.port}" for host, name in named]
        picked = sorted(random.sample(range(len(lists)), min(options.pick, len(lists))))
        set_typed("lists", "--pick")
        chosen = tuple(lists[n] for n in picked)
        options = replace(options, hostfile=(), lists=chosen, excluded=())
    return options


def _as(options: DsxOptions, kind: type[Kind], why: str, **changes: Any) -> Kind:
    """``options`` as a ``kind``, and ``changes``. Raises: UsageError, which says ``why``, for an
    option that ``kind`` does not have.
    """
    known = {*names_of(kind), *changes, *DsxOptions._own, *_NOTHING}
    sends = names_of(SendOptions)
    for name, one in declared(DsxOptions).items():
        if name not in known and typed(name):
            ours = one.parameter(name).opts[-1]
            raise ConflictingOptions(f"{ours} {'needs --copy' if name in sends else why}")
    return converted(options, kind, **changes)


def _copied(options: DsxOptions) -> int:
    """Copy files. Without ``--dest`` each gets to a folder with the same path as its own."""
    words, dest = options.words, options.dest
    what = "--copy" if options.copy else "--rcopy"
    why = f"and {what} exclude each other"
    if not words:
        raise MissingArgument(f"{what}: no file given", hint=f"dsx -w n1 {what} FILE --dest DIR")
    from dispatcher.cli.exec import get, put

    places: dict[str, list[str]] = {}
    for word in words:
        folder = os.path.dirname(os.path.abspath(word) if options.copy else word.rstrip("/"))
        folder = os.path.join(folder, "") if options.copy else folder or "."
        places.setdefault(dest or folder, []).append(word)
    both = [(*files, place) for place, files in places.items()]
    if options.copy:
        return max(put.put(_as(options, put.PutOptions, why, paths=paths)) for paths in both)
    return max(get.get(_as(options, get.GetOptions, why, paths=paths)) for paths in both)
