"""Frozen values that cost little to define: ``@value class Exited(Value): ...``.

``dataclass(frozen=True)`` writes and compiles six methods for every class, 0.3 ms each
time. The launcher has more than a hundred such classes, most starts use a quarter of them, and
all would pay for them before the first host is called. Here a class gets its ``__init__`` only,
when the first of its kind is made; comparing, hashing, showing and refusing to change are
the same for all, and so are written once.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Any:
        return lambda decorator: decorator


T = TypeVar("T")


class Value:
    """Base of frozen values: equal when of the same class with equal fields."""

    __dataclass_fields__: dict[str, dataclasses.Field[Any]]

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__ or name not in self.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        self.__dict__[name] = value  # once, from __init__

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value(cls: type[T]) -> type[T]:
    """``cls``, a subclass of ``Value``, that takes its annotated fields when it is called."""

    def first(self: T, *args: Any, **named: Any) -> None:
        _define(cls)
        cls.__init__(self, *args, **named)

    cls.__init__ = first  # type: ignore[assignment]
    for name in _LATE:
        setattr(cls, name, _Late(name))
    return cls


class _Late:
    """An attribute of a class that is there once somebody wants it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        # the class below that asks may have none of its own
        cls = next(one for one in owner.__mro__ if one.__dict__.get(self._name) is self)
        _define(cls)
        return cls.__dict__[self._name]


_LATE = ("__dataclass_fields__", "__match_args__")
_defining = threading.RLock()  # again for the classes above


def _define(cls: type[Any]) -> None:
    """Make ``cls`` a dataclass, unless it is one; at no moment it is half of one to others.

    dataclasses replaces no ``__init__`` that is there, and for a moment without any somebody
    could make one of the class above; so it makes one for a class below, which has the same fields.
    For a class without a docstring it would write one, and have all types looked at for that.
    """
    with _defining:
        if not isinstance(cls.__dict__["__match_args__"], _Late):
            return
        cls.__doc__ = cls.__doc__ or cls.__name__
        dataclasses.dataclass(init=False, eq=False, repr=False, match_args=False)(cls)
        below = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
        dataclasses.dataclass(eq=False, repr=False)(below)
        cls.__init__ = below.__init__  # type: ignore[misc]
        cls.__init__.__qualname__ = f"{cls.__qualname__}.__init__"
        for name in _LATE[1:]:
            setattr(cls, name, getattr(below, name))
