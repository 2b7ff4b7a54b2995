"""Frozen values that cost little to define: ``@value class Exited(Value): ...``.

``dataclass(frozen=True)`` writes and compiles six methods for every class, 0.6 ms each time, and
the launcher loads about a hundred such classes. These are dataclasses with nothing compiled, 0.04
ms: one base class makes, compares, hashes and shows them all. A ``cached_property`` is not a
field.
"""

from __future__ import annotations

import binascii
import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Any:
        return lambda decorator: decorator


T = TypeVar("T", bound="Value")


class Value:
    """Base of frozen values: equal when of the same class with equal fields."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]] = ()  # the fields that may be given by position
    _defaults: ClassVar[dict[str, Any]] = {}  # of every field, in their order; MISSING: none
    unwritten: ClassVar[tuple[str, ...]] = ()  # fields that JSON leaves out
    _factories: ClassVar[dict[str, Callable[[], Any]]] = {}
    _written: ClassVar[tuple[str, ...]] = ()
    _required: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, **named: Any) -> None:
        names = self.__match_args__
        fields = self.__dict__
        fields.update(self._defaults)
        fields.update(zip(names, args))  # noqa: B905 - too many are found below, for less
        if named:
            fields.update(named)
            if not named.keys().isdisjoint(names[: len(args)]):
                raise TypeError(f"{type(self).__name__}: a field was given twice")
        if len(args) > len(names) or len(fields) > len(self._defaults):
            raise TypeError(f"{type(self).__name__}: its fields are {', '.join(self._defaults)}")
        for name in self._required:
            if fields[name] is dataclasses.MISSING:
                raise TypeError(f"{type(self).__name__}: no value for {name!r}")
        for name, make in self._factories.items():
            if fields[name] is dataclasses.MISSING:
                fields[name] = make()
        self.__post_init__()

    def __post_init__(self) -> None:
        """Refuse values that do not go together."""

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        return mine == theirs or all(mine[name] == theirs[name] for name in self._defaults)

    def __hash__(self) -> int:
        return hash((type(self), *(self.__dict__[name] for name in self._defaults)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._defaults)
        return f"{type(self).__name__}({fields})"


class OneOf(Value):
    """Base of values of which a field may hold one of several; written down with their class."""


class Document(Value):
    """Base of what ``--json`` prints: written with its ``schema``, from docs/reference/schemas.

    ``scripts/schemas.py`` makes the schema of the class: its docstring says what each field means.
    docs/reference/formats.md says what may change.
    """

    schema: ClassVar[str]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value(cls: type[T]) -> type[T]:
    """``cls``, a subclass of ``Value``, that takes its annotated fields when it is called."""
    # for a class without a docstring dataclasses would write one, and look at all types for that
    cls.__doc__ = cls.__doc__ or cls.__name__
    dataclasses.dataclass(init=False, eq=False, repr=False)(cls)
    fields = dataclasses.fields(cls)
    cls._defaults = {field.name: field.default for field in fields}
    cls._written = tuple(name for name in cls._defaults if name not in cls.unwritten)
    made = {field.name: field.default_factory for field in fields}
    cls._factories = {name: make for name, make in made.items() if make is not dataclasses.MISSING}
    cls._required = tuple(
        field.name for field in fields if field.default is made[field.name] is dataclasses.MISSING
    )
    return cls


class NamedNumber(enum.IntEnum):
    """Numbers that JSON has by their names; any others, such as signals, stay numbers."""


def fields_of(value: Value) -> dict[str, Any]:
    """The fields of ``value`` as plain values, ready for JSON; ``core.events.codec`` says how."""
    return {name: json_of(value.__dict__[name]) for name in value._written}


def json_of(value: Any) -> Any:
    """Return ``value`` as values that JSON has."""
    if isinstance(value, NamedNumber):
        return value.name
    if value is None or isinstance(value, (str, int)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, Value):
        fields = fields_of(value)
        if isinstance(value, OneOf):
            return {"kind": type(value).__name__, **fields}
        return {"schema": value.schema, **fields} if isinstance(value, Document) else fields
    if isinstance(value, Mapping):
        return {str(key): json_of(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(json_of, value))
    if isinstance(value, (tuple, list)):
        return [json_of(item) for item in value]
    raise TypeError(f"{type(value).__name__}: JSON has no such thing")


def _text(data: bytes) -> str | dict[str, str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return {"b64": binascii.b2a_base64(data, newline=False).decode()}
