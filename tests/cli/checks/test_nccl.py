"""``dispatch check --nccl`` on pasted texts: what it writes, prints and ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatcher import cli

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
    found = json.loads(capsys.readouterr().out)
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
