#!/usr/bin/env python3
"""JSON Schemas (2020-12) of what dispatch writes for programs, made of the classes in the code.

    scripts/schemas.py       # write docs/reference/schemas/, which the site publishes

A file there is a promise: what would break a reader of that version is refused, and wants the next
version in its class, a ``Document`` or in ``dispatcher/model/formats.py``; for the journal in
``monitor_events.VERSION``.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dispatcher import cli, jobs  # noqa: E402
from dispatcher.api.report import Report  # noqa: E402
from dispatcher.core.events import codec, monitor_events, run_events  # noqa: E402
from dispatcher.model import formats  # noqa: E402
from dispatcher.model.frozen import Document, NamedNumber, OneOf  # noqa: E402

FOLDER = ROOT / "docs" / "reference" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
JOURNAL = f"journal-{monitor_events.VERSION}"

#: characters of a line of a file, if it can be helped
WIDE = 110

Schema = dict[str, Any]
_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"},
    float: {"type": "number"}, types.NoneType: {"type": "null"}, Any: {}, object: {},
}  # fmt: skip
#: what ``model.frozen.fields_of`` makes of values that JSON has not; see ``core.events.codec``
_ENCODED: dict[Any, Schema] = {
    float: {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
    bytes: {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"b64": {"type": "string"}}, "required": ["b64"]},
        ]
    },
}


def schemas() -> dict[str, Schema]:
    """Name, with the version -> schema, of every document."""
    found = {JOURNAL: _journal()}
    for one in vars(formats).values():
        if typing.is_typeddict(one) and "schema" in (hints := typing.get_type_hints(one)):
            (name,) = typing.get_args(hints["schema"])
            if one.__name__.startswith("_"):
                continue  # the part of a form that is always there
            found[name.replace("/", "-")] = _document(one, name)
    for room in (cli, jobs):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    for cls in Document.__subclasses__():
        found[cls.schema.replace("/", "-")] = _document(cls, cls.schema)
    return dict(sorted(found.items()))


def _document(form: Any, name: str) -> Schema:
    parts = _Parts(encoded=False)
    body = parts.body(form)
    if form is formats.Report:  # what it has besides stands in the class that programs get
        kinds = typing.get_type_hints(Report)
        del kinds["cause"]
        rest = parts.fields(Report, kinds, needed=None)["properties"]
        own = body["properties"]
        body["properties"] = {"schema": own["schema"], **rest, **own}
        body["required"] = [*body["properties"]]
    return {**_head(name), **body, **parts.defs()}


def _head(name: str) -> Schema:
    return {"$schema": DIALECT, "$id": f"urn:dispatch:{name.replace('/', ':')}", "title": name}


def _journal() -> Schema:
    parts = _Parts(encoded=True)
    rules = [
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {"properties": {"context": parts.of(cls)}},
        }
        for name, cls in sorted(codec._classes().items())
    ]
    return {
        **_head(JOURNAL.replace("-", "/")),
        "type": "object",
        "description": "A line of dispatch.jsonl, the journal of a run: one event. So are the lines"
        " of `dispatch exec --events`.",
        "properties": {
            "seq": {"type": "integer", "description": "Counts from 1."},
            "t": {"type": "number", "description": "Seconds since the run began."},
            "name": {"type": "string", "description": "What happened."},
            "context": {"type": "object", "description": "Its facts, by `name`."},
        },
        "required": ["seq", "t", "name", "context"],
        "allOf": rules,
        **parts.defs(),
    }


def _either(one: Schema, other: Schema) -> Schema:
    """Of two classes with one name, as what stopped a run and what stopped a command."""
    both = {**other, **one, "properties": {**other["properties"], **one["properties"]}}
    return {**both, "required": [name for name in one["required"] if name in other["required"]]}


class _Parts:
    """Schemas of types; those of classes become definitions. encoded: as events are written."""

    def __init__(self, *, encoded: bool) -> None:
        self._plain = {**_PLAIN, **_ENCODED} if encoded else _PLAIN
        self._encoded = encoded
        self._defs: dict[str, Schema] = {}
        self._named: set[Any] = set()

    def defs(self) -> Schema:
        """The definitions, if there are any."""
        return {"$defs": dict(sorted(self._defs.items()))} if self._defs else {}

    def of(self, wanted: Any) -> Schema:
        """The schema of a value of the type ``wanted``."""
        origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
        if origin in (typing.Union, types.UnionType):
            return _any_of([self.of(one) for one in arguments])
        if origin is typing.Literal:
            return {"const": arguments[0]}
        if origin is tuple and arguments[-1] is not Ellipsis:
            items = [self.of(one) for one in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
        if origin in (tuple, frozenset, list):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, Mapping):
            return self._mapping(*arguments)
        if wanted in self._plain:
            return self._plain[wanted]
        if issubclass(wanted, NamedNumber):
            return self._plain[str]
        if issubclass(wanted, enum.Enum):
            return {"enum": [one.value for one in wanted]}
        if wanted not in self._named:
            self._named.add(wanted)  # it may hold itself
            made, name = self.body(wanted), wanted.__name__
            self._defs[name] = _either(self._defs[name], made) if name in self._defs else made
        return {"$ref": f"#/$defs/{wanted.__name__}"}

    def _mapping(self, key: Any, item: Any) -> Schema:
        keys = {"propertyNames": {"pattern": "^-?[0-9]+$"}} if key is int else {}
        return {"type": "object", **keys, "additionalProperties": self.of(item)}

    def body(self, cls: Any) -> Schema:
        """The schema of a ``TypedDict`` or a ``Value``."""
        if typing.is_typeddict(cls):
            return self.fields(cls, typing.get_type_hints(cls), needed=cls.__required_keys__)
        nothing = dataclasses.MISSING
        needed = {
            one.name
            for one in dataclasses.fields(cls)
            if one.default is nothing and one.default_factory is nothing
        }
        hints = run_events.types_of(cls)
        found = self.fields(cls, hints, needed=needed if self._encoded else None)
        if issubclass(cls, OneOf) and self._encoded:
            found["properties"] = {"kind": {"const": cls.__name__}, **found["properties"]}
            found["required"] = ["kind", *found["required"]]
        if issubclass(cls, Document):
            found["properties"] = {"schema": {"const": cls.schema}, **found["properties"]}
            found["required"] = ["schema", *found["required"]]
        return found

    def fields(self, cls: Any, hints: Mapping[str, Any], needed: Any) -> Schema:
        """An object with these fields. needed: those that are always there, None for all."""
        summary, texts = described(cls, hints)
        for form in vars(formats).values():  # what a class has of another, that one explains
            if typing.is_typeddict(form) and form.__annotations__.keys() <= hints.keys():
                texts = {**described(form, form.__annotations__)[1], **texts}
        about = {name: {"description": text} for name, text in texts.items()}
        names = getattr(cls, "_written", hints)
        hints = {name: one for name, one in sorted(hints.items(), key=_order) if name in names}
        return {
            "type": "object",
            "description": summary,
            "properties": {
                name: {**self.of(kind), **about.get(name, {})} for name, kind in hints.items()
            },
            "required": [name for name in hints if needed is None or name in needed],
        }


def _order(item: tuple[str, Any]) -> bool:
    return item[0] != "schema"  # which stands first


def _any_of(members: list[Schema]) -> Schema:
    kinds = [one["type"] for one in members if one.keys() == {"type"}]
    return {"type": kinds} if len(kinds) == len(members) else {"anyOf": members}


def described(cls: Any, names: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """What the docstring of ``cls`` says of it, and of each of the fields ``names``.

    That is written as ``field, other: what they are.``
    """
    text = " ".join((inspect.getdoc(cls) or "").replace("``", "`").split())
    text = re.sub(r"\bNone\b", "null", text)
    one = "|".join(map(re.escape, names)) or "$^"
    starts = list(re.finditer(rf"(?:^|(?<=[.;:] ))((?:(?:{one}),? (?:and )?)*(?:{one})): ", text))
    ends = [*(found.start() for found in starts[1:]), len(text)]
    said = {
        name: text[found.end() : end].strip(" ;.") + "."
        for found, end in zip(starts, ends, strict=False)
        for name in re.findall(r"\w+", found[1])
        if name in names
    }
    return text[: starts[0].start()].strip(" ;.") + "." if starts else text, said


def breaks(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """What of ``new`` a reader of ``old`` could not have expected; fields and events may come."""
    key = where.rpartition("/")[2]
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() - {"description"}):
            if name in new:
                yield from breaks(old[name], new[name], f"{where}/{name}")
            else:
                yield f"{where}/{name} is gone"
        if key not in ("properties", "$defs", ""):
            added = new.keys() - old.keys() - {"description"}
            yield from (f"{where}/{name} is new" for name in sorted(added))
    elif key in ("required", "allOf", "enum"):  # of an enum: further words may come
        yield from (f"{where}: {one} is gone" for one in old if one not in new)
    elif key == "anyOf" and isinstance(old, list):  # a further kind of a thing that says its kind
        yield from (f"{where}: {one} is gone" for one in old if one not in new)
        yield from (f"{where}: {one} is new" for one in new if one not in old and "$ref" not in one)
    elif old != new:
        yield f"{where}: {new}, was {old}"


def text_of(value: Any, indent: str = "") -> str:
    """``value`` as JSON; what fits into a line stands in one."""
    short = json.dumps(value)
    if len(indent + short) <= WIDE or not isinstance(value, (dict, list)):
        return short
    more = indent + "  "
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {text_of(one, more)}" for key, one in value.items()]
    else:
        rows = [text_of(one, more) for one in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(more + row for row in rows) + f"\n{indent}{last}"


def main() -> int:
    """Write the files; 1 if that would break a promise."""
    broken = 0
    for name, schema in schemas().items():
        path = FOLDER / f"{name}.json"
        if path.exists():
            for what in breaks(json.loads(path.read_text()), schema):
                print(f"{name}: {what}: raise the version", file=sys.stderr)
                broken = 1
        if not broken:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text_of(schema) + "\n")
    return broken


if __name__ == "__main__":
    sys.exit(main())
