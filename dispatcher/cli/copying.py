"""From the flags of ``put`` and ``get`` to an errand, and what is done with what came back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.cli.door import say
from dispatcher.cli.errand import limits
from dispatcher.cli.launch import allow_open_files
from dispatcher.cli.reach import LOCAL_NAMES, Reach
from dispatcher.cli.sinks import may_draw
from dispatcher.cli.targets import find_hosts
from dispatcher.copy import program, scripts, tree
from dispatcher.copy.fetching import Fetching
from dispatcher.copy.receiving import Group
from dispatcher.copy.sending import Sending
from dispatcher.copy.sources import Group as SourceGroup
from dispatcher.copy.sources import Sources, names_of
from dispatcher.copy.told import Told
from dispatcher.core.events import SignalReceived
from dispatcher.core.visits import (
    Exited,
    Failed,
    Interrupted,
    NotCopied,
    NotStarted,
    Outcome,
    TimedOut,
    exit_code,
    is_good,
)  # fmt: skip
from dispatcher.errors import UsageError
from dispatcher.plan import placeholders
from dispatcher.plan.errand import Errand
from dispatcher.plan.host import Host
from dispatcher.plan.hostset import fold
from dispatcher.plan.placeholders import HOST, RANK
from dispatcher.plan.request import parse_count
from dispatcher.runner.dialogue import Dialogue
from dispatcher.runner.errand import ErrandRunner
from dispatcher.sinks.base import Sink
from dispatcher.sinks.copying import summary
from dispatcher.sinks.errand import ErrandNotes, describe
from dispatcher.sinks.harmless import harmless_text
from dispatcher.sinks.outlet import Outlet
from dispatcher.sinks.screen import Screen, View
from dispatcher.transport.base import Failure, Kind

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def put(flags: Mapping[str, Any]) -> int:
    """List the sources, then send them; the exit code. Raises: UsageError before that."""
    if len(flags["paths"]) < 2:
        raise UsageError("put: what, and where to?", hint="dispatch put -H hostfile FILE /DEST/")
    *sources, dest = flags["paths"]
    if not dest or "\0" in dest:
        raise UsageError("put: an empty destination")
    hosts = find_hosts(flags, say)
    wanted = placeholders.groups(sources, _there(dest), hosts)
    listed: dict[tuple[tuple[str, ...], ...], Sources] = {}
    plans = []
    for groups in wanted:
        paths = tuple(paths for _, paths in groups)
        if paths not in listed:
            listed[paths] = Sources(groups, checksum=flags["checksum"])
        plans.append((listed[paths], groups))
    told = [Told(wanted=files.size) for files, _ in plans]
    shared = len(listed) == 1 and all(host.name not in LOCAL_NAMES for host in hosts)
    branches = _branches(flags["tree"], len(hosts), plans[0][0].size if shared else 0, shared)
    job = Putting(flags, hosts, plans, told)
    began = time.monotonic()
    outcomes = job.by_tree(branches) if branches else job.flat(range(len(hosts)))
    names = Errand(hosts, ("put",)).names
    return _conclude(
        names,
        [outcomes[node] for node in range(len(hosts))],
        told,
        time.monotonic() - began,
        "sent",
    )


def _branches(given: str | None, hosts: int, size: int, shared: bool) -> int:
    """How many branches the tree has; 0 for none. given: of the flag, "" for no number."""
    if given is None:
        return tree.BRANCHES if shared and tree.pays(hosts, size) else 0
    if not shared:
        raise UsageError("--tree: every host must get the same files, and none be this machine")
    count = parse_count(given, "--tree") if given else tree.BRANCHES
    return count if hosts > 1 else 0


class Putting:
    """One ``put``: its hosts, what goes to each, and what is known of it."""

    def __init__(
        self,
        flags: Mapping[str, Any],
        hosts: Sequence[Host],
        plans: Sequence[tuple[Sources, tuple[SourceGroup, ...]]],
        told: Sequence[Told],
    ) -> None:
        self._flags = flags
        self._hosts = hosts
        self._plans = plans
        self._told = told

    def flat(self, nodes: Sequence[int]) -> dict[int, Outcome]:
        """Serve ``nodes`` from here: node -> outcome."""
        return self._serve(nodes, {})

    def by_tree(self, branches: int) -> dict[int, Outcome]:
        """Serve the heads of as many branches; whom they could not serve, from here."""
        self._plans[0][0].add_digests()
        found = tree.branches_of(range(len(self._hosts)), branches)
        groups = [groups for _, groups in self._plans]
        below = {
            number: (
                tree.instructions(branch, self._hosts, groups),
                {node: self._told[node] for node in branch.below},
            )
            for number, branch in enumerate(found)
            if branch.below
        }
        outcomes = self._serve([branch.head for branch in found], below)
        left = []
        stopped = [one for one in outcomes.values() if isinstance(one, Interrupted | TimedOut)]
        for node in (node for branch in found for node in branch.below):
            told = self._told[node]
            if told.sent is not None or told.error is not None:
                outcomes[node] = Exited(0 if told.error is None else 1)
            elif stopped:
                outcomes[node] = NotStarted("interrupted")
            else:
                left.append(node)
        if left:
            self._say_who(left)
            outcomes |= self.flat(left)
        return outcomes

    def _say_who(self, nodes: Sequence[int]) -> None:
        if not self._flags["verbose"]:
            return
        why: dict[str, list[str]] = {}
        for node in nodes:
            text = self._told[node].relay_error or "the host above it failed"
            why.setdefault(harmless_text(text), []).append(self._hosts[node].name)
        for text, names in why.items():
            say(f"note: {fold(names)}: served from here: {text}")

    def _serve(
        self, nodes: Sequence[int], below: Mapping[int, tuple[dict[str, Any], dict[int, Told]]]
    ) -> dict[int, Outcome]:
        flags = self._flags
        plans = [self._plans[node] for node in nodes]
        sending = Sending(
            plans,
            checksum=flags["checksum"],
            resume=not flags["no_resume"],
            told=[self._told[node] for node in nodes],
            below=below,
        )
        tails = tuple((groups[0][0], *names_of(groups[0][1])) for _, groups in plans)
        errand = Errand(
            tuple(self._hosts[node] for node in nodes),
            program.words(scripts.PUT, ()),
            stdin=True,
            limits=limits(flags),
            tails=tails,
        )
        return dict(zip(nodes, _run(errand, flags, [], sending, self._told), strict=True))


def get(flags: Mapping[str, Any]) -> int:
    """Ask every host for the files; the exit code. Raises: UsageError before that."""
    if len(flags["paths"]) < 2:
        raise UsageError("get: what, and where to?", hint="dispatch get -H hostfile /FILE DIR")
    *sources, folder = flags["paths"]
    limit = _size(flags["max_size"])
    hosts = find_hosts(flags, say)
    wanted = placeholders.groups(
        [source.rstrip("/") or source for source in sources], folder, hosts
    )
    own = placeholders.uses(folder, HOST) or placeholders.uses(folder, RANK)
    names = Errand(hosts, ("get",)).names
    plans = [
        tuple(
            Group(dest if own else os.path.join(dest, name), tuple(map(_named, paths)))
            for dest, paths in groups
        )
        for name, groups in zip(names, wanted, strict=True)
    ]
    _check_places([group for groups in plans for group in groups])
    if not own:
        _make(folder)
    fetching = Fetching(
        plans, limit=limit, checksum=flags["checksum"], resume=not flags["no_resume"]
    )
    words = program.words(scripts.GET, ())
    tails = tuple(tuple(path for path, _ in groups[0].paths) for groups in plans)
    errand = Errand(hosts, words, stdin=True, limits=limits(flags), tails=tails)
    began = time.monotonic()
    outcomes = list(_run(errand, flags, [], fetching, fetching.told))
    for node, outcome in enumerate(outcomes):
        if is_good(outcome):
            fetching.unpack(node)
    for name, told in zip(names, fetching.told, strict=True):
        for left in told.left_out:
            say(f"note: {name}: left out {left}")
    return _conclude(names, outcomes, fetching.told, time.monotonic() - began, "fetched")


def _named(path: str) -> tuple[str, str]:
    """A path there, and the name it gets here. Raises: UsageError when it has none."""
    base = path.rpartition("/")[2]
    if base in ("", ".", "..") or "\0" in path:
        raise UsageError(f"get: {path!r}: cannot be fetched as a whole")
    return _there(path), base


def _check_places(groups: Sequence[Group]) -> None:
    """Raises: UsageError when two things would lie in one place."""
    if any(len(group.names) < len(group.paths) for group in groups):
        raise UsageError("get: two of the same name would lie in one place")
    places = [os.path.normpath(group.place) for group in groups]
    if len(set(places)) < len(places):
        raise UsageError("get: files of two hosts would lie in one place")


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"get: {folder}: {(error.strerror or '').lower()}") from None


def _there(path: str) -> str:
    """``path`` so that no program there takes it for an option."""
    return f"./{path}" if path.startswith("-") else path


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit() and len(number) < 13 and unit in ("", *_SIZES)):
        raise UsageError(f"--max-size: not a size: {text!r}", hint="--max-size 500M")
    return int(number) * _SIZES.get(unit, 1)


def _run(
    errand: Errand,
    flags: Mapping[str, Any],
    sinks: list[Sink],
    talk: Dialogue,
    told: Sequence[Told],
) -> tuple[Outcome, ...]:
    allow_open_files(len(errand.hosts))
    names = errand.names

    def nobody_reads() -> None:
        runner.tell(SignalReceived(signal.SIGPIPE))

    outlet = Outlet({2: 2}, nobody_reads)
    if may_draw(os.environ):
        from dispatcher.sinks.copy_progress import CopyProgress, CopyTerminal

        progress = CopyProgress(told)
        sinks = [progress, *sinks]
        outlet = CopyTerminal(progress, 2, nobody_reads)
    # standard output is the copy's own wire; standard error is for people
    screen = Screen(View(lambda node: f"{names[node]}:", mark_errors=False), outlet)
    with Reach(flags) as reach:
        runner = ErrandRunner(
            errand,
            reach.transport_for,
            [ErrandNotes(names, screen.say, verbose=flags["verbose"]), screen, *sinks],
            dialogue=talk,
            sink_failed=lambda sink, error: say(f"error: {type(sink).__name__}: {error}"),
        )
        return runner.run()


def _conclude(
    names: Sequence[str], outcomes: list[Outcome], told: Sequence[Told], seconds: float, verb: str
) -> int:
    """Say what became of which hosts; the exit code."""
    for node, (outcome, one) in enumerate(zip(outcomes, told, strict=True)):
        if isinstance(outcome, Interrupted | TimedOut):
            continue
        if one.error is not None:
            failure = Failure(Kind.PROTOCOL, one.error)
            outcomes[node] = Failed(failure) if one.hostile else NotCopied(one.error)
        elif is_good(outcome) and one.python and one.sent is None:
            outcomes[node] = NotCopied("it ended before all was copied")
    for line in describe(outcomes, names):
        say(line)
    for line in summary(names, outcomes, told, seconds, verb):
        say(line)
    return exit_code(outcomes)
