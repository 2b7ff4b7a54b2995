"""A command line as the function of its command gets it: options typed, click's context open."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, get_type_hints

import click
import pytest

from dispatcher.cli.command_table import COMMANDS
from dispatcher.cli.entry import profiled
from dispatcher.cli.options.spelling import filled, respelled

Parsed = Callable[..., Any]


@pytest.fixture
def parsed() -> Iterator[Parsed]:
    """``parsed("run", *words)`` gives the ``RunOptions`` of a line of ``dispatch run``."""
    with ExitStack() as stack:

        def parse(name: str, *words: str) -> Any:
            module = importlib.import_module(f"dispatcher.cli.{COMMANDS[name]}")
            command: click.Command = profiled(module.command)
            typed = respelled(command, words, {})
            args = filled(command, typed, {})
            called = "dispatch" if name == "run" else f"dispatch {name}"
            context = command.make_context(called, args, obj=tuple(typed))
            stack.enter_context(context)
            kind = get_type_hints(getattr(command.callback, "__wrapped__", None))["options"]
            return kind(**context.params)

        yield parse
