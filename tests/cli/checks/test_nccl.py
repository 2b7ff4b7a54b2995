"""``dispatch check --nccl`` on pasted texts: what it writes, prints and ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.checks.check import Level
from dispatcher.checks.nccl_advice import Advice
from dispatcher.checks.nccl_model import Message, Prediction
from dispatcher.cli.checks import nccl
from dispatcher.model.errors import UsageError
from dispatcher.runner import surveys

HOST = """\
link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eno1
link mlx5_1/1 lid 12 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP
eno1             UP             10.0.0.{n}/24
default via 10.0.0.1 dev eno1
"""
SETTINGS = {
    "NCCL_IB_HCA": "=mlx5_1", "NCCL_SOCKET_IFNAME": "=eno1", "GLOO_SOCKET_IFNAME": "eno1",
}  # fmt: skip


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name the texts of two hosts."""
    monkeypatch.chdir(tmp_path)
    words = []
    for n in (1, 2):
        (tmp_path / f"b{n}.txt").write_text(HOST.format(n=n))
        words += ["--from", f"b{n}.txt"]
    return words


def test_settings_are_printed_and_written_only_where_that_is_wanted(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--nccl", *texts]) == 0
    printed = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b1.txt", "b2.txt"]
    assert cli.main(["check", "--nccl", *texts, "--apply", "nccl.env"]) == 0
    assert capsys.readouterr().out == printed
    written = dict(line.split("=", 1) for line in (tmp_path / "nccl.env").read_text().splitlines())
    assert written.items() >= SETTINGS.items()
    for name, value in SETTINGS.items():
        assert f"  {name}={value}\n" in printed


def test_for_programs(texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--nccl", *texts, "--json"]) == 0
    found = promises.told(capsys.readouterr().out)
    assert found["settings"].items() >= SETTINGS.items()
    assert sorted(found["hosts"]) == ["b1", "b2"]


def test_a_host_where_nccl_does_not_start_is_a_failure(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(tmp_path / "b2.txt", "a") as file:
        file.write("NCCL_SOCKET_IFNAME=eth9\n")
    assert cli.main(["check", "--nccl", *texts]) == 1
    assert "critical: b2: NCCL does not start" in capsys.readouterr().out


def test_two_texts_of_one_host(texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--nccl", *texts, "--from", "./b1.txt"]) == 2
    assert "there is a text of b1 already" in capsys.readouterr().err


# -- the rest of the advice -----------------------------------------------------------------


def test_a_text_that_cannot_be_read(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--nccl", "--from", "none.txt"]) == 2
    assert (
        capsys.readouterr().err
        == "error: --from none.txt: no such file or directory [file-unusable]\n"
    )
    (tmp_path / "large").write_bytes(b"#" * (nccl.MOST_TEXT + 1))
    assert cli.main(["check", "--nccl", "--from", "large"]) == 2
    assert capsys.readouterr().err == "error: --from large: larger than 4 MiB [file-unusable]\n"
    (tmp_path / ".b").write_bytes(HOST.format(n=3).encode() + b"\xff")
    assert cli.main(["check", "--nccl", "--from", ".b", "--json"]) == 0
    assert list(promises.told(capsys.readouterr().out)["hosts"]) == [".b"]


def test_a_log_is_compared(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(
        f"{host}:1:2 [0] NCCL INFO Using network Socket\n"
        f"{host}:1:2 [0] NCCL INFO NET/Socket : Using [0]eth7:10.0.0.1<0>\n"
        for host in ("b1", "b2")
    )
    (tmp_path / "log").write_text(text)
    assert cli.main(["check", "--nccl", *texts, "--log", "log"]) == 1
    out = capsys.readouterr().out
    assert out.count("critical: b[1-2]: ") == 1
    (tmp_path / "log").write_text(text.replace("b2:", "b9:"))
    assert cli.main(["check", "--nccl", *texts, "--log", "log"]) == 1
    out = capsys.readouterr().out
    assert "critical: b1: " in out
    assert "warn: b2: not in log\n" in out
    (tmp_path / "log").write_text(text.replace("b1:", "a1:").replace("b2:", "a2:"))
    assert cli.main(["check", "--nccl", *texts, "--log", "log"]) == 2
    assert (
        capsys.readouterr().err
        == "error: --log log: it is of other hosts: a[1-2] [file-unusable]\n"
    )
    (tmp_path / "log").write_text("nothing of it\n")
    assert cli.main(["check", "--nccl", *texts, "--log", "log"]) == 2
    assert capsys.readouterr().err == (
        "error: --log log: no lines of NCCL in it [file-unusable]\n  hint: -x NCCL_DEBUG=INFO\n"
    )


def test_advice_that_cannot_be_written(
    texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--nccl", *texts, "--apply", "no/where"]) == 2
    said = "error: --apply no/where: no such file or directory [file-unusable]\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("words", [["--apply", "no/where"], ["--log", "no"]])
def test_files_that_are_no_good_are_refused_before_hosts_are_asked(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "_asked", pytest.fail)
    assert cli.main(["check", "--nccl", "-w", "n1", *words]) == 2


def test_advice_that_does_not_fit_into_one_file_is_shown_all_the_same(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b2.txt").write_text((tmp_path / "b2.txt").read_text().replace("mlx5", "rocep"))
    assert cli.main(["check", "--nccl", *texts, "--apply", "f"]) == 2
    shown = capsys.readouterr()
    assert "NCCL_IB_HCA==rocep_" in shown.out
    assert "the hosts need different settings" in shown.err
    assert not (tmp_path / "f").exists()


NOW = Prediction("Socket", interfaces=())
THEN = Prediction(None, fatal="no socket\x1b interface found")


def advice(**given: Any) -> Advice:
    usual: dict[str, Any] = {"settings": {}, "own": {}, "now": {}, "then": {}, "messages": ()}
    return Advice(**{**usual, **given})


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
    )  # fmt: skip
    messages = [
        Message(Level.WARN, ("b1", "b2"), "slow\x1b", "do"),
        Message(Level.CRITICAL, ("b3",), "bad"),
    ]
    shown = nccl.lines(found, messages)
    line = NOW.line()
    assert shown == [
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
    assert nccl.lines(same, []) == [f"now: b1: {line}", "advice: none"]
    assert nccl.lines(advice(now={"b1": NOW}, then={"b1": NOW}, own={"b1": {"A": "1"}}), [])[1] == (
        "advice:"
    )


def test_advice_for_programs() -> None:
    found = advice(settings={"A": "1"}, own={"b1": {"B": "2"}}, now={"b1": NOW, "b2": THEN},
                   then={"b1": NOW, "b2": NOW})  # fmt: skip
    assert nccl.record(found, [Message(Level.WARN, ("b1",), "slow", "do")]) == {
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
        (surveys.Answer(lost=True, problem="unreachable: no\x1b route"), 125, "lost: unreachable"),
        (surveys.Answer(lost=False, problem="no python there"), 1, "no python there"),
    ],
)
def test_hosts_that_did_not_answer(
    answer: surveys.Answer, code: int, unread: str, monkeypatch: pytest.MonkeyPatch,
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
