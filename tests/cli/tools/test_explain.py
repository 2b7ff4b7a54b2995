"""``explain``: an entry of the catalogue, all of them, and codes that there are not."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.tools.explain import lines
from dispatcher.model.messages import MESSAGES

#: what stands for something of the user's own
PLACEHOLDERS = {"COMMAND", "...", "JOB", "NAME", "PATH"}


@cases(
    "words",
    [
        ["rank-failed"], ["[rank-failed]"], ["rank", "failed"], ["Rank failed"],
        ["error: n[01-02]: a.py [x]: exit code 7 [rank-failed]\n  hint: x [nosuch]"],
    ],
)  # fmt: skip
def test_a_code_or_its_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "rank-failed: A rank ended with an exit code that is not 0.\n\nThe rank's program"
    )
    assert "\n    dispatch -H hostfile --log-dir logs train.py\n" in said
    assert said.endswith("\n\nexit code: the rank's own\n")


def test_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == list(MESSAGES)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--json", "job-hung"]) == 0
    one = promises.told(capsys.readouterr().out)
    assert one.keys() == {"schema", "code", "exit_code", "what", "why", "do"}
    assert cli.main(["explain", "--json"]) == 0
    assert one in promises.told(capsys.readouterr().out)


@cases(
    ("typed", "hint"),
    [
        ("rank-faild", "dispatch explain rank-failed  # did you mean this?"),
        ("xyzzy", "dispatch explain  # lists all"),
    ],
)
def test_no_such_code(typed: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", typed]) == 2
    said = f"error: '{typed}': no message has that code [unknown-code]\n  hint: {hint}\n"
    assert capsys.readouterr().err == said


@cases("columns", [20, 60, 200])
def test_text_is_filled_and_commands_are_kept(columns: int) -> None:
    wide = max(40, min(columns, 80))
    for one in MESSAGES.values():
        told = lines(one, columns)
        assert all(len(line) <= wide for line in told[2:-1] if not line.startswith("    "))
        kept = [line for line in one.do.splitlines() if line.startswith("    ")]
        assert [line for line in told if line.startswith("    ")] == kept


def test_what_can_be_pasted_is_taken(nothing_around: Path, parsed: Any) -> None:
    found = 0
    for one in MESSAGES.values():
        for text in one.do.splitlines():
            if not text.startswith("    dispatch "):
                continue
            words = shlex.split(text.split("  #")[0].split(" | ")[0])
            if PLACEHOLDERS & set(words) - {"NAME", "JOB"}:
                continue
            if "--help" in words:
                assert words[1] in cli.COMMANDS or words == ["dispatch", "--help"]
                continue
            command, rest = (
                (words[1], words[2:]) if words[1] in cli.COMMANDS else ("run", words[1:])
            )
            assert parsed(command, *rest) is not None, text
            found += 1
    assert found > 30
