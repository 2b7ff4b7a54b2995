"""``dispatch hosts``: expand, fold, count and combine host lists; touches no host."""

from __future__ import annotations

import sys

from dispatcher.cli import print_json, say
from dispatcher.cli.options.declaration import argument, json_option, preset
from dispatcher.cli.options.host_options import WhereOptions, find_hosts, hosts_typed, usual_source
from dispatcher.model.frozen import Document, value


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
        ("dispatch hosts -c 'n[1-64]!n7'", "63"),
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
