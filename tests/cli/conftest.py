"""A command line as the function of its command gets it: options typed, click's context open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dispatcher.cli import COMMANDS, named
from dispatcher.cli.entry import load, shown_name
from dispatcher.cli.options.spelling import filled, respelled

Parsed = Callable[..., Any]


@pytest.fixture
def parsed() -> Iterator[Parsed]:
    """``parsed("run", *words)`` gives the ``RunOptions`` of a line of ``dispatch run``."""
    with ExitStack() as stack:

        def parse(name: str, *words: str) -> Any:
            command = load(name)
            typed = respelled(command, words)
            args = filled(command, typed)
            context = command.make_context(shown_name(name), args, obj=tuple(typed))
            stack.enter_context(context)
            return named(COMMANDS[name][0])(**context.params)

        yield parse
