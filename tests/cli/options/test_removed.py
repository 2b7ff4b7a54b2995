"""An option that dispatch once had is refused by name, with what to use in its place."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.options import removed


@pytest.fixture(autouse=True)
def two_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DISPATCH_CONFIG", raising=False)
    monkeypatch.setitem(removed.REMOVED, "old-thing", "use --new-thing")
    monkeypatch.setitem(removed.REMOVED, "transport=pigeon", "use --transport ssh")


@cases(
    ("line", "error"),
    [
        ("run -H n1 --old-thing train.py", "--old-thing was removed: use --new-thing"),
        ("run -H n1 --old_thing=3 train.py", "--old-thing was removed: use --new-thing"),
        ("exec -w n1 --old-thing true", "--old-thing was removed: use --new-thing"),
        (
            "exec -w n1 --transport pigeon true",
            "--transport=pigeon was removed: use --transport ssh",
        ),
    ],
)
def test_a_removed_option_says_what_to_use(
    line: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(shlex.split(line)) == 2
    assert capsys.readouterr().err == f"error: {error} [unknown-option]\n"


def test_a_file_with_a_removed_option_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dispatch.toml").write_text("[exec]\nold-thing = true\n")
    assert cli.main(["exec", "-w", "n1", "true"]) == 2
    error = "dispatch.toml [exec]: --old-thing was removed: use --new-thing [bad-config]"
    assert capsys.readouterr().err == f"error: {error}\n"


@cases("line", ["man", "man exec", "help man"])
def test_a_removed_command_says_what_to_use(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split(line)) == 2
    said = "dispatch man was removed: the package brings its manual pages; read them with"
    assert capsys.readouterr().err == f"error: {said} `man dispatch` [unknown-command]\n"
