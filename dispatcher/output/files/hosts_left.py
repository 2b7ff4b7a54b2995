"""Writes a hostfile with the hosts of a fan-out command that failed or are not done yet.

``--failed-to`` writes it and ``--retry-failed`` reads it: each line has a host as it was named, and
the reason as a comment. The file is right at every moment: all hosts are in it before the first is
touched, and each that is done is taken out. So a rolling execution whose launcher was killed can go
on from it. At the end it may have only its first comment.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from dispatcher.core.events.exec_events import HostDone, Outcome, is_good
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.errors import FileUnusable, reason
from dispatcher.model.host import Host
from dispatcher.model.paths import replace_file
from dispatcher.output.exec.host_results import outcome_text

_HEAD = "# hosts that failed, or were not started, by dispatch exec\n"
#: the share of time that dispatch may spend on rewriting it
_SHARE = 0.05


class HostsLeft(Sink):
    """Keeps the files up to date until the end, when the caller calls ``write`` with all outcomes.

    lists: path -> its hosts: those of the command, then others that stay in it.
    Raises: FileUnusable for a path that cannot be written.
    """

    def __init__(
        self,
        lists: Mapping[str, Sequence[Host]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lists = lists
        self._clock = clock
        self._outcomes: dict[int, Outcome] = {}
        self._changed = False
        self._due = 0.0
        for path, hosts in lists.items():
            try:
                write_hosts(path, hosts, self._outcomes)
            except OSError as error:
                raise FileUnusable(f"{path}: {reason(error)}") from None

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, HostDone):
            self._outcomes[entry.event.node] = entry.event.outcome
            self._changed = True

    def tick(self, now: float) -> bool:
        if self._changed and now >= self._due:
            began = self._clock()
            for path, hosts in self._lists.items():
                with contextlib.suppress(OSError):  # the disk may have room again at the end
                    write_hosts(path, hosts, self._outcomes)
            self._changed = False
            self._due = now + (self._clock() - began) / _SHARE
        return self._changed


def write_hosts(path: str, hosts: Sequence[Host], outcomes: Mapping[int, Outcome]) -> None:
    """Replace the file by the hosts that failed or are not done.

    outcomes: place among ``hosts`` -> outcome, if it is known. Raises: OSError.
    """
    lines = [_HEAD]
    for node, host in enumerate(hosts):
        outcome = outcomes.get(node)
        if outcome is not None and is_good(outcome):
            continue
        line = host.name
        if host.user is not None:
            line += f" user={host.user}"
        if host.port is not None:
            line += f" port={host.port}"
        why = "not done" if outcome is None else " ".join(outcome_text(outcome).split())
        lines.append(f"{line}  # {why}\n")
    replace_file(path, "".join(lines).encode("utf-8", "backslashreplace"), 0o644)
