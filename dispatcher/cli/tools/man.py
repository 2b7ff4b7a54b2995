"""``dispatch man`` and ``explain``: what a terminal shows of commands, and of messages by code.

Manual pages are made of the same definitions as every ``--help``.

dispatch(1) tells all commands: the options of ``run`` where a reader of manuals looks for
options, the others below their names. dispatch-exec(1) and its like tell one. roff is made here in
full: nothing else on this machine is needed to print it, and ``man`` only to read it.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import textwrap
import time
from collections.abc import Iterator

import click

from dispatcher import __version__
from dispatcher.cli import mistakes, tell
from dispatcher.cli.entry import load, shown_name
from dispatcher.cli.help import PURPOSES, sections
from dispatcher.cli.mistakes import line
from dispatcher.cli.options.declaration import Command, Options, argument, json_option
from dispatcher.cli.options.misspelt import MEANT
from dispatcher.model.errors import UnknownCode
from dispatcher.model.messages import MESSAGES, Message
from dispatcher.model.names import nearest, shown

#: characters of a line of the source; manuals are read by people, too
WIDTH = 72

_SEE_ALSO = "ssh(1), ssh_config(5), torchrun(1), mpirun(1), pdsh(1), srun(1)"
_FILES = (
    ("~/.config/dispatch/dispatch.toml, ./dispatch.toml", "Defaults; see dispatch config."),
    ("~/.ssh/config, ~/.ssh/known_hosts", "As ssh has them."),
    ("~/.deepspeed_env, ./.deepspeed_env", "Variables for the ranks, NAME=VALUE."),
    ("~/.local/state/dispatch", "Records of jobs, and the files of those in the background."),
)


class ManOptions(Options):
    """Print the manual page of dispatch and all its commands, or that of COMMAND.

    It is for the command man, which looks for pages in ~/.local/share/man too.
    """

    examples = (
        ("dispatch man | man -l -", "read it now"),
        ("dispatch man > ~/.local/share/man/man1/dispatch.1", "for: man dispatch"),
        ("dispatch man exec > ~/.local/share/man/man1/dispatch-exec.1", "for: man dispatch-exec"),
    )

    name: str | None = argument(metavar="[COMMAND]")


def man(options: ManOptions) -> int:
    """Print the page; the exit code. Raises: UsageError."""
    name = options.name
    if name is not None:
        mistakes.check_command(name)
    click.echo("\n".join(page() if name is None else page_of(name)))
    return 0


def page() -> Iterator[str]:
    """The lines of dispatch(1)."""
    run = load("run")
    yield from _head("dispatch", "start one process per GPU on every host over SSH")
    yield from _usage(run, shown_name(""))
    yield ".br"
    yield r"\fBdispatch\fR \fICOMMAND\fR [\fIOPTIONS\fR]..."
    yield ".SH DESCRIPTION"
    yield from _prose(run.help)
    yield ".PP"
    yield "Options may be written with dashes or underscores."
    yield from _examples(run, ".SH EXAMPLES")
    yield ".SH COMMANDS"
    for purpose, commands in PURPOSES.items():
        yield ".PP"
        yield rf"\fI{escaped(purpose)}\fR"
        for name, said in commands.items():
            yield ".TP"
            yield rf"\fB{escaped(shown_name(name))}\fR"
            yield from _filled(said)
    yield ".SH OPTIONS"
    yield from _options(run)
    yield ".SH EXIT STATUS"
    yield from _prose(run.epilog)
    yield ".SH OPTIONS OF COMMANDS"
    for commands in PURPOSES.values():
        for name in commands:
            if name != "run":
                one = load(name)
                yield f".SS {escaped(shown_name(name))}"
                yield from _usage(one, shown_name(name))
                yield ".PP"
                yield from _prose(one.help)
                yield from _examples(one, ".PP")
                yield from _options(one)
                yield from _exit_code(one)
    yield from _tail(_SEE_ALSO)


def page_of(name: str) -> Iterator[str]:
    """The lines of the manual page of the command ``name`` alone."""
    command = load(name)
    (said,) = (commands[name] for commands in PURPOSES.values() if name in commands)
    yield from _head(shown_name(name).replace(" ", "-"), said[:1].lower() + said[1:].rstrip("."))
    yield from _usage(command, shown_name(name))
    yield ".SH DESCRIPTION"
    yield from _prose(command.help)
    yield from _examples(command, ".SH EXAMPLES")
    yield ".SH OPTIONS"
    yield from _options(command)
    yield from _exit_code(command)
    yield from _tail("dispatch(1)")


def _head(name: str, said: str) -> Iterator[str]:
    when = time.gmtime(float(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    day = time.strftime("%Y-%m-%d", when)
    yield f'.TH {escaped(name.upper())} 1 {day} "dispatch {__version__}"'
    yield ".nh"  # a hyphen that is not in an option must not be copied from one
    yield ".ad l"
    yield ".SH NAME"
    yield rf"{escaped(name)} \- {escaped(said)}"
    yield ".SH SYNOPSIS"


def _tail(see_also: str) -> Iterator[str]:
    yield ".SH FILES"
    for path, text in _FILES:
        yield ".TP"
        yield rf"\fI{escaped(path)}\fR"
        yield from _filled(text)
    yield ".SH SEE ALSO"
    yield from _filled(see_also)


def _examples(about: Command, heading: str) -> Iterator[str]:
    if about.kind.examples:
        yield heading
        yield ".nf"
        for line, said in about.kind.examples:
            yield escaped(f"# {said}")
            yield rf"\fB{escaped(line)}\fR"
        yield ".fi"


def _exit_code(about: click.Command) -> Iterator[str]:
    if about.epilog:
        yield ".PP"
        yield from _prose(about.epilog)


def _usage(about: click.Command, name: str) -> Iterator[str]:
    words = " ".join(about.collect_usage_pieces(_context(about)))
    yield rf"\fB{escaped(name)}\fR \fI{escaped(words)}\fR"


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
    words = re.sub(r"(--[\w-]+)\[=", r"\1 [=", record).split(" ")
    names = [word for word in words if word.startswith("-")]
    shown = " ".join(rf"\fB{escaped(name)}\fR" for name in names)
    value = " ".join(words[len(names) :])
    blank = "" if value.startswith("[=") else " "
    return shown + (rf"{blank}\fI{escaped(value)}\fR" if value else "")


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


_IN_BRACKETS = re.compile(r"\[([\w-]+)\]")


class ExplainOptions(Options):
    """Explain a message of dispatch: why it comes, and what to do.

    CODE stands in brackets behind the message, and as message_code in JSON. The whole message, in
    quotes, will do as well, and so will the words for a host that could not be used. Without CODE
    all messages are listed.
    """

    examples = (
        ("dispatch explain rank-failed", "why it comes, what to do"),
        ("dispatch explain host key unknown", "the words will do"),
        ("dispatch explain", "all messages"),
    )

    as_json: bool = json_option("the message or the list")
    words: tuple[str, ...] = argument(metavar="[CODE]")


def explain(options: ExplainOptions) -> int:
    """Print it; the exit code. Raises: UnknownCode."""
    if not options.words:
        if options.as_json:
            tell([{"schema": "message/1", **vars(one)} for one in MESSAGES.values()])
            return 0
        wide = max(map(len, MESSAGES))
        for one in MESSAGES.values():
            click.echo(f"{one.code:<{wide}}  {one.what}")
        return 0
    said = " ".join(options.words)
    pasted = [one for one in _IN_BRACKETS.findall(said) if one in MESSAGES]
    code = pasted[-1] if pasted else "-".join(said.strip("[]").lower().split())
    found = MESSAGES.get(code)
    if found is None:
        near = nearest(code, MESSAGES)
        hint = f"{line([near])}{MEANT}" if near else "dispatch explain  # lists all"
        raise UnknownCode(f"{shown(code)}: no message has that code", hint=hint)
    if options.as_json:
        tell({"schema": "message/1", **vars(found)})
    else:
        click.echo("\n".join(lines(found, shutil.get_terminal_size((80, 24)).columns)))
    return 0


def parts(text: str, wide: int) -> Iterator[str]:
    """The paragraphs of ``text``, filled, each with a blank line; indented ones as they stand."""
    for paragraph in text.split("\n\n"):
        kept = paragraph.startswith("    ")
        yield from paragraph.splitlines() if kept else textwrap.wrap(paragraph, wide)
        yield ""


def lines(message: Message, columns: int) -> list[str]:
    """``message`` as a terminal of so many columns shows it."""
    wide = max(40, min(columns, 80))
    return [
        f"{message.code}: {message.what}",
        "",
        *textwrap.wrap(message.why, wide),
        "",
        *parts(message.do, wide),
        f"exit code: {message.exit_code}",
    ]
