"""``check``: which way is asked for, what is read for it, and what it ends with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases
from checks.samples import report_of

from dispatcher import cli
from dispatcher.checks import report
from dispatcher.checks.check import Asked, Finding, Level
from dispatcher.checks.report import CheckReport
from dispatcher.cli.checks import nccl, pairs, run_check
from dispatcher.cli.checks.check import CheckOptions
from dispatcher.cli.checks.run_check import FULL, QUICK, checks, examined, limit, wanted
from dispatcher.cli.run.run import RunOptions
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.runner import surveys
from dispatcher.runner.surveys import readings_limit

from ..conftest import Parsed, Terminal

WHERE = ["-w", "n[1-2]"]


@pytest.fixture(autouse=True)
def _here(nothing_around: Path) -> None:
    """No batch job, an empty folder."""


@cases(
    ("words", "said"),
    [
        (["--full", "--pairs"], "--full and --pairs exclude each other"),
        (["--pairs", "--nccl"], "--pairs and --nccl exclude each other"),
        (["--full", "--nccl", "--pairs"], "--full and --pairs exclude each other"),
        (["--pairs", "train.py"], "--pairs does not check a script"),
        (["--nccl", "train.py"], "--nccl does not check a script"),
        (["--backend", "tcp"], "--backend needs --pairs"),
        (["--rounds", "2"], "--rounds needs --pairs"),
        (["--slow", "0.5"], "--slow needs --pairs"),
        (["--svg", "f"], "--svg needs --pairs"),
        (["--nccl", "--svg", "f"], "--svg needs --pairs"),
        (["--apply", "f"], "--apply needs --nccl"),
        (["--pairs", "--apply", "f"], "--apply needs --nccl"),
        (["a.py", "b.py"], "one script at most: 'b.py' is one too many"),
        (["--xid-table", "f"], "--xid-table needs the full check"),
        (["--site-checks", "d"], "--site-checks needs the full check"),
        (["--full", "--xid-table", "none"], "--xid-table none: no such file or directory"),
        (["--check-timeout", "0.9"], "--check-timeout 0.9: less than a second"),
        (["--pairs", "-x", "n2"], "--pairs needs at least two hosts"),
    ],
)
def test_refusals(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *WHERE, *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("words", "module"),
    [(["--nccl"], nccl), (["--pairs"], pairs), (["--pairs", "--backend", "gloo"], pairs),
     (["--nccl", "--apply", "f"], nccl)],
)  # fmt: skip
def test_which_of_them(
    parsed: Parsed, words: list[str], module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parsed("check", *WHERE, *words)
    monkeypatch.setattr(module, "run", lambda given: 7 if given is options else 8)
    assert run_check.run(options) == 7


@cases(
    ("seconds", "full", "found"),
    [(None, False, QUICK), (None, True, FULL), (1.0, False, 1.0), (99.0, True, 99.0)],
)
def test_how_long_it_may_take(seconds: float | None, full: bool, found: float) -> None:
    assert limit(seconds, full=full) == found


def test_which_checks_there_are(tmp_path: Path) -> None:
    quick, full = checks(full=False), checks(full=True)
    assert quick == report.QUICK
    assert full[: len(quick)] == quick
    names = {check.name for check in full}
    assert len(full) > len(quick)
    assert "site" not in names
    assert {check.name for check in checks(site_checks="/d", full=True)} - names == {"site"}
    (tmp_path / "table").write_text("79 ignore\n\xff")
    with pytest.raises(UsageError, match="--xid-table table"):
        checks("table", full=True)
    (tmp_path / "table").write_text("79 ignore\n")
    assert len(checks("table", full=True)) == len(full)


def test_what_must_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    hosts = (Host("n1"), Host("n2", python="/py2"))
    want = wanted(hosts, Asked("/w", "train.py", "ib0"), None, 20.0, full=False)
    assert want.asked == Asked("/w", "/w/train.py", "ib0")
    assert (want.python, want.full, want.site) == (sys.executable, False, "")
    assert (want.own, want.seconds) == ({"n2": "/py2"}, readings_limit(20.0))
    want = wanted(hosts, Asked("/w", "", None), "/py", 60.0, "/site", full=True)
    assert want.asked == Asked("/w", "", None)
    assert (want.python, want.full, want.site) == ("/py", True, "/site")
    want = wanted(hosts, Asked("/w", "/abs.py", None), "/py", 60.0, full=True)
    assert want.asked.script == "/abs.py"


@cases(
    ("options", "connect"),
    [(CheckOptions(), 10.0), (CheckOptions(connect_timeout=3.0), 3.0), (RunOptions(), 10.0),
     (RunOptions(connect_timeout=4.0), 4.0)],
)  # fmt: skip
@cases("script", ["", "train.py"])
def test_hosts_are_visited(
    options: Any, connect: float, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(surveys, "examine", lambda *given, **more: seen.append((given, more)))
    hosts = (Host("localhost"),)
    chosen = checks(full=False)
    want = wanted(hosts, Asked("/w", script, None), None, 20.0, full=False)
    examined(hosts, want, chosen, options, 20.0, 29500)
    (((there, same, found, transport_for), more),) = seen
    assert (there, same) == (hosts, want)
    assert {check.name for check in chosen} - {check.name for check in found} == (
        set() if script else {"script"}
    )
    assert transport_for(hosts[0]).name == "local"
    assert more == {"seconds": 20.0, "connect": connect, "port": 29500}


def leveled(**levels: Level) -> CheckReport:
    found = {
        host: {"memory": Finding(level, "low" if level else "", "", "add some" if level else None)}
        for host, level in levels.items()
    }
    return report_of(("memory",), found)


LOST = report_of(("memory",), {"n1": {}, "n2": {}}, {"n1": "no route"}, {"n2": "no python"})


@cases(
    ("found", "code"),
    [
        (leveled(n1=Level.OK, n2=Level.OK), 0),
        (leveled(n1=Level.OK, n2=Level.WARN), 0),
        (leveled(n1=Level.OK, n2=Level.CRITICAL), 1),
        (leveled(n1=Level.OK, n2=Level.INCOMPLETE), 1),
        (LOST, 125),
    ],
)
@cases("as_json", [False, True])
def test_the_exit_code(
    found: CheckReport, code: int, as_json: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(run_check, "examined", lambda *given: found)
    assert cli.main(["check", *WHERE, *(["--json"] if as_json else [])]) == code
    out, err = capsys.readouterr()
    assert err == ""
    if as_json:
        assert promises.told(out)["fit"] is (code == 0)
        assert out.startswith("{\n  ")
    else:
        fit = sum(host.level.fit for host in found.hosts.values())
        assert out.startswith(f"{fit} of 2 hosts fit, 1 check, ")


def test_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def examined(*given: Any) -> CheckReport:
        seen.append(given)
        return leveled(n1=Level.OK)

    monkeypatch.setattr(run_check, "examined", examined)
    words = ["--full", "--python", "/py", "--chdir", "/w", "--iface", "ib0", "--master-port", "5",
             "--check-timeout", "7", "--site-checks", "/d", "sub/train.py"]  # fmt: skip
    assert cli.main(["check", "-w", "n1:2", *words]) == 0
    ((hosts, want, chosen, options, seconds, port),) = seen
    assert hosts == (Host("n1", slots=2, origin="-w"),)
    assert want.asked == Asked("/w", "/w/sub/train.py", "ib0")
    assert (want.python, want.full, want.site, seconds, port) == ("/py", True, "/d", 7.0, 5)
    assert "site" in {check.name for check in chosen}
    assert options.full


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_a_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool
) -> None:
    monkeypatch.setattr(run_check, "examined", lambda *given: leveled(n1=Level.CRITICAL))
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal.take()
    assert cli.main(["check", *WHERE]) == 1
    assert ("\x1b[" in terminal.leave()) is coloured


def test_each_host_by_v_and_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "name not found: x"
    found = report_of(("memory",), {"n1": {}, "n2": {}}, {"n1": why, "n2": why})
    monkeypatch.setattr(run_check, "examined", lambda *given: found)
    assert cli.main(["check", "-H", "gpu07"]) == 125
    out = capsys.readouterr().out
    assert out.count("critical: ") == 1
    assert "getent hosts gpu07  # and there is no such file" in out
    assert cli.main(["check", "-v", "-H", "gpu07"]) == 125
    assert capsys.readouterr().out.count("critical: ") == 2
