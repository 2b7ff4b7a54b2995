"""OpenSSH's patterns: ``*`` and ``?``, and comma lists with ``!`` exclusion."""

from __future__ import annotations

import functools
import re


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # What stands between two stars is taken where it is first found and never tried
    # elsewhere (a lookahead does not go back), so that no pattern can make the match slow.
    first, *rest = (_literal(part) for part in re.split(r"\*+", pattern))
    between = (f"(?=(?P<p{n}>.*?{part}))(?P=p{n})" for n, part in enumerate(rest[:-1]))
    last = [f".*{rest[-1]}"] if rest else []
    return re.compile("".join([first, *between, *last]), re.DOTALL)


def _literal(text: str) -> str:
    return ".".join(re.escape(part) for part in text.split("?"))


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
