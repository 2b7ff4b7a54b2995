"""Find the processes and folders that runs have left on hosts: on request, and at a run's end.

If agent and guardian are killed at once, the agent's folder stays, and so does a child in another
session. Then the launcher checks the host over a new connection, at the end or when the core orders
it (``CheckOrphans``). If the launcher is killed at that moment, ``dispatch sweep`` finds them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from signal import Signals

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import CheckOrphans
from dispatcher.core.events.run_events import Entry, NodeCleared, Sink
from dispatcher.model import errors
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.transport.base import Transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.bootstrap import shell
    from dispatcher.plan.exec_plan import ExecLimits

#: seconds that a look at one host may take, so that no host delays the others for ever
LONGEST = 60.0


@value
class Look(Value):
    """Leftover processes and folders by host name, and lines about hosts that were not reached.

    interrupted: the exit code if a signal ended the look, else 0.
    """

    found: Mapping[str, list[shell.SweptProcess]]
    failures: list[str]
    interrupted: int = 0


def look_by(
    transport_for: Callable[[Host], Transport],
    hosts: Sequence[Host],
    run_ids: Sequence[str],
    *,
    kill: bool,
    limits: ExecLimits | None = None,
    handled: Sequence[Signals] | None = None,
) -> Look:
    """Find (``kill``: and end) the leftovers of ``run_ids`` ([]: any run) on ``hosts``.

    limits: None for ``LONGEST`` seconds a host. handled: the signals that end the look, None
    for those of any fan-out command; () outside the main thread.
    """
    # a run imports this file before it starts, and most need none of these
    from dispatcher.api.exec_session import ExecSession
    from dispatcher.bootstrap import shell
    from dispatcher.core.events.exec_events import exit_code
    from dispatcher.output.exec.host_results import describe
    from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
    from dispatcher.remote.protocol.frames import STDOUT
    from dispatcher.runner.exec.exec_loop import HANDLED

    limits = limits or ExecLimits(command=LONGEST)
    exec_plan = ExecPlan(tuple(hosts), shell.sweep_command(run_ids, kill=kill), limits=limits)
    session = ExecSession(exec_plan, transport_for, streams=frozenset({STDOUT}))
    results = session.run(HANDLED if handled is None else handled)
    code = exit_code(one.outcome for one in results)
    found = {one.host: shell.swept_processes(one.host, one.stdout) for one in results}
    return Look(found, describe(results), code if code > errors.SIGNAL_BASE else 0)


#: kind of result -> its verb in a line
_VERBS = {
    "found": "found",
    "killed": "killed",
    "removed": "removed",
    "left": "error: could not kill",
    "kept": "error: could not remove",
}


def summary(found: Mapping[str, list[shell.SweptProcess]], *whats: str) -> list[str]:
    """Lines for each of ``whats``: ``n[1-2]: killed 3 processes: python 2, agent 1``."""
    lines = []
    for what in whats:
        groups: dict[str, list[str]] = {}
        for host, tagged in found.items():
            here = [one for one in tagged if one.what == what]
            for text in filter(None, (_processes(here), _folders(here), _containers(here))):
                groups.setdefault(f"{_VERBS[what]} {text}", []).append(host)
        lines += [f"{fold(hosts)}: {text}" for text, hosts in groups.items()]
    return lines


def _processes(tagged: Sequence[shell.SweptProcess]) -> str:
    counts = Counter(one.name for one in tagged if one.pid is not None)
    names = ", ".join(f"{sanitize_text(name)} {n}" for name, n in sorted(counts.items()))
    total = counts.total()
    return f"{plural(total, 'process', 'processes')}: {names}" if total else ""


def _folders(tagged: Sequence[shell.SweptProcess]) -> str:
    counts = Counter(one.name for one in tagged if one.pid is None and not _is_container(one))
    places = ", ".join(map(sanitize_text, sorted(counts)))
    total = counts.total()
    return f"{plural(total, 'folder')} in {places}" if total else ""


def _is_container(one: shell.SweptProcess) -> bool:
    return one.pid is None and one.name.startswith("container of ")


def _containers(tagged: Sequence[shell.SweptProcess]) -> str:
    counts = Counter(one.name.rpartition(" ")[2] for one in filter(_is_container, tagged))
    engines = ", ".join(map(sanitize_text, sorted(counts)))
    return f"{plural(counts.total(), 'container')} of {engines}" if counts else ""


#: seconds that a look takes at most after connecting: five rounds of killing, a second apart
ROUNDS = 8.0
#: seconds that the end of the run waits for looks that are under way
REPLY_TIMEOUT = 2.0


class FinalCleanup(Sink):
    """Notes which of ``hosts`` (by number) lost agent and guardian, and cleans them up.

    run_id: whose processes are ended. tell: gets the results of looks between two attempts.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        run_id: str,
        transport_for: Callable[[Host], Transport],
        tell: Callable[[ev.Event], None],
    ) -> None:
        self._all = hosts
        self._run_id = run_id
        self._transport_for = transport_for
        self._tell = tell
        self._busy: set[int] = set()  # an agent is at work there
        self._left: set[int] = set()
        self._looks: list[threading.Thread] = []

    @property
    def hosts(self) -> list[Host]:
        """The hosts where agent and guardian were killed, and that were not cleaned up since."""
        return [self._all[host] for host in sorted(self._left)]

    def event(self, entry: Entry) -> None:
        match entry.event:
            case ev.NodeBooted(host):
                self._busy.add(host)
            case ev.NodeDying(host):
                self._busy.discard(host)  # the agent cleans up
            case ev.NodeLost(host, _, ending) if host in self._busy:
                self._busy.discard(host)
                if ending is not None and ending.signal is not None:
                    self._left.add(host)
            case NodeCleared(host):
                self._left.discard(host)

    def check_orphans(self, look: CheckOrphans) -> None:
        """Check a host on a new thread, which sends ``NodeCleared`` if nothing is left."""
        name = f"look:{self._all[look.node].name}"
        thread = threading.Thread(target=self._look, args=(look,), name=name, daemon=True)
        self._looks.append(thread)
        thread.start()

    def _look(self, look: CheckOrphans) -> None:
        from dispatcher.plan.exec_plan import ExecLimits

        host, total = self._all[look.node], look.seconds + ROUNDS
        limits = ExecLimits(connect=look.seconds, command=LONGEST, total=total)
        ids = [self._run_id]
        seen = look_by(self._transport_for, [host], ids, kill=True, limits=limits, handled=())
        found = [one.what for one in seen.found[host.name]]
        if not seen.failures and "left" not in found:
            self._tell(NodeCleared(look.node, found.count("killed")))

    def clean(self, handled: Sequence[Signals]) -> list[str]:
        """End the run's leftovers on ``hosts``; return lines about them.

        handled: the signals that end this.
        """
        end = time.monotonic() + REPLY_TIMEOUT
        for thread in self._looks:
            thread.join(max(0.0, end - time.monotonic()))
        hosts = self.hosts
        if not hosts:
            return []
        ids = [self._run_id]
        seen = look_by(self._transport_for, hosts, ids, kill=True, handled=handled)
        ended = summary(seen.found, "killed", "removed")
        ended = [f"note: {line}, left behind" for line in ended]
        return [*ended, *summary(seen.found, "left", "kept"), *seen.failures]
