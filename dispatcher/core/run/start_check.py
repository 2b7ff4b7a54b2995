"""Decides before the first rank starts whether the hosts are ready, distinct, in reach. Pure.

1. Every node is ready or has failed; all failures are reported together.
2. Each node is another machine, and all have the same script and packages beside it, and the same
   files that arguments name, if ``--sync`` has sent them.
3. A plan that was open is closed with the number of GPUs counted.
4. Every other node reaches node 0 at the address it was itself reached by, or, asked again, at
   one common address of all that node 0 has.

Lesser findings are warnings. ``dispatch check`` and ``--check full`` check more.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.run_events import Facts
from dispatcher.model import errors
from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value, value
from dispatcher.model.hostset import fold
from dispatcher.model.names import quoted, size
from dispatcher.plan.job import devices
from dispatcher.plan.job.compared import NamedFile
from dispatcher.plan.job.job_plan import JobPlan

#: seconds for the first probe (the address ssh used) and for the last (all addresses)
FIRST_PROBE, LAST_PROBE = 1.0, 3.0
#: hosts that the launcher, or host 0, hears in a second, at least, when all send at once
HOSTS_A_SECOND = 100


def in_turn(plan: JobPlan) -> float:
    """Seconds that it may take to hear from all hosts of ``plan``, beyond each one's own time."""
    return len(plan.nodes) // HOSTS_A_SECOND


@value
class ProbeNodes(Value):
    """Have ``nodes`` try to reach ``addresses``:``port`` for ``seconds`` and answer."""

    nodes: tuple[int, ...]
    addresses: tuple[str, ...]
    port: int
    seconds: float


@value
class Start(Value):
    """The closed ``plan`` can start; its ranks meet at ``address``:``port``."""

    plan: JobPlan
    address: str
    port: int


Decision = ProbeNodes | Start | verdicts.Cause | None


