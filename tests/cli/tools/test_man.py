"""``dispatch man``: nothing of any --help is missing in it, and it is roff."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load
from dispatcher.cli.tools import man

MACROS = {"TH", "SH", "SS", "PP", "TP", "br", "nf", "fi", "nh", "ad l"}


@pytest.fixture(scope="module")
def page() -> list[str]:
    return list(man.page())


def shown(line: str) -> str:
    """What a reader sees of a line of text."""
    line = re.sub(r"\\f[BIR]|\\&", "", line)
    for escape, text in (("ga", "`"), ("aq", "'"), ("ha", "^"), ("ti", "~")):
        line = line.replace(rf"\({escape}", text)
    return line.replace(r"\-", "-").replace(r"\e", "\\")


def test_every_option_of_every_command_is_there(page: list[str]) -> None:
    about: dict[str, list[str]] = {"run": []}
    name = "run"
    options = page[page.index(".SH OPTIONS") : page.index(".SH FILES")]
    for line, following in zip(options, [*options[1:], ""], strict=True):
        if line.startswith(".SS "):
            name = shown(line).removeprefix(".SS dispatch ")
            about[name] = []
        elif line == ".TP":
            about[name].append(shown(following))
    assert set(about) == set(COMMANDS)
    for name in COMMANDS:
        command = load(name)
        context = click.Context(command, **command.context_settings)
        records = [
            option.get_help_record(context)
            for option in command.get_params(context)
            if isinstance(option, click.Option)
        ]
        wanted = [record[0] for record in records if record is not None]
        assert wanted, name
        assert {"-h", "--help"} <= set(wanted)
        assert not set(wanted) - set(about[name]), name


def test_the_words_are_those_of_the_help(page: list[str]) -> None:
    text = " ".join(map(shown, page)).split()
    for command in map(load, COMMANDS):
        for said in (command.help, command.epilog):
            words = (said or "").replace("\b", "").split()
            found = any(text[at : at + 6] == words[:6] for at in range(len(text)))
            assert found or not words, words[:6]


def test_no_text_is_taken_for_an_order(page: list[str]) -> None:
    for line in page:
        assert line.isascii()
        assert "\b" not in line
        assert not line.startswith("'")
        if line.startswith("."):
            assert any(line == f".{name}" or line.startswith(f".{name} ") for name in MACROS), line
    assert man.escaped(r".so \fBx\fR 'é' -") == r"\&.so \efBx\efR \(aq\[u00E9]\(aq \-"


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_it_is_roff(page: list[str]) -> None:
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tascii"],
        input="\n".join(page), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "torchrun" in done.stdout
