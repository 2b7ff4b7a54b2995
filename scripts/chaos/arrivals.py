"""Processes as they appear on hosts, for faults that must come milliseconds after that.

A census reads all of /proc each time; here only what is new since ``Arrivals`` was made is
read, again and again. Hosts of a netns cluster only.
"""

from __future__ import annotations

from testbed.census import _command, _link, pids
from testbed.layout import Record


class Arrivals:
    """What has come to the hosts of ``record`` with ``text`` in its command line."""

    def __init__(self, record: Record, text: str) -> None:
        self._text = text
        self._before = set(pids())
        self._hosts = {_link(f"/proc/{host.pid}/ns/pid"): host.name for host in record.hosts}

    def look(self) -> dict[str, list[int]]:
        """Host -> pids, as this machine counts, of those that live now; oldest first."""
        found: dict[str, list[int]] = {}
        for pid in sorted(set(pids()) - self._before):
            host = self._hosts.get(_link(f"/proc/{pid}/ns/pid"))
            if host is not None and self._text in _command(pid, ""):
                found.setdefault(host, []).append(pid)
        return found
