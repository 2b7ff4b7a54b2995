"""Holds what dispatch writes for programs to the schemas that are published for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from dispatcher.api.report import replay
from dispatcher.core.events.monitor_events import VERSION

JOURNAL = f"journal/{VERSION}"
SCHEMAS = Path(__file__).parents[1] / "docs" / "reference" / "schemas"


def told(text: str | bytes) -> Any:
    """The value that a ``--json`` printed as ``text``, which is as promised."""
    value = json.loads(text)
    for one in value if isinstance(value, list) else [value]:
        keep(one["schema"], one)
    return value


def keep(name: str, value: Any, part: str = "") -> None:
    """Nothing, if ``value`` is as the schema ``name`` says, without a field that it does not name.

    part: of which definition of the schema it is.
    """
    wrong = next(_validator(name, part).iter_errors(value), None)
    assert wrong is None, f"{name}: {wrong.json_path}: {wrong.message[:300]}"


def keep_run(folder: Path) -> None:
    """Nothing, if the files of a run are as promised and its journal tells the same report.

    One that was killed has no report, and nothing is looked at.
    """
    report, journal = folder / "report.json", folder / "dispatch.jsonl"
    if not (report.exists() and journal.exists()):
        return
    told = json.loads(report.read_text())
    again = replay(journal).plain()
    assert json.loads(json.dumps(again)) == told, f"{journal} tells another report"
    keep("report/1", told)
    keep_journal(journal)
    if (folder / "plan.json").exists():
        keep("plan/1", json.loads((folder / "plan.json").read_text()))


def keep_journal(path: Path) -> None:
    """Nothing, if every line of the journal ``path`` is as promised."""
    first, *more = map(json.loads, path.read_text().splitlines())
    keep(JOURNAL, {**first, "context": {}}, "line")
    for line in (first, *more):
        assert line.keys() == first.keys()  # their types are those of the first: it is one writer
        keep(JOURNAL, line["context"], _events()[line["name"]])


@cache
def _events() -> dict[str, str]:
    """Event -> the definition of its facts."""
    rules = _schema(JOURNAL)["allOf"]
    return {
        rule["if"]["properties"]["name"]["const"]: rule["then"]["properties"]["context"]["$ref"]
        for rule in rules
    }


@cache
def _schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name.replace('/', '-')}.json").read_text())
    return found


@cache
def _validator(name: str, part: str) -> Any:
    from jsonschema import Draft202012Validator  # most tests write nothing for programs

    schema = _schema(name)
    if part == "line":
        schema = {key: value for key, value in schema.items() if key != "allOf"}
    elif part:
        schema = {**schema["$defs"][part.rpartition("/")[2]], "$defs": schema["$defs"]}
    closed = json.loads(json.dumps(schema))
    for one in _objects(closed):
        one.setdefault("additionalProperties", False)
    return Draft202012Validator(closed)


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in ``schema`` that names the fields of an object."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and "type" in schema:
            yield schema
        for one in schema.values():
            yield from _objects(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _objects(one)
