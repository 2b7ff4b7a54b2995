"""``dispatch check --nccl``: what it writes, prints and ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases
from checks.samples import network_host, port_text

from dispatcher import cli
from dispatcher.checks.check import Level
from dispatcher.checks.nccl_advice import NcclAdvice
from dispatcher.checks.nccl_model import NcclMessage, Prediction
from dispatcher.cli.checks import nccl
from dispatcher.model.errors import UsageError
from dispatcher.model.frozen import json_of
from dispatcher.runner import surveys


def host_text(n: int) -> str:
    """Of ``network_host``: a host with a card for its login and one for InfiniBand."""
    return (
        port_text("mlx5_0", "4: ACTIVE", "5: LinkUp", "100 Gb/sec", "Ethernet", "eno1")
        + port_text("mlx5_1", "4: ACTIVE", "5: LinkUp", "200 Gb/sec", "InfiniBand")
        + f"== netdevs\nnetdev eno1 flags=1043 addresses=10.0.0.{n}\n"
    )


SETTINGS = {
    "NCCL_IB_HCA": "=mlx5_1", "NCCL_SOCKET_IFNAME": "=eno1", "GLOO_SOCKET_IFNAME": "eno1",
}  # fmt: skip
CHECK = ("check", "--nccl", "-w", "b[1-2]")


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What two hosts answer; the test may change it."""
    monkeypatch.chdir(tmp_path)
    told = [host_text(1), host_text(2)]

    def survey(*_: Any, **__: Any) -> list[surveys.HostAnswer]:
        return [surveys.HostAnswer(network_host(text).readings) for text in told]

    monkeypatch.setattr(surveys, "survey", survey)
    return told


def test_settings_are_printed_and_written_only_where_that_is_wanted(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*CHECK]) == 0
    printed = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*CHECK, "--apply", "nccl.env"]) == 0
    assert capsys.readouterr().out == printed
    written = dict(line.split("=", 1) for line in (tmp_path / "nccl.env").read_text().splitlines())
    assert written.items() >= SETTINGS.items()
    for name, value in SETTINGS.items():
        assert f"  {name}={value}\n" in printed


def test_for_programs(texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CHECK, "--json"]) == 0
    found = promises.told(capsys.readouterr().out)
    assert found["settings"].items() >= SETTINGS.items()
    assert sorted(found["hosts"]) == ["b1", "b2"]


def test_a_host_where_nccl_does_not_start_is_a_failure(
    texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    texts[1] += "== nccl_env\nNCCL_SOCKET_IFNAME=eth9\n"
    assert cli.main([*CHECK]) == 1
    assert "critical: b2: NCCL does not start" in capsys.readouterr().out


def test_a_file_that_is_no_good_is_refused_before_hosts_are_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nccl, "_asked", pytest.fail)
    assert cli.main([*CHECK, "--apply", "no/where"]) == 2
    said = "error: --apply no/where: no such file or directory [file-unusable]\n"
    assert capsys.readouterr().err == said


