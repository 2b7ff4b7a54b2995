"""The options of a command, declared once: a class whose fields are its options.

::

    class SweepOptions(WhereOptions, LoginOptions):
        '''List what is left on the hosts ...'''                 # the command's help

        run_id: str | None = argument(metavar="[RUN_ID]")
        kills: bool = option("--kill", help="Kill and remove what is listed as left over.")
        seconds: float | None = preset(help="Give up on a host after SECONDS.")

A ``dispatch.toml`` of the current folder may set a ``preset``, but no ``option``. The annotation
is the type: ``bool`` is a flag, a ``Literal`` has choices, a ``tuple`` may be repeated, a ``float``
is seconds, an ``int`` counts from 1, all else is a text. A class is one section of ``--help``; a
command's class joins some, in the order of its bases. It may declare an option again, or take one
away by a field with a plain value. A function takes the smallest class that has what it needs. The
first sentence of a help text must make sense alone: ``-h`` shows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from dispatcher.cli.options.spelling import teach_parser
from dispatcher.model.frozen import Value

if TYPE_CHECKING:
    from dataclasses import replace as replace

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Any:
        return lambda base: base

    def replace(options: Options, **changes: Any) -> Options:
        """``options`` with some of them changed."""
        return type(options)(**{**vars(options), **changes})


Kind = TypeVar("Kind", bound="Options")


class _Completed:
    """A parameter whose words for the Tab key come from ``tools.completion``."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """The words that it may have."""
        from dispatcher.cli import object_at

        found: list[Any] = object_at("tools.completion:words_for")(ctx, self, incomplete)
        return found


class Argument(_Completed, click.Argument):
    """click's argument, with words for the Tab key."""


