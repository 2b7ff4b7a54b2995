"""File systems of the network: the same on all hosts, and writable where the job works; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dispatcher.checks.check import Seen, critical, each, ok, warn
from dispatcher.checks.finding import Finding, Level

#: types of file systems that hosts share
SHARED = re.compile(
    r"nfs4?|lustre|gpfs|ceph|beegfs|wekafs|glusterfs|9p|virtiofs|cifs|smb3|afs|panfs|pvfs2|orangefs"
    r"|fuse\.(?:ceph|glusterfs|sshfs|s3fs|gcsfuse|goofys|juicefs|moosefs|mount-s3|lustre|weka).*"
)


def parse(text: str) -> list[tuple[str, str, str, frozenset[str]]]:
    """(source, place, type, options) of each line of /proc/self/mounts that is whole."""
    found = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) == 6:
            source, place = (_plain(word) for word in words[:2])
            found.append((source, place, words[2], frozenset(words[3].split(","))))
    return found


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def judge(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
    """Shared file systems that most hosts have and one has not; a working directory read-only."""
    found = each(_writable)(hosts)
    shared: dict[str, set[str]] = {
        name: {
            f"{place} ({kind})"
            for _, place, kind, _ in parse(hosts[name].file("kernel", "/proc/self/mounts"))
            if SHARED.fullmatch(kind)
        }
        for name, one in found.items()
        if one.level != Level.INCOMPLETE
    }
    usual = {
        place
        for place in set().union(*shared.values())
        if sum(place in places for places in shared.values()) * 2 > len(shared)
    }
    for name, places in shared.items():
        missing = sorted(usual - places)
        if missing:
            found[name] = critical(f"not mounted: {', '.join(missing[:4])}", "mount it: mount -a")
    return found


def _writable(seen: Seen) -> Finding:
    """The mount that the working directory is on."""
    mounts = parse(seen.file("kernel", "/proc/self/mounts"))
    where = seen.asked.cwd
    above = [m for m in mounts if m[1] == "/" or f"{where}/".startswith(m[1].rstrip("/") + "/")]
    if above:
        _, place, _, options = max(above, key=lambda mount: len(mount[1]))  # the last one counts
        if "ro" in options:
            return warn(
                f"{place} is mounted read-only, and {where} is on it", "dmesg -T: an error?"
            )
    return ok()
