"""The report of ``dispatch check``: hosts before checks, outliers first; then faults and remedies.

Hosts whose row is the same share one line, and checks that are fine everywhere share one too: a
thousand healthy hosts are one line. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dispatcher.checks.check import Level
from dispatcher.checks.report import CheckReport
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.output.text.fold import Advise, Trouble, grouped, hints, no_advice
from dispatcher.output.text.sanitize import sanitize_text

#: the text of a level in the matrix, and its colour
CELLS = {Level.OK: "ok", Level.WARN: "warn", Level.INCOMPLETE: "?", Level.CRITICAL: "FAIL"}
COLOURS = {Level.OK: "", Level.WARN: "33", Level.INCOMPLETE: "35", Level.CRITICAL: "1;31"}
#: different texts of a healthy check, at most
MOST_SAID = 4
#: rows of the matrix at most; with more unhealthy hosts than that a matrix does not help
MOST_ROWS = 40


def painted(text: str, level: Level, *, colour: bool = True) -> str:
    """``text`` in the colour of ``level`` if ``colour``, else as it is."""
    return f"\x1b[{COLOURS[level]}m{text}\x1b[0m" if colour and COLOURS[level] else text


def told(
    level: Level,
    hosts: Sequence[str],
    text: str,
    remedy: str | None = None,
    *,
    colour: bool = False,
) -> list[str]:
    """``critical: n[1-2]: text``, made harmless, and the remedy as a hint below it."""
    word = painted(level.name.lower(), level, colour=colour)
    found = [f"{word}: {fold(hosts)}: {sanitize_text(text)}"]
    return [*found, f"  hint: {sanitize_text(remedy)}"] if remedy else found


def lines(
    report: CheckReport, *, colour: bool, every: bool, advise: Advise = no_advice
) -> list[str]:
    """The report in lines. every: also columns in which all is fine, and each host's own text.

    advise: this machine's remedy for a kind of failure.
    """
    return [
        _headline(report),
        *_matrix(report, colour=colour, every=every),
        *_unseen(report, advise, colour=colour, every=every),
        *(
            line
            for level, check, one, hosts in report.sections
            for line in told(level, hosts, f"{check}: {one.text}", one.remedy, colour=colour)
        ),
        *(_said(report, colour=colour) if every else ()),
    ]


def _headline(report: CheckReport) -> str:
    hosts = report.hosts
    unfit = [name for name, host in hosts.items() if not host.level.fit]
    fit = "host fits" if len(hosts) == 1 else "hosts fit"
    what = f"{len(hosts) - len(unfit)} of {len(hosts)} {fit}, {plural(len(report.checks), 'check')}"
    return f"{what}, {report.seconds:.1f} s" + (f": not {fold(unfit)}" if unfit else "")


def _matrix(report: CheckReport, *, colour: bool, every: bool) -> list[str]:
    looked_at = {name: host.checks for name, host in report.hosts.items() if host.checks}
    columns = [
        check
        for check in report.checks
        if every or any(found[check].level > Level.OK for found in looked_at.values())
    ]
    if not columns or not looked_at:
        return []
    groups: dict[tuple[Level, ...], list[str]] = {}
    for host, found in looked_at.items():
        groups.setdefault(tuple(found[check].level for check in columns), []).append(host)
    # outliers first: the most severe, then the rarest
    order = sorted(groups, key=lambda row: (-max(row), -sum(row), len(groups[row])))
    names = [fold(groups[row]) for row in order[:MOST_ROWS]]
    wide = max(map(len, names))
    wide_of = [max(4, len(check)) for check in columns]
    heads = [check.ljust(w) for check, w in zip(columns, wide_of, strict=True)]
    out = [" ".join([" " * wide, *heads]).rstrip()]
    for name, row in zip(names, order, strict=False):
        cells = [
            painted(CELLS[level], level, colour=colour) + " " * (w - len(CELLS[level]))
            for level, w in zip(row, wide_of, strict=True)
        ]
        out.append(" ".join([name.ljust(wide), *cells]).rstrip())
    if len(order) > MOST_ROWS:
        rest = [host for row in order[MOST_ROWS:] for host in groups[row]]
        out.append(f"and {fold(rest)}, which have something too")
    fine = [check for check in report.checks if check not in columns]
    if fine:
        out.append(f"fine everywhere: {' '.join(fine)}")
    return out


def _unseen(report: CheckReport, advise: Advise, *, colour: bool, every: bool) -> list[str]:
    out = []
    for level, what in ((Level.CRITICAL, "not reached"), (Level.INCOMPLETE, "not read")):
        found = [
            Trouble(name, host.problem.partition(": ")[0], host.problem, host.remedy)
            for name, host in report.hosts.items()
            if host.problem and host.level == level
        ]
        groups = [group for one in found for group in grouped([one])] if every else grouped(found)
        word = painted(level.name.lower(), level, colour=colour)
        out += [f"{word}: {fold(hosts)}: {what}: {one.why}" for hosts, one in groups]
        out += hints(groups, advise)
    return out


def _said(report: CheckReport, *, colour: bool) -> list[str]:
    """The texts of checks of healthy hosts; checks with the same text together.

    A text that differs on more than a few hosts (free memory) is left to --json.
    """
    groups: dict[tuple[str, str], list[str]] = {}  # check, text -> hosts
    for host, found in report.hosts.items():
        for check, one in found.checks.items():
            if one.level == Level.OK and one.text:
                groups.setdefault((check, one.text), []).append(host)
    together: dict[tuple[str, str], list[str]] = {}  # hosts, text -> checks
    differing = Counter(check for check, _ in groups)
    for (check, text), hosts in groups.items():
        if differing[check] > MOST_SAID:
            continue
        together.setdefault((fold(hosts), text), []).append(check)
    word = painted(Level.OK.name.lower(), Level.OK, colour=colour)
    return [
        f"{word}: {hosts}: {' '.join(checks)}: {sanitize_text(text)}"
        for (hosts, text), checks in together.items()
    ]
