"""Every option of every command stands in its class: the same name, type and default."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import pytest

import dispatcher
from dispatcher.cli.command_table import COMMANDS
from dispatcher.cli.options import option_classes
from dispatcher.cli.options.option_classes import ExecOptions, Options, ShellOptions, replace

HOUSE = Path(dispatcher.__file__).parent


def command_of(name: str) -> click.Command:
    found: click.Command = importlib.import_module(f"dispatcher.cli.{COMMANDS[name]}").command
    return found


def fields_of(command: click.Command) -> tuple[dict[str, Any], dict[str, Any]]:
    """Types and defaults of what the command's function takes, of its class if it takes one."""
    function = getattr(command.callback, "__wrapped__", command.callback)
    types = get_type_hints(function)
    types.pop("return")
    if list(types) != ["options"]:
        return types, {}
    kind = types["options"]
    assert issubclass(kind, Options)
    return get_type_hints(kind), option_classes.names_of(kind)


def type_of(parameter: click.Parameter) -> Any:
    """The type of the values that click gives, but for None."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return bool
    if parameter.multiple or parameter.nargs == -1:
        return tuple[str, ...]
    if isinstance(parameter.type, click.Choice):
        return Literal[tuple(parameter.type.choices)]
    return {"text": str, "float range": float, "float": float}[parameter.type.name]


def without_none(kind: Any) -> Any:
    parts = [part for part in get_args(kind) if part is not type(None)]
    return parts[0] if type(None) in get_args(kind) else kind


def parameters() -> Iterator[Any]:
    for name in COMMANDS:
        for parameter in command_of(name).params:
            if parameter.expose_value:
                yield pytest.param(name, parameter, id=f"{name} {parameter.name}")


@pytest.mark.parametrize(("name", "parameter"), list(parameters()))
def test_an_option_and_its_field_agree(name: str, parameter: click.Parameter) -> None:
    command = command_of(name)
    types, defaults = fields_of(command)
    said = types[parameter.name or ""]
    bare, wanted = without_none(said), type_of(parameter)
    assert bare == wanted or (bare is str and get_origin(wanted) is Literal)
    with command.make_context(name, [], resilient_parsing=True) as context:
        value = context.params[parameter.name or ""]
    assert value == defaults.get(parameter.name or "", value)
    assert value is not None or said != bare or parameter.required


def test_options_are_frozen_and_made_by_their_names() -> None:
    options = ExecOptions(gather=True)
    assert (options.gather, options.diff, options.transport) == (True, False, "auto")
    assert replace(options, gather=False) == ExecOptions() != options
    assert options != ShellOptions(gather=True)
    assert repr(options) == "ExecOptions(gather=True)"
    with pytest.raises(AttributeError, match="frozen"):
        options.gather = False  # type: ignore[misc]
    with pytest.raises(TypeError, match="'gathre'"):
        ExecOptions(gathre=True)  # type: ignore[call-arg]


def functions(room: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted((HOUSE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.relative_to(HOUSE)}: {node.name}", node


def test_nobody_takes_options_as_a_dictionary() -> None:
    taken = [
        where
        for room in ("cli", "api")
        for where, node in functions(room)
        for one in (*node.args.args, *node.args.kwonlyargs, node.args.kwarg)
        if one is not None
        and (
            one.arg in ("flags", "options", "settings")
            and one.annotation is not None
            and "Any" in ast.unparse(one.annotation)
        )
    ]
    assert taken == ["cli/entry.py: command"]  # which hands click's own settings on
