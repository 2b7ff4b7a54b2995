"""A command's class is all that is said of its options: click, help and types agree with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import pytest
from cases import cases

from dispatcher.cli import COMMANDS, object_at
from dispatcher.cli.entry import load_command
from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.options.declaration import (
    Option,
    Options,
    argument,
    declared,
    names_of,
    option,
    replace,
)
from dispatcher.cli.options.host_options import HostOptions, WhereOptions
from dispatcher.cli.run.run import RunOptions
from dispatcher.model.errors import UsageError
from dispatcher.plan.job.request import MAY_BE_ZERO, Limits


class LinkOptions(Options, section="Links"):
    """How."""

    limit: str | None = option("-l", help="Usual.")
    speed: Literal["slow", "fast"] = option(default="slow", help="How fast.")


class PlainOptions(Options):
    """What a function reads, and who offers it is not said here."""

    hosts: tuple[str, ...] = ()
    limit: str | None = None


class CopyOptions(PlainOptions, LinkOptions, section="Copies"):
    """Copy."""

    words: tuple[str, ...] = argument(metavar="WORDS")
    hosts: tuple[str, ...] = option("-w", "--where", help="Where.")
    limit: str | None = option("--most", bare="9", help="Otherwise.")


class SlowOptions(CopyOptions):
    """Copy slowly."""

    speed: Literal["slow", "fast"] = "slow"


def made(kind: type[Options]) -> dict[str, click.Parameter]:
    return {name: one.parameter(name) for name, one in declared(kind).items()}


def test_a_field_declared_again_keeps_its_place() -> None:
    found = made(CopyOptions)
    assert list(found) == ["limit", "speed", "words", "hosts"]
    assert found["limit"].opts == ["--most"]
    assert found["hosts"].multiple
    assert found["words"].nargs == -1
    shown = [(one.section, one.bare) for one in found.values() if isinstance(one, Option)]
    assert shown == [("Copies", "9"), ("Links", None), ("Copies", None)]
    assert names_of(CopyOptions) == {"limit": None, "speed": "slow", "hosts": (), "words": ()}


def test_a_plain_value_is_no_option_and_takes_one_away() -> None:
    assert "speed" not in made(SlowOptions)
    assert (SlowOptions().speed, SlowOptions(limit="3").limit) == ("slow", "3")
    assert not made(PlainOptions)


class TimedOptions(Options):
    """Wait."""

    delay: float | None = option("-d", metavar="S", help="Seconds.")
    tries: int | None = option(metavar="N", most=9, help="Times.")
    limit: float | None = option("-l", metavar="S", positive=True, help="S.", usual="no limit")
    period: float | None = option(metavar="S", positive=True, help="S.", usual="20; 60 if full")


@cases(
    ("words", "wanted"),
    [
        (["-d", "0", "--tries", "9", "-l", "0.1"], {"delay": 0, "tries": 9, "limit": 0.1}),
        ([], {}),
        (["-d", "soon"], "--delay: not a number of seconds: 'soon'"),
        (["--tries", "0"], "--tries: 0 is not between 1 and 9"),
        (["--tries=10"], "--tries: 10 is not between 1 and 9"),
    ],
)
def test_numbers_are_read_where_they_are_declared(words: list[str], wanted: Any) -> None:
    command = click.Command("wait", params=list(made(TimedOptions).values()))
    if isinstance(wanted, str):
        with pytest.raises(UsageError) as caught:
            command.make_context("wait", words)
        assert caught.value.message == wanted
    else:
        unset = dict.fromkeys(("delay", "tries", "limit", "period"))
        assert command.make_context("wait", words).params == {**unset, **wanted}


@cases(
    ("words", "message", "hint"),
    [
        (["-l", "0"], "--limit: 0 is not more than 0 seconds", "without --limit: no limit"),
        (["--period=0.0"], "--period: 0.0 is not more than 0 seconds", "--period 20"),
    ],
)
def test_nothing_waits_for_no_time(words: list[str], message: str, hint: str) -> None:
    command = click.Command("wait", params=list(made(TimedOptions).values()))
    with pytest.raises(UsageError) as caught:
        command.make_context("wait", words)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_limit_that_cannot_be_0_is_refused_by_its_option() -> None:
    limits = {name for name, value in vars(Limits()).items() if isinstance(value, float)}
    there = {name: one for name, one in declared(RunOptions).items() if name in limits}
    positive = {name for name, one in there.items() if one.positive}
    assert positive == there.keys() - MAY_BE_ZERO


def test_every_limit_that_is_an_option_is_taken() -> None:
    """They are found by name, so that a new one needs no line of its own."""
    names = set(names_of(RunOptions)) & set(Limits.__match_args__)
    ours = {"lifeline_grace", "warn_before", "warn_signal"}  # the latter two are --signal's
    ours |= {"heartbeat_rate", "unreachable"}  # by the number of hosts, and by --heartbeat
    assert set(Limits.__match_args__) - names == ours


def parameters() -> Iterator[Any]:
    for name in COMMANDS:
        for parameter in load_command(name).params:
            if parameter.expose_value:
                yield pytest.param(name, parameter, id=f"{name} {parameter.name}")


@cases("name", COMMANDS)
def test_what_carries_a_command_out_takes_its_class(name: str) -> None:
    kind, function = map(object_at, COMMANDS[name])
    assert function.__annotations__ == {"options": kind.__name__, "return": "int"}
    assert (kind.__doc__, load_command(name).help) != (Options.__doc__, "")


def type_of(parameter: click.Parameter) -> Any:
    """The type of the values that click gives, but for None."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return bool
    if parameter.multiple or parameter.nargs == -1:
        return tuple[str, ...]
    if isinstance(parameter.type, click.Choice):
        return Literal[tuple(parameter.type.choices)]
    return {"text": str, "float range": float, "seconds": float, "number": int}[parameter.type.name]


