"""What any job needs: healthy, scarce, gone, hung, unreadable."""

from __future__ import annotations

from dataclasses import replace

from cases import cases

from checks.samples import GIB, HUNG, call, host, kernel, met, said
from checks.samples import files as files_of
from dispatcher.checks import health
from dispatcher.checks.check import Asked, CheckHost, Level, Reading, Seen, checked
from dispatcher.checks.report import QUICK

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL
NO_DIR = said(b"[Errno 2] No such file or directory: b'/home/me'", 125)


@cases(
    ("check", "seen", "level", "words"),
    [
        (health.memory, host(), OK, "858.3 GiB of 1007.8 GiB free"),
        (health.memory, host(kernel=kernel(meminfo=b"MemTotal: 2 kB\nMemAvail")), INCOMPLETE, "no"),
        (health.memory, host(kernel=kernel(meminfo=None)), INCOMPLETE, "/proc/meminfo: cannot be"),
        (health.memory, host(kernel=HUNG), INCOMPLETE, "no answer in time"),
        (health.memory, host(kernel=None), INCOMPLETE, "not read"),
        (health.shm, host(), OK, ""),
        (health.shm, host(space_shm=call([64 << 20, 60 << 20, 9, 9])), WARN, "has only 64 MiB"),
        (health.tmp, host(), OK, "60 GiB of 100 GiB free"),
        (health.tmp, host(space_tmp=call([100 * GIB, 4096, 99, 99])), CRITICAL, "full: 4 KiB of"),
        (health.tmp, host(space_tmp=call([9 * GIB, 5 * GIB, 10**6, 3])), CRITICAL, "no inodes"),
        (health.tmp, host(space_tmp=call([0, 0, 0, 0])), OK, "unknown size"),
        (health.tmp, host(space_tmp=HUNG), CRITICAL, "does not answer"),
        (health.tmp, host(space_tmp=call(["?"])), INCOMPLETE, "could not be understood"),
        (health.disk, host(), OK, ""),
        (health.disk, host(space_cwd=NO_DIR), CRITICAL, "/home/me: no such directory"),
        (health.disk, replace(host(space_cwd=NO_DIR), asked=Asked("/here", needs_cwd=False)),
         WARN, "/here: no such directory"),
        (health.disk, host(space_cwd=HUNG), CRITICAL, "its file system does not answer"),
        (health.disk, host(space_cwd=said(b"[Errno 13] Denied", 125)), INCOMPLETE, "Errno 13"),
        (health.open_files, host(), OK, ""),
        (health.open_files, host(kernel=kernel(limits=b"Limit")), INCOMPLETE, "nothing known"),
        (health.memlock, host(), OK, ""),
        (health.names, host(), OK, ""),
        (health.names, host(names=call([["n2", ["1.2.3.4"], 1.0]])), OK, ""),
        (health.names, host(names=call([["n2", ["127.0.1.1"], 0.0]])), WARN, "resolves to 127.0."),
        (health.names, host(names=call([["n2", ["127.0.1.1", "10.0.0.2"], 0.0]])), OK, ""),
        (health.names, host(names=call([["n2", ["127.0.1.1", "::1"], 0.0]])), WARN, "127.0.1.1"),
        (health.names, host(names=HUNG), INCOMPLETE, "no answer in time"),
        (health.meeting, host(), OK, ""),
        (health.meeting, met(host(), [["10.0.0.1", "No route to host"]]), CRITICAL, "no route"),
        (health.meeting, met(host("n1"), []), OK, ""),
        (health.meeting, met(host("n1"), [["", "in use"]]), CRITICAL, "cannot listen: in use"),
        (health.meeting, replace(host(), later={}), INCOMPLETE, "not read"),
    ],
)  # fmt: skip
def test_levels(check: CheckHost, seen: Seen, level: Level, words: str) -> None:
    found = checked(check, seen)
    assert (found.level, words in found.text) == (level, True), found
    assert found.remedy or level in (OK, INCOMPLETE)


