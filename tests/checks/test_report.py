"""What is asked of hosts, a site's own checks, and the report on all of them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from cases import cases

from checks.samples import HUNG, host, said
from dispatcher.checks import gpu, health, report
from dispatcher.checks.check import Asked, Check, Finding, Level, Reading, Seen, ok
from dispatcher.checks.report import CheckReport, Want, make_report, site
from dispatcher.remote.probe import survey

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL


def want(**fields: Any) -> Want:
    own = {"n7": "/own/python"}
    return Want(Asked("/w\udcff", "train.py", "ib0"), "python3", own, 5.0, **fields)


def by_name(readings: list[list[Any]]) -> dict[str, list[Any]]:
    found = {one[0]: one[1:] for one in readings}
    assert len(found) == len(readings)
    return found


def test_what_the_first_visit_reads() -> None:
    found = by_name(report.first_readings(want(), ["n1", "n2"]))
    assert list(found) == [
        "kernel", "space shm", "space tmp", "space cwd", "python", "names", "netdevs", "port",
        "gpus", "gpu users", "gpu apps", "script",
    ]  # fmt: skip
    assert {one[2] for one in found.values()} == {5.0}
    assert all(4096 <= one[3] <= 256 << 10 for one in found.values())
    assert found["space cwd"][:2] == ["call", ["space", b"/w\xff"]]
    assert found["names"][1] == ["resolve", ["n1", "n2"]]
    assert found["script"][1] == ["summed", b"train.py"]
    probe = health.PROBE.encode()
    assert found["python"][:2] == [
        "run", {"": [b"python3", b"-c", probe], "n7": [b"/own/python", b"-c", probe]},
    ]  # fmt: skip
    without = Want(Asked("/w"), "python3", {}, 5.0)
    assert "script" not in by_name(report.first_readings(without, []))


def test_what_a_full_check_reads_besides() -> None:
    quick, full = (by_name(report.first_readings(want(full=f), [])) for f in (False, True))
    more = {name: one for name, one in full.items() if name not in quick}
    assert list(more) == [
        "smi", "smi old", "smi core", "smi remap", "smi recovery", "smi nvlink",
        "smi nvlink errors",
        "smi topo", "dcgm", "gpudirect", "lspci", "dmesg", "journal", "fabric manager",
        "mounts", "rdma", "ib counters",
    ]  # fmt: skip
    assert {(one[2], one[3]) for one in more.values()} == {(5.0, 1 << 20)}
    fields = ",".join((*gpu.CORE_FIELDS, *gpu.MORE_FIELDS)).encode()
    assert more["smi"][1][1] == b"--query-gpu=" + fields
    assert more["smi core"][1][1] == b"--query-gpu=" + ",".join(gpu.CORE_FIELDS).encode()
    assert b"t=$(dmesg) || exit 1" in more["dmesg"][1][2]
    site_too = by_name(report.first_readings(want(full=True, site="/etc/site"), []))
    assert site_too["site"] == ["site", b"/etc/site", 5.0, 16 << 10]
    assert "site" not in by_name(report.first_readings(want(site="/etc/site"), []))


def test_many_mounts_are_read_to_the_end() -> None:
    """A host of containers has far more of them than of what else is read."""
    (reading,) = (one for one in report.first_readings(want(full=True), []) if one[0] == "mounts")
    assert reading[1:3] == ["run", [b"cat", b"/proc/self/mounts"]]
    assert reading[4] > survey.FILE_LIMIT
    layers = b"overlay /o/%d/merged overlay rw,lowerdir=/l 0 0\n" * 999 % tuple(range(999))
    home = b"nas:/home /home nfs4 rw 0 0\n"
    hosts = {name: host(name, mounts=said(text)) for name, text in
             {"a": home, "b": home, "many": layers + home}.items()}  # fmt: skip
    assert health.mounts(hosts)["many"].level == OK


def test_what_the_second_visit_reads() -> None:
    meet = ["meet", "call", ["meet", ["10.0.0.1"], 4000, 4.0], 5.0, 16 << 10]
    assert report.second_readings(want(), ["10.0.0.1"], 4000) == [meet]
    assert report.second_readings(want(full=True), ["10.0.0.1"], 4000) == [
        meet, [*report.counters(), 5.0, 1 << 20],
        ["smi nvlink errors", "run", [b"nvidia-smi", b"nvlink", b"-e"], 5.0, 1 << 20],
    ]  # fmt: skip


def test_the_counters_of_many_ports_are_read(tmp_path: Path) -> None:
    """A port has fifty, and a host may have a dozen ports; only so many files are read."""
    for n in range(12):
        port = tmp_path / f"sys/class/infiniband/mlx5_{n}/ports/1"
        of_ports = ("symbol_error", "link_downed", *(f"port_rcv_{i}" for i in range(20)))
        for folder, names in (
            ("counters", of_ports),
            ("hw_counters", ("out_of_sequence", *(f"np_{i}" for i in range(30)))),
        ):
            (port / folder).mkdir(parents=True)
            for name in names:
                (port / folder / name).write_text("7\n")
    _, _, patterns = report.counters()
    found = survey.files([os.fsencode(tmp_path) + pattern for pattern in patterns])
    assert Counter(path.rpartition(b"/")[2] for path, _ in found) == dict.fromkeys(
        (b"symbol_error", b"link_downed", b"out_of_sequence"), 12
    )


def test_a_site_s_checks_come_last_and_on_request() -> None:
    names = [check.name for check in report.full({}, site_checks=False)]
    assert [c.name for c in report.full({}, site_checks=True)] == [*names, "site"]
    assert len({*names, *(check.name for check in report.QUICK)}) == len(names) + len(report.QUICK)


# -- a site's own checks ----------------------------------------------------------------


def answer(**fields: Any) -> Reading:
    import json

    return said(json.dumps(fields).encode())


def test_the_worst_that_a_site_s_checks_say_is_told_with_its_name() -> None:
    seen = Seen("n1", {
        "site/a": answer(level="WARN", text="w", remedy="r"),
        "site/b": answer(level="CRITICAL", text="x" * 500, remedy="y" * 500),
        "site/c": answer(level="CRITICAL", text="later"),
        "site/d": answer(level="OK", text="fine"), "other": said(b"no"),
    })  # fmt: skip
    found = site({"n1": seen})["n1"]
    assert found == Finding(CRITICAL, "b: " + "x" * report.MOST, "4", "y" * report.MOST)
    one = site({"n1": Seen("n1", {"site/a": answer(level="WARN", text="w", remedy="")})})["n1"]
    assert one == Finding(WARN, "a: w", "1")
    well = site({"n1": Seen("n1", {"site/a": answer(level="OK", text="fine")})})["n1"]
    assert well == Finding(OK, value="1")


@cases(
    ("reading", "why"),
    [
        (HUNG, "could not be read: no answer in time"),
        (said(b"{oops"), "could not be understood: "),
        (said(b"nothing"), "could not be read: no JSON line"),
        (said(b"nothing", 3), "could not be read: no JSON line; exit code 3: nothing"),
        (answer(level="ok"), "could not be read: unknown level 'ok'"),
        (answer(level="x" * 99), "could not be read: unknown level '" + "x" * 39),
        (answer(level="OK", text=3), "could not be read: text or remedy is not a string"),
        (answer(level="OK", remedy=3), "could not be read: text or remedy is not a string"),
        (said(b"{}\n[]\n"), "could not be read: unknown level None"),
    ],
)
def test_a_site_check_that_says_nothing_of_use(reading: Reading, why: str) -> None:
    found = site({"n1": Seen("n1", {"site/fw": reading})})["n1"]
    assert (found.level, found.text[: 4 + len(why)]) == (INCOMPLETE, f"fw: {why}")


def test_of_several_lines_the_last_counts() -> None:
    lines = said(b'{"level": "CRITICAL"}\nnoise\n{"level": "OK"}\n}\n')
    assert site({"n1": Seen("n1", {"site/fw": lines})})["n1"].level == OK


def test_what_one_host_lacks_is_incomplete_there() -> None:
    good = answer(level="OK")
    found = site({"a": Seen("a", {"site/fw": good}), "b": Seen("b", {"site/z": good})})
    assert found["a"].text == "z: could not be read: not read"
    assert found["b"].text == "fw: could not be read: not read"
    assert site({"a": Seen("a")})["a"] == Finding(
        INCOMPLETE, "no executable in the folder of site checks"
    )


# -- the report -------------------------------------------------------------------------

HOT, COLD = Finding(WARN, "hot", remedy="cool it"), Finding(CRITICAL, "cold")


def reported() -> CheckReport:
    found = {
        "one": {"a": ok("1"), "b": HOT, "c": HOT, "d": COLD},
        "two": {"a": HOT, "b": COLD, "c": ok("1"), "d": Finding(INCOMPLETE, "?")},
    }
    checks = [Check(name, "", lambda seen, name=name: found[name]) for name in found]  # type: ignore[misc]
    seen = {name: Seen(name) for name in "abcd"}
    return make_report(
        checks, seen, ["e", *"abcdf"], {"e": "unreachable: no route"}, {"f": "no python"},
        {"e": "route it"},
    )  # fmt: skip


def test_who_is_fit_and_what_is_gravest() -> None:
    told = reported()
    assert told.checks == ("one", "two")
    assert [*told.hosts] == ["e", "a", "b", "c", "d", "f"]
    assert not told.fit
    assert {name: host.level for name, host in told.hosts.items()} == {
        "a": WARN, "b": CRITICAL, "c": WARN, "d": CRITICAL, "e": CRITICAL, "f": INCOMPLETE,
    }  # fmt: skip
    assert [name for name, host in told.hosts.items() if host.level.fit] == ["a", "c"]
    assert {name: host.why for name, host in told.hosts.items()} == {
        "a": "two: hot", "b": "two: cold", "c": "one: hot", "d": "one: cold",
        "e": "unreachable: no route", "f": "no python",
    }  # fmt: skip
    assert (told.hosts["e"].checks, told.hosts["e"].remedy) == ({}, "route it")
    assert [name for name, host in told.hosts.items() if host.lost] == ["e"]
    healthy = make_report(
        [Check("x", "", lambda seen: {"a": ok()})], {"a": Seen("a")}, ["a"], {}, {}
    )
    assert (healthy.hosts["a"].level, healthy.hosts["a"].why, healthy.sections) == (OK, "", [])
    assert (healthy.hosts["a"].remedy, healthy.hosts["a"].problem) == (None, None)
    assert healthy.fit
    nothing = make_report([], {"a": Seen("a")}, ["a"], {}, {})
    assert nothing.hosts["a"].level == OK


def test_the_gravest_and_the_rarest_come_first() -> None:
    assert reported().sections == [
        (CRITICAL, "one", COLD, ["d"]),
        (CRITICAL, "two", COLD, ["b"]),
        (INCOMPLETE, "two", Finding(INCOMPLETE, "?"), ["d"]),
        (WARN, "two", HOT, ["a"]),
        (WARN, "one", HOT, ["b", "c"]),
    ]


def test_checks_that_find_the_same_of_the_same_hosts_are_told_together() -> None:
    checks = [
        Check(name, "", lambda seen, one=one: {"a": one, "b": one})  # type: ignore[misc]
        for name, one in (("one", COLD), ("two", HOT), ("three", COLD))
    ]
    told = make_report(checks, {name: Seen(name) for name in "ab"}, ["a", "b"], {}, {})
    both = ["a", "b"]
    assert told.sections == [(CRITICAL, "one, three", COLD, both), (WARN, "two", HOT, both)]
