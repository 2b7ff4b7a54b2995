"""What a check says about one host: a level, a reason, a remedy."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.IntEnum):
    """How grave a finding is, in rising order.

    INCOMPLETE: what the check needs could not be read, so nobody knows; graver
    than WARN, since a host that cannot be looked at is no healthy host.
    """

    OK = 0
    WARN = 1
    INCOMPLETE = 2
    CRITICAL = 3

    @property
    def fit(self) -> bool:
        """Whether a host of this level can be used."""
        return self <= Level.WARN


@dataclass(frozen=True)
class Finding:
    """One check of one host found ``level``: ``text`` says what, ``remedy`` what to do about it.

    value: what was measured in a word or two, the same for hosts that are alike
    ("570.86", "8"); for finding the odd one out.
    """

    level: Level
    text: str = ""
    remedy: str | None = None
    value: str = ""
