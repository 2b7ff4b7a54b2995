"""Values of the core behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
import signal
from functools import cached_property
from typing import Any

import pytest
from cases import cases

from dispatcher.model.frozen import Document, NamedNumber, OneOf, Value, fields_of, json_of, value


@value
class Point(Value):
    x: int
    y: int = 2


@value
class Named(Point):
    name: str = dataclasses.field(default="", kw_only=True)


@value
class Other(Value):
    x: int
    y: int = 2


def test_equal_when_class_and_fields_are() -> None:
    assert Point(1) == Point(1, 2) == Point(x=1, y=2)
    assert Point(1) != Point(1, 3)
    assert Point(1) != Other(1)
    assert Point(1) != (1, 2)
    assert Point(1) != Named(1)
    assert len({Point(1), Point(1, 2), Point(2)}) == 2


def test_nothing_can_be_changed() -> None:
    point = Point(1)
    for name in ("x", "y", "z"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(point, name, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert point == Point(1, 2)


def test_what_dataclasses_can_do() -> None:
    assert repr(Named(1, name="a")) == "Named(x=1, y=2, name='a')"
    assert dataclasses.replace(Named(1, name="a"), y=5) == Named(1, 5, name="a")
    assert dataclasses.asdict(Named(1)) == {"x": 1, "y": 2, "name": ""}
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)
    assert copy.deepcopy(Point(1)) == pickle.loads(pickle.dumps(Point(1))) == Point(1)
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]


def test_what_cannot_be_hashed_says_so() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point([]))  # type: ignore[arg-type]


def test_a_class_is_whole_before_there_is_one_of_its_kind() -> None:
    @value
    class Below(Named):
        tags: list[str] = dataclasses.field(default_factory=list)

    @value
    class Lowest(Below):
        pass

    assert [field.name for field in dataclasses.fields(Lowest)] == ["x", "y", "name", "tags"]
    assert Lowest.__match_args__ == ("x", "y", "tags")
    one, other = Lowest(1), Lowest(1)
    assert one == other
    assert one.tags is not other.tags


def test_a_wrong_call_is_refused() -> None:
    with pytest.raises(TypeError):
        Named(1, 2, "by position")  # type: ignore[call-arg]
    wrong: list[tuple[tuple[int, ...], dict[str, int], str]] = [
        ((1,), {"x": 2}, "Point: a field was given twice"),
        ((1, 2, 3), {}, "Point: its fields are x, y"),
        ((1,), {"z": 2}, "Point: its fields are x, y"),
        ((), {"y": 2}, "Point: no value for 'x'"),
        ((1, 2), {"x": 1, "y": 2}, "Point: a field was given twice"),
    ]
    for args, named, said in wrong:
        with pytest.raises(TypeError, match=said):
            Point(*args, **named)


def test_a_value_may_refuse_what_does_not_go_together() -> None:
    @value
    class Range(Value):
        first: int
        last: int

        def __post_init__(self) -> None:
            if self.first > self.last:
                raise ValueError("it ends before it begins")

    assert Range(1, 2).last == 2
    with pytest.raises(ValueError, match="before it begins"):
        Range(2, 1)


def test_what_a_cached_property_worked_out_is_no_field() -> None:
    @value
    class Squared(Value):
        side: int

        @cached_property
        def area(self) -> int:
            return self.side**2

    one, other = Squared(3), Squared(3)
    assert one.area == 9
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other) == "Squared(side=3)"
    assert Squared.__doc__ == "Squared"
    assert one != Squared(4)


class Colour(enum.Enum):
    RED = "red"


class Word(str, enum.Enum):
    YES = "yes"


class Level(NamedNumber):
    HIGH = 1


@value
class Shape(OneOf):
    side: int


@cases(
    ("given", "plain"),
    [
        (None, None), (True, True), (3, 3), (signal.SIGTERM, 15), ("text", "text"),
        (Word.YES, "yes"), (0.5, 0.5),
        (float("inf"), "inf"), (float("nan"), "nan"),
        (b"text\n\twith \xc3\xa4", "text\n\twith \u00e4"),
        (b"\x1b[m", {"b64": "G1tt"}), (b"\xff", {"b64": "/w=="}), (b"", ""),
        (Point(1), {"x": 1, "y": 2}), (Shape(2), {"kind": "Shape", "side": 2}),
        ({2: Point(1)}, {"2": {"x": 1, "y": 2}}), ({}, {}), (frozenset({3, 1, 2}), [1, 2, 3]),
        ({"b", "a"}, ["a", "b"]),
        (((1, 2), [b"\xff"]), [[1, 2], [{"b64": "/w=="}]]),
    ],
)  # fmt: skip
def test_fields_as_plain_values(given: Any, plain: object) -> None:
    @value
    class Holder(Value):
        one: Any

    assert fields_of(Holder(given)) == {"one": plain}


def test_a_document_is_written_with_its_schema_and_less_what_is_not_for_it() -> None:
    @value
    class Page(Document):
        schema = "page/1"
        unwritten = ("draft",)
        level: Level
        draft: object = None

    assert json_of([Page(Level.HIGH, object())]) == [{"schema": "page/1", "level": "HIGH"}]


@cases("given", [object(), Colour.RED, 1j, iter(())])
def test_what_no_event_may_hold(given: Any) -> None:
    with pytest.raises(TypeError, match="JSON has no such thing"):
        fields_of(Point(given))
