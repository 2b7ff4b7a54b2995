"""The texts of ``-h`` and ``--help``: ``page``; all commands by purpose: ``PURPOSES``.

``-h`` shows the purpose of the command, lines to paste, and the first sentence of the options in
``brief`` of the command's class; ``--help`` shows all. ``Page`` fills lines, since click breaks
``--log-dir`` after its hyphens.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click

from dispatcher.cli.options.declaration import Command, Option

#: purpose -> command -> what it does: as ``dispatch --help``, the manual and shells show them
PURPOSES: dict[str, dict[str, str]] = {
    "Start jobs": {
        "run": "Start a program on all hosts; you may leave the word run out.",
        "again": "Start a job on record again, perhaps with changes.",
        "import": "Translate a command line of torchrun, deepspeed or mpirun.",
    },
    "Look at jobs": {
        "jobs": "List your jobs, running and recently ended.",
        "attach": "Show the output of a running job as it comes.",
        "logs": "Show the output of a job's ranks so far.",
        "top": "Show CPU, memory, GPU and last line of every rank.",
        "diff": "Show the differences between two jobs on record.",
        "report": "Draw a run as one HTML page that can be sent to others.",
    },
    "Look into ranks": {
        "stacks": "Show each rank's position in its program.",
        "profile": "Take samples of running ranks, as a file for speedscope.",
        "debug": "Debug a running rank with pdb.",
    },
    "End jobs": {
        "restart": "End the ranks of a job, and start them again with new code.",
        "stop": "End a job gently and wait until it has ended.",
        "kill": "Kill all processes of a job, even if its launcher is gone.",
        "sweep": "Find leftovers of runs on hosts, and remove them.",
    },
    "Run commands on hosts": {
        "exec": "Run a command once on every host.",
        "dsx": "The same with the options of pdsh and clush, as a short command.",
        "shell": "Type commands at a prompt, for all hosts.",
        "connect": "Keep connections open, so that the next commands start at once.",
        "fold": "Show equal lines of many hosts or ranks once.",
    },
    "Copy files": {
        "put": "Copy files from this machine to every host.",
        "get": "Copy files from every host to this machine.",
    },
    "Hosts and their health": {
        "check": "Check which hosts can run a job, and why others cannot.",
        "hosts": "Print, count, combine or shorten lists of hosts.",
    },
    "Settings and messages": {
        "config": "Show the defaults that dispatch.toml sets.",
        "completion": "Print a script with which the Tab key completes commands.",
        "explain": "Explain a message and what to do about it.",
    },
}

#: the title of the section if there is only one
_ALONE = "Options"
_NO_BREAK = "\N{NO-BREAK SPACE}"
#: columns of a terminal that are used: longer lines are hard to read
_WIDEST = 100
#: where a sentence ends
_SENTENCE = re.compile(r"(?<=[.?])\s+(?=[A-Z(\"'])")


class Page(click.HelpFormatter):
    """click's formatter, but it breaks no line at a hyphen, for words with hyphens are pasted."""

    def write_text(self, text: str) -> None:
        """Write paragraphs; those that begin with click's mark keep their lines."""
        blank = ""
        for paragraph in re.split(r"\n\s*\n", text):
            kept = paragraph.removeprefix("\b\n")
            lines = kept.split("\n") if kept != paragraph else self._filled(paragraph, 0)
            self.write(blank)
            blank = "\n"
            for line in lines:
                self.write(f"{'':{self.current_indent}}{line}".rstrip() + "\n")

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write names, and to the right of them the text about each."""
        rows = list(rows)
        widest = max((len(first) for first, _ in rows if len(first) <= col_max), default=col_max)
        column = widest + col_spacing
        for first, second in rows:
            lines = self._filled(second, column)
            begun = f"{'':{self.current_indent}}{first}"
            if len(first) > widest:
                self.write(begun + "\n")
                begun = f"{'':{self.current_indent}}"
            indent = f"{'':{self.current_indent + column}}"
            said = f"\n{indent}".join(lines)
            self.write(f"{begun:{len(indent)}}{said}".rstrip() + "\n")

    def write_examples(self, examples: Sequence[tuple[str, str]]) -> None:
        """Write lines to paste; each with its purpose after it, or above if that is too wide."""
        widest = max(len(line) for line, _ in examples)
        beside = all(widest + 4 + len(said) <= self._room(0) for _, said in examples)
        for line, said in examples:
            indent = f"{'':{self.current_indent}}"
            if beside:
                self.write(f"{indent}{line:{widest}}  # {said}\n")
            else:
                self.write(f"{indent}# {said}\n{indent}{line}\n")

    def _room(self, column: int) -> int:
        return max(self.width - self.current_indent - column, 20)

    def _filled(self, text: str, column: int) -> list[str]:
        plain = " ".join(text.split()).replace("[default: ", f"[default:{_NO_BREAK}")
        lines = textwrap.wrap(
            plain, self._room(column), break_on_hyphens=False, break_long_words=False
        )
        return [line.replace(_NO_BREAK, " ") for line in lines] or [""]


def page(context: click.Context, *, brief: bool) -> str:
    """The help of the command of ``context``. brief: the text of ``-h``."""
    command, overview = context.command, context.info_name == "dispatch"
    assert isinstance(command, Command)
    examples = command.kind.examples
    formatter = Page(width=_width())
    formatter.write_usage(context.command_path, " ".join(command.collect_usage_pieces(context)))
    if overview:
        formatter.write("       dispatch COMMAND [OPTIONS] ...\n")
    said = command.help or ""
    with _paragraph(formatter):
        formatter.write_text(said.partition("\n\n")[0] if brief else said)
    if examples:
        with formatter.section("Examples"):
            formatter.write_examples(examples)
    if brief:
        with formatter.section(_ALONE):
            formatter.write_dl(brief_rows(command, context))
    else:
        for title, rows in sections(command, context).items():
            with formatter.section(title):
                formatter.write_dl(rows)
    if brief and overview:
        with formatter.section("Commands"):
            formatter.write_dl((what, ", ".join(names)) for what, names in PURPOSES.items())
    elif overview:
        _commands(formatter)
    if brief:
        formatter.write_paragraph()
        name = "dispatch run" if overview else context.info_name
        formatter.write(f"All options: {name} --help\n")
        if overview:
            formatter.write("All commands: dispatch help, and then dispatch COMMAND -h\n")
    elif command.epilog:
        with _paragraph(formatter):
            formatter.write_text(command.epilog)
    return formatter.getvalue().rstrip("\n")


def commands() -> str:
    """The text of ``dispatch help``: a line on each command."""
    formatter = Page(width=_width())
    formatter.write_usage("dispatch", "COMMAND [OPTIONS] ...")
    _commands(formatter)
    formatter.write_paragraph()
    formatter.write("For one of them: dispatch COMMAND -h, or --help for all of its options\n")
    return formatter.getvalue().rstrip("\n")


def _commands(formatter: Page) -> None:
    widest = max(len(name) for names in PURPOSES.values() for name in names)
    for purpose, names in PURPOSES.items():
        with formatter.section(purpose):
            formatter.write_dl((f"{name:{widest}}", said) for name, said in names.items())


def sections(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Title -> (names, help) of each option that is shown, as ``--help`` shows them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            found.setdefault(getattr(parameter, "section", Option.section), []).append(record)
    other = found.pop(Option.section, [])
    return {**found, Option.section if found else _ALONE: other}


def brief_rows(command: Command, context: click.Context) -> list[tuple[str, str]]:
    """(names, first sentence) of the options that ``-h`` shows, in the order of ``brief``."""
    options = {option.name or "": option for option in command.params if isinstance(option, Option)}
    names = command.kind.brief or [name for name, one in options.items() if one.expose_value]
    rows = []
    for name in names:
        option = options[name]
        record = option.get_help_record(context)
        assert record is not None
        rows.append((record[0], option.told(_SENTENCE.split(option.help or "", 1)[0])))
    return rows


def _width() -> int:
    """Characters of a line: of COLUMNS, else of the terminal, else 78; without shutil's 3 ms."""
    columns = os.environ.get("COLUMNS", "")
    wide = int(columns) if columns.isascii() and columns.isdigit() else 0
    if not wide and sys.__stdout__ is not None:
        try:
            wide = os.get_terminal_size(sys.__stdout__.fileno()).columns
        except (OSError, ValueError):
            wide = 0
    return max(min(wide or 80, _WIDEST) - 2, 50)


@contextmanager
def _paragraph(formatter: Page) -> Iterator[None]:
    formatter.write_paragraph()
    with formatter.indentation():
        yield
