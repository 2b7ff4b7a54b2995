"""``dispatch explain``: explain a message of dispatch and what to do about it."""

from __future__ import annotations

import re
import shutil
import textwrap

import click

from dispatcher.cli import aligned, print_json, print_lines
from dispatcher.cli.mistakes import MEANT
from dispatcher.cli.options.declaration import Options, argument, json_option
from dispatcher.model.errors import UnknownCode
from dispatcher.model.messages import MESSAGES, Message
from dispatcher.model.names import nearest, quoted

_IN_BRACKETS = re.compile(r"\[([\w-]+)\]")


class ExplainOptions(Options):
    """Explain a message of dispatch and what to do about it.

    CODE is in brackets at the end of the message, and message_code in JSON. You may also give the
    whole message, in quotes, or the words for a host that could not be used. Without CODE it lists
    all messages.
    """

    examples = (
        ("dispatch explain rank-failed", "its cause, and what to do about it"),
        ("dispatch explain host key unknown", "by the words of a failure"),
        ("dispatch explain", "all messages"),
    )

    as_json: bool = json_option("the message or the list")
    words: tuple[str, ...] = argument(metavar="[CODE]")


def explain(options: ExplainOptions) -> int:
    """Print the explanation; the exit code. Raises: UnknownCode."""
    if not options.words:
        if options.as_json:
            print_json(list(MESSAGES.values()))
            return 0
        print_lines(aligned([(one.code, one.what) for one in MESSAGES.values()]))
        return 0
    said = " ".join(options.words)
    pasted = [one for one in _IN_BRACKETS.findall(said) if one in MESSAGES]
    code = pasted[-1] if pasted else "-".join(said.strip("[]").lower().split())
    found = MESSAGES.get(code)
    if found is None:
        near = nearest(code, MESSAGES)
        hint = f"dispatch explain {near}{MEANT}" if near else "dispatch explain  # lists all"
        raise UnknownCode(f"{quoted(code)}: no message has that code", hint=hint)
    if options.as_json:
        print_json(found)
    else:
        click.echo("\n".join(lines(found, shutil.get_terminal_size((80, 24)).columns)))
    return 0


def lines(message: Message, columns: int) -> list[str]:
    """``message`` for a terminal of ``columns``; indented paragraphs are kept unchanged."""
    wide = max(40, min(columns, 80))
    found = [f"{message.code}: {message.what}", "", *textwrap.wrap(message.why, wide), ""]
    for paragraph in message.do.split("\n\n"):
        kept = paragraph.startswith("    ")
        found += [*(paragraph.splitlines() if kept else textwrap.wrap(paragraph, wide)), ""]
    return [*found, f"exit code: {message.exit_code}"]