@cases(
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


MIB = 1 << 20


@cases(
    ("total", "free", "level"),
    [
        (GIB, 16 * MIB, WARN),
        (GIB, 16 * MIB - 1, CRITICAL),
        (20 * MIB, 10 * MIB, OK),  # of a tiny one half is enough
        (20 * MIB, 10 * MIB - 1, CRITICAL),
        (100 * GIB, 5 * GIB, OK),
        (100 * GIB, 5 * GIB - 1, WARN),
        (100 * GIB, GIB // 2, WARN),
        (100 * GIB, GIB // 2 - 1, CRITICAL),
        (2000 * GIB, 50 * GIB, OK),  # a small share of much is still a lot
        (2000 * GIB, 50 * GIB - 1, WARN),
    ],
)
def test_how_much_room_is_little(total: int, free: int, level: Level) -> None:
    assert health.tmp(host(space_tmp=call([total, free, 0, 0]))).level == level


@cases(
    ("files", "free", "level"),
    [(20, 10, OK), (20, 9, CRITICAL), (1000, 16, OK), (1000, 15, CRITICAL), (10**6, 5000, OK),
     (10**6, 4999, CRITICAL), (0, 0, OK)],
)  # fmt: skip
def test_how_few_inodes_are_none(files: int, free: int, level: Level) -> None:
    found = health.tmp(host(space_tmp=call([100 * GIB, 60 * GIB, files, free])))
    assert found.level == level
    assert (f"{free} of {files}" in found.text) == (level == CRITICAL)


def test_room_is_told_with_where_and_what_to_do() -> None:
    full = call([100 * GIB, 4096, 99, 99])
    found = health.disk(host(space_cwd=full))
    assert (found.text, found.remedy) == (
        "/home/me: full: 4 KiB of 100 GiB free",
        "remove old files in it",
    )
    assert health.shm(host(space_shm=full)).text.startswith("/dev/shm: full: ")
    assert health.tmp(host(space_tmp=full)).remedy == "remove old files, or set TMPDIR"
    assert health.shm(host(space_shm=call([65 * MIB, 60 * MIB, 9, 9]))).level == OK
    tiny = health.shm(host(space_shm=call([32 * MIB, 30 * MIB, 9, 9])))
    assert tiny.remedy == "mount -o remount,size=50% /dev/shm; docker: --ipc=host"


NO_GPU = {"version": None}


@cases(
    ("soft", "hard", "gpu", "level", "remedy"),
    [
        ("4096", "4096", True, OK, None),
        ("4095", "4095", True, WARN, ""),
        ("4095", "5000", True, WARN, ", or ulimit -n 5000 in your program"),
        ("unlimited", "unlimited", True, OK, None),
        ("256", "256", True, WARN, ""),
        ("255", "255", True, CRITICAL, ""),
        ("1024", "1024", False, OK, None),
        ("1023", "1023", False, WARN, ""),
    ],
)
def test_how_many_files_a_rank_may_open(
    soft: str, hard: str, gpu: bool, level: Level, remedy: str | None
) -> None:
    line = "Max open files".ljust(26) + soft.ljust(21) + hard.ljust(21) + "files\n"
    more = {} if gpu else NO_GPU
    found = health.open_files(host(kernel=kernel(limits=line.encode(), **more)))
    raised = "raise nofile in /etc/security/limits.conf"
    assert (found.level, found.remedy) == (level, None if remedy is None else raised + remedy)
    assert found.value == ("inf" if soft == "unlimited" else soft)


def test_limits_are_read_whole() -> None:
    found = health.limits(host())
    assert found["Max open files"] == (65536.0, 1048576.0)
    assert found["Max cpu time"] == (float("inf"), float("inf"))


def test_locked_memory_matters_where_there_is_rdma() -> None:
    little = {"limits": of_limits("65536")}
    found = health.memlock(host(kernel=kernel(**little, infiniband=None)))
    assert (found.level, found.text, found.value) == (OK, "no RDMA device", "64 KiB")
    assert health.memlock(host()).value == "unlimited"
    for n_bytes, level in ((64 * MIB, WARN), (64 * MIB - 1, CRITICAL)):
        found = health.memlock(host(kernel=kernel(limits=of_limits(str(n_bytes)))))
        assert (found.level, found.text) == (level, "64 MiB may be locked")


def of_limits(soft: str) -> bytes:
    return ("Max locked memory".ljust(26) + soft.ljust(21) + "1".ljust(21) + "bytes\n").encode()


@cases(
    ("files", "has"),
    [({"version": b"1"}, True), ({"version": None}, False),
     ({"version": None, "gpus": b""}, True)],
)  # fmt: skip
def test_a_host_with_the_driver_has_gpus(files: dict[str, bytes | None], has: bool) -> None:
    contents = {"/sys/module/nvidia/version": files.get("version")}
    if "gpus" in files:
        contents["/proc/driver/nvidia/gpus/"] = files["gpus"]
    there = {path: content for path, content in contents.items() if content is not None}
    assert health.has_gpus(host(kernel=files_of(there))) == has


@cases(
    ("names", "text", "remedy"),
    [
        ([["n2", [], 9.0], ["n1", [], 9.0]], "cannot resolve n2, n1", "add it to /etc/hosts"),
        ([["n2", ["10.0.0.2"], 0.1], ["n1", ["10.0.0.1"], 1.5]], "resolving n1 takes 1.5 s",
         "look at /etc/resolv.conf"),
        ([["n2", ["::1"], 0.1]], "its own name n2 resolves to ::1", "use --iface"),
        ([["n2", ["10.0.0.2"], 0.1], ["n1", ["127.0.0.1"], 0.1]], "", ""),  # not its own
    ],
)  # fmt: skip
def test_names_that_are_not_found_or_slow(
    names: list[list[object]], text: str, remedy: str
) -> None:
    found = health.names(host(names=call(names)))
    assert (found.text, (found.remedy or "")[: len(remedy)]) == (text, remedy)
    assert found.level == (WARN if text else OK)


def test_where_host_0_is_not_reached_another_address_may_do() -> None:
    tries = [["10.0.0.1", "Timed out"], ["10.1.0.1", "x"], ["10.2.0.1", ""]]
    found = health.meeting(met(host(), tries))
    assert found.text == "cannot reach n1 at 10.0.0.1: timed out; but it can at 10.2.0.1"
    assert found.remedy == "--master-addr 10.2.0.1"
    found = health.meeting(met(host(), tries[:2]))
    assert (found.level, found.remedy) == (
        CRITICAL, "look at routes and firewalls, or choose the network with --iface",
    )  # fmt: skip
    assert health.meeting(met(host(), [["10.0.0.1", ""], ["x", "bad"]])).text == "reaches 10.0.0.1"
    assert checked(health.meeting, met(host(), [])).text.endswith("host 0 has no address to try")
    assert health.meeting(met(host("n1"), [["", "in use"]])).remedy == "name a free --master-port"


@cases(
    ("ahead", "text"),
    [((0.5, 0.7), "within 0.70 s"), ((-0.9, -0.2), "within 0.90 s"),
     ((3.0, 4.0), "3.5 s ahead of this machine's clock, to 0.50 s"),
     ((-9.0, -8.0), "8.5 s behind this machine's clock, to 0.50 s")],
)  # fmt: skip
def test_how_far_a_clock_is_off(ahead: tuple[float, float], text: str) -> None:
    assert health.clock(replace(host(), ahead=ahead)).text == text


@cases(
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


def test_a_healthy_cluster_is_healthy() -> None:
    hosts = {name: host(name) for name in ("n2", "n3", "n4")}
    for check in QUICK:
        assert {f.level for f in check.find(hosts).values()} == {OK}, check.name


@cases("check", QUICK, ids=lambda check: check.name)
def test_what_was_not_read_is_never_ok(check: object) -> None:
    """With one host of which nothing was read, or only rubbish, among healthy ones."""
    for readings in ({}, {name: Reading(0, b"\x00rubbish") for name in host().readings}):
        sick = replace(host("n9"), readings=readings, later=readings, ahead=None)
        hosts = {"n1": host("n1"), "n2": host("n2"), "n9": sick}
        found = check.find(hosts)  # type: ignore[attr-defined]
        assert found["n9"].level in (INCOMPLETE, CRITICAL)
        assert found["n2"].level == OK
