"""Events as JSON and back: every class, exactly; what is no event is refused in words."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

import pytest
from cases import cases, examples
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import codec, monitor_events, mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.exec_events import Failed, HostDone, NotCopied, NotStarted
from dispatcher.core.events.run_events import Entry, Event, types_of
from dispatcher.core.events.verdicts import Rejected
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value, fields_of

#: what hosts may send as text holds surrogates for bytes that are none
TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
NUMBERS = st.integers(-(1 << 70), 1 << 70)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: NUMBERS,
    bool: st.booleans(),
    bytes: st.binary(max_size=12) | TEXTS.map(lambda text: text.encode("utf-8", "replace")),
    float: st.floats(allow_nan=False) | st.integers(0, 9),  # nan is not equal to itself
    types.NoneType: st.none(),
}


def any_of(wanted: Any) -> st.SearchStrategy[Any]:
    """Values of the type ``wanted``, written anew: the decoder shall not check itself."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([any_of(one) for one in arguments])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(any_of, arguments))
    if origin is tuple:
        return st.lists(any_of(arguments[0]), max_size=3).map(tuple)
    if origin is frozenset:
        return st.frozensets(any_of(arguments[0]), max_size=3)
    if origin is Mapping:
        return st.dictionaries(*map(any_of, arguments), max_size=3)
    if wanted in PLAIN:
        return PLAIN[wanted]
    if issubclass(wanted, enum.Enum):
        return st.sampled_from(wanted)
    assert issubclass(wanted, Value), wanted
    hints = types_of(wanted)
    fields = {field.name: any_of(hints[field.name]) for field in dataclasses.fields(wanted)}
    return st.builds(wanted, **fields)


def leaves(cls: type[Event]) -> set[type[Event]]:
    """The classes below ``cls`` that nothing of the product is below of."""
    found = {leaf for below in cls.__subclasses__() for leaf in leaves(below)} or {cls}
    return {one for one in found if one.__module__.startswith("dispatcher.")}


EVENTS = sorted(leaves(Event), key=lambda cls: cls.name)


def test_names_are_unique() -> None:
    assert len(EVENTS) > 50
    assert len({cls.name for cls in EVENTS}) == len(EVENTS)


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.name)
@examples(25)
@given(data=st.data())
def test_every_event_comes_back(cls: type[Event], data: st.DataObject) -> None:
    entry = Entry(3, 0.25, data.draw(any_of(cls)))
    line = codec.encode(entry)
    assert line.count(b"\n") == 1
    json.loads(line, parse_constant=pytest.fail)  # strict JSON, without NaN
    found = codec.decode(line)
    assert found == entry
    assert codec.encode(found) == line


def test_a_reader_finds_what_it_found_before() -> None:
    committed = mpi_events.PmiCommitted(1, 0, "f", 2, b"\xff\0", attempt=1)
    assert json.loads(codec.encode(Entry(1, 0.5, committed))) == {
        "seq": 1,
        "t": 0.5,
        "name": "pmi.committed",
        "context": {
            "attempt": 1, "node": 1, "world": 0, "fence": "f", "epoch": 2,
            "keys": {"b64": "/wA="},
        },
    }  # fmt: skip
    stack = monitor_events.RankStack(0, 7, "S", "py-spy", b'Thread 1: "MainThread"\n')
    assert fields_of(stack)["text"] == 'Thread 1: "MainThread"\n'
    cause = Rejected({4: Failure(Kind.AUTH, "no")}, problems={4: frozenset({"b", "a"})})
    told = ev.RunRestarting(cause, 1, 2, float("inf")).context()
    assert told["seconds"] == "inf"
    assert told["cause"] == {
        "kind": "Rejected",
        "failures": {
            "4": {"kind": "authentication failed", "why": "no", "hint": None, "retryable": False}
        },
        "exit_code": 125,
        "problems": {"4": ["a", "b"]},
    }


