"""Turns events into JSON for the journal, and back exactly for ``replay``.

docs/design/journal.md shows the form. The annotations of the event classes define how to read it
back: one table is made from the classes, nothing is evaluated, and any other content raises
``Malformed``. Fields that a journal lacks get their defaults, and those of an earlier release
(``GONE``) are ignored.
"""

from __future__ import annotations

import binascii
import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from dispatcher.core.events import run_events
from dispatcher.core.events.run_events import Entry, Event, types_of
from dispatcher.model.frozen import OneOf, Value
from dispatcher.model.names import size

#: bytes of a line at most: a frame has 16 MiB, and JSON makes six bytes of one at worst
LINE_LIMIT = 128 << 20

T = TypeVar("T")


class Malformed(ValueError):
    """A line that is not a known event; the text is the reason."""


def encode(entry: Entry) -> bytes:
    """Return ``entry`` as a line: ``{"seq": 3, "t": 0.1, "name": ..., "context": ...}``.

    t: seconds since the run began.
    """
    event = entry.event
    record = {"seq": entry.seq, "t": entry.t, "name": event.name, "context": event.context()}
    return (json.dumps(record) + "\n").encode()


def decode(line: bytes) -> Entry:
    """Read the entry from a line that ``encode`` made. Raises: Malformed."""
    if len(line) > LINE_LIMIT:
        raise Malformed(f"longer than {size(LINE_LIMIT)}")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise Malformed("not JSON, or cut off") from None
    match record:
        case {"seq": int(seq), "t": int() | float() as t, "name": str(name), "context": context}:
            cls: Any = _classes().get(name)
            if cls is None:
                raise Malformed(f"unknown event: {ascii(name)[:60]}")
            event = reader(cls)(context, name)
            assert isinstance(event, Event)
            return Entry(seq, t, event)
    raise Malformed("not an event: seq, t, name and context are needed")


#: makes a value from JSON's; the text names its place. Raises: Malformed
_Reader = Callable[[Any, str], Any]


@cache
def _classes() -> dict[str, type[Event]]:
    """Every event class, by name."""
    from dispatcher.core.events import exec_events, monitor_events, mpi_events

    modules = (run_events, exec_events, monitor_events, mpi_events)
    members = [one for module in modules for one in vars(module).values()]
    found = [one for one in members if isinstance(one, type) and issubclass(one, Event)]
    bases = {base for cls in found for base in cls.__bases__}
    return {cls.name: cls for cls in found if cls not in bases}