def test_advice_that_does_not_fit_into_one_file_is_shown_all_the_same(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts[1] = texts[1].replace("mlx5", "rocep")
    assert cli.main([*CHECK, "--apply", "f"]) == 2
    shown = capsys.readouterr()
    assert "NCCL_IB_HCA==rocep_" in shown.out
    assert "the hosts need different settings" in shown.err
    assert not (tmp_path / "f").exists()


NOW = Prediction("Socket", interfaces=())
THEN = Prediction(None, fatal="no socket\x1b interface found")


def advice(**given: Any) -> NcclAdvice:
    usual: dict[str, Any] = {"settings": {}, "own": {}, "now": {}, "then": {}, "messages": ()}
    return NcclAdvice(**{**usual, **given})


def test_hosts_that_need_different_settings(tmp_path: Path) -> None:
    found = advice(own={"b1": {"A": "1", "B": "2"}, "b2": {"A": "3"}})
    with pytest.raises(UsageError) as caught:
        nccl._write("f", found)
    assert caught.value.message.startswith("--apply f: the hosts need different settings")
    assert caught.value.hint == "b1 env=A=1 env=B=2"


def test_advice_in_lines() -> None:
    found = advice(
        settings={"A": "1"}, own={"b1": {"B": "2"}, "b2": {"B": "2"}, "b3": {"B": "3"}},
        now={"b1": NOW, "b2": NOW, "b3": THEN}, then={"b1": NOW, "b2": NOW, "b3": NOW},
        messages=(
            NcclMessage(Level.CRITICAL, ("b3",), "bad"),
            NcclMessage(Level.WARN, ("b1", "b2"), "slow\x1b", "do"),
        ),
    )  # fmt: skip
    line = NOW.line()
    assert nccl.lines(found) == [
        f"now: b[1-2]: {line}",
        f"now: b3: {THEN.line()}".replace("\x1b", "\\x1b"),
        f"then: b[1-3]: {line}",
        "advice:",
        "  A=1",
        "  on b[1-2]:",
        "    B=2",
        "  on b3:",
        "    B=3",
        "critical: b3: bad",
        "warn: b[1-2]: slow\\x1b",
        "  hint: do",
    ]
    same = advice(now={"b1": NOW}, then={"b1": NOW})
    assert nccl.lines(same) == [f"now: b1: {line}", "advice: none"]
    assert nccl.lines(advice(now={"b1": NOW}, then={"b1": NOW}, own={"b1": {"A": "1"}}))[1] == (
        "advice:"
    )


def test_advice_for_programs() -> None:
    found = advice(settings={"A": "1"}, own={"b1": {"B": "2"}}, now={"b1": NOW, "b2": THEN},
                   then={"b1": NOW, "b2": NOW},
                   messages=(NcclMessage(Level.WARN, ("b1",), "slow", "do"),))  # fmt: skip
    assert json_of(nccl.nccl_document(found)) == {
        "schema": "check-nccl/1",
        "settings": {"A": "1"},
        "hosts": {
            "b1": {"settings": {"B": "2"}, "now": NOW.line(), "then": NOW.line()},
            "b2": {"settings": {}, "now": THEN.line(), "then": NOW.line()},
        },
        "messages": [{"level": "WARN", "hosts": ["b1"], "text": "slow", "remedy": "do"}],
    }


@cases(
    ("answer", "code", "unread"),
    [
        (
            surveys.HostAnswer(lost=True, problem="unreachable: no\x1b route"),
            125,
            "lost: unreachable",
        ),
        (surveys.HostAnswer(lost=False, problem="no python there"), 1, "no python there"),
    ],
)
def test_hosts_that_did_not_answer(
    answer: surveys.HostAnswer, code: int, unread: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked: list[Any] = []

    def survey(hosts: Any, readings: Any, transport_for: Any, **limits: Any) -> Any:
        asked.append(([host.name for host in hosts], limits))
        return [answer]

    monkeypatch.setattr(surveys, "survey", survey)
    assert cli.main(["check", "--nccl", "-w", "n1", "-t", "3"]) == code
    assert asked == [(["n1"], {"seconds": nccl.REPLY_TIMEOUT, "connect": 3.0})]
    out = capsys.readouterr().out
    assert unread in out
    assert "\x1b" not in out


def test_this_machine_is_asked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What crosses to ranks from here counts there, and what the hostfile says as well."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "nosuch7")
    monkeypatch.setattr(nccl, "REPLY_TIMEOUT", 60.0)
    assert cli.main(["check", "--nccl", "-w", "localhost"]) == 1
    assert "NCCL_SOCKET_IFNAME=nosuch7" in capfd.readouterr().out
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    cli.main(["check", "--nccl", "-w", "localhost", "--json"])
    assert list(promises.told(capfd.readouterr().out)["hosts"]) == ["localhost"]