def test_values_of_one_shape_are_told_apart() -> None:
    for outcome in (NotCopied("x"), NotStarted("x"), Failed(Failure(Kind.DNS, "x"))):
        told = Entry(1, 0.0, HostDone(0, outcome))
        assert codec.decode(codec.encode(told)) == told


def test_what_an_earlier_release_did_not_write_has_its_default() -> None:
    line = b'{"seq": 1, "t": 0, "name": "node.connecting", "context": {"node": 3}}'
    assert codec.decode(line) == Entry(1, 0, ev.NodeConnecting(3))
    line = (
        b'{"seq": 1, "t": 0, "name": "run.restarting", "context": {"number": 1, "most": 2, '
        b'"seconds": 0.0, "cause": {"kind": "Rejected", "failures": {}}}}'
    )
    assert codec.decode(line) == Entry(1, 0, ev.RunRestarting(Rejected({}, 125, {}), 1, 2, 0.0))


def test_what_only_an_earlier_release_wrote_is_passed_over() -> None:
    line = (
        b'{"seq": 1, "t": 0, "name": "mpi.found", "context": {"node": 3, "library": "/a", '
        b'"served": "PMI-1", "rank": 4, "size": 7}}'
    )
    assert codec.decode(line) == Entry(1, 0, mpi_events.MpiFound(3, "/a", "PMI-1", 4))


INSIDE = '{"seq": 1, "t": 0, "name": "mpi.inside", "context": {"node": 0, "over": %s}}'
NCCL = (
    '{"seq": 1, "t": 0, "name": "run.closed", "context": {"verdict": {"cause": null, '
    '"exit_code": 0, "world_size": 1}, "seconds": 1, "nodes": [], "nccl": %s}}'
)
LINE = '{"seq": 1, "t": 0.5, "name": "rank.exited", "context": %s}'


@cases(
    ("line", "why"),
    [
        ("", "not JSON, or cut off"),
        ('{"seq": 1', "not JSON, or cut off"),
        ("[" * 100_000, "not JSON, or cut off"),
        ("7", "not an event: seq, t, name and context are needed"),
        ('{"seq": 1, "t": 0, "name": "x"}', "not an event: seq, t, name and context are needed"),
        ('{"seq": 1, "t": 0, "name": "os.system", "context": {}}', "unknown event: 'os.system'"),
        ('{"seq": 1, "t": 0, "name": "event", "context": {}}', "unknown event: 'event'"),
        (LINE % "[]", "rank.exited: unexpected value: []"),
        (LINE % '{"node": 0}', "rank.exited: missing: rank, status"),
        (LINE % '{"node": 0, "__class__": 1}', "rank.exited: unknown field: '__class__'"),
        (LINE % '{"node": true, "rank": 0, "status": 0}',
         "rank.exited.node: unexpected value: True"),
        (LINE % '{"node": 0, "rank": 0, "status": 0, "error": {"message": 1}}',
         "rank.exited.error.message: unexpected value: 1"),
        ('{"seq": 1, "t": 0, "name": "host.done", "context": {"node": 0, '
         '"outcome": {"kind": "Popen"}}}',
         "host.done.outcome: unknown kind: 'Popen'"),
        ('{"seq": 1, "t": 0, "name": "pmi.asked", "context": {"node": 0, "rank": 0, '
         '"verb": "", "service": "", "port": {"b64": "="}}}',
         "pmi.asked.port: unexpected value: {'b64': '='}"),
        (NCCL % "[]", "run.closed.nccl: unexpected value: []"),
        (NCCL % '{"x": 5}', "run.closed.nccl: unexpected value: 'x'"),
        (NCCL % '{"0": 5}', "run.closed.nccl.0: unexpected value: 5"),
        (INSIDE % '[0, "x"]', "mpi.inside.over[1]: unexpected value: 'x'"),
        (INSIDE % '"01"', "mpi.inside.over: unexpected value: '01'"),
        ('{"seq": 1, "t": 0, "name": "node.lost", "context": {"node": 0, '
         '"failure": {"kind": "tired", "why": ""}}}',
         "node.lost.failure.kind: unexpected value: 'tired'"),
        ('{"seq": 1, "t": 0, "name": "node.lost", "context": {"node": 0, "failure": null}}',
         "node.lost.failure: unexpected value: None"),
        (LINE % '{"node": 0, "rank": 0, "status": 0, "zz": 1, "yy": 2}',
         "rank.exited: unknown field: 'yy'"),
        ('{"seq": "1", "t": 0, "name": "rank.exited", "context": {}}',
         "not an event: seq, t, name and context are needed"),
        ('{"seq": 1, "t": 0, "name": "host.done", "context": {"node": 0, "outcome": null}}',
         "host.done.outcome: unknown kind: None"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_in_words(line: str, why: str) -> None:
    with pytest.raises(codec.Malformed) as error:
        codec.decode(line.encode())
    assert str(error.value) == why


@examples(40)
@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
).flatmap(lambda context: st.sampled_from(EVENTS).map(
    lambda cls: json.dumps({"seq": 1, "t": 0, "name": cls.name, "context": context}).encode()
)))  # fmt: skip
def test_no_line_does_more_than_be_refused(line: bytes) -> None:
    try:
        found = codec.decode(line)
    except codec.Malformed as refused:
        assert str(refused)  # noqa: PT017 - most are refused
    else:
        assert codec.decode(codec.encode(found)) == found


def test_a_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "LINE_LIMIT", 1 << 20)
    with pytest.raises(codec.Malformed, match="longer than 1 MiB"):
        codec.decode(b" " * ((1 << 20) + 1))
    told = Entry(1, 0.5, ev.NodeNoticed(0, "x"))
    assert codec.decode(codec.encode(told).rjust(1 << 20)) == told


