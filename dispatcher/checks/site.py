"""A site's own checks: executables on the hosts, each of which prints one JSON line; pure.

    {"level": "OK" | "WARN" | "CRITICAL", "text": "...", "remedy": "..."}

Only ``level`` has to be there. One that prints anything else, or hangs, is INCOMPLETE: it has not
said that the host is fit. An exit code other than 0 does not lift what the line says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dispatcher.checks.check import Seen, Unread, judged
from dispatcher.checks.finding import Finding, Level

PREFIX = "site/"
#: characters of a text that are kept
MOST = 400


def judge(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
    """The worst that a host's own checks say, named."""
    there = {
        name: sorted(n for n in seen.readings if n.startswith(PREFIX))
        for name, seen in hosts.items()
    }
    everywhere = sorted(set().union(*there.values()))
    found = {}
    for name, seen in hosts.items():
        worst = Finding(Level.OK, value=str(len(there[name])))
        for check in everywhere:
            one = judged(lambda host, check=check: _one(host, check), seen)  # type: ignore[misc]
            if one.level > worst.level:
                text = f"{check.removeprefix(PREFIX)}: {one.text}"
                worst = Finding(one.level, text, one.remedy, worst.value)
        if not everywhere:
            worst = Finding(Level.INCOMPLETE, "no executable in the folder of site checks")
        found[name] = worst
    return found


def _one(seen: Seen, check: str) -> Finding:
    reading = seen.reading(check)
    if reading.hung:
        raise Unread("no answer in time")
    lines = [line for line in reading.text.splitlines() if line.startswith("{")]
    if not lines:
        raise Unread(f"no JSON line; {reading.why()}" if reading.status else "no JSON line")
    said = json.loads(lines[-1])
    level = said.get("level")
    if level not in ("OK", "WARN", "CRITICAL"):
        raise Unread(f"no level that we know: {level!r:.40}")
    text, remedy = said.get("text", ""), said.get("remedy")
    if not isinstance(text, str) or not isinstance(remedy, str | None):
        raise Unread("text or remedy is no text")
    return Finding(Level[level], text[:MOST], remedy[:MOST] if remedy else None)
