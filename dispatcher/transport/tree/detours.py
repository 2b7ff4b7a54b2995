"""Tells who had to be connected from here, each reason once, with the hosts folded.

What happens to many hosts at once is told together: when no host is on its way any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dispatcher.model.hostset import fold
from dispatcher.transport.base import Failure, Kind

_HINTS = {
    Kind.AUTH: "ssh {parent} ssh {host} true  # hosts of a tree log in to each other",
    Kind.HOST_KEY_UNKNOWN: "ssh-keyscan {host} >> ~/.ssh/known_hosts"
    "  # here, after checking the fingerprint",
    Kind.NO_PYTHON: "--agent-python names one; an inner host needs Python",
    Kind.CONFIG: "ssh {parent} ssh -v {host} true",
    Kind.DNS: "ssh {parent} getent hosts {host}",
}


class Detours:
    """Collects reasons. say: shows one line to the user."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting: dict[Kind, list[tuple[str, str, Failure]]] = {}

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A host is being reached."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                found = {} if self._under_way else self._waiting
                self._waiting = {} if found else self._waiting
            for kind, detours in found.items():
                for line in told(kind, detours):
                    self._say(line)

    def add(self, host: str, parent: str, failure: Failure) -> None:
        """``host`` is connected from here, since ``parent`` cannot reach it."""
        with self._lock:
            self._waiting.setdefault(failure.kind, []).append((host, parent, failure))


def told(kind: Kind, detours: list[tuple[str, str, Failure]]) -> list[str]:
    """The lines for hosts that were all refused for a reason of one kind."""
    hosts = fold(host for host, _, _ in detours)
    parents = fold({parent for _, parent, _ in detours})
    host, parent, failure = detours[0]
    lines = [f"note: {hosts}: connected from here, not through {parents}: {failure.why}"]
    hint = _HINTS.get(kind)
    if hint is not None:
        lines.append("  hint: " + hint.format(host=host, parent=parent))
    return lines