@cache
def reader(wanted: Any) -> _Reader:
    """Return the function that reads a value of the type ``wanted``, an annotation, from JSON."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _read_fields_of_tuple([reader(one) for one in arguments])
    if origin in (tuple, frozenset):
        return _read_items(origin, reader(arguments[0]))
    if origin is Mapping:
        return _read_mapping(*arguments)
    if isinstance(wanted, type) and issubclass(wanted, Value):
        return _read_value(wanted)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return _read_enum(wanted)
    return _PLAIN[wanted]


def _read_value(cls: type[Value]) -> _Reader:
    hints = types_of(cls)
    known = dataclasses.fields(cls)
    readers = {field.name: reader(hints[field.name]) for field in known}
    nothing = dataclasses.MISSING
    passed_over = {*getattr(cls, "GONE", ()), *(["kind"] if issubclass(cls, OneOf) else [])}
    needed = [f.name for f in known if f.default is nothing and f.default_factory is nothing]

    def read(found: Any, where: str) -> Value:
        if not isinstance(found, dict):
            raise _misfit(found, where)
        found = {name: one for name, one in found.items() if name not in passed_over}
        if not found.keys() <= readers.keys():
            unknown = min(found.keys() - readers.keys())
            raise Malformed(f"{where}: unknown field: {ascii(unknown)[:60]}")
        lack = [name for name in needed if name not in found]
        if lack:
            raise Malformed(f"{where}: missing: {', '.join(lack)}")
        return cls(**{name: readers[name](one, f"{where}.{name}") for name, one in found.items()})

    return read


def _read_union(members: Iterable[Any]) -> _Reader:
    """Read one of several values, which differ by ``kind``; or one type, or None."""
    known: list[Any] = [one for one in members if isinstance(one, type) and issubclass(one, OneOf)]
    kinds = {one.__name__: reader(one) for one in known}
    others = [one for one in members if one is not types.NoneType and one.__name__ not in kinds]
    optional = types.NoneType in members
    (other,) = [reader(one) for one in others] or [_misfits]

    def read(found: Any, where: str) -> Any:
        if found is None and optional:
            return None
        if not kinds:
            return other(found, where)
        kind = found.get("kind") if isinstance(found, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise Malformed(f"{where}: unknown kind: {ascii(kind)[:60]}")
        return kinds[kind](found, where)

    return read


def _read_items(make: Callable[[Iterable[Any]], Any], item: _Reader) -> _Reader:
    def read(found: Any, where: str) -> Any:
        return make(item(one, f"{where}[{at}]") for at, one in enumerate(_listed(found, where)))

    return read


def _read_fields_of_tuple(readers: list[_Reader]) -> _Reader:
    def read(found: Any, where: str) -> tuple[Any, ...]:
        if len(_listed(found, where)) != len(readers):
            raise Malformed(f"{where}: {len(found)} items, not {len(readers)}")
        pairs = zip(readers, found, strict=True)
        return tuple(reader(one, f"{where}[{at}]") for at, (reader, one) in enumerate(pairs))

    return read


def _read_mapping(key: Any, item: Any) -> _Reader:
    key_of, item_of = _key if key is int else reader(key), reader(item)

    def read(found: Any, where: str) -> dict[Any, Any]:
        if not isinstance(found, dict):
            raise _misfit(found, where)
        return {key_of(k, where): item_of(one, f"{where}.{k}") for k, one in found.items()}

    return read


def _read_enum(cls: type[enum.Enum]) -> _Reader:
    def read(found: Any, where: str) -> enum.Enum:
        try:
            return cls(found)
        except ValueError:
            raise _misfit(found, where) from None

    return read


def _read_bytes(found: Any, where: str) -> bytes:
    match found:
        case str():
            return found.encode("utf-8", "surrogatepass")
        case {"b64": str(text)} if len(found) == 1:
            try:
                data = binascii.a2b_base64(text)
            except ValueError:
                data = b""
            if binascii.b2a_base64(data, newline=False) == text.encode("ascii", "replace"):
                return data  # else it would ignore characters outside base64
    raise _misfit(found, where)


def _read_float(found: Any, where: str) -> float:
    if type(found) is float or (type(found) is int and found.bit_length() < 1024):
        return typing.cast("float", found)  # an int stays one, as it was written
    if found in ("nan", "inf", "-inf"):
        return float(found)
    raise _misfit(found, where)


def _key(found: Any, where: str) -> int:
    try:
        return int(found)
    except (TypeError, ValueError, OverflowError):
        raise _misfit(found, where) from None


def _exactly(cls: type[T]) -> _Reader:
    def read(found: Any, where: str) -> T:
        if type(found) is not cls:
            raise _misfit(found, where)
        return found

    return read


def _misfits(found: Any, where: str) -> Any:
    raise _misfit(found, where)


def _listed(found: Any, where: str) -> list[Any]:
    if not isinstance(found, list):
        raise _misfit(found, where)
    return found


def _misfit(found: Any, where: str) -> Malformed:
    return Malformed(f"{where}: unexpected value: {ascii(found)[:60]}")


_PLAIN: dict[Any, _Reader] = {
    str: _exactly(str), int: _exactly(int), bool: _exactly(bool), bytes: _read_bytes,
    float: _read_float,
}  # fmt: skip
