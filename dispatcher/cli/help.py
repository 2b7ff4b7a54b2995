"""Sections of ``--help`` and of the manual: options together that are about one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

_TITLE = "section"
#: what a section is called that nobody named, beside others and alone
_OTHER, _ALONE = "Other", "Options"


def section(title: str, *options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """A decorator that adds ``options`` to a command, to be shown below ``title``."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
            setattr(function.__click_params__[-1], _TITLE, title)  # type: ignore[attr-defined]
        return function

    return add


def sections(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Title -> (names, help) of each option that is shown, as ``--help`` shows them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            found.setdefault(getattr(parameter, _TITLE, _OTHER), []).append(record)
    other = found.pop(_OTHER, [])
    return {**found, _OTHER if found else _ALONE: other}


class SectionedCommand(click.Command):
    """A command whose ``--help`` shows its options by sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections. formatter: of click's."""
        for title, rows in sections(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)
