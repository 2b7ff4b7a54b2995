"""The published schemas are those of the code, and a promise of one is not broken unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import schemas
from jsonschema import Draft202012Validator

from dispatcher.model.formats import HostOutcome


def test_the_files_are_what_the_code_says() -> None:
    found = schemas.schemas()
    published = {path.stem for path in schemas.FOLDER.iterdir()}
    assert published >= found.keys()
    latest = {name.rpartition("-")[0] for name in found}
    assert {name.rpartition("-")[0] for name in published} == latest, "no form vanishes"
    for name, schema in found.items():
        Draft202012Validator.check_schema(schema)
        text = (schemas.FOLDER / f"{name}.json").read_text()
        assert json.loads(text) == schema, f"{name}: scripts/schemas.py writes it anew"


def test_every_field_of_a_document_says_its_schema_first() -> None:
    for name, schema in schemas.schemas().items():
        if name != schemas.JOURNAL:
            assert next(iter(schema["properties"])) == "schema"
            assert schema["properties"]["schema"]["const"] == schema["title"]


BASE: dict[str, Any] = {
    "properties": {"a": {"type": "string", "description": "x"}, "b": {"type": ["integer", "null"]}},
    "required": ["a"],
    "$defs": {
        "C": {"properties": {"d": {"const": 1}, "k": {"enum": ["one", "two"]}}},
        "E": {"anyOf": [{"$ref": "#/$defs/C"}, {"type": "null"}]},
    },
}


@pytest.mark.parametrize(
    ("place", "value", "broken"),
    [
        ("properties/z", {"type": "string"}, ""),
        ("$defs/Z", {"type": "string"}, ""),
        ("properties/a/description", "y", ""),
        ("properties/b/description", "z", ""),
        ("required", ["a", "b"], ""),
        ("required", [], "/required: a is gone"),
        ("properties/a", None, "/properties/a is gone"),
        ("properties/a/type", "integer", "/properties/a/type: integer, was string"),
        ("properties/a/minLength", 1, "/properties/a/minLength is new"),
        ("properties/b/type", ["integer", "null", "string"],
         "/properties/b/type: ['integer', 'null', 'string'], was ['integer', 'null']"),
        ("$defs/C/properties/d/const", 2, "/$defs/C/properties/d/const: 2, was 1"),
        ("$defs/C/properties/k/enum", ["one", "three", "two"], ""),
        ("$defs/C/properties/k/enum", ["one"], "/$defs/C/properties/k/enum: two is gone"),
        ("$defs/E/anyOf", [{"$ref": "#/$defs/F"}, {"$ref": "#/$defs/C"}, {"type": "null"}], ""),
        ("$defs/E/anyOf", [{"$ref": "#/$defs/C"}], "/$defs/E/anyOf: {'type': 'null'} is gone"),
        ("$defs/E/anyOf", [{"$ref": "#/$defs/C"}, {"type": "null"}, {"type": "string"}],
         "/$defs/E/anyOf: {'type': 'string'} is new"),
    ],
)  # fmt: skip
def test_what_breaks_a_promise(place: str, value: Any, broken: str) -> None:
    changed = json.loads(json.dumps(BASE))
    *above, name = place.split("/")
    target = changed
    for one in above:
        target = target[one]
    if value is None:
        del target[name]
    else:
        target[name] = value
    assert [*schemas.breaks(BASE, changed)] == ([broken] if broken else [])


def test_a_broken_promise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schemas, "FOLDER", tmp_path)
    assert schemas.main() == 0
    path = tmp_path / "host-1.json"
    before = path.read_text().replace('"port"', '"door"')
    path.write_text(before)
    assert schemas.main() == 1
    assert "host-1: /properties/door is gone: raise the version\n" in capsys.readouterr().err
    assert path.read_text() == before


def test_docstrings_tell_of_fields() -> None:
    summary, fields = schemas.described(HostOutcome, HostOutcome.__annotations__)
    assert summary == "The result on one host."
    assert fields["index"] == "its number in the list."
    assert fields["message_code"] == "the code of that for `dispatch explain`."


def test_text_is_as_short_as_it_can_be() -> None:
    long = ["x" * 60, {"a": 1}, "y" * 60]
    assert json.loads(schemas.text_of({"k": long, "m": {}})) == {"k": long, "m": {}}
    assert max(map(len, schemas.text_of({"k": long}).splitlines())) < schemas.WIDE
    assert schemas.text_of({"k": [1, 2]}) == '{"k": [1, 2]}'
