"""scripts/reference.py --man: nothing of any --help is missing in it, and it is roff."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import pytest
import reference
from cases import cases

from dispatcher import __version__
from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load_command, shown_name

MACROS = {"TH", "SH", "SS", "PP", "TP", "br", "nf", "fi", "nh", "ad l"}


@pytest.fixture(scope="module")
def page() -> list[str]:
    return list(reference.manual())


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
            name = shown(line).removeprefix(".SS ").removeprefix("dispatch ")
            about[name] = []
        elif line == ".TP":
            about[name].append(shown(following))
    assert set(about) == set(COMMANDS)
    for name in COMMANDS:
        command = load_command(name)
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
    for command in map(load_command, COMMANDS):
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
    assert reference.escaped(r".so \fBx\fR 'é' -") == r"\&.so \efBx\efR \(aq\[u00E9]\(aq \-"


@pytest.fixture
def reader() -> None:
    """man; small images have a script in its place that says where to get it."""
    if shutil.which("man") is None:
        pytest.skip("no man on this machine")
    done = subprocess.run(["man", "--version"], capture_output=True, text=True, check=False)
    if not done.stdout.startswith("man "):
        pytest.skip("man is left out of this image")


@pytest.fixture
def folder(tmp_path: Path, page: list[str]) -> Path:
    """All pages, where man looks for them."""
    (tmp_path / "man1").mkdir()
    pages = {
        "dispatch": page,
        **{f"dispatch-{name}": reference.manual_of(name) for name in COMMANDS},
    }
    for name, lines in pages.items():
        (tmp_path / "man1" / f"{name}.1").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_pages_are_roff(folder: Path) -> None:
    pages = sorted(map(str, (folder / "man1").iterdir()))
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tascii", *pages],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "torchrun" in done.stdout


@pytest.mark.parametrize(
    ("name", "synopsis", "examples"),
    [
        ("dispatch", "dispatch [OPTIONS] PROGRAM [ARGS]...", load_command("run").kind.examples),
        ("dispatch-exec", "dispatch exec [OPTIONS] [--] COMMAND [ARGS]...",
         load_command("exec").kind.examples),
        ("dispatch-hosts", "dispatch hosts [OPTIONS] [LIST]...",
         load_command("hosts").kind.examples),
    ],
)  # fmt: skip
def test_man_shows_a_page_whose_examples_can_be_pasted(
    folder: Path, reader: None, name: str, synopsis: str, examples: tuple[tuple[str, str], ...]
) -> None:
    done = subprocess.run(
        ["man", "-M", str(folder), "-P", "cat", name],
        env={**os.environ, "MANWIDTH": "100", "MAN_KEEP_FORMATTING": "", "LC_ALL": "C.UTF-8"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert synopsis in lines
    assert [line for line, _ in examples if line not in lines] == []


HEAD = """\
.TH {name} 1 1970-01-02 "dispatch {version}"
.nh
.ad l
.SH NAME
{shown} \\- {said}
.SH SYNOPSIS
"""


@cases(
    ("lines", "name", "said"),
    [
        (reference.manual, "dispatch", r"start one process per GPU on every host over SSH"),
        (
            lambda: reference.manual_of("exec"),
            r"dispatch\-exec",
            "run a command once on every host",
        ),
        (
            lambda: reference.manual_of("put"),
            r"dispatch\-put",
            "copy files from this machine to every host",
        ),
    ],
)
def test_how_a_page_begins(
    lines: Callable[[], Iterator[str]], name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    text = "\n".join(lines())
    head = HEAD.format(name=name.upper(), version=__version__, shown=name, said=said)
    assert text.startswith(head)


def test_the_parts_of_a_page(page: list[str]) -> None:
    def parts(lines: Iterable[str]) -> list[str]:
        return [line.removeprefix(".SH ") for line in lines if line.startswith(".SH ")]

    assert parts(page) == [
        "NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "COMMANDS", "OPTIONS", "EXIT STATUS",
        "OPTIONS OF COMMANDS", "FILES", "SEE ALSO",
    ]  # fmt: skip
    assert parts(reference.manual_of("exec")) == [
        "NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "OPTIONS", "FILES", "SEE ALSO",
    ]  # fmt: skip
    assert r"\fBdispatch\fR \fI[OPTIONS] PROGRAM [ARGS]...\fR" in page
    assert r"\fBdispatch\fR \fICOMMAND\fR [\fIOPTIONS\fR]..." in page
    told = sorted(shown(line) for line in page if line.startswith(".SS "))
    assert told == sorted(f".SS {shown_name(name)}" for name in COMMANDS if name != "run")


@cases(
    ("record", "roff"),
    [
        ("-H, --hosts FILE", r"\fB\-H,\fR \fB\-\-hosts\fR \fIFILE\fR"),
        ("--fold", r"\fB\-\-fold\fR"),
        ("--keep[=S]", r"\fB\-\-keep\fR\fI[=S]\fR"),
        ("--label [rank|host]", r"\fB\-\-label\fR \fI[rank|host]\fR"),
        ("-x LIST|^FILE OR MORE", r"\fB\-x\fR \fILIST|\(haFILE OR MORE\fR"),
    ],
)
def test_names_are_bold_and_values_are_not(record: str, roff: str) -> None:
    assert reference.bold_names(record) == roff


@cases(
    ("text", "lines"),
    [
        (None, []),
        ("One\n  two.", ["One two."]),
        ("One.\n\nTwo.", ["One.", ".PP", "Two."]),
        (
            "One:\n\b\na  b\n  c\n\nTwo.",
            ["One:", ".PP", ".nf", "a  b", "  c", ".fi", ".PP", "Two."],
        ),
        ("x" * 40 + " " + "y-" * 20, ["x" * 40, r"y\-" * 20]),
    ],
)
def test_paragraphs(text: str | None, lines: list[str]) -> None:
    assert list(reference.roff(text)) == lines


def test_examples_keep_their_lines(page: list[str]) -> None:
    at = page.index(".SH EXAMPLES")
    (line, said), *_ = load_command("run").kind.examples
    assert page[at + 1 : at + 4] == [
        ".nf", reference.escaped(f"# {said}"), rf"\fB{reference.escaped(line)}\fR",
    ]  # fmt: skip
    assert ".fi" in page[at:]
