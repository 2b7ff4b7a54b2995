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


@dataclass(frozen=True)
class Finding:
    """``check`` found ``level`` on a host: ``text`` says what, ``remedy`` what to do about it.

    value: what was measured in a word or two, the same for hosts that are alike
    ("32 GiB", "12.4"); for the matrix and for finding the odd one out.
    """

    check: str
    level: Level
    text: str = ""
    remedy: str | None = None
    value: str = ""
