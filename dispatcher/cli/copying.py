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
from dispatcher.cli.reach import Reach
from dispatcher.cli.targets import find_hosts
from dispatcher.copy import program, scripts
from dispatcher.copy.sending import Sending
from dispatcher.copy.sources import Sources, names_of
from dispatcher.copy.unpack import BadArchive, unpack
from dispatcher.core.events import SignalReceived
from dispatcher.core.visits import (
    Failed,
    Interrupted,
    NotCopied,
    Outcome,
    TimedOut,
    exit_code,
    is_good,
)  # fmt: skip
from dispatcher.errors import UsageError
from dispatcher.plan import placeholders
from dispatcher.plan.errand import Errand
from dispatcher.plan.hostset import fold
from dispatcher.runner.dialogue import Dialogue
from dispatcher.runner.errand import ErrandRunner
from dispatcher.sinks.archives import Archives
from dispatcher.sinks.base import Sink
from dispatcher.sinks.copying import summary
from dispatcher.sinks.errand import ErrandNotes, describe
from dispatcher.sinks.outlet import Outlet
from dispatcher.sinks.screen import Screen, View
from dispatcher.transport.base import Failure, Kind

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: how much larger a tar may be than what is in it: a block or two a member
_TAR_ROOM = 1 << 30


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
    sending = Sending(plans, checksum=flags["checksum"], resume=not flags["no_resume"])
    tails = tuple((groups[0][0], *names_of(groups[0][1])) for groups in wanted)
    words = program.words(scripts.PUT, ())
    errand = Errand(hosts, words, stdin=True, limits=limits(flags), tails=tails)
    began = time.monotonic()
    outcomes = list(_run(errand, flags, [], sending))
    for node, (outcome, told) in enumerate(zip(outcomes, sending.told, strict=True)):
        if told.error is not None and not isinstance(outcome, Interrupted | TimedOut):
            outcomes[node] = NotCopied(told.error)
        elif is_good(outcome) and told.python and told.sent is None:
            outcomes[node] = NotCopied("it ended without a word of what it did")
    code = _conclude(errand, outcomes)
    for line in summary(errand.names, outcomes, sending.told, time.monotonic() - began):
        say(line)
    return code


def get(flags: Mapping[str, Any]) -> int:
    """Receive, then unpack host by host; the exit code. Raises: UsageError before that."""
    if len(flags["paths"]) < 2:
        raise UsageError("get: what, and where to?", hint="dispatch get -H hostfile /FILE DIR")
    *sources, folder = flags["paths"]
    cleaned = [source.rstrip("/") for source in sources]
    bases = [source.rpartition("/")[2] for source in cleaned]
    for source, base in zip(sources, bases, strict=True):
        if base in ("", ".", "..") or "\0" in source:
            raise UsageError(f"get: {source!r}: cannot be fetched as a whole")
    if len(set(bases)) < len(bases):
        raise UsageError("get: two of the same name would lie in one place")
    limit = _size(flags["max_size"])
    hosts = find_hosts(flags, say)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"get: {folder}: {(error.strerror or '').lower()}") from None
    words = ("/bin/sh", "-c", scripts.GET, "dispatch")
    tails = tuple(
        tuple(_there(text.replace("{host}", host.name)) for text in cleaned) for host in hosts
    )
    errand = Errand(hosts, words, limits=limits(flags), tails=tails)
    archives = Archives(folder, limit + _TAR_ROOM)
    outcomes = list(_run(errand, flags, [archives], None))
    for node, outcome in enumerate(outcomes):
        if is_good(outcome):
            names = [base.replace("{host}", hosts[node].name) for base in bases]
            place = os.path.join(folder, errand.names[node])
            outcomes[node] = _take(archives, node, place, names, limit) or outcome
    return _conclude(errand, outcomes)


def _there(path: str) -> str:
    """``path`` so that no program there takes it for an option."""
    return f"./{path}" if path.startswith("-") else path


def _take(
    archives: Archives, node: int, place: str, names: Sequence[str], limit: int
) -> Outcome | None:
    """Unpack what one host sent; why it could not be, or None."""
    why = archives.problems.get(node)
    file = archives.take(node)
    if why is None and file is None:
        why = "it sent nothing"
    if why is None and file is not None:
        try:
            done = unpack(file, place, names, limit)
        except BadArchive as bad:
            why = str(bad)
        except OSError as error:
            why = f"{place}: {(error.strerror or '').lower()}"
        else:
            for left in done.left_out:
                say(f"note: {place}: left out {left}")
    if file is not None:
        file.close()
    return None if why is None else Failed(Failure(Kind.PROTOCOL, why))


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit() and len(number) < 13 and unit in ("", *_SIZES)):
        raise UsageError(f"--max-size: not a size: {text!r}", hint="--max-size 500M")
    return int(number) * _SIZES.get(unit, 1)


def _run(
    errand: Errand, flags: Mapping[str, Any], sinks: list[Sink], dialogue: Dialogue | None
) -> tuple[Outcome, ...]:
    allow_open_files(len(errand.hosts))
    names = errand.names
    # put has nothing to say on standard output; get's is the archive
    screen = Screen(
        View(lambda node: f"{names[node]}:", mark_errors=False),
        Outlet({2: 2}, lambda: runner.tell(SignalReceived(signal.SIGPIPE))),
    )
    with Reach(flags) as reach:
        runner = ErrandRunner(
            errand,
            reach.transport_for,
            [ErrandNotes(names, say, verbose=flags["verbose"]), screen, *sinks],
            dialogue=dialogue,
            sink_failed=lambda sink, error: say(f"error: {type(sink).__name__}: {error}"),
        )
        return runner.run()


def _conclude(errand: Errand, outcomes: Sequence[Outcome]) -> int:
    for line in describe(outcomes, errand.names):
        say(line)
    good = [name for name, o in zip(errand.names, outcomes, strict=True) if is_good(o)]
    if good and len(good) < len(outcomes):
        say(f"note: complete on {fold(good)}")
    return exit_code(outcomes)
