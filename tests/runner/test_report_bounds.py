"""How large each figure of a report may be, and what becomes of those that need not be there."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.model import bounds
from dispatcher.remote.host import host_facts
from dispatcher.remote.protocol.packing import pack
from dispatcher.runner.run import reports
from dispatcher.runner.run.reports import ReportError
from runner.test_reports import FACTS, GOOD, RANKS, read


def is_taken(type: str, **fields: Any) -> bool:
    try:
        return bool(read(type, **{**GOOD[type], **fields}))
    except ReportError:
        return False


@cases(
    ("type", "field", "least", "most"),
    [
        ("rank.failed_to_start", "errno", 0, 4095), ("rank.exited", "status", -64, 255),
        ("input.closed", "taken", 0, 1 << 62), ("pmi.aborted", "code", 0, 255),
        ("pmi.committed", "world", 0, 1 << 32), ("pmi.committed", "epoch", 0, 1 << 32),
        ("node.stacks", "number", 0, 1 << 32),
        ("node.swept", "killed", 0, 1 << 32), ("node.swept", "mark", 0, None),
        ("node.sampled", "mark", 0, None), ("node.ready", "attempt", 0, 1 << 16),
    ],
)  # fmt: skip
def test_figures(type: str, field: str, least: int, most: int | None) -> None:
    assert is_taken(type, **{field: least})
    assert not is_taken(type, **{field: least - 1})
    assert is_taken(type, **{field: (1 << 63) - 1 if most is None else most})
    if most is not None:
        assert not is_taken(type, **{field: most + 1})


@cases(
    ("field", "least", "most"),
    [("pid", 0, 1 << 32), ("cores", 1, 1 << 16), ("gpus", 0, bounds.MOST_GPU), ("port", 1, 65535),
     ("mark", 0, None), ("script", 0, (1 << 32) - 1)],
)  # fmt: skip
def test_figures_of_a_host(field: str, least: int, most: int | None) -> None:
    def fits(value: int) -> bool:
        return is_taken("node.ready", facts={**FACTS, field: value})

    assert [fits(least), fits(least - 1)] == [True, False]
    assert fits((1 << 63) - 1 if most is None else most)
    assert most is None or not fits(most + 1)


@cases(
    ("value", "fits"),
    [(0.0, True), (999_999_999.0, True), (1e9, False), (-0.001, False), (7, False)],
)  # fmt: skip
def test_durations(value: float, fits: bool) -> None:
    assert is_taken("node.sampled", at=value) == fits
    assert is_taken("pmi.waiting", seconds=value) == fits


@cases(
    ("row", "fits"),
    [
        ([4, "R", 0, 0, 0, 0, None, None, None], True),
        ([4, "R", 1, 1 << 62, 1 << 62, 1 << 62, None, None, None], True),
        ([4, "R", 1, (1 << 62) + 1, 1, 1, None, None, None], False),
        ([4, "R", 1, -1, 1, 1, None, None, None], False),
        ([4, "R", 1e15, 1, 1, 1, None, None, None], False),
        ([4, "R", 9e14, 1, 1, 1, None, None, None], True),
        ([4, "RR", 1, 1, 1, 1, None, None, None], False),
        ([4, "1", 1, 1, 1, 1, None, None, None], False),
        ([4, "R", True, 1, 1, 1, None, None, None], False),
        ([4, "R", 1, 1, 1, 1, [bounds.MOST_GPU], [], None], True),
        ([4, "R", 1, 1, 1, 1, [bounds.MOST_GPU + 1], [], None], False),
        ([4, "R", 1, 1, 1, 1, None, [0] * bounds.MOST_GPU, None], True),
        ([4, "R", 1, 1, 1, 1, None, [0] * (bounds.MOST_GPU + 1), None], False),
    ],
)  # fmt: skip
def test_the_sample_of_a_rank(row: list[Any], fits: bool) -> None:
    assert is_taken("node.sampled", ranks=[row]) == fits


def test_what_a_sample_brings() -> None:
    (sample,) = read("node.sampled", at=1.5, late=True, mark=7, gpus=[],
                     ranks=[[4, "S", 2, 3, 5, 6, [0, 1], None, 90]])  # fmt: skip
    rank = mon.RankSample(4, "S", 2.0, 3, 5, 6, (0, 1), None, 90.0)
    assert sample == mon.NodeSampled(3, 1.5, (rank,), (), late=True, mark=7)
    assert is_taken("node.sampled", gpus=[[bounds.MOST_GPU, *[None] * 8, [79]]])
    assert not is_taken("node.sampled", gpus=[[bounds.MOST_GPU + 1, *[None] * 8, []]])


@cases(
    ("name", "fits"),
    [("gpu01", True), ("GPU_node-1.rack-2.example.org", True), ("(none)", True), ("", True),
     ("müller", True), ("3f2a9c81d0e7", True), ("n" * bounds.MOST_NAME, True),
     ("n" * (bounds.MOST_NAME + 1), False), ("a\0b", False), ("a\nb", False), ("a\x1b[1m", False)],
)  # fmt: skip
def test_the_name_of_a_host_fits_into_others_environment(name: str, fits: bool) -> None:
    assert is_taken("node.ready", facts={**FACTS, "hostname": name}) == fits


@cases(
    ("addresses", "fits"),
    [([], True), (["10.0.0.1", "2001:db8:0:0:0:0:0:a07"], True), (["::1"], True),
     ([f"10.0.0.{n}" for n in range(bounds.MOST_ADDRESSES)], True),
     ([f"10.0.0.{n}" for n in range(bounds.MOST_ADDRESSES + 1)], False),
     (["n1"], False), ([""], False), (["10.0.0.1\0"], False), (["10.0.0"], False),
     (["fe80::1%a"], False), (["\udc80"], False), (["1" * 5000], False)],
)  # fmt: skip
def test_the_addresses_of_a_host(addresses: list[str], fits: bool) -> None:
    assert is_taken("node.ready", facts={**FACTS, "addresses": addresses}) == fits


def test_an_agent_tells_no_more_addresses_than_are_taken() -> None:
    assert host_facts.MOST_ADDRESSES <= bounds.MOST_ADDRESSES


def test_what_need_not_be_told_of_a_host() -> None:
    facts = {**FACTS, "mark": 5, "visible": "0,1", "room": [6, 7]}
    (ready,) = read("node.ready", facts=facts, problems=[["a", "b"]], attempt=4)
    assert isinstance(ready, ev.NodeReady)
    assert (ready.facts.mark, ready.facts.visible, ready.facts.room) == (5, "0,1", (6, 7))
    assert (ready.attempt, ready.problems) == (4, (("a", "b"),))
    needed = {name: FACTS[name] for name in ("hostname", "pid", "python", "cores", "gpus",
              "addresses", "machine")}  # fmt: skip
    (ready,) = read("node.ready", facts=needed, problems=[])
    assert isinstance(ready, ev.NodeReady)
    assert (ready.facts.mark, ready.facts.visible, ready.facts.script) == (None, None, None)
    assert (ready.facts.port, ready.facts.error_folder) == (None, None)
    assert (ready.facts.room, ready.attempt) == ((None, None), 0)


@cases(
    ("rank", "fits"),
    [
        ([4, 0, "S", "proc", b""], True), ([4, 1, "-", "proc", b"x" * bounds.STACK_LIMIT], True),
        ([4, 1, "S", "proc", b"x" * (bounds.STACK_LIMIT + 1)], False),
        ([4, -1, "S", "proc", b""], False),
        ([4, 1, "SS", "proc", b""], False), ([4, 1, "1", "proc", b""], False),
        ([4, 1, "", "proc", b""], False), ([4, 1, "S", "gdb", b""], False),
        ([9, 1, "S", "proc", b""], False), ([4, 1, "S", "proc"], False),
        ([4, True, "S", "proc", b""], False), ([4, 1, "S", "proc", "text"], False), ((), False),
    ],
)  # fmt: skip
def test_the_stack_of_a_rank(rank: Any, fits: bool) -> None:
    assert is_taken("node.stacks", ranks=[rank]) == fits


def test_dumps_of_a_flight_recorder() -> None:
    path = "p" * (bounds.TEXT_LIMIT + 5)
    (stacks,) = read(
        "node.stacks", number=1, ranks=[], ras=b"r", flights=[[5, path, 7, b"data"]],
        recorders=[[4, b"{}"]], natives=[[5, b"#0"]],
    )  # fmt: skip
    dump = mon.Flight(5, path[: bounds.TEXT_LIMIT], 7, b"data")
    texts = (mon.RankText(4, b"{}"),), (mon.RankText(5, b"#0"),)
    assert stacks == mon.NodeStacks(3, 1, (), b"r", (dump,), *texts)
    for bad in ([9, "p", 1, b""], [5, "p", -1, b""], [5, "p", 1, b"x" * (bounds.STACK_LIMIT + 1)]):
        assert not is_taken("node.stacks", flights=[bad])
    assert is_taken("node.stacks", flights=[[rank, "p", 1, b""] for rank in (4, 5)])
    assert not is_taken("node.stacks", flights=[[5, "p", 1, b""]] * 2)  # one file cannot be both
    assert is_taken("node.stacks", ras=b"x" * bounds.STACK_LIMIT)
    assert not is_taken("node.stacks", ras=b"x" * (bounds.STACK_LIMIT + 1))


def test_lists_and_texts_and_files_are_bounded() -> None:
    assert is_taken("node.probed", reached=["a"] * bounds.LIST_LIMIT)
    (probed,) = read("node.probed", reached=["a" * (bounds.TEXT_LIMIT + 1)])
    assert probed == ev.NodeProbed(3, ("a" * bounds.TEXT_LIMIT,))
    assert is_taken("rank.exited", error=b"x" * bounds.ERROR_LIMIT)
    assert not is_taken("rank.exited", error=b"x" * (bounds.ERROR_LIMIT + 1))
    for name in ("service", "port"):
        assert is_taken("pmi.asked", **{name: b"x" * bounds.TEXT_LIMIT})
        assert not is_taken("pmi.asked", **{name: b"x" * (bounds.TEXT_LIMIT + 1)})
        assert not is_taken("pmi.asked", **{name: b"a\nb"})


def test_a_report_as_long_as_may_be() -> None:
    body = pack({"type": "node.noticed", "text": ""})
    fill = bounds.BODY_LIMIT - len(body)
    tried = (pack({"type": "node.noticed", "text": "x" * (fill - less)}) for less in range(12))
    longest = next(packed for packed in tried if len(packed) <= bounds.BODY_LIMIT)
    (noticed,) = reports.read(3, RANKS, longest)
    assert isinstance(noticed, ev.NodeNoticed)
    with pytest.raises(ReportError, match="report too long"):
        reports.read(3, RANKS, longest + bytes(bounds.BODY_LIMIT + 1 - len(longest)))


@cases(
    ("segment", "fits"),
    [
        ([0, [b"p"], []], True), ([1 << 31, [b"p"], []], True),
        ([(1 << 31) + 1, [b"p"], []], False),
        ([-1, [b"p"], []], False), ([1, [b"p\0"], []], False), ([1, ["p"], []], False),
        ([1, b"p", []], False), ([1, [b"p"], [[b"k"]]], False),
        ([1, [b"p"], [[b"k", b"v", b"w"]]], False),
        ([1, [b"p"], [[b"k", "v"]]], False), ([1, [b"p"], b"kv"], False),
        ([1, [b"a"] * 2 * bounds.LIST_LIMIT, []], True),
        ([1, [b"a"] * (2 * bounds.LIST_LIMIT + 1), []], False),
        ([1, [b"p"], [[b"k", b"v"]] * bounds.LIST_LIMIT], True),
        ([1, [b"p"], [[b"k", b"v"]] * (bounds.LIST_LIMIT + 1)], False),
    ],
)  # fmt: skip
def test_a_part_of_a_spawn(segment: list[Any], fits: bool) -> None:
    assert is_taken("pmi.spawn_asked", segments=[segment]) == fits


def test_what_a_spawn_begins_with_are_pairs() -> None:
    (asked,) = read("pmi.spawn_asked", rank=4, segments=[], preput=[[b"a", b"b"], [b"c", b"d"]])
    assert isinstance(asked, mpi_events.PmiSpawnAsked)
    assert asked.preput == ((b"a", b"b"), (b"c", b"d"))
    assert not is_taken("pmi.spawn_asked", preput=[[b"odd"]])


@cases("some", [None, True, False])
def test_whether_all_are_named_that_are_awaited(some: bool | None) -> None:
    fields = {"never": [], "absent": [4], "seconds": 1.0}
    (waiting,) = read("pmi.waiting", **fields, **({} if some is None else {"some": some}))
    assert isinstance(waiting, mpi_events.PmiWaiting)
    assert waiting.some == bool(some)
    assert not is_taken("pmi.waiting", never=[9])
    assert not is_taken("pmi.waiting", absent=[9])


def test_a_report_of_very_many_values_is_none() -> None:
    with pytest.raises(ReportError, match="malformed report: too many values"):
        reports.read(3, RANKS, pack({"type": "node.noticed", "text": [[]] * reports.MOST_VALUES}))