def without_none(kind: Any) -> Any:
    parts = [part for part in get_args(kind) if part is not type(None)]
    return parts[0] if type(None) in get_args(kind) else kind


@cases(("name", "parameter"), list(parameters()))
def test_an_option_and_its_annotation_agree(name: str, parameter: click.Parameter) -> None:
    """The annotation is read as text, and at a start nobody looks whether it is a type."""
    kind, field = object_at(COMMANDS[name][0]), parameter.name or ""
    said = get_type_hints(kind)[field]
    bare, wanted = without_none(said), type_of(parameter)
    assert bare == wanted or (bare is str and get_origin(wanted) is Literal)
    with load_command(name).make_context(name, [], resilient_parsing=True) as context:
        value = context.params[field]
    assert value == names_of(kind)[field]
    assert value is not None or said != bare or parameter.required


@cases("name", COMMANDS)
def test_help_says_what_a_value_is(name: str) -> None:
    """A word for it, or its choices; never the name that a field has here."""
    for one in load_command(name).params:
        if isinstance(one, click.Option):
            said = one.metavar or isinstance(one.type, click.Choice)
            assert said or one.is_flag, (name, one.opts)
            assert one.help
        elif one.nargs == -1:
            assert one.metavar, (name, one.name)


#: options that change nothing unless they are given
SILENT = {
    "app", "apply", "error-dir", "events", "exclude", "failed-to", "fanout-tree", "for", "grep",
    "hostfile", "include", "iface", "keep", "local-rank-arg", "log", "log-dir", "metrics",
    "on-end", "only-ranks", "output-dir", "profile", "progress-file", "progress-line", "rank",
    "retry-failed", "rsh", "script", "shell", "since", "site-checks", "ssh-config", "ssh-port",
    "step-line", "sudo", "svg", "trace", "user", "xid-table",
}  # fmt: skip


@cases("name", COMMANDS)
def test_help_says_what_is_usual(name: str) -> None:
    """Of all options with a value that do something where nobody gives them."""
    for one in load_command(name).params:
        if isinstance(one, Option) and not one.is_flag and not one.multiple:
            silent = one.opts[-1].removeprefix("--") in SILENT
            assert one.usual or silent, (name, one.opts)
            told = one.told("x")
            assert told == (f"x [default: {one.usual}]" if one.usual else "x")


@cases(
    ("name", "option"),
    [("run", "--ssh-port"), ("exec", "-p"), ("run", "--master-port"), ("check", "--master-port")],
)
def test_a_port_has_sixteen_bits(name: str, option: str) -> None:
    field = "master_port" if "master" in option else "ssh_port"
    words = ["-H", "n1", option]
    assert load_command(name).make_context(name, [*words, "65535", "x"]).params[field] == 65535
    with pytest.raises(UsageError, match="65536 is not between 1 and 65535"):
        load_command(name).make_context(name, [*words, "65536", "x"])


def test_options_are_frozen_and_made_by_their_names() -> None:
    options = ExecOptions(gather=True)
    assert (options.gather, options.diff, options.transport) == (True, False, "auto")
    assert replace(options, gather=False) == ExecOptions() != options
    assert WhereOptions(lists=("n1",)) != HostOptions(lists=("n1",))
    assert "gather=True, gather_all=False" in repr(options)
    with pytest.raises(AttributeError, match="cannot assign to field 'gather'"):
        options.gather = False  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"ExecOptions: its fields are .*gather"):
        ExecOptions(gathre=True)  # type: ignore[call-arg]
