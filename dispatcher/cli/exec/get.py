"""``dispatch get``: files and trees from every host, each host's into its own folder."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence

from dispatcher.bootstrap import payload, shell
from dispatcher.cli import say
from dispatcher.cli.exec.run_copy import CopyOptions, conclude, here, run_copy, there
from dispatcher.cli.exec.run_exec import limits
from dispatcher.cli.options.connect_options import show_only
from dispatcher.cli.options.declaration import argument, preset
from dispatcher.cli.options.host_options import find_hosts, sudo_user, verbose_option
from dispatcher.cli.options.output_options import parse_size
from dispatcher.core.events.exec_events import Exited, is_good
from dispatcher.model import paths as placeholders
from dispatcher.model.errors import CannotCopy, MissingArgument, reason
from dispatcher.model.paths import HOST, RANK
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.remote.copy.disk import has_wildcards, split_wildcards
from dispatcher.transfer.get_files import Fetching, HostPaths


class GetOptions(CopyOptions, section="Files"):
    """Copy files and folders REMOTE from every host to DIR/HOST/ on this machine.

    A ~ at the start is the home folder on the host. *, ? and [...] match names as in a shell,
    unless a file has exactly that name; a match keeps its path from the first wildcard on:
    '/data/*/log' becomes DIR/HOST/a/log, DIR/HOST/b/log. Each host writes only in its own folder. A
    file with the same size and time is not fetched again, and an interrupted copy goes on where it
    stopped.

    {host} in a name becomes the host's name, and {rank} each rank of the host in turn, by
    the slots in the hostfile. If DIR has one of them, it is the whole name of the folder.
    """

    examples = (
        ("dispatch get -H hostfile '/var/log/*.log' logs", "logs/n01/boot.log, ..."),
        ("dispatch get -w 'n[01-16]' '/data/{host}/out' .", "a folder with another name per host"),
        ("dispatch get -w 'n[01-16]' '~/out' outs", "quoted, ~ is your home on each host"),
        ("dispatch get -H hostfile '/out/{rank}.log' 'logs/rank-{rank}'", "a file of each rank"),
    )
    brief = (
        "hostfile", "lists", "excluded", "sudo", "connect_timeout", "deadline", "fanout",
        "checksum", "no_resume", "max_size", "keep", "user",
    )  # fmt: skip
    epilog = "Exit code: as for dispatch exec."

    paths: tuple[str, ...] = argument(metavar="REMOTE... DIR")
    max_size: str = preset(
        default="16G", metavar="N[K|M|G]", help="Take at most N bytes from each host."
    )
    verbose: bool = verbose_option()


def get(options: GetOptions) -> int:
    """Ask every host for the files; the exit code. Raises: UsageError before that."""
    if len(options.paths) < 2:
        raise MissingArgument(
            "get: needs a remote path, and a folder for it",
            hint="dispatch get -H hostfile /FILE DIR",
        )
    *sources, folder = options.paths
    folder = here(folder)
    limit = parse_size(options.max_size, "--max-size", least=0)
    user = sudo_user(options)
    hosts = find_hosts(options, say, slots=placeholders.uses("".join(options.paths), RANK))
    wanted = placeholders.groups(sources, folder, hosts)
    own = placeholders.uses(folder, HOST) or placeholders.uses(folder, RANK)
    names = ExecPlan(hosts, ("get",)).names
    plans = [
        tuple(
            HostPaths(dest if own else os.path.join(dest, name), tuple(map(_named, paths)))
            for dest, paths in groups
        )
        for name, groups in zip(names, wanted, strict=True)
    ]
    _check_places([group for groups in plans for group in groups])
    how = "" if user is None else f" as {user}"
    deeds = (_deed(groups) + how for groups in plans)
    if show_only(options, "get", zip(hosts, deeds, strict=True), limits=limits(options)):
        return 0
    if not own:
        _make(folder)
    fetching = Fetching(plans, limit=limit, checksum=options.checksum, resume=not options.no_resume)
    words = payload.copy_command(shell.GET)
    tails = tuple(tuple(path for path, _ in groups[0].paths) for groups in plans)
    exec_plan = ExecPlan(hosts, words, stdin=True, limits=limits(options), tails=tails, sudo=user)
    began = time.monotonic()
    outcomes = run_copy(exec_plan, options, fetching, fetching.copies)
    for node, outcome in enumerate(outcomes):
        if isinstance(outcome, Exited):  # of a tree tar gives what it can read
            fetching.unpack(node, whole=is_good(outcome))
    for name, told in zip(names, fetching.copies, strict=True):
        for left in told.left_out:
            say(f"note: {name}: left out {left}")
    return conclude(hosts, outcomes, fetching.copies, time.monotonic() - began, "fetched", options)


def _deed(groups: Sequence[HostPaths]) -> str:
    """The text of a dry run: the files to fetch from one host."""
    return "fetch " + ", ".join(
        f"{shlex.join(path for path, _ in group.paths)} into {shlex.quote(group.place)}"
        for group in groups
    )


def _named(path: str) -> tuple[str, str]:
    """A path on the host, and its name here. Raises: UsageError when it has none."""
    bare = path.rstrip("/")
    base = bare.rpartition("/")[2]
    if path.startswith("~") and base == bare:
        raise CannotCopy(
            f"get: {bare!r}: a home folder cannot be fetched as a whole",
            hint=f"name its contents: {bare}/.bashrc",
        )
    if base in ("", ".", "..") or "\0" in path:
        raise CannotCopy(f"get: {path!r}: cannot be fetched as a whole")
    if has_wildcards(path) and ".." in split_wildcards(path)[1]:
        raise CannotCopy(
            f"get: {path!r}: .. may not follow a wildcard",
            hint="a match keeps its path from the first wildcard on",
        )
    return there(path if bare == path else f"{bare}/"), base


def _check_places(groups: Sequence[HostPaths]) -> None:
    """Raises: UsageError when two sources have the same local path."""
    for group in groups:
        names = [name for path, name in group.paths if not has_wildcards(path)]
        if len(set(names)) == len(names):
            continue
        raise CannotCopy("get: two sources have the same local path")
    places = [os.path.normpath(group.place) for group in groups]
    if len(set(places)) < len(places):
        raise CannotCopy("get: files of two hosts have the same local path")


def _make(folder: str) -> None:
    try:
        placeholders.make_folders(folder)
    except OSError as error:
        raise CannotCopy(f"get: {folder}: {reason(error)}") from None
