"""``dispatch man``: the manual page, of the same definitions as every ``--help``.

One page tells all commands: the options of ``run`` where a reader of manuals looks for
options, the others below their names. roff is made here in full: nothing else on this
machine is needed to print it, and ``man`` only to read it.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
import time
from collections.abc import Iterator

import click

from dispatcher import __version__
from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load, sections, shown_name
from dispatcher.cli.options.declaration import Options

#: characters of a line of the source; manuals are read by people, too
WIDTH = 72

_SEE_ALSO = "ssh(1), ssh_config(5), torchrun(1), mpirun(1), pdsh(1), srun(1)"
_FILES = (
    ("~/.config/dispatch/dispatch.toml, ./dispatch.toml", "Defaults; see dispatch config."),
    ("~/.ssh/config, ~/.ssh/known_hosts", "As ssh has them."),
    ("~/.deepspeed_env, ./.deepspeed_env", "Variables for the ranks, NAME=VALUE."),
    ("~/.local/state/dispatch", "Records of jobs; the files of those in the background."),
)


class ManOptions(Options):
    """Print the manual page of dispatch and all its commands, as roff.

    \b
    dispatch man > ~/.local/share/man/man1/dispatch.1
    dispatch man | man -l -
    """


def man(options: ManOptions) -> int:
    """Print the page; the exit code."""
    click.echo("\n".join(page()))
    return 0


def page() -> Iterator[str]:
    """The lines of dispatch(1)."""
    run = load("run")
    when = time.gmtime(float(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    yield f'.TH DISPATCH 1 {time.strftime("%Y-%m-%d", when)} "dispatch {__version__}"'
    yield ".nh"  # a hyphen that is not in an option must not be copied from one
    yield ".ad l"
    yield ".SH NAME"
    yield r"dispatch \- start one process per GPU on every host over SSH"
    yield ".SH SYNOPSIS"
    yield from _usage(run)
    yield ".br"
    yield r"\fBdispatch\fR \fICOMMAND\fR [\fIOPTIONS\fR]..."
    yield ".SH DESCRIPTION"
    yield from _prose(run.help)
    yield ".SH OPTIONS"
    yield from _options(run)
    yield ".PP"
    yield from _prose(run.epilog)
    yield ".SH COMMANDS"
    yield "Options may be written with dashes or underscores."
    for name in COMMANDS:
        if name != "run":
            yield f".SS dispatch {escaped(name)}"
            one = load(name)
            yield from _usage(one)
            yield ".PP"
            yield from _prose(one.help)
            yield from _options(one)
            if one.epilog:
                yield ".PP"
                yield from _prose(one.epilog)
    yield ".SH FILES"
    for path, text in _FILES:
        yield ".TP"
        yield rf"\fI{escaped(path)}\fR"
        yield from _filled(text)
    yield ".SH SEE ALSO"
    yield from _filled(_SEE_ALSO)


def _usage(about: click.Command) -> Iterator[str]:
    words = " ".join(about.collect_usage_pieces(_context(about)))
    yield rf"\fB{escaped(shown_name(about.name or ''))}\fR \fI{escaped(words)}\fR"


def _context(about: click.Command) -> click.Context:
    return click.Context(about, **about.context_settings)


def _options(about: click.Command) -> Iterator[str]:
    for title, records in sections(about, _context(about)).items():
        yield ".PP"
        yield rf"\fI{escaped(title)}\fR"
        for names, text in records:
            yield ".TP"
            yield _names(names)
            yield from _filled(text)


def _names(record: str) -> str:
    r"""``-H, --hosts FILE`` with names in bold and the rest in italics."""
    words = record.split(" ")
    names = [word for word in words if word.startswith("-")]
    shown = " ".join(rf"\fB{escaped(name)}\fR" for name in names)
    value = " ".join(words[len(names) :])
    return shown + (rf" \fI{escaped(value)}\fR" if value else "")


def _prose(text: str | None) -> Iterator[str]:
    """Paragraphs of a help text; those that begin with click's mark keep their lines."""
    paragraphs = re.split(r"\n\s*\n|\n(?=\x08\n)", inspect.cleandoc(text or ""))
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        kept = paragraph.removeprefix("\b\n")
        if kept == paragraph:
            yield from _filled(paragraph)
        else:
            yield from (".nf", *map(escaped, kept.split("\n")), ".fi")


def _filled(text: str) -> list[str]:
    plain = " ".join(text.split())
    return [escaped(line) for line in textwrap.wrap(plain, WIDTH, break_on_hyphens=False)]


def escaped(text: str) -> str:
    """``text`` as roff shows it to the letter: hyphens to be copied, no line that is an order."""
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    plain = plain.replace("`", r"\(ga").replace("^", r"\(ha").replace("~", r"\(ti")
    plain = "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in plain)
    return rf"\&{plain}" if plain.startswith(".") else plain
