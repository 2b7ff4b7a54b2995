"""Values as bytes for control frames: a small notation that keeps any byte exact.

Why not JSON or pickle: ``docs/design/packing.md``. Grammar (a relative of bencode)::

    value = 'N' | 'T' | 'F'              None, True, False
          | 'i' digits ';'               int, 64 bits signed
          | 'f' repr ';'                 float, finite
          | 'b' length ':' bytes         bytes
          | 's' length ':' bytes         str, UTF-8 with surrogateescape
          | 'l' value* 'e'               list (tuples are packed as lists)
          | 'd' (string value)* 'e'      dict with str keys, no key twice
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

DEPTH_LIMIT = 16
INT_LIMIT = 1 << 63
#: most values in a value that is unpacked, unless the caller sets less
MOST_VALUES = 1 << 24
_INFINITE = float("inf")
_VALUES: dict[bytes, bool | None] = {b"N": None, b"T": True, b"F": False}
_TAGS = {value: tag for tag, value in _VALUES.items()}


class PackError(ValueError):
    """Bytes that are not one packed value, or a value that cannot be packed."""


def pack(value: object) -> bytes:
    """Pack ``value`` into bytes.

    Raises: PackError for another type, an int beyond 64 bits or a nesting too deep.
    """
    parts: list[bytes] = []
    _pack(value, parts, 0)
    return b"".join(parts)


def _pack(value: object, parts: list[bytes], depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise PackError("nested too deep")
    if isinstance(value, bytes):  # most are
        parts.append(b"b%d:" % len(value))
        parts.append(value)
    elif value is None or isinstance(value, bool):
        parts.append(_TAGS[value])
    elif isinstance(value, int):
        if not -INT_LIMIT <= value < INT_LIMIT:
            raise PackError("integer beyond 64 bits")
        parts.append(b"i%d;" % value)
    elif isinstance(value, str):
        try:
            text = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise PackError("text with a lone surrogate: %s" % error.reason) from None
        parts.append(b"s%d:" % len(text))
        parts.append(text)
    elif isinstance(value, float):
        if not -_INFINITE < value < _INFINITE:
            raise PackError("float is not finite")
        parts.append(b"f%s;" % repr(value).encode())
    elif isinstance(value, (list, tuple)):
        parts.append(b"l")
        for item in value:
            _pack(item, parts, depth + 1)
        parts.append(b"e")
    elif isinstance(value, dict):
        parts.append(b"d")
        for key, item in value.items():
            if not isinstance(key, str):
                raise PackError("dict key is not a string")
            _pack(key, parts, depth + 1)
            _pack(item, parts, depth + 1)
        parts.append(b"e")
    else:
        raise PackError("cannot pack %s" % type(value).__name__)


def listed(values: Iterable[bytes]) -> bytes:
    """The list of ``values``, each packed."""
    return b"l%be" % b"".join(values)


def pair(one: bytes, other: bytes) -> bytes:
    """As ``pack([one, other])``; orders to start are of little else (scripts/simulate --plan)."""
    return b"lb%d:%bb%d:%be" % (len(one), one, len(other), other)


def unpack(data: bytes, most: int = MOST_VALUES) -> Any:
    """The value that ``data`` (bytes, exactly one packed value) stands for.

    most: values in it, those inside lists and dicts too: two bytes may become an object of 70.
    Raises: PackError on anything else; never any other exception.
    """
    try:
        value, end = _unpack(data, 0, 0, [most])
    except PackError:
        raise
    except ValueError as error:
        raise PackError("malformed: %s" % error) from None
    if end != len(data):
        raise PackError("%d bytes after the value" % (len(data) - end))
    return value


def _unpack(data: bytes, at: int, depth: int, left: list[int]) -> tuple[Any, int]:
    left[0] -= 1
    if depth > DEPTH_LIMIT:
        raise PackError("nested too deep")
    if left[0] < 0:
        raise PackError("too many values")
    tag = data[at : at + 1]
    at += 1
    if tag in (b"s", b"b"):
        colon = data.index(b":", at, at + 12)
        size = _digits(data[at:colon])
        end = colon + 1 + size
        if end > len(data):
            raise PackError("string runs past the end")
        body = data[colon + 1 : end]
        return (body if tag == b"b" else body.decode("utf-8", "surrogateescape")), end
    if tag == b"i":
        end = data.index(b";", at, at + 24)
        number = data[at:end]
        value = -_digits(number[1:]) if number[:1] == b"-" else _digits(number)
        if not -INT_LIMIT <= value < INT_LIMIT:
            raise PackError("integer beyond 64 bits")
        return value, end + 1
    if tag == b"l":
        items = []
        while data[at : at + 1] != b"e":
            item, at = _unpack(data, at, depth + 1, left)
            items.append(item)
        return items, at + 1
    if tag == b"d":
        pairs = {}
        while data[at : at + 1] != b"e":
            if data[at : at + 1] != b"s":
                raise PackError("dict key is not a string")
            key, at = _unpack(data, at, depth + 1, left)
            if key in pairs:
                raise PackError("dict key twice")
            pairs[key], at = _unpack(data, at, depth + 1, left)
        return pairs, at + 1
    if tag in _VALUES:
        return _VALUES[tag], at
    if tag == b"f":
        end = data.index(b";", at, at + 40)
        real = float(data[at:end])
        if not -_INFINITE < real < _INFINITE:
            raise PackError("float is not finite")
        return real, end + 1
    raise PackError("unknown tag %r" % tag)


def _digits(text: bytes) -> int:
    """A decimal number without sign, spaces or underscores, which int() alone would let pass."""
    if not text.isdigit():
        raise PackError("not a number")
    return int(text)
