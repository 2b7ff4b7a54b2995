"""Defaults from files, by the commands that use them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli import COMMANDS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and a home of one's own."""
    monkeypatch.delenv("DISPATCH_CONFIG")
    monkeypatch.delenv("DISPATCH_SSH_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "dispatch").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_values_reach_the_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(folder / "config" / "dispatch" / "dispatch.toml", "[run]\nexport = ['A=user']\n")
    write(folder / "dispatch.toml", "[run]\nhostfile = 'localhost:2'\nno-python = true\n")
    assert cli.main(["sh", "-c", "echo $RANK $A"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] 0 user", "[1] 1 user"]


def test_a_profile(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(folder / "dispatch.toml", "[profile.two.run]\nhostfile = 'localhost:2'\n")
    assert cli.main(["--profile", "two", "--no-python", "echo", "x"]) == 0
    assert capfd.readouterr().out.count("x") == 2
    monkeypatch.setenv("DISPATCH_PROFILE", "two")
    assert cli.main(["--no-python", "echo", "x"]) == 0


def test_one_file_instead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(folder / "dispatch.toml", "[run\n")  # wrong, and not read
    write(folder / "other.toml", "[all]\nhosts = ['localhost']\n")
    monkeypatch.setenv("DISPATCH_CONFIG", "other.toml")
    assert cli.main(["exec", "--", "echo", "x"]) == 0
    assert capfd.readouterr().out == "localhost: x\n"
    monkeypatch.setenv("DISPATCH_CONFIG", "")
    assert cli.main(["--no-python", "true"]) == 2
    monkeypatch.setenv("DISPATCH_CONFIG", "gone.toml")
    assert cli.main(["--no-python", "true"]) == 2
    assert "gone.toml: no such file" in capfd.readouterr().err


def test_config_tells_origins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(
        folder / "dispatch.toml",
        "[all]\nuser = 'ml'\n[run]\nexport = ['A_TOKEN=x', 'B=1']\n[profile.p.run]\ngrace = 4\n",
    )
    monkeypatch.setenv("DISPATCH_CONFIG", "dispatch.toml")
    monkeypatch.setenv("DISPATCH_SSH_CONFIG", "/c")
    assert cli.main(["config", "--profile", "p"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines == [
        ["--export", '["A_TOKEN=<hidden>",', '"B=1"]', "dispatch.toml", "[run]"],
        ["--user", '"ml"', "dispatch.toml", "[all]"],
        ["--ssh-config", '"/c"', "variable", "DISPATCH_SSH_CONFIG"],
        ["--grace", '"4"', "dispatch.toml", "[profile.p.run]"],
    ]
    assert cli.main(["config", "jobs"]) == 0
    assert capfd.readouterr().out == "no dispatch.toml sets defaults for jobs\n"
    assert cli.main(["config", "--all"]) == 0
    usual = [line.split() for line in capfd.readouterr().out.splitlines() if "built in" in line]
    shown = {name: value for name, value, *_ in usual}
    assert (shown["--nnodes"], shown["--env-file"], shown["--per-node"]) == ("none", "[]", "false")
    assert (shown["--label"], shown["--stdin"]) == ('"rank"', '"none"')
    assert cli.main(["config", "nosuch"]) == 2


@cases("name", [name for name in COMMANDS if name != "config"])
def test_every_command_can_be_asked_about(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--all", name]) == 0
