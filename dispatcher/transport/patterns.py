"""OpenSSH's patterns: ``*`` and ``?``, and comma lists with ``!`` exclusion."""

from __future__ import annotations

import functools
import re


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Runs of stars are one star: no pattern can make the match slow.
    text = re.sub(r"\*+", "*", pattern)
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(char) or re.escape(char) for char in text), re.DOTALL)


def matches(text: str, pattern: str) -> bool:
    """True when the whole text fits one pattern."""
    return _compiled(pattern).fullmatch(text) is not None


def matches_list(text: str, patterns: str, *, lower: bool = False) -> bool:
    """True when the text fits a pattern of the comma list and no ``!pattern`` of it.

    lower: fold the patterns to lower case (OpenSSH does so for host names).
    """
    found = False
    for pattern in patterns.split(","):
        negated = pattern.startswith("!")
        bare = pattern[1:] if negated else pattern
        if matches(text, bare.lower() if lower else bare):
            if negated:
                return False
            found = True
    return found
