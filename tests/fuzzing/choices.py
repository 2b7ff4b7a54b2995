"""Decisions out of bytes: the same bytes decide the same, and a fuzzer can change one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

#: numbers at the edges of what protocols allow
NUMBERS = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, -1, -2, -9, 63, 64, 126, 127, 128, 255, 256, 4095, 4096, 65535,
    65536, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62, (1 << 63) - 1,
    -(1 << 63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 30.0, 1e9, 1e15, 1e300, -1e300, 5e-324)
TEXTS = (
    "", "x", "a b", "\0", "\n", "\x1b[2J\x1b]0;owned\a", "\x9b31m", "\u202eevil", "\udcff", "../x",
    "/etc/passwd", "..", "-oProxyCommand=x", "%s%n", "{0.__class__}", "[red]x[/]", "a" * 5000,
    "\r", "\x7f", "é", "💥", "0", "WORLD:0", "127.0.0.1", "::1", "localhost",
)  # fmt: skip


class Choices:
    """Takes decisions off the front of ``data``; after its end every one is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that decide nothing yet."""
        return max(0, len(self._data) - self._at)

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer at the end."""
        self._at += size
        return self._data[self._at - size : self._at]

    def below(self, count: int) -> int:
        """A number from 0, less than ``count``."""
        return int.from_bytes(self.take(1 if count <= 256 else 4), "big") % count

    def one(self, among: Sequence[T]) -> T:
        return among[self.below(len(among))]

    def chance(self, times: int, of: int = 256) -> bool:
        """True ``times`` in ``of``; False at the end."""
        return self.below(of) >= of - times

    def number(self) -> int:
        return self.one(NUMBERS) if self.chance(200) else self.below(1 << 16) - (1 << 8)

    def text(self) -> str:
        if self.chance(200):
            return self.one(TEXTS)
        return self.take(self.below(24)).decode("utf-8", "surrogateescape")

    def blob(self) -> bytes:
        if self.chance(128):
            return self.one(TEXTS).encode("utf-8", "surrogateescape")
        return self.take(self.below(64))

    def value(self, depth: int = 3) -> Any:
        """Anything that can be packed."""
        kind = self.below(10 if depth else 7)
        if kind < 3:
            return (None, True, False)[kind]
        if kind == 3:
            return self.number()
        if kind == 4:
            return self.one(FLOATS)
        if kind in (5, 6):
            return self.text() if kind == 5 else self.blob()
        if kind == 7:
            return {self.text(): self.value(depth - 1) for _ in range(self.below(4))}
        if kind == 8:
            return [self.value(0)] * self.one((0, 1, 2, 5, 300, 5000))
        return [self.value(depth - 1) for _ in range(self.below(5))]

    def changed(self, value: Any) -> Any:
        """``value``, or something near: another of its type, or a part of it changed."""
        how = self.below(16)
        if how == 15:
            return self.value()
        if isinstance(value, dict):
            return self._changed_dict(value, how)
        if isinstance(value, (list, tuple)):
            return self._changed_list(list(value), how)
        if how < 4:
            return value
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            near = value + self.one((1, -1))
            return near if how < 8 and -(1 << 63) <= near < 1 << 63 else self.number()
        if isinstance(value, float):
            return self.one(FLOATS)
        if isinstance(value, str):
            return self.text() if how < 10 else value + self.text()
        if isinstance(value, bytes):
            return self.blob() if how < 10 else value + self.blob()
        return self.value()

    def _changed_dict(self, value: dict[str, Any], how: int) -> dict[str, Any]:
        value = dict(value)
        for _ in range(1 + (how > 10)):
            if value:
                name = self.one(sorted(value))
                if how == 14:
                    del value[name]
                else:
                    value[name] = self.changed(value[name])
        if how == 13:
            value[self.text()] = self.value(1)
        return value

    def _changed_list(self, value: list[Any], how: int) -> list[Any]:
        if not value or how == 14:
            return [*value, self.value()]
        at = self.below(len(value))
        if how < 10:
            value[at] = self.changed(value[at])
        elif how == 10:
            del value[at]
        elif how == 11:
            value.insert(at, value[at])
        elif how == 12:
            value.reverse()
        else:
            times = self.one((2, 3, 100, 5000))
            value *= times if len(repr(value)) * times < 1 << 20 else 2
        return value
