"""Frozen values that cost little to define: ``@value class Exited(Value): ...``.

``dataclass(frozen=True)`` writes and compiles six methods for every class, 0.3 ms each
time. The launcher has more than a hundred such classes, and every start pays for all of them
before the first host is called. Here a class gets its ``__init__`` only; comparing, hashing,
showing and refusing to change are the same for all, and so are written once.
"""

from __future__ import annotations

import dataclasses
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
    """``cls``, a subclass of ``Value``, with an ``__init__`` from its annotated fields."""
    return dataclasses.dataclass(eq=False, repr=False)(cls)
