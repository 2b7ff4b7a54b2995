"""Completion in bash, zsh and fish: ``dispatch completion SHELL`` prints what a shell loads.

The shell then calls ``dispatch`` with ``_DISPATCH_COMPLETE`` and the words typed so far, and
``answer`` says what may follow. click knows commands, options and their values from the same
definitions that run; host names come from ssh's files, read as plain text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load
from dispatcher.cli.options.declaration import Options, argument

VARIABLE = "_DISPATCH_COMPLETE"
_MOST_BYTES = 4 << 20
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HOST_OPTIONS = ("-H", "-w")


def _files(typed: str) -> CompletionItem:
    """Files as well; first of all items, since bash's script forgets what came before."""
    return CompletionItem(typed, type="file")


class _Commands(click.Group):
    """All commands under one name; what is no command is the program of ``run``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(cmd_name) if cmd_name in COMMANDS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [_files(incomplete), *super().shell_complete(ctx, incomplete)]


def answer(instruction: str) -> int:
    """Answer the shell, which speaks by environment variables; 0 if it was understood."""
    words = os.environ.get("COMP_WORDS", "").split()
    first = words[1] if len(words) > 1 else ""
    # bash and zsh give the number of the current word, fish the word itself
    at_first = len(words) <= 2 and os.environ.get("COMP_CWORD") in ("1", first)
    whole = first in COMMANDS or (at_first and not first.startswith("-"))
    chosen = _Commands("dispatch") if whole else _load("run")
    return shell_complete(chosen, {}, "dispatch", VARIABLE, instruction)


def _load(name: str) -> click.Command:
    command = load(name)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and set(parameter.opts) & set(_HOST_OPTIONS):
            parameter._custom_shell_complete = _hosts
    return command


def _hosts(_: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Hosts whose names go on from what was typed, after the last comma; and files for -H."""
    before, comma, last = typed.rpartition(",")
    found = [CompletionItem(before + comma + name) for name in known() if name.startswith(last)]
    return [_files(typed), *found] if "-H" in parameter.opts else found


def known() -> list[str]:
    """Host names that ssh's files give in plain text, without patterns and hashed ones."""
    folder = os.path.expanduser("~/.ssh")
    files = (
        (_of_known_hosts, "/etc/ssh/ssh_known_hosts"),
        (_of_known_hosts, os.path.join(folder, "known_hosts")),
        (_of_config, "/etc/ssh/ssh_config"),
        (_of_config, os.environ.get("DISPATCH_SSH_CONFIG") or os.path.join(folder, "config")),
    )
    names: dict[str, None] = {}
    for reader, path in files:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read(_MOST_BYTES).splitlines()
        except OSError:
            continue
        names |= dict.fromkeys(name for name in reader(lines) if _PLAIN.match(name))
    return sorted(names)


def _of_known_hosts(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        words = line.split()
        if words and words[0].startswith("@"):
            words = words[1:]
        if words and not words[0].startswith(("#", "|")):
            for name in words[0].split(","):
                yield name.partition("]")[0].lstrip("[")


def _of_config(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        words = re.split(r"[\s=]+", line.strip())
        if words[0].lower() == "host":
            yield from words[1:]


class CompletionOptions(Options):
    """Print what a shell has to load so that the Tab key completes dispatch's words.

    Commands, options and their values are completed, and names of hosts, groups, jobs and files.
    For zsh, ~/.zfunc has to be in fpath: fpath+=~/.zfunc before compinit in ~/.zshrc.
    """

    examples = (
        (
            "dispatch completion bash > ~/.local/share/bash-completion/completions/dispatch",
            "bash",
        ),
        ("dispatch completion zsh > ~/.zfunc/_dispatch", "zsh"),
        ("dispatch completion fish > ~/.config/fish/completions/dispatch.fish", "fish"),
    )

    shell: Literal["bash", "zsh", "fish"] = argument(required=True)


def completion(options: CompletionOptions) -> int:
    """Print the script; the exit code."""
    kind = get_completion_class(options.shell)
    assert kind is not None
    click.echo(kind(_Commands("dispatch"), {}, "dispatch", VARIABLE).source())
    return 0
