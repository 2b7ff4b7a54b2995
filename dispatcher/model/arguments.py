"""Judge the arguments of public functions by name and type.

``request(nodes=4)`` is refused with the name that is meant, as a misspelt option is. Values that
the command line has parsed are not checked again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dispatcher.model.errors import WrongArgument
from dispatcher.model.frozen import Value
from dispatcher.model.names import nearest


class Arguments(Value):
    """Base of values that programs make: a wrong argument raises ``WrongArgument``."""

    def __init__(self, *args: Any, **named: Any) -> None:
        owner = type(self).__name__
        check_names(owner, [*self._defaults], named)
        try:
            super().__init__(*args, **named)
        except TypeError as error:
            by_position = dict(zip(self.__match_args__, args, strict=False))
            check_types(owner, type(self), {**by_position, **named})
            raise WrongArgument(str(error)) from None


def check_names(owner: str, known: Sequence[str], given: Mapping[str, object]) -> None:
    """Check that all names of ``given`` are ``known``. Raises: WrongArgument."""
    for name in given:
        if name not in known:
            near = nearest(name, known)
            raise WrongArgument(
                f"{owner}: takes no argument {name!r}",
                hint=f"{near}=...  # did you mean this?" if near else ", ".join(sorted(known)),
            )


def check_types(owner: str, declared: type, given: Mapping[str, object]) -> None:
    """Check that each of ``given`` has the type in the annotations of the class ``declared``.

    Raises: WrongArgument.
    """
    hints = get_type_hints(declared)
    for name, value in given.items():
        if name in hints and not fits(value, hints[name]):
            text = repr(value)
            shown = text if len(text) <= 60 else f"{text[:60]}..."
            raise WrongArgument(f"{owner}: {name} takes {words(hints[name])}, not {shown}")


def fits(value: object, hint: Any) -> bool:
    """Whether ``value`` is of the type ``hint``; lists do where tuples are asked for."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        kinds = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        return len(value) == len(kinds) and all(map(fits, value, kinds))
    if hint is bool:
        return isinstance(value, int)
    if hint in (int, float):
        numbers = int if hint is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if origin is Callable or hint is Callable:
        return callable(value)
    return isinstance(value, origin or hint)


_WORDS: dict[Any, str] = {
    NoneType: "None", bool: "True or False", int: "a whole number", float: "a number",
    str: "a text", bytes: "bytes", Mapping: "a dictionary", os.PathLike: "a path",
    Callable: "a function",
}  # fmt: skip


def words(hint: Any) -> str:
    """The type ``hint`` as a text for the user."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        several = [words(one) for one in inner]
        return ", ".join(several[:-1]) + " or " + several[-1]
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        plural = "texts" if inner[0] is str else "pairs"
        return f"a list of {plural}"
    kind = origin or hint
    return _WORDS.get(kind) or str(getattr(kind, "__name__", kind))
