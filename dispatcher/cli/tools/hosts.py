"""``dispatch hosts``: expand, fold, count and combine host lists; touches no host."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dispatcher.cli import print_json, say
from dispatcher.cli.options.declaration import argument, json_option, preset
from dispatcher.cli.options.host_options import WhereOptions, find_hosts, hosts_typed, usual_source
from dispatcher.model.frozen import Document, value
from dispatcher.model.host import Host


@value
class NamedHost(Document):
    """An element of ``dispatch hosts --json``. user, port: where it was named with them."""

    schema = "host/1"
    host: str
    user: str | None
    port: int | None


class HostsOptions(WhereOptions, section="Output"):
    """Print the hosts of LISTs, -H and -w, each once, in the order in which you wrote them.

    Lists may hold ranges n[01-16/2] and @groups. From left to right, a comma adds hosts, ! removes
    them, & keeps the hosts of both lists, and ^ the hosts of only one.
    """

    examples = (
        ("dispatch hosts -H hostfile", "one name a line"),
        ("dispatch hosts -f n1 n2 n3", "n[1-3]"),
        ("dispatch hosts --failures", "hosts that failed in your last runs, and why"),
        ("squeue -ho %N | dispatch hosts -H - -S ,", "names with commas between them"),
    )
    epilog = "Exit code: 0; 2 if no host is left, or the command line is wrong."

    words: tuple[str, ...] = argument(metavar="[LIST]...")
    common: tuple[str, ...] = preset(
        "-i",
        "--intersect",
        section="Hosts",
        metavar="LIST",
        help="Print only hosts that are also in LIST. May be repeated.",
    )
    fold_them: bool = preset("-f", "--fold", help="Print one short text: n[1-3].")
    count: bool = preset("-c", help="Print how many hosts there are.")
    separator: str = preset(
        "-S", default="\n", metavar="TEXT", help="Print TEXT between names.", usual="a new line"
    )
    as_json: bool = json_option("the list")
    failures: bool = preset(
        help="List hosts that failed in their last 5 runs, how often and why. Without LIST, -H and "
        "-w: all hosts of your jobs on record."
    )
    sort: bool = preset(help="Sort by names and their numbers.", usual="as written")


def hosts(options: HostsOptions) -> int:
    """Print the chosen hosts; the exit code. Raises: UsageError, PlanError."""
    from dispatcher.model import hostset
    from dispatcher.model.errors import ConflictingOptions, NoHosts, UsageError
    from dispatcher.model.names import BadName
    from dispatcher.plan.hosts.hostfile import parse_inline

    if options.fold_them + options.count + options.as_json > 1:
        raise ConflictingOptions("-f, -c and --json exclude each other")
    words = tuple(parse_inline(text, "", slots=False) for text in options.words)
    if options.failures:
        if options.fold_them or options.count:
            raise ConflictingOptions("--failures excludes -f and -c")
        named = find_hosts(options, say, words) if words or hosts_typed() else None
        return _failures(named, as_json=options.as_json)
    found = find_hosts(options, say, words)
    if not words and not hosts_typed() and (where := usual_source(options)):
        say(f"note: hosts of {where}")
    names = list(dict.fromkeys(host.name for host in found))
    for text in options.common:
        try:
            wanted = set(hostset.expand(text))
        except BadName as bad:
            raise UsageError(f"-i: {bad.message}", hint=bad.hint) from None
        names = [name for name in names if name in wanted]
    if not names:
        raise NoHosts("no host is left after -i")
    if options.sort:
        names.sort(key=hostset.natural)
    if options.as_json:
        first = {host.name: host for host in reversed(found)}
        print_json([NamedHost(name, first[name].user, first[name].port) for name in names])
        return 0
    if options.count:
        text = str(len(names))
    elif options.fold_them:
        text = hostset.fold(names)
    else:
        text = options.separator.replace("\\n", "\n").replace("\\t", "\t").join(names)
    sys.stdout.write(text + "\n")
    return 0


def _failures(named: Sequence[Host] | None, *, as_json: bool) -> int:
    """List the hosts (of ``named``, if given) that failed in their last runs; the exit code."""
    from dispatcher.cli import aligned, print_lines
    from dispatcher.jobs import registry
    from dispatcher.jobs.host_history import failing

    found = failing(registry.jobs(), None if named is None else {host.name for host in named})
    if as_json:
        print_json(found)
    elif not found:
        say("no failures of hosts on record")
    else:
        rows = [[one.host, f"{one.failures} of {one.runs}", one.job, one.why] for one in found]
        print_lines(aligned([["HOST", "FAILED", "LAST", "WHY"], *rows]))
    return 0
