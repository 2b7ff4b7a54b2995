"""A picture of a run on its way to another process: the same there."""

from __future__ import annotations

import json
from typing import Any

from cases import cases

from dispatcher.model.frozen import fields_of
from dispatcher.output.monitor.run_picture import (
    Picture,
    decode_picture,
)
from dispatcher.output.run_state import LOST, RUNNING

PICTURE = Picture({RUNNING: 2, LOST: 1}, (2,), {"running": 4}, 12, 3.5, 0.5, (1, 3), 2.0, "x")


@cases("picture", [PICTURE, Picture({}, (), {}, 0, 0.0, None)])
def test_it_arrives_as_it_was_sent(picture: Picture) -> None:
    assert decode_picture(json.loads(json.dumps(fields_of(picture)))) == picture


WRONG: list[dict[str, Any]] = [
    {"hosts": {"99": 1}}, {"hosts": 3}, {"pending": ["x"]}, {"ranks": [1]}, {"lines": None},
    {"since_line": []}, {"more": 1}, {"lines": float("inf")}, {"hosts": {"inf": 1}},
]  # fmt: skip


@cases("fields", WRONG)
def test_what_is_no_picture(fields: dict[str, Any]) -> None:
    assert decode_picture({**fields_of(PICTURE), **fields}) is None