class Option(_Completed, click.Option):
    """click's option, with our settings for help and the Tab key."""

    section = "Other"  #: the title that ``--help`` shows it below
    bare: str | None = None  #: its value where none is given
    usual: str | None = None  #: the default, as ``--help`` names it
    in_folder = False  #: whether a ``dispatch.toml`` of the current folder may set it

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Raises: UsageError, which names the file if one has the value."""
        from dispatcher.model.errors import UsageError

        try:
            return super().type_cast_value(ctx, value)
        except UsageError as error:
            from dispatcher.cli.options.option_defaults import origin

            if place := origin(self.name or ""):
                error.message = place + error.message.removeprefix(self.opts[-1])
            raise

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """The variable's text, whole, also where the option may be repeated."""
        text = self.resolve_envvar_value(ctx)
        return [text] if text is not None and self.multiple else text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Names and help text, with the default at its end; None if it is not shown."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        return record[0].replace(" [=", "[="), self.told(self.help or "")

    def told(self, text: str) -> str:
        """``text`` and the default."""
        return text if self.usual is None else f"{text} [default: {self.usual}]"


class Command(click.Command):
    """click's command, and the class that declares its options."""

    kind: type[Options]

    def make_parser(self, ctx: click.Context) -> Any:
        """click's parser, for our command lines."""
        parser = super().make_parser(ctx)
        teach_parser(parser, self)
        return parser

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Options that begin so; after the program, the words for the program's own options."""
        program = next((one for one in self.params if one.name == "words"), None)
        if program is not None and ctx.params["words"] and not ctx.allow_interspersed_args:
            return program.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete.replace("_", "-"))


class NotAChoice(click.BadParameter):
    """``value`` is not one of ``choices``."""

    def __init__(self, value: str, choices: Sequence[str]) -> None:
        super().__init__(f"{value!r} is not one of {', '.join(choices)}")
        self.value = value
        self.choices = choices


def _stands_for(choice: str, value: str) -> bool:
    """Whether ``value`` has a word for each in capitals in ``choice``, which has at least one."""
    words, given = choice.split(":"), value.split(":")
    return (
        len(words) == len(given)
        and any(map(str.isupper, words))
        and all(one.isupper() or one == other for one, other in zip(words, given, strict=True))
    )


class WordChoice(click.Choice):  # type: ignore[type-arg]
    """One of some words. A word with capitals between colons stands for others: ``ppr:N:WHAT``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises: NotAChoice."""
        if any(_stands_for(choice, str(value)) for choice in self.choices):
            return value
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise NotAChoice(str(value), self.choices) from None


class _Seconds(click.ParamType):  # type: ignore[type-arg]
    """A duration; a fraction of a second, too.

    positive: 0 is refused, and the hint gives the ``usual`` value.
    """

    name = "seconds"

    def __init__(self, positive: bool, usual: str | None) -> None:
        self._positive = positive
        self._usual = usual or ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises: UsageError."""
        if not isinstance(value, str) or param is None:
            return value
        from dispatcher.model.errors import UsageError
        from dispatcher.plan.job.request import parse_seconds

        if "-t" in param.opts and value and not value.strip("t"):  # ssh -tt
            hint = "for a terminal on the host: --pty"
            raise UsageError(f"-t{value}: -t takes a number of seconds", hint=hint)
        seconds, flag = parse_seconds(value, param.opts[-1]), param.opts[-1]
        if self._positive and not seconds:
            usual = self._usual.partition(";")[0]  # of "20; 60 if full"
            hint = f"{flag} {usual}" if usual[:1].isdigit() else f"without {flag}: {usual}"
            raise UsageError(f"{flag}: {value} is not more than 0 seconds", hint=hint)
        return seconds


class _Count(click.ParamType):  # type: ignore[type-arg]
    """A number from 1 to ``most``; None: to the most ranks that there may be."""

    name = "number"

    def __init__(self, most: int | None) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises: UsageError."""
        if not isinstance(value, str) or param is None:
            return value
        from dispatcher.model.errors import UsageError
        from dispatcher.model.names import MOST_RANKS, parse_count

        if "-p" in param.opts and not value[:1].isdigit():  # clush -p, pdcp -p
            hint = "without -p: copies keep modes and times; a port: -p 22"
            raise UsageError(f"{param.opts[-1]}: not a whole number: {value!r}", hint=hint)
        return parse_count(value, param.opts[-1], self._most or MOST_RANKS)


class Share(click.ParamType):  # type: ignore[type-arg]
    """A number of hosts, or a share of them: ``4``, ``10%``. several: or a list of these."""

    name = "text"

    def __init__(self, *, several: bool = False) -> None:
        self._several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises: UsageError."""
        from dispatcher.plan.exec_plan import check_share

        if param is not None:
            check_share(str(value), param.opts[-1], several=self._several)
        return str(value)


class Declared:
    """The arguments of ``option`` or ``argument``. names: None for an argument; see there."""

    def __init__(self, names: tuple[str, ...] | None, default: Any, settings: dict[str, Any]):
        self.names = names
        self.default = default
        self.settings = settings
        self.section: str | None = None
        self.bare: str | None = None
        self.usual: str | None = None
        self.is_last = False
        self.most: int | None = None
        self.positive = False
        self.in_folder = False
        self.note = ""  # the annotation; evaluated, a hundred would take 3 ms of every start

    def parameter(self, name: str) -> click.Parameter:
        """click's parameter for the field ``name``."""
        settings, many = self.settings, self.note.startswith("tuple")
        if self.default:
            settings["default"] = self.default
        if self.note.startswith("Literal"):
            settings["type"] = WordChoice(self.note.split("'")[1::2])
        if self.names is None:
            return Argument([name], nargs=-1 if many else 1, **settings)
        if self.note == "bool":
            settings["is_flag"] = True
        elif self.note.startswith(("float", "int")):
            seconds = _Seconds(self.positive, self.usual)
            settings.setdefault("type", seconds if self.note[0] == "f" else _Count(self.most))
        if many:
            settings["multiple"] = True
        names = [*self.names, name]
        if not self.names or not self.names[-1].startswith("--"):
            names.insert(-1, "--" + name.replace("_", "-"))
        made = Option(names, **settings)
        made.section, made.bare = self.section or Option.section, self.bare
        made.usual, made.in_folder = self.usual, self.in_folder
        return made


def option(
    *names: str,
    help: str,
    default: Any = None,
    bare: str | None = None,
    usual: str | None = None,
    section: str | None = None,
    most: int | None = None,
    positive: bool = False,
    **settings: Any,
) -> Any:
    """A field that is an option. names: ``-x``, ``--long``; without a long one the field's own.

    bare: its value where none is given. usual: the default, as ``--help`` names it;
    the default itself, if that is a word. section: another than the class's.
    most: the largest number that it takes, for an ``int``. positive: a ``float`` of 0 is refused.
    settings: metavar, envvar and others that click takes.
    """
    settings["help"] = help
    declared = Declared(names, default, settings)
    declared.bare, declared.section = bare, section
    declared.most, declared.positive = most, positive
    declared.usual = usual if usual is not None or not isinstance(default, str) else default
    return declared


def preset(*names: str, **settings: Any) -> Any:
    """An ``option`` that a ``dispatch.toml`` of the current folder may set, too."""
    declared = option(*names, **settings)
    declared.in_folder = True
    return declared


def json_option(what: str, how: str = "") -> Any:
    """The field ``as_json``: ``--json``, which prints ``what`` as JSON."""
    return preset("--json", help=f"Print {what} as JSON{how}.")


def dry_run_option() -> Any:
    """The field ``dry_run``, for commands that touch hosts; see ``connect_options.show_only``."""
    return preset(
        "--dry-run",
        section=Option.section,
        help="Show the plan, and contact no host.",
    )


def argument(
    *, default: Any = None, last: bool = False, required: bool = False, **settings: Any
) -> Any:
    """A field that is a word without a name or, if a tuple, any number of them.

    last: they are a program and its arguments, so our options come before them.
    """
    declared = Declared(None, default, {**settings, "required": required})
    declared.is_last = last
    return declared


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options(Value):
    """Base of the classes. A field with another value than a declaration is not an option."""

    #: the last paragraph of ``--help``
    epilog = ""
    #: lines to paste, each with its purpose
    examples: ClassVar[tuple[tuple[str, str], ...]] = ()
    #: the fields that ``-h`` shows, in this order; none named: all
    brief: ClassVar[tuple[str, ...]] = ()
    #: field -> the declaration in the class itself, None for a plain value
    _own: ClassVar[dict[str, Declared | None]] = {}

    def __init_subclass__(cls, section: str | None = None) -> None:
        """Take the fields of the body. section: of its options."""
        own: dict[str, Declared | None] = dict.fromkeys(cls.__annotations__)
        for name, note in cls.__annotations__.items():
            one = vars(cls).get(name)
            if type(one) is Declared:
                own[name] = one
                one.note, one.section = note, one.section or section
                usual = False if note == "bool" else () if note.startswith("tuple") else None
                setattr(cls, name, usual if one.default is None else one.default)
        cls._own = own
        names = (vars(base).get("_own", ()) for base in reversed(cls.__mro__))
        cls._defaults = {name: getattr(cls, name, MISSING) for some in names for name in some}
        cls._required = tuple(name for name, usual in cls._defaults.items() if usual is MISSING)


def names_of(kind: type[Options]) -> dict[str, Any]:
    """Name -> default of all fields of ``kind``."""
    return kind._defaults


def declared(kind: type[Options]) -> dict[str, Declared]:
    """Field -> declaration, of all options and arguments of ``kind`` in the order of the help."""
    return {name: one for name, one in _declared(kind).items() if one is not None}


def _declared(kind: type[Any]) -> dict[str, Declared | None]:
    found: dict[str, Declared | None] = {}
    for base in kind.__bases__:
        for name, one in _declared(base).items():
            found.setdefault(name, one)
    for name, one in vars(kind).get("_own", {}).items():
        if one is not None or name in found:  # a plain value takes away a field of a base only
            found[name] = one
    return found


def converted(options: Options, kind: type[Kind], **changes: Any) -> Kind:
    """A ``kind`` with the values of ``options`` that it knows, and ``changes``."""
    same = declared(type(options)).keys() & names_of(kind).keys()
    return kind(**{**{name: getattr(options, name) for name in same}, **changes})


def carried(options: Options, kind: type[Value]) -> dict[str, Any]:
    """The ``options`` that fields of ``kind`` are named after, less those that were not given."""
    known = names_of(type(options))
    found = {one.name: getattr(options, one.name) for one in fields(kind) if one.name in known}
    return values_given(**found)


def values_given(**values: Any) -> dict[str, Any]:
    """Those of ``values`` that are not None: the user's settings, to put over the defaults."""
    return {name: value for name, value in values.items() if value is not None}
