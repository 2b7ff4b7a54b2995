"""All hosts before all checks: the findings, who is fit, and who is odd; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from dispatcher.checks.check import Check, Seen
from dispatcher.checks.finding import Finding, Level


@dataclass(frozen=True)
class Ruling:
    """findings: host -> check -> finding, both in their order. lost: host -> why not reached.

    unread: host -> why nothing could be read there. remedies: lost host -> what to do about it.
    """

    checks: tuple[str, ...]
    findings: Mapping[str, Mapping[str, Finding]]
    lost: Mapping[str, str]
    unread: Mapping[str, str]
    remedies: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def hosts(self) -> list[str]:
        """All hosts, in the order they were named."""
        return list(self.findings)

    def level(self, host: str) -> Level:
        """The gravest of a host's findings."""
        if host in self.lost:
            return Level.CRITICAL
        if host in self.unread:
            return Level.INCOMPLETE
        return max((one.level for one in self.findings[host].values()), default=Level.OK)

    def fit(self, host: str) -> bool:
        """Whether the host can be used."""
        return self.level(host).fit

    def why(self, host: str) -> str:
        """What is gravest about a host, in one line; "" for nothing."""
        if host in self.lost or host in self.unread:
            return self.lost.get(host) or self.unread[host]
        name, worst = max(self.findings[host].items(), key=lambda item: item[1].level)
        return f"{name}: {worst.text}" if worst.level > Level.OK else ""

    @property
    def sections(self) -> list[tuple[Level, str, Finding, list[str]]]:
        """(level, check, finding, hosts) of all that is not OK, the gravest first.

        Hosts with equal findings stand together, rare findings before common ones.
        """
        groups: dict[tuple[str, Finding], list[str]] = {}
        for host, found in self.findings.items():
            for check, one in found.items():
                if one.level > Level.OK:
                    groups.setdefault((check, one), []).append(host)
        found_all = [(one.level, check, one, hosts) for (check, one), hosts in groups.items()]
        order = {check: at for at, check in enumerate(self.checks)}
        return sorted(found_all, key=lambda row: (-row[0], len(row[3]), order[row[1]]))


def rule(
    checks: Sequence[Check],
    seen: Mapping[str, Seen],
    hosts: Sequence[str],
    lost: Mapping[str, str],
    unread: Mapping[str, str],
    remedies: Mapping[str, str | None] = MappingProxyType({}),
) -> Ruling:
    """The ruling on ``hosts``, of which ``seen`` could be looked at."""
    columns = {check.name: check.judge(seen) for check in checks}
    findings = {
        host: {name: column[host] for name, column in columns.items()} if host in seen else {}
        for host in hosts
    }
    return Ruling(tuple(columns), findings, dict(lost), dict(unread), dict(remedies))
