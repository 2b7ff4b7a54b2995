"""What any job needs: healthy, scarce, gone, hung, unreadable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.samples import GIB, HUNG, MEMINFO, call, host, kernel, met, said
from dispatcher.checks import health
from dispatcher.checks.check import CheckHost, Level, Reading, Seen, checked
from dispatcher.checks.report import QUICK

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL
NO_DIR = said(b"[Errno 2] No such file or directory: b'/home/me'", 125)


def little(kb: int) -> Reading:
    return kernel(meminfo=MEMINFO.replace(b"900000000", str(kb).encode()))


def of(soft: str, hard: str, what: str) -> Reading:
    line = f"Max {what}".ljust(26) + soft.ljust(21) + hard.ljust(21) + "files\n"
    return kernel(limits=line.encode())


@pytest.mark.parametrize(
    ("check", "seen", "level", "words"),
    [
        (health.memory, host(), OK, "858.3 GiB of 1007.8 GiB free"),
        (health.memory, host(kernel=little(50_000_000)), WARN, "47.7 GiB of"),
        (health.memory, host(kernel=little(100_000)), CRITICAL, "98 MiB of"),
        (health.memory, host(kernel=kernel(meminfo=b"MemTotal: 2 kB\nMemAvail")), INCOMPLETE, "no"),
        (health.memory, host(kernel=kernel(meminfo=None)), INCOMPLETE, "/proc/meminfo: cannot be"),
        (health.memory, host(kernel=HUNG), INCOMPLETE, "no answer in time"),
        (health.memory, host(kernel=None), INCOMPLETE, "not read"),
        (health.shm, host(), OK, ""),
        (health.shm, host(space_shm=call([64 << 20, 60 << 20, 9, 9])), WARN, "has only 64 MiB"),
        (health.tmp, host(), OK, "60.0 GiB of 100.0 GiB free"),
        (health.tmp, host(space_tmp=call([100 * GIB, 4096, 99, 99])), CRITICAL, "full: 0 MiB of"),
        (health.tmp, host(space_tmp=call([1 << 20, 0, 99, 99])), CRITICAL, "full"),
        (health.tmp, host(space_tmp=call([1 << 20, 1 << 20, 99, 99])), OK, ""),
        (health.tmp, host(space_tmp=call([100 * GIB, 3 * GIB, 99, 99])), WARN, "3.0 GiB of"),
        (health.tmp, host(space_tmp=call([9 * GIB, 5 * GIB, 10**6, 3])), CRITICAL, "no inodes"),
        (health.tmp, host(space_tmp=call([0, 0, 0, 0])), OK, "unknown size"),
        (health.tmp, host(space_tmp=HUNG), CRITICAL, "does not answer"),
        (health.tmp, host(space_tmp=call(["?"])), INCOMPLETE, "could not be understood"),
        (health.disk, host(), OK, ""),
        (health.disk, host(space_cwd=NO_DIR), CRITICAL, "/home/me: no such directory"),
        (health.disk, host(space_cwd=HUNG), CRITICAL, "its file system does not answer"),
        (health.disk, host(space_cwd=said(b"[Errno 13] Denied", 125)), INCOMPLETE, "Errno 13"),
        (health.open_files, host(), OK, ""),
        (health.open_files, host(kernel=of("1024", "4096", "open files")), WARN, "1024 open files"),
        (health.open_files, host(kernel=of("64", "64", "open files")), CRITICAL, "64 open files"),
        (health.open_files, host(kernel=kernel(limits=b"Limit")), INCOMPLETE, "nothing known"),
        (health.memlock, host(), OK, ""),
        (health.memlock, host(kernel=of("65536", "65536", "locked memory")), CRITICAL, "0 MiB may"),
        (health.memlock, host(kernel=of("8589934592", "1", "locked memory")), WARN, "8.0 GiB may"),
        (health.names, host(), OK, ""),
        (health.names, host(names=call([["n2", [], 0.0], ["n1", ["1.2.3.4"], 0.0]])), WARN, "n2"),
        (health.names, host(names=call([["n2", ["1.2.3.4"], 7.0]])), WARN, "takes 7.0 s"),
        (health.names, host(names=call([["n2", ["1.2.3.4"], 1.0]])), OK, ""),
        (health.names, host(names=call([["n2", ["127.0.1.1"], 0.0]])), WARN, "resolves to 127.0."),
        (health.names, host(names=call([["n2", ["127.0.1.1", "10.0.0.2"], 0.0]])), OK, ""),
        (health.names, host(names=call([["n2", ["127.0.1.1", "::1"], 0.0]])), WARN, "127.0.1.1"),
        (health.names, host(names=HUNG), INCOMPLETE, "no answer in time"),
        (health.meeting, host(), OK, ""),
        (health.meeting, met(host(), [["10.0.0.1", "No route to host"]]), CRITICAL, "no route"),
        (health.meeting, met(host(), [["10.0.0.1", "x"], ["10.1.0.1", ""]]), WARN, "at 10.1.0.1"),
        (health.meeting, met(host("n1"), []), OK, ""),
        (health.meeting, met(host("n1"), [["", "in use"]]), CRITICAL, "cannot listen: in use"),
        (health.meeting, replace(host(), later={}), INCOMPLETE, "not read"),
    ],
)  # fmt: skip
def test_levels(check: CheckHost, seen: Seen, level: Level, words: str) -> None:
    found = checked(check, seen)
    assert (found.level, words in found.text) == (level, True), found
    assert found.remedy or level in (OK, INCOMPLETE)


@pytest.mark.parametrize(
    ("total", "free", "level"),
    [
        (10_000_000, 1_000_000, OK),
        (10_000_000, 999_999, WARN),
        (10_000_000, 256 << 10, WARN),  # of a small host 256 MiB count, of a large one 2 %
        (10_000_000, (256 << 10) - 1, CRITICAL),
        (100_000_000, 2_000_000, WARN),
        (100_000_000, 1_999_999, CRITICAL),
    ],
)
def test_how_much_memory_is_little(total: int, free: int, level: Level) -> None:
    """total, free: kB."""
    text = f"MemTotal: {total} kB\nMemAvailable: {free} kB\n".encode()
    assert health.memory(host(kernel=kernel(meminfo=text))).level == level


@pytest.mark.parametrize(
    ("ahead", "level"),
    [
        ((-0.01, 0.02), OK),
        ((-2.0, 6.0), OK),  # a slow link: nothing is certain
        ((2.0, 12.0), WARN),  # as much is, and no more
        ((2.0, 2.5), WARN),
        ((1.0, 1.0), OK),
        ((5.0, 5.0), WARN),
        ((-2.5, -2.0), WARN),
        ((7.0, 7.3), CRITICAL),
        ((-4000.0, -3999.0), CRITICAL),
        (None, INCOMPLETE),
    ],
)
def test_clock(ahead: tuple[float, float] | None, level: Level) -> None:
    assert checked(health.clock, replace(host(), ahead=ahead)).level == level


def test_the_clock_s_way_is_told() -> None:
    assert "ahead of" in health.clock(replace(host(), ahead=(7.0, 7.3))).text
    assert "7.2 s behind" in health.clock(replace(host(), ahead=(-7.3, -7.0))).text


def test_a_healthy_cluster_is_healthy() -> None:
    hosts = {name: host(name) for name in ("n2", "n3", "n4")}
    for check in QUICK:
        assert {f.level for f in check.find(hosts).values()} == {OK}, check.name


@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.name)
def test_what_was_not_read_is_never_ok(check: object) -> None:
    """With one host of which nothing was read, or only rubbish, among healthy ones."""
    for readings in ({}, {name: Reading(0, b"\x00rubbish") for name in host().readings}):
        sick = replace(host("n9"), readings=readings, later=readings, ahead=None)
        hosts = {"n1": host("n1"), "n2": host("n2"), "n9": sick}
        found = check.find(hosts)  # type: ignore[attr-defined]
        assert found["n9"].level in (INCOMPLETE, CRITICAL)
        assert found["n2"].level == OK
