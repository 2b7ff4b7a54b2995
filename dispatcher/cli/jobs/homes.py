"""Where the ranks of another process's run are, from that run's journal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


class ToldHomes:
    """``home`` and ``host_of`` of each rank, read when somebody asks for one not yet known.

    hosts: their names by number. A journal that is gone, or not ours, tells of no rank.
    """

    def __init__(self, journal: Path, hosts: Sequence[str]) -> None:
        self._journal = journal
        self._hosts = hosts
        self._offset = 0
        self._homes: dict[int, tuple[int, int]] = {}
        self._next: dict[int, int] = {}  # host -> the local rank that is started next

    def home(self, rank: int) -> tuple[int, int]:
        """The number of the rank's host, and the rank's number there."""
        if rank not in self._homes:
            self._read()
        return self._homes.get(rank, (len(self._hosts), rank))

    def host_of(self, rank: int) -> str:
        """The name of its host."""
        host = self.home(rank)[0]
        return self._hosts[host] if host < len(self._hosts) else "?"

    def forget(self) -> None:
        """The ranks have been placed anew."""
        self._homes.clear()

    def _read(self) -> None:
        try:
            with open(self._journal, "rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._offset += len(line)
                    if b'"rank' in line:
                        self._note(line)
        except OSError:
            return

    def _note(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            name, context = record["name"], record["context"]
            if name == "ranks.placed":
                self._next.clear()
            elif name == "rank.spawned":
                host, rank = int(context["node"]), int(context["rank"])
                if 0 <= host < len(self._hosts):
                    local = self._next.get(host, 0)
                    self._homes[rank] = (host, local)
                    self._next[host] = local + 1
        except (ValueError, KeyError, TypeError):
            return
