"""A picture of a run that another process follows: packed there, unpacked here, aged meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dispatcher.output.monitor.run_progress import STATES, Picture

#: silent or pending numbers that are sent at most: a footer has one line for them
MOST = 4096


def packed(picture: Picture) -> dict[str, Any]:
    """``picture`` as values for JSON."""
    plain = dataclasses.asdict(picture)
    plain["hosts"] = sorted(picture.hosts.items())
    plain["pending"] = picture.pending[:MOST]
    plain["silent"] = picture.silent[:MOST]
    plain["idle"] = picture.idle[:MOST]
    return plain


def unpacked(plain: Any) -> Picture | None:
    """The picture in ``plain``, None if there is none in it."""
    try:
        picture = Picture(**plain)
        hosts = {int(state): int(count) for state, count in plain["hosts"]}
        if not hosts.keys() <= set(range(len(STATES))):
            return None
        return dataclasses.replace(
            picture,
            hosts=hosts,
            pending=tuple(map(int, plain["pending"])),
            ranks={str(word): int(count) for word, count in plain["ranks"].items()},
            lines=int(plain["lines"]),
            seconds=float(plain["seconds"]),
            since_line=None if plain["since_line"] is None else float(plain["since_line"]),
            silent=tuple(map(int, plain["silent"])),
            silent_for=float(plain["silent_for"]),
            idle=tuple(map(int, plain["idle"])),
            stopping=None if plain["stopping"] is None else str(plain["stopping"]),
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None


class Distant:
    """The run of another process, for a footer: ``picture`` is the last one heard, aged.

    hosts: how many there are. clock: seconds, monotonic.
    """

    def __init__(self, hosts: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_at = clock()
        self._hosts = hosts
        self._last = Picture({}, (), {}, 0, 0.0, None)
        self.heard = False

    def hear(self, plain: Mapping[str, Any]) -> None:
        """Take a packed picture; one that is not, or of other hosts, is passed over."""
        picture = unpacked(plain)
        if picture is not None and all(0 <= node < self._hosts for node in picture.pending):
            self._last, self._heard_at = picture, self._clock()
            self.heard = True

    def picture(self) -> Picture:
        """The run as it is likely to stand now."""
        last, age = self._last, self._clock() - self._heard_at
        since = None if last.since_line is None else last.since_line + age
        return dataclasses.replace(last, seconds=last.seconds + age, since_line=since)