class StartCheck:
    """Collects the nodes' reports and decides whether ``plan`` can start.

    prove: do the checks 2 and 4; else take node 0's first address. machine: the launcher's
    own. waiting: nodes that have not answered yet. differences: of hosts that can start.
    """

    def __init__(self, plan: JobPlan, *, prove: bool, machine: str = "") -> None:
        self.waiting = {node.index for node in plan.nodes}
        self._plan = plan
        self._prove = prove
        self.differences: list[Difference] = []
        self._machine = machine
        self._facts: dict[int, ev.Facts] = {}
        self._failures: dict[int, Failure] = {}
        self._problems: dict[int, frozenset[str]] = {}
        self._gpu_warnings: list[tuple[int, str]] = []
        self._candidates: tuple[str, ...] = ()
        self._asked: tuple[str, ...] = ()  # the addresses of the latest probe
        self._reached: dict[int, tuple[str, ...]] = {}

    @property
    def ready_nodes(self) -> frozenset[int]:
        """Nodes whose agent has answered, and so takes the order to finish."""
        return frozenset(self._facts)

    @property
    def hostnames(self) -> dict[int, str]:
        """node -> the host's own name, of all that have answered."""
        return {node: facts.hostname for node, facts in self._facts.items()}

    @property
    def here(self) -> set[int]:
        """The nodes on the launcher's own machine, whatever their names."""
        return {node for node, facts in self._facts.items() if facts.machine == self._machine}

    @property
    def warnings(self) -> list[tuple[int, str]]:
        """(node, text) of all warnings, which do not prevent the start."""
        return (host_warnings(self._facts) if self._prove else []) + self._gpu_warnings

    def ready(self, event: ev.NodeReady) -> Decision:
        """Note the report of a node's agent on its host; decide if it was the last."""
        node = event.node
        if self._asked or node not in self.waiting:
            return None
        self._facts[node] = event.facts
        if event.problems:
            self._problems[node] = frozenset(what for what, _ in event.problems)
            why = "; ".join(why for _, why in event.problems)
            hints = (hint for what, hint in _HINTS.items() if self._problems[node] & {*what})
            hint = next(hints, None)
            self._failures[node] = Failure(Kind.CHECK, why, hint)
        return self._settle(node)

    def lost(self, node: int, failure: Failure) -> Decision:
        """Note that a node cannot be used, before any was asked to probe."""
        self._failures[node] = failure
        self._facts.pop(node, None)
        return self._settle(node)

    def probed(self, event: ev.NodeProbed) -> Decision:
        """Note the addresses that a node reached; those that it was not asked about are ignored."""
        if not self._asked or event.node not in self.waiting:
            return None
        self.waiting.discard(event.node)
        self._reached[event.node] = tuple(a for a in event.reached if a in self._asked)
        if self.waiting:
            return None
        for address in self._asked:
            if all(address in reached for reached in self._reached.values()):
                return Start(self._plan, address, self._port)
        if len(self._asked) < len(self._candidates):
            return self._ask(self._candidates)
        counts = {a: sum(a in r for r in self._reached.values()) for a in self._candidates}
        best = max(self._candidates, key=lambda address: counts[address])
        return verdicts.Rejected(
            {
                node: unreachable_master(self._candidates, reached)
                for node, reached in sorted(self._reached.items())
                if best not in reached
            }
        )

    def _settle(self, node: int) -> Decision:
        self.waiting.discard(node)
        if self.waiting:
            return None
        if not self._failures and self._prove:
            self._failures.update(self._same_machine() or self._different_code())
            self.differences = [*differences(self._plan, self._facts)]
            self._failures.update(not_as_sent(self._plan, self.differences))
        if self._failures:
            return rejection(self._failures, self._problems)
        try:
            counts = {node: facts.gpus for node, facts in self._facts.items()}
            variables = {node: facts.visible for node, facts in self._facts.items()}
            there = {node: facts.topology for node, facts in self._facts.items()}
            self._plan = self._plan.resolved(counts, variables, there)
            plan = self._plan
            self._gpu_warnings = devices.gpu_warnings(
                plan.nodes, plan.devices, plan.exports, counts, variables
            )
        except UsageError as error:
            return verdicts.Impossible(error.message, error.hint, error.code)
        return self._meet()

    def _same_machine(self) -> dict[int, Failure]:
        """The failures of nodes that are the same machine, which would get twice the ranks."""
        first: dict[str, int] = {}
        failures = {}
        for node, facts in sorted(self._facts.items()):
            other = first.setdefault(facts.machine, node)
            if other != node:
                name = self._plan.nodes[other].host.name
                failures[node] = Failure(
                    Kind.CHECK,
                    f"is the same machine as {name}",
                    hint="keep one of the two names and add their slots, "
                    "or skip this with --check none",
                )
        return failures

    def _different_code(self) -> dict[int, Failure]:
        """The failures of nodes with other code than most, whose ranks would differ or wait."""
        if self._plan.allow_different_code:
            return {}
        argv = self._plan.program.argv
        hosts = [node.host.name for node in self._plan.nodes]
        failures = {}
        for node, (names, fellows) in different_code(self._facts, argv[0]).items():
            shown = [quoted(name) for name in names[:MOST_NAMED]]
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            failures[node] = Failure(
                Kind.CHECK,
                f"{', '.join(shown)}{more}: not the same as on {fold(hosts[n] for n in fellows)}",
                hint=f"--sync sends your folder to all hosts before the start; {ALLOW}",
            )
        return failures

    def _meet(self) -> Decision:
        plan, head = self._plan, self._facts[0]
        if plan.master_addr is not None:
            known = [(node.host.name, self._facts[node.index]) for node in plan.nodes]
            own = ((name, (name, facts.hostname, *facts.addresses)) for name, facts in known)
            there = [name for name, names in own if plan.master_addr in names]
            first = plan.nodes[0].host.name
            if there and first not in there:  # no rank would ever answer there
                why = (
                    f"--master-addr {plan.master_addr}: that is {there[0]}, not {first}, the first"
                )
                return verdicts.Impossible(why, "without --master-addr")
            return Start(plan, plan.master_addr, self._port)
        if len(plan.nodes) == 1 and plan.nodes[0].host.name == "localhost":
            return Start(plan, "127.0.0.1", self._port)
        if not head.addresses:  # names are not probed: looking them up could hang the agents
            return Start(plan, head.hostname, self._port)
        self._candidates = head.addresses
        if len(plan.nodes) == 1 or not self._prove or head.port is None:
            return Start(plan, head.addresses[0], self._port)
        return self._ask(self._candidates[:1])

    def _ask(self, addresses: tuple[str, ...]) -> ProbeNodes:
        self._asked = addresses
        is_last = len(addresses) == len(self._candidates)
        seconds = LAST_PROBE + in_turn(self._plan) if is_last else FIRST_PROBE
        self.waiting = {node.index for node in self._plan.nodes[1:]}
        return ProbeNodes(tuple(sorted(self.waiting)), addresses, self._port, seconds)

    @property
    def _port(self) -> int:
        return self._facts[0].port or self._plan.master_port or 0


