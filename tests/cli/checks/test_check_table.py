"""A report on the screen and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import promises
from cases import cases
from checks.samples import GIB, call, host, report_of, said

from dispatcher.checks.check import Finding, Level
from dispatcher.checks.report import QUICK, CheckReport, make_report
from dispatcher.cli.checks import check_table
from dispatcher.model.frozen import json_of


def report() -> CheckReport:
    names = [f"b{n:02}" for n in range(1, 17)]
    seen = {name: host(name) for name in names[:14]}
    seen["b03"] = replace(seen["b03"], ahead=(7.0, 7.2))
    for name in ("b05", "b06"):
        seen[name] = host(name, space_tmp=call([GIB, 0, 9, 9]))
    seen["b08"] = host("b08", python=said(b"dispatch-version python 3.9.1\x1b]0;x\x07\n"))
    found = make_report(
        QUICK, seen, names, {"b15": "unreachable: no route"}, {"b16": "no python there"}
    )
    return replace(found, seconds=1.23)


def test_odd_hosts_come_first_and_names_are_folded() -> None:
    assert check_table.lines(report(), colour=False, every=False) == [
        "10 of 16 hosts fit, 16 checks, 1.2 s: not b[03,05-06,08,15-16]",
        "                     python torch nccl tmp  clock",
        "b03                  ok     ok    ok   ok   FAIL",
        "b[05-06]             ok     ok    ok   FAIL ok",
        "b08                  ?      ?     ?    ok   ok",
        "b[01-02,04,07,09-14] ok     ok    ok   ok   ok",
        "fine everywhere: script driver gpus users memory shm cwd files memlock names reach",
        "critical: b15: not reached: unreachable: no route",
        "incomplete: b16: not read: no python there",
        "critical: b03: clock: 7.1 s ahead of this machine's clock, to 0.10 s",
        "  hint: chronyc makestep, or timedatectl set-ntp true",
        "critical: b[05-06]: tmp: the folder for temporary files: full: 0 B of 1 GiB free",
        "  hint: remove old files, or set TMPDIR",
        "incomplete: b08: python, torch, nccl: could not be read: the ranks' Python did not print "
        "its version",
    ]


def test_what_hosts_say_is_made_harmless() -> None:
    nasty = said(b"[Errno 5] bad\x1b]0;x\n", 125)
    seen = {"a": host("a"), "b": host("b", script=nasty)}
    found = make_report(QUICK, seen, ["a", "b"], {}, {})
    shown = "\n".join(check_table.lines(found, colour=False, every=True))
    assert "\x1b" not in shown
    assert "bad\\x1b]0;x" in shown


def test_a_thousand_healthy_hosts_are_one_line() -> None:
    names = [f"n{n:04}" for n in range(1000)]
    all_fine = make_report(QUICK, {name: host(name) for name in names}, names, {}, {})
    assert check_table.lines(all_fine, colour=True, every=False) == [
        "1000 of 1000 hosts fit, 16 checks, 0.0 s"
    ]
    rows = check_table.lines(all_fine, colour=True, every=True)
    assert rows[2].startswith("n[0000-0999] ok     ok")
    assert "ok: n[0000-0999]: tmp cwd: 60 GiB of 100 GiB free" in rows[3:]  # alike: once
    assert len(rows) == 8


def test_what_differs_from_host_to_host_is_not_told_of_each() -> None:
    def shown(texts: str) -> list[str]:
        found = {f"n{n}": {"c": Finding(Level.OK, text)} for n, text in enumerate(texts)}
        report = report_of(("c",), found)
        return check_table.lines(report, colour=False, every=True)[3:]

    assert shown("aab") == ["ok: n[0-1]: c: a", "ok: n2: c: b"]
    assert shown("abcde") == []


def test_json_names_every_host_and_check() -> None:
    said_ = promises.told(json.dumps(json_of(report())))
    assert said_["seconds"] == 1.23
    assert said_["format"] == 1
    assert said_["fit"] is False
    assert said_["hosts"]["b03"]["checks"]["clock"]["level"] == "CRITICAL"
    assert said_["hosts"]["b15"] == {
        "level": "CRITICAL", "problem": "unreachable: no route", "lost": True, "checks": {},
    }  # fmt: skip
    assert (said_["hosts"]["b16"]["level"], said_["hosts"]["b16"]["lost"]) == ("INCOMPLETE", False)


def test_colours_are_only_colours() -> None:
    text = "\n".join(check_table.lines(report(), colour=True, every=False))
    assert "\x1b[1;31mFAIL\x1b[0m" in text


def leveled(**levels: str) -> CheckReport:
    """``n1="CW."``: that host's checks a, b and c are critical, a warning and fine."""
    of = {"C": Level.CRITICAL, "W": Level.WARN, "I": Level.INCOMPLETE, ".": Level.OK}
    found = {
        host: {
            name: Finding(of[one], f"{name} {one}") for name, one in zip("abc", row, strict=True)
        }
        for host, row in levels.items()
    }
    return report_of(("a", "b", "c"), found)


def test_rows_come_by_their_gravest_then_by_all_then_the_rarest_first() -> None:
    hosts = {"n1": "W..", "n2": "CC.", "n3": "C..", "n4": "CW.", "n5": ".W.", "n6": ".W.",
             "n7": "I..", "n8": "..."}  # fmt: skip
    shown = check_table.lines(leveled(**hosts), colour=False, every=False)
    rows = [line.split()[0] for line in shown[2:9]]
    assert rows == ["n2", "n4", "n3", "n7", "n1", "n[5-6]", "n8"]
    assert shown[1].split() == ["a", "b"]
    assert shown[9] == "fine everywhere: c"
    every = check_table.lines(leveled(**hosts), colour=False, every=True)
    assert every[1].split() == ["a", "b", "c"]


def test_a_picture_has_so_many_rows() -> None:
    most = check_table.MOST_ROWS
    found = {
        f"n{number:02}": {str(at): Finding(Level(bool(number >> at & 1))) for at in range(6)}
        for number in range(most + 3)
    }
    report = report_of(tuple(map(str, range(6))), found)
    shown = check_table.lines(report, colour=False, every=False)
    at = next(n for n, line in enumerate(shown) if line.startswith("and "))
    assert at == most + 2
    assert shown[at].endswith(", which have something too")
    assert len(shown[at].split("n")) > 1


@cases("level", list(Level))
def test_words_and_their_colours(level: Level) -> None:
    found = check_table.painted("x", level)
    assert found == ("x" if level is Level.OK else f"\x1b[{check_table.COLOURS[level]}mx\x1b[0m")
    assert check_table.painted("x", level, colour=False) == "x"
