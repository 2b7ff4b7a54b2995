"""One launcher's flags as a table, and the reader of a command line by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dispatcher.model.errors import UsageError

#: the values of a flag to words for dispatch; None: it is not needed there
Becomes = Callable[..., Sequence[str] | None]


@dataclass(frozen=True)
class Flag:
    """What becomes of a flag: how many values it takes, the words for dispatch, and why."""

    becomes: Becomes
    why: str = ""
    values: int = 1


@dataclass(frozen=True)
class Reason:
    """A flag as it was written, the words it became (none: left out), and why."""

    written: tuple[str, ...]
    words: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Line:
    """A command line of dispatch: ``options``, then ``program``; and how it came about."""

    options: tuple[str, ...]
    program: tuple[str, ...]
    reasons: tuple[Reason, ...] = field(default=())

    @property
    def words(self) -> tuple[str, ...]:
        """The whole line, ``dispatch`` first."""
        return ("dispatch", *self.options, *self.program)


def to(*words: str) -> Becomes:
    """The flag's values follow ``words``."""
    return lambda *values: (*words, *values)


def gone(*_: str) -> None:
    """The flag has no counterpart and needs none."""


def refuse(hint: str) -> Becomes:
    """The flag cannot be met."""

    def becomes(*_: str) -> Sequence[str]:
        raise UsageError("cannot be met by dispatch", hint=hint)

    return becomes


def flag(
    table: dict[str, Flag], names: str, becomes: Becomes, why: str = "", values: int = 1
) -> None:
    """Add a flag under all its ``names``, separated by spaces."""
    for name in names.split():
        table[name] = Flag(becomes, why, values)


def read(
    words: Sequence[str],
    table: Mapping[str, Flag],
    who: str,
    spelled: Callable[[str], str] = lambda name: name,
) -> tuple[list[str], list[str], list[Reason]]:
    """Options for dispatch, what comes after the flags, and the reasons.

    spelled: a flag's name as it was written to the name in ``table``.

    Raises: UsageError for a flag not in the table, one without its value, or one
    that cannot be met.
    """
    options: list[str] = []
    reasons: list[Reason] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        name, equals, value = rest[0].partition("=")
        known = table.get(spelled(name))
        if known is None:
            raise UsageError(f"{who}: {name}: not known here", hint="leave it out and ask again")
        if equals and known.values != 1:
            raise UsageError(f"{who}: {name} takes no value after =")
        n_words = 1 if equals else 1 + known.values
        if len(rest) < n_words:
            raise UsageError(f"{who}: {name}: its value is missing")
        written, rest = tuple(rest[:n_words]), rest[n_words:]
        try:
            became = known.becomes(*([value] if equals else written[1:]))
        except UsageError as error:
            raise UsageError(
                f"{who}: {' '.join(written)}: {error.message}", hint=error.hint
            ) from None
        reasons.append(Reason(written, tuple(became or ()), known.why))
        options += became or ()
    return options, rest[1:] if rest[:1] == ["--"] else rest, reasons


def program(rest: Sequence[str], who: str) -> tuple[list[str], list[str]]:
    """Options and words for a program written as for ``mpirun``: any command, Python included.

    Raises: UsageError when there is none.
    """
    if not rest:
        raise UsageError(f"{who}: no program in it")
    name = rest[0].rpartition("/")[2]
    if not (name == "python" or name.startswith("python3")):
        return ["--no-python"], list(rest)
    words = list(rest[1:])
    while words[:1] == ["-u"]:  # dispatch starts Python so anyway
        words.pop(0)
    if words[:1] == ["-m"] and len(words) > 1:
        return ["--python", rest[0], "-m"], words[1:]
    if not words or words[0].startswith("-"):
        return ["--no-python"], list(rest)
    return ["--python", rest[0]], words