#: an agent's findings -> the hint, the most severe first
_HINTS = {
    ("silent",): "look at its mount: dmesg -T",
    (
        "cwd",
        "no script",
    ): "--sync sends your folder before the start; or name one that every host has with --chdir",
    ("missing",): "install it on that host, or name one that is there; for a Python: --python, or "
    "python= in the hostfile",
    ("not executable",): "let it be read and run on that host: chmod a+rx",
    ("no interpreter",): "install it on that host, or fix the program's first line; a \\x0d at its "
    "end is the line end of Windows",
    ("open mpi",): "leave --mpi pmi1 out; or --mpi none, if its ranks do not meet",
    ("iface",): "name one that every host has with --iface, or leave the choice to the libraries",
    ("port",): "name a free port with --master-port, or leave the choice to dispatch",
}

#: free bytes below which even a small file does not fit
LEAST_FREE = 1 << 20
FOLDERS = ("the folder for temporary files", "shared memory")


def host_warnings(facts: Mapping[int, Facts]) -> list[tuple[int, str]]:
    """(node, warning) for full folders and other scripts, by node. facts: of all nodes."""
    found = []
    # on a tie, the first node's script is the reference
    scripts = Counter(one.script for _, one in sorted(facts.items()) if one.script is not None)
    common = max(scripts, key=lambda script: scripts[script], default=None)
    for node, one in sorted(facts.items()):
        for place, free in zip(FOLDERS, one.room, strict=True):
            if free is not None and free < LEAST_FREE:
                found.append((node, f"{place} is full: {size(free)} free"))
        if one.script not in (None, common):
            found.append((node, "its script differs from most hosts' script"))
    return found


#: names of differing files that a host's failure lists
MOST_NAMED = 4
ALLOW = "if they are meant to differ, --allow-different-code"


def different_code(
    facts: Mapping[int, Facts], script: str
) -> dict[int, tuple[list[str], tuple[int, ...]]]:
    """node -> names of files and packages that differ from most nodes', and those nodes.

    On a tie, the first node's file is the reference. script: the name of the program's own file.
    """
    sums: dict[str, dict[int, int]] = {}
    for node, one in sorted(facts.items()):
        if one.script is not None:
            sums.setdefault(script, {})[node] = one.script
        for name, known in one.code:
            if name != script.rpartition("/")[2]:  # it is listed already
                sums.setdefault(name, {})[node] = known
    found: dict[int, tuple[list[str], tuple[int, ...]]] = {}
    for name, by_node in sums.items():
        common, _ = Counter(by_node.values()).most_common(1)[0]
        fellows = tuple(node for node, known in by_node.items() if known == common)
        for node, known in by_node.items():
            if known != common:
                names, _ = found.setdefault(node, ([], fellows))
                names.append(name)
    return found


@value
class Difference(Value):
    """Before the start ``hosts`` have another ``subject`` than ``others``, or do not have it.

    what: the text of a file, the files of a folder, a file or a Python module that is missing;
    unread: it was not compared in full, with no difference so far.
    """

    what: Literal["text", "files", "missing", "module", "unread"]
    subject: str
    hosts: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """``config.yaml differs: n3 has another text than n1 (and 6 more)``."""
        who, name, others = fold(self.hosts), self.subject, self.others
        has, had = ("have" if hosts[1:] else "has" for hosts in (self.hosts, others))
        if self.what == "unread":
            return f"{name}: compared only in part on {who}, because it is large or slow to read"
        if self.what in ("missing", "module"):
            thing = f"no module named {name}" if self.what == "module" else f"{name} is missing"
            return f"{who}: {thing} ({fold(others)} {had} it)"
        more = f" (and {len(others) - 1} more)" if others[1:] else ""
        kind = "another text" if self.what == "text" else "other files"
        return f"{name} differs: {who} {has} {kind} than {others[0]}{more}"

    def nodes(self, plan: JobPlan) -> tuple[int, ...]:
        """The nodes of ``hosts``."""
        return tuple(node.index for node in plan.nodes if node.host.name in self.hosts)