HUNG = '{"seq": 1, "t": 0, "name": "ranks.hung", "context": {"seconds": %s}}'


@cases(
    ("text", "seconds"),
    [
        ("1.5", 1.5), ("3", 3), ('"inf"', float("inf")), ('"-inf"', -float("inf")),
        (str(1 << 1022), 1 << 1022), (str(1 << 1023), None), ("true", None), ('"1.5"', None),
        ("null", None), ("[]", None),
    ],
)  # fmt: skip
def test_numbers_as_they_were_written(text: str, seconds: float | None) -> None:
    line = (HUNG % text).encode()
    if seconds is None:
        with pytest.raises(codec.Malformed, match=r"^ranks\.hung\.seconds: unexpected value"):
            codec.decode(line)
    else:
        assert codec.decode(line).event == monitor_events.RanksHung(seconds)


STACK = (
    '{"seq": 1, "t": 0, "name": "node.stacks", "context": {"node": 0, "number": 1, "ranks": [], '
    '"ras": %s}}'
)


@cases(
    ("text", "data"),
    [
        ('"a\\n\u00e4"', "a\n\u00e4".encode()),
        ('"\\udcff"', b"\xed\xb3\xbf"),
        ('{"b64": "/wA="}', b"\xff\0"),
        ('{"b64": ""}', b""),
        ('{"b64": "/wA"}', None),
        ('{"b64": "/w A="}', None),
        ('{"b64": "\u00e4"}', None),
        ('{"b64": "/wA=", "more": 1}', None),
        ('{"b64": 1}', None),
        ("1", None),
    ],
)
def test_bytes_as_they_were_written(text: str, data: bytes | None) -> None:
    line = (STACK % text).encode()
    if data is None:
        with pytest.raises(codec.Malformed, match=r"^node\.stacks\.ras: unexpected value"):
            codec.decode(line)
    else:
        assert codec.decode(line).event == monitor_events.NodeStacks(0, 1, (), data)
