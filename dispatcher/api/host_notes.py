"""Notes on the hosts of a run: their other users, failures in earlier runs, versions of software.

The start does not wait for any of it: hosts are asked, and records are read, when the ranks run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher.core.events.monitor_events import (
    GpusUsed,
    GpuTroubled,
    NodeVersions,
    VersionsWanted,
)
from dispatcher.core.events.mpi_events import MpiFound
from dispatcher.core.events.run_events import Entry, Event, HostsNoted, NodeReady, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.host_history import jobs_text, neighbours
from dispatcher.model.errors import DispatchError
from dispatcher.model.hostset import fold
from dispatcher.plan.job.devices import chosen

if TYPE_CHECKING:
    from dispatcher.api.run_session import RunSession
    from dispatcher.checks.hardware.gpu_users import GpuUser

#: seconds from the first host that reports users of its GPUs to the note on all of these
TOGETHER = 2.0
#: seconds after the start until hosts are asked for versions: that takes nothing from a start
LATER = 10.0


class HostNotes(Sink):
    """Collects facts about the hosts of the run of ``session``, and gives the run notes on them.

    folder: of the job's record. tell: gives the run an order.
    """

    def __init__(self, session: RunSession, folder: Path, tell: Callable[[Event], None]) -> None:
        self._session, self._state, self._plan = session, session.state, session.plan
        self._folder, self._tell = folder, tell
        self._xids: dict[str, int] = {}  # host -> the last error of one of its GPUs
        self._with_gpus: set[str] = set()
        self._users: dict[str, list[GpuUser]] = {}  # host -> users of its GPUs, for the next note
        self._due = 0.0  # when that note is due
        self._has_looked_back = False
        self._versions: dict[str, dict[str, list[str]]] = {}  # software -> version -> hosts
        self._awaited: set[int] = set()  # hosts that have yet to report theirs
        self._has_ended = threading.Event()

    def event(self, entry: Entry) -> None:
        match entry.event:
            case GpuTroubled(node, xid=xid) if xid:
                self._xids[self._state.hosts[node]] = xid
            case NodeReady(node, facts) if facts.gpus:
                self._with_gpus.add(self._state.hosts[node])
            case GpusUsed(node, said):
                self._note_users(node, said)
            case MpiFound(node, library, served):
                self._take_versions(node, {"mpi": library or served})
            case NodeVersions(node, found):
                from dispatcher.checks.health import versions_in  # after the start

                self._take_versions(node, versions_in(found))
                self._awaited.discard(node)
                if not self._awaited:
                    self._note_versions()
            case VersionsWanted():
                self._awaited = {one.node for one in self._state.ranks.values()}

    def _note_users(self, node: int, said: bytes) -> None:
        from dispatcher.checks.hardware.gpu_users import users

        name = self._state.hosts[node]
        places = [one for one in self._session.plan.nodes if one.host.name == name]
        for place in places[:1]:
            if found := users(said, chosen(place, self._plan.devices, self._plan.exports)):
                self._users[name] = found

    def tick(self, now: float) -> bool:
        if not self._users:
            return False
        self._due = self._due or now + TOGETHER
        if now >= self._due:
            from dispatcher.checks.hardware.gpu_users import users_text

            nodes = tuple(map(self._state.hosts.index, self._users))
            self._session.tell(HostsNoted(nodes, f"GPUs are in use: {users_text(self._users)}"))
            self._users, self._due = {}, 0.0
        return bool(self._users)

    def _take_versions(self, node: int, found: Mapping[str, str]) -> None:
        for name, version in found.items():
            hosts = self._versions.setdefault(name, {}).setdefault(version, [])
            hosts.append(self._state.hosts[node])

    def _note_versions(self) -> None:
        folded = {
            name: {version: fold(dict.fromkeys(hosts)) for version, hosts in of.items()}
            for name, of in self._versions.items()
        }
        with contextlib.suppress(OSError):
            registry.write(self._folder / "versions.json", folded)

    def look_around(self) -> None:
        """Look at the other jobs and the code, now that the ranks run; returns at once.

        Before that the start has no time for it. A restart may run other code.
        """
        threading.Thread(target=self._look, name="look", daemon=True).start()

    def _look(self) -> None:
        is_first = not self._has_looked_back
        with contextlib.suppress(OSError, DispatchError):
            nodes, text = self.failed_before()
            if nodes:
                self._session.tell(HostsNoted(nodes, text))
            near = neighbours(registry.jobs(running=True), self._plan.run_id)
            others = {host: jobs for host, jobs in near.items() if host not in self._with_gpus}
            if others:
                nodes = tuple(map(self._state.hosts.index, others))
                self._session.tell(HostsNoted(nodes, f"hosts are in use: {jobs_text(others)}"))
        from dispatcher.jobs.code_state import note_commit

        note_commit(self._folder)
        if is_first and not self._has_ended.wait(LATER):
            self._tell(VersionsWanted())

    def failed_before(self) -> tuple[tuple[int, ...], str]:
        """The hosts that have failed in several of the last runs, and which; once a run."""
        if self._has_looked_back:
            return (), ""
        self._has_looked_back = True
        if not registry.any_blamed():
            return (), ""
        from dispatcher.jobs.host_history import SEVERAL, failing, failures_text

        hosts = self._state.hosts
        found = failing(registry.jobs(), set(hosts), SEVERAL)
        return tuple(hosts.index(one.host) for one in found), failures_text(found)

    def conclude(self) -> dict[str, str]:
        """Write down the versions; host -> the code of the cause, of the hosts to blame."""
        self._has_ended.set()
        if self._versions:
            self._note_versions()
        closed = self._session.closed
        if closed is None or (closed.verdict.ok and not closed.verdict.attempts):
            return {}
        from dispatcher.checks.xid import CRITICAL, TABLE
        from dispatcher.jobs.host_history import blamed

        xids = {} if closed.verdict.ok else self._xids
        hard = {host: f"Xid-{xid}" for host, xid in xids.items() if TABLE.get(xid) == CRITICAL}
        return hard | blamed(closed)