def differences(plan: JobPlan, facts: Mapping[int, Facts]) -> Iterator[Difference]:
    """All that the hosts of ``plan`` differ in."""
    known = {plan.nodes[node].host.name: one for node, one in sorted(facts.items())}
    if all(len(one.named) == len(plan.named) for one in known.values()):
        for at, file in enumerate(plan.named):
            yield from _of_file(file, {host: one.named[at] for host, one in known.items()})
    looked = {h: one.modules for h, one in known.items() if len(one.modules) == len(plan.modules)}
    for at, module in enumerate(plan.modules):
        lacking = tuple(host for host, has in looked.items() if not has[at])
        if lacking and len(lacking) < len(looked):
            others = tuple(host for host, has in looked.items() if has[at])
            yield Difference("module", module, lacking, others)


def _of_file(
    file: NamedFile, rows: Mapping[str, tuple[int | None, int | None, bool]]
) -> Iterator[Difference]:
    """rows: host -> its row, as in ``remote.probe.compared``."""
    there = {host: row for host, row in rows.items() if row[1] is not None}
    missing = tuple(host for host in rows if host not in there)
    if there and missing:
        yield Difference("missing", file.name, missing, tuple(there))
    if len({itself for _, itself, _ in there.values()}) < 2:
        return  # at most one, or all have the same from a file system that they share
    sums = {host: known for host, (known, *_) in there.items() if known is not None}
    common = max(sums.values(), key=Counter(sums.values()).__getitem__, default=0)
    differ = tuple(host for host, known in sums.items() if known != common)
    partly = tuple(host for host, (*_, whole) in there.items() if not whole)
    if differ:
        others = tuple(host for host, known in sums.items() if known == common)
        yield Difference("files" if file.folder else "text", file.name, differ, others)
    elif partly:
        yield Difference("unread", file.name, partly)


def not_as_sent(plan: JobPlan, found: Sequence[Difference]) -> dict[int, Failure]:
    """The failures of nodes that lack or differ in a file that ``--sync`` has just sent to them."""
    sent = {file.name for file in plan.named if file.sent}
    failures: dict[int, Failure] = {}
    for one in found:
        if one.subject in sent and one.what in ("text", "missing"):
            what = "not the same as" if one.what == "text" else "missing, but it is"
            why = f"--sync: {one.subject}: {what} on {fold(one.others)}"
            hint = f"touch {shlex.quote(one.subject)}, so that --sync sends it again; {ALLOW}"
            failure = Failure(Kind.CHECK, why, hint)
            failures |= dict.fromkeys(one.nodes(plan), failure)
    return failures


def rejection(
    failures: Mapping[int, Failure], problems: Mapping[int, frozenset[str]]
) -> verdicts.Rejected:
    """The verdict on nodes that cannot be used before a start.

    problems: node -> what its agent found wrong. Where the program is missing on all that failed
    (or may not be executed), the exit code is the shell's 127 (or 126).
    """
    words = {word for node in failures for word in problems.get(node, frozenset({"link"}))}
    code = errors.CLUSTER
    if words and words <= {"missing", "no script", "no interpreter", "not executable"}:
        code = errors.NOT_EXECUTABLE if words == {"not executable"} else errors.NOT_FOUND
    return verdicts.Rejected(dict(failures), code, dict(problems))


def unreachable_master(addresses: tuple[str, ...], reached: tuple[str, ...]) -> Failure:
    """Why a node cannot take part: it reaches node 0 at none of the ``addresses`` others do."""
    tried = ", ".join(addresses)
    got = f", only at {', '.join(reached)}" if reached else ""
    return Failure(
        Kind.CHECK,
        f"cannot reach node 0 at {tried}{got}",
        hint="name an address all hosts reach with --master-addr, or skip with --check none",
    )
