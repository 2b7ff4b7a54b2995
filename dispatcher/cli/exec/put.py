"""``dispatch put``: files and trees to every host, from here or from host to host by a tree."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from dispatcher.bootstrap import payload, shell
from dispatcher.cli import say
from dispatcher.cli.exec.run_copy import CopyOptions, conclude, run_copy, there
from dispatcher.cli.exec.run_exec import limits
from dispatcher.cli.options.connect_options import show_only
from dispatcher.cli.options.declaration import argument, preset
from dispatcher.cli.options.host_options import SendOptions, find_hosts, sudo_user, verbose_option
from dispatcher.cli.options.option_defaults import typed
from dispatcher.core.events.exec_events import (
    Exited,
    Interrupted,
    NotStarted,
    Outcome,
    TimedOut,
    own_code,
)
from dispatcher.model import paths as placeholders
from dispatcher.model.errors import CannotCopy, ConflictingOptions, MissingArgument, UsageError
from dispatcher.model.host import LOCAL_NAMES, Host
from dispatcher.model.hostset import fold
from dispatcher.model.names import parse_count, size
from dispatcher.model.paths import RANK
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.transfer import put_files
from dispatcher.transfer.dest_dir import MOST_TOLD, and_more
from dispatcher.transfer.host_copy import HostCopy
from dispatcher.transfer.ignore_rules import Rules
from dispatcher.transfer.put_files import DestPaths, Sending, Sources
from dispatcher.transfer.tars import names_of

#: parts of a list of hosts that may have such characters: ranges as [0-14/2], groups as @rack:*
_OF_HOSTSETS = re.compile(r"\[[^]]*\]|@[^,!&^]*")


class PutOptions(CopyOptions, SendOptions, section="Files"):
    """Copy files and folders SOURCE from this machine to DEST on every host.

    DEST is a folder if it ends in /, if there is such a folder, or if there are several SOURCEs. A
    quoted ~ at its start is your home folder on the host. A file gets its name when it is complete
    and its SHA-256 was compared; it keeps its mode and time. dispatch does not send a file that
    has the same size and time on the host, or the same contents. An interrupted copy goes on where
    it stopped; its unfinished files are removed after a week.

    {host} in a name becomes the host's name, and {rank} each rank of the host in turn, by
    the slots in the hostfile: in SOURCE for one file each, in DEST for each rank's own place.
    """

    examples = (
        ("dispatch put -H hostfile train.py conf /opt/job/", "a file and a folder"),
        ("dispatch put -w 'n[01-16]' node.conf /etc/site.conf", "under another name"),
        ("dispatch put -H hostfile 'shard-{rank}.bin' /data/", "each rank's file, on its host"),
        ("dispatch put -H hostfile --sudo --owner munge: key /etc/munge/", "as root, for another"),
    )
    brief = (
        "hostfile", "lists", "excluded", "sudo", "owner", "mode", "ignore", "connect_timeout",
        "fanout", "serial", "checksum", "branches", "keep", "user",
    )  # fmt: skip
    epilog = "Exit code: as for dispatch exec. Skipped files are listed and are not errors."

    paths: tuple[str, ...] = argument(metavar="SOURCE... DEST")
    branches: str | None = preset(
        "--fanout-tree",
        metavar="[=K]",
        bare="",
        help="Send the files from here to K hosts only, or 8, which pass them on to the others.",
        usual="only for 64 hosts and 8 GiB or more",
    )
    verbose: bool = verbose_option()


def put(options: PutOptions) -> int:
    """List the sources, then send them; the exit code. Raises: UsageError before that."""
    if len(options.paths) < 2:
        raise MissingArgument(
            "put: needs a source, and a destination",
            hint="dispatch put -H hostfile FILE /DEST/",
        )
    *sources, dest = options.paths
    if not dest or "\0" in dest:
        raise CannotCopy("put: an empty destination")
    _check_excluded(options)
    user, mode = sudo_user(options), _mode(options.mode)
    if options.owner is not None:
        _check_owner(options.owner)
    ignore = Rules(*(os.fsencode(line) for line in options.ignore))
    hosts = find_hosts(options, say, slots=placeholders.uses("".join(options.paths), RANK))
    wanted = placeholders.groups(sources, there(dest), hosts)
    listed: dict[tuple[tuple[str, ...], ...], Sources] = {}
    plans = []
    with ExitStack() as files:
        for groups in wanted:
            paths = tuple(paths for _, paths in groups)
            if paths not in listed:
                sent = Sources(groups, checksum=options.checksum, ignore=ignore, mode=mode)
                files.callback(sent.close)
                listed[paths] = sent
            plans.append((listed[paths], groups))
        _say_odd(list(dict.fromkeys(path for sent in listed.values() for path in sent.odd)))
        how = _how(options, user)
        deeds = (_deed(sent, groups) + how for sent, groups in plans)
        if show_only(options, "put", zip(hosts, deeds, strict=True), limits=limits(options)):
            return 0
        copies = [HostCopy(wanted=sent.size, left_out=_left_out(sent.odd)) for sent, _ in plans]
        shared = len(listed) == 1 and all(host.name not in LOCAL_NAMES for host in hosts)
        branches = _branches(options, len(hosts), plans[0][0].size if shared else None)
        job = Putting(options, hosts, plans, copies)
        began = time.monotonic()
        outcomes = job.by_tree(branches) if branches else job.flat(range(len(hosts)))
        return conclude(
            hosts,
            [outcomes[node] for node in range(len(hosts))],
            copies,
            time.monotonic() - began,
            "sent",
            options,
        )


def _deed(sent: Sources, groups: Sequence[DestPaths]) -> str:
    """The text of a dry run: the files that one host would get."""
    what = ", ".join(f"{shlex.join(paths)} to {shlex.quote(dest)}" for dest, paths in groups)
    ignored = f", less {sent.ignored} that --ignore names" if sent.ignored else ""
    return f"copy {what} ({size(sent.size)}{ignored})"


def _how(options: PutOptions, user: str | None) -> str:
    """The end of that text: as which user, for which owner, and with which mode."""
    words = "" if user is None else f" as {user}"
    words += "" if options.owner is None else f", owner {options.owner}"
    return words + ("" if options.mode is None else f", mode {options.mode}")


def _say_odd(paths: Sequence[str]) -> None:
    """Note the entries that cannot be sent: how many, and two of them."""
    some = [sanitize_text(path) for path in paths[:2]]
    if len(paths) == 1:
        say(f"note: {some[0]} is not sent: it is not a file, folder or link")
    elif paths:
        which = " and ".join(some) if len(paths) == 2 else f"{', '.join(some)} and others"
        say(f"note: {len(paths)} entries are not sent: {which} are not files, folders or links")


def _left_out(paths: Sequence[str]) -> list[str]:
    found = [f"{path!r}: not a file, folder or link" for path in paths[:MOST_TOLD]]
    return found + and_more(len(paths))


def _check_excluded(options: PutOptions) -> None:
    """Check that ``--exclude`` names hosts, not files. Raises: UsageError."""
    for text in filter(_means_files, options.excluded if typed("excluded") else ()):
        raise UsageError(
            f"--exclude {text}: it leaves hosts out, but no host has that name",
            hint=f"to leave files out: --ignore {shlex.quote(text)}",
        )


def _means_files(excluded: str) -> bool:
    """Whether a value of ``--exclude`` cannot be a list of hosts, but has names of files."""
    is_file_of_hosts = excluded.startswith("^")
    return not is_file_of_hosts and bool(set("*?/").intersection(_OF_HOSTSETS.sub("", excluded)))


def _mode(text: str | None) -> int | None:
    """Parse ``--mode``. Raises: UsageError if it is not a mode in octal digits."""
    if text is None:
        return None
    if not (2 < len(text) < 6 and set(text) <= set("01234567") and int(text, 8) <= 0o7777):
        raise UsageError(f"--mode: not a mode in octal digits: {text!r}", hint="--mode 640")
    return int(text, 8)


def _check_owner(text: str) -> None:
    """Raises: UsageError if ``text`` cannot be ``USER[:GROUP]``."""
    if text.strip(":") == "" or text.count(":") > 1 or not text.isprintable():
        raise UsageError(f"--owner: not USER[:GROUP]: {text!r}", hint="--owner munge:munge")


def _branches(options: PutOptions, hosts: int, size: int | None) -> int:
    """How many branches the tree has; 0 for none.

    size: bytes for one host; None where hosts cannot pass on what they get.
    """
    given = options.branches
    if options.sudo is not None:
        if given is None:
            return 0
        raise ConflictingOptions(
            "--fanout-tree and --sudo exclude each other: hosts log in to each other as you"
        )
    one_by_one = options.serial is not None or options.max_fail is not None
    if given is None:
        return (
            0
            if one_by_one or size is None or not put_files.pays(hosts, size)
            else put_files.BRANCHES
        )
    if one_by_one:
        raise ConflictingOptions(
            "--fanout-tree serves all hosts at once: it excludes --serial and --max-fail"
        )
    if size is None:
        raise CannotCopy(
            "--fanout-tree: every host must get the same files, and none may be this machine"
        )
    wanted = parse_count(given, "--fanout-tree") if given else put_files.BRANCHES
    return wanted if hosts > 1 else 0


class Putting:
    """One ``put``: its hosts, the files for each, and the state of each copy."""

    def __init__(
        self,
        options: PutOptions,
        hosts: Sequence[Host],
        plans: Sequence[tuple[Sources, tuple[DestPaths, ...]]],
        copies: Sequence[HostCopy],
    ) -> None:
        self._options = options
        self._hosts = hosts
        self._plans = plans
        self._copies = copies

    def flat(self, nodes: Sequence[int]) -> dict[int, Outcome]:
        """Serve ``nodes`` from here: node -> outcome."""
        return self._serve(nodes, {})

    def by_tree(self, branches: int) -> dict[int, Outcome]:
        """Serve the heads of as many branches; then serve from here the hosts that they missed."""
        self._plans[0][0].add_digests()
        found = put_files.branches_of(range(len(self._hosts)), branches)
        groups = [groups for _, groups in self._plans]
        below = {
            number: (
                put_files.instructions(branch, self._hosts, groups),
                {node: self._copies[node] for node in branch.below},
            )
            for number, branch in enumerate(found)
            if branch.below
        }
        outcomes = self._serve([branch.head for branch in found], below)
        left = []
        stopped = [one for one in outcomes.values() if isinstance(one, Interrupted | TimedOut)]
        for node in (node for branch in found for node in branch.below):
            copy = self._copies[node]
            if copy.sent is not None or copy.error is not None:
                outcomes[node] = Exited(0 if copy.error is None else 1)
            elif stopped:
                outcomes[node] = NotStarted("interrupted", own_code(stopped[0]))
            else:
                left.append(node)
        if left:
            self._say_who(left)
            outcomes |= self.flat(left)
        return outcomes

    def _say_who(self, nodes: Sequence[int]) -> None:
        if not self._options.verbose:
            return
        why: dict[str, list[str]] = {}
        for node in nodes:
            text = self._copies[node].relay_error or "the host above it failed"
            why.setdefault(sanitize_text(text), []).append(self._hosts[node].name)
        for text, names in why.items():
            say(f"note: {fold(names)}: served from here: {text}")

    def _serve(
        self, nodes: Sequence[int], below: Mapping[int, tuple[dict[str, Any], dict[int, HostCopy]]]
    ) -> dict[int, Outcome]:
        options = self._options
        plans = [self._plans[node] for node in nodes]
        sending = Sending(
            plans,
            checksum=options.checksum,
            resume=not options.no_resume,
            copies=[self._copies[node] for node in nodes],
            below=below,
            owner=options.owner or "",
        )
        tails = tuple((groups[0][0], *names_of(groups[0][1])) for _, groups in plans)
        exec_plan = ExecPlan(
            tuple(self._hosts[node] for node in nodes),
            payload.copy_command(f"dispatch_mode={options.mode or ''}{shell.PUT}"),
            stdin=True,
            limits=limits(options),
            tails=tails,
            sudo=options.sudo,
        )
        outcomes = run_copy(exec_plan, options, sending, self._copies)
        return dict(zip(nodes, outcomes, strict=True))
