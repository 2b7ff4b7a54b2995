"""Reports are hostile: good ones become events, all others a ReportError and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.mpi_events import MpiFound, PmixFailed, PmixWanted
from dispatcher.core.events.verdicts import ErrorFile
from dispatcher.model.bounds import LIST_LIMIT, TEXT_LIMIT, WORDS_LIMIT
from dispatcher.plan.job.binding import Topology
from dispatcher.remote.protocol.packing import pack
from dispatcher.runner.run import reports
from dispatcher.runner.run.reports import ReportError

RANKS = frozenset({4, 5})
CLASSES: dict[str, Any] = {c.name: c for c in reports.REPORTS} | {"rank.spawned": ev.RankSpawned}

FACTS: dict[str, Any] = {
    "hostname": "gpu01", "pid": 7, "python": "3.8.18", "cores": 64, "gpus": 8,
    "addresses": ["10.0.0.1", "fd00::1"], "machine": "boot net pid",
    "error_folder": "/tmp/d", "port": 4000, "script": 7,
    "code": [["lib", 9]], "ifaces": [["10.0.0.1", "eth0"]],
    "room": [1 << 40, None],
    "topology": {
        "allowed": "0-3", "nodes": [[0, "0-3"]], "cores": ["0-1", "2-3"],
        "gpus": [["GPU-1", 0, "pci0"]], "nics": [["mlx5_0", -1, ""]],
    },
}  # fmt: skip

GOOD: dict[str, dict[str, Any]] = {
    "node.ready": {"facts": FACTS, "problems": [["missing", "x: not found"]]},
    "node.probed": {"reached": ["10.0.0.1"]}, "rank.spawned": {"pids": [[4, 100], [5, 101]]},
    "rank.failed_to_start": {"rank": 4, "errno": 2, "step": "exec", "what": "prog"},
    "rank.exited": {"rank": 5, "status": -9, "error": b'{"message": "no"}', "hint": "OOM"},
    "rank.leaked": {"rank": 5}, "input.closed": {"rank": 4, "taken": 1 << 31}, "node.heard": {},
    "node.paused": {}, "node.dying": {"why": "told to"},
    "node.swept": {"killed": 2, "left": [9, 8], "stuck": ["D x 74 x86_64"]},
    "node.noticed": {"text": "hello"}, "gpus.used": {"said": b"use GPU-1"},
    "node.sampled": {
        "at": 7.5,
        "ranks": [
            [4, "R", 2.5, 4096, 3, 2, [0], [0, 1], 7.5],
            [5, "R", 2.5, 4096, 3, 2, None, None, None],
        ],
        "late": False,
        "gpus": [[0, 97.0, 1024, 2048, 300.5, 61.0, 700.0, 3.0, 64, [79]], [1, *[None] * 8, []]],
    },
    "node.versions": {"found": "dispatch-version python 3.8.1"},
    "node.stacks": {
        "number": 2,
        "ranks": [[4, 100, "S", "py-spy", b"Thread"], [5, 101, "-", "proc", b""]],
        "ras": b"ok",
        "flights": [[5, "/tmp/nccl_trace_rank_5", 9, b""]],
        "recorders": [[4, b"{}"]],
        "natives": [[5, b"#0 f ()"]],
    },
    "pmi.committed": {"world": 1, "fence": "WORLD:0", "epoch": 2, "keys": b"packet"},
    "pmi.aborted": {"rank": 4, "code": 7, "text": "why"},
    "pmi.asked": {"rank": 5, "verb": "publish", "service": b"s", "port": b"tag#0$"},
    "pmi.spawn_asked": {
        "rank": 4,
        "segments": [[2, [b"prog", b"-v"], [[b"host", b"n1"]]], [1, [b"other"], []]],
        "preput": [[b"key", b"value"]],
    },
    "pmi.waiting": {"never": [4], "absent": [5], "seconds": 30.0, "some": True}, "pmix.wanted": {},
    "pmix.failed": {"library": "/lib/libmpi.so.40", "tried": "libpmix.so.2: not found"},
    "mpi.found": {"library": "/lib/libmpi.so.40", "served": "PMI-1", "rank": 4},
    "mpi.inside": {"ranks": [4, 5], "over": [5]},
}  # fmt: skip

EVENTS: dict[str, list[ev.Event]] = {
    "node.ready": [
        ev.NodeReady(
            3,
            ev.Facts(
                hostname="gpu01", pid=7, python="3.8.18", cores=64, gpus=8,
                addresses=("10.0.0.1", "fd00::1"), machine="boot net pid", error_folder="/tmp/d",
                port=4000, script=7, code=(("lib", 9),), room=(1 << 40, None),
                topology=Topology("0-3", ((0, "0-3"),), ("0-1", "2-3"), (("GPU-1", 0, "pci0"),),
                                  (("mlx5_0", -1, ""),)),
                ifaces=(("10.0.0.1", "eth0"),),
            ),
            (("missing", "x: not found"),),
        )
    ],
    "node.probed": [ev.NodeProbed(3, ("10.0.0.1",))],
    "rank.spawned": [ev.RankSpawned(3, 4, 100), ev.RankSpawned(3, 5, 101)],
    "rank.failed_to_start": [ev.RankFailedToStart(3, 4, 2, "exec", "prog")],
    "rank.exited": [ev.RankExited(3, 5, -9, ErrorFile("no"), "OOM")],
    "rank.leaked": [ev.RankLeaked(3, 5)], "input.closed": [ev.InputClosed(3, 4, 1 << 31)],
    "node.heard": [ev.NodeHeard(3)], "node.paused": [ev.NodePaused(3)],
    "node.dying": [ev.NodeDying(3, "told to")],
    "node.sampled": [
        mon.NodeSampled(
            3, 7.5, (mon.RankSample(4, "R", 2.5, 4096, 3, 2, (0,), (0, 1), 7.5),
                     mon.RankSample(5, "R", 2.5, 4096, 3, 2)),
            (mon.GpuSample(0, 97.0, 1024, 2048, 300.5, 61.0, 700.0, 3.0, 64, (79,)),
             mon.GpuSample(1, None, None, None, None, None)),
        )
    ],
    "node.versions": [mon.NodeVersions(3, "dispatch-version python 3.8.1")],
    "node.stacks": [
        mon.NodeStacks(
            3, 2,
            (
                mon.RankStack(4, 100, "S", "py-spy", b"Thread"),
                mon.RankStack(5, 101, "-", "proc", b""),
            ),
            b"ok", (mon.Flight(5, "/tmp/nccl_trace_rank_5", 9, b""),),
            (mon.RankText(4, b"{}"),), (mon.RankText(5, b"#0 f ()"),),
        )
    ],
    "node.swept": [ev.NodeSwept(3, 2, (9, 8), None, ("state D in x, system call fsync",))],
    "node.noticed": [ev.NodeNoticed(3, "hello")],
    "gpus.used": [mon.GpusUsed(3, b"use GPU-1")],
    "pmi.committed": [mpi_events.PmiCommitted(3, 1, "WORLD:0", 2, b"packet")],
    "pmi.aborted": [mpi_events.PmiAborted(3, 4, 7, "why")],
    "pmi.asked": [mpi_events.PmiAsked(3, 5, "publish", b"s", b"tag#0$")],
    "pmi.spawn_asked": [
        mpi_events.PmiSpawnAsked(
            3, 4,
            (mpi_events.Segment(2, (b"prog", b"-v"), ((b"host", b"n1"),)), mpi_events.Segment(1,
            (b"other",))), ((b"key", b"value"),),
        )
    ],
    "pmi.waiting": [mpi_events.PmiWaiting(3, (4,), (5,), 30.0, True)],
    "pmix.wanted": [PmixWanted(3)],
    "pmix.failed": [PmixFailed(3, "/lib/libmpi.so.40", "libpmix.so.2: not found")],
    "mpi.found": [MpiFound(3, "/lib/libmpi.so.40", "PMI-1", 4)],
    "mpi.inside": [mpi_events.MpiInside(3, (4, 5), (5,))],
}  # fmt: skip


def read(type: str, **fields: Any) -> list[ev.Event]:
    return reports.read(3, RANKS, pack({"type": type, **fields}))


@cases("type", GOOD)
def test_a_good_report_is_its_events(type: str) -> None:
    assert read(type, **GOOD[type]) == EVENTS[type]


@cases(
    "wrong",
    [
        {"allowed": "x"}, {"allowed": 7}, {"nodes": [[0, "0-9000"]]}, {"nodes": [[-1, "0"]]},
        {"cores": ["0-8191", "0-8191"]}, {"gpus": [["", -2, ""]]}, {"gpus": [[7, 0, ""]]},
        {"nics": [["", 0]]}, {"nics": None},
    ],
)  # fmt: skip
def test_a_topology_is_what_a_kernel_says(wrong: dict[str, Any]) -> None:
    facts = {**FACTS, "topology": {**FACTS["topology"], **wrong}}
    with pytest.raises(ReportError):
        read("node.ready", facts=facts, problems=[])


def test_where_an_exit_left_mpi() -> None:
    for way in ("", "never", "inside", "open"):
        assert read("rank.exited", rank=4, status=0, mpi=way) == [ev.RankExited(3, 4, 0, mpi=way)]


#: what no field may be
WRONG: list[Any] = [
    None, True, 1.5, -1 << 63, (1 << 63) - 1, b"bytes", {}, {"a": 1}, [[]], [1], [[1, 2, 3]],
    "word",
]  # fmt: skip

#: wrong values that some field takes all the same
FINE: dict[str, list[Any]] = {
    "topology": [None], "error_folder": [None, "word"], "port": [None, b"bytes"], "script": [None],
    "error": [None, b"bytes"], "hint": ["word"], "left": [[1]], "seconds": [1.5], "at": [1.5],
    "late": [True], "some": [True],
    **{name: [b"bytes"] for name in ("keys", "said", "service", "ras")},
    **{
        name: ["word"] for name in ("hostname", "python", "machine", "step", "what", "why", "text",
        "fence", "library", "tried", "served", "found")
    },
}  # fmt: skip


def wrong_fields() -> list[Any]:
    found = []
    for type, fields in GOOD.items():
        for name in fields:
            values = [value for value in WRONG if value not in FINE.get(name, [])]
            found += [pytest.param(type, {**fields, name: v}, id=f"{type}-{name}") for v in values]
            missing = {key: value for key, value in fields.items() if key != name}
            if name in ("rank", "pids") or name in CLASSES[type]._required:
                found.append(pytest.param(type, missing, id=f"{type}-without-{name}"))
    for name in FACTS:
        values = [value for value in WRONG if value not in FINE.get(name, [])]
        found += [
            pytest.param("node.ready", {"facts": {**FACTS, name: v}}, id=f"facts-{name}")
            for v in values
        ]
    return found


@cases(("type", "fields"), wrong_fields())
def test_a_wrong_field_is_refused(type: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ReportError):
        read(type, **fields)


@cases(
    ("type", "fields"),
    [
        ("rank.exited", {"rank": 3, "status": 0}), ("rank.exited", {"rank": True, "status": 0}),
        ("rank.exited", {"rank": 4, "status": False}), ("rank.leaked", {"rank": -4}),
        ("rank.failed_to_start", {"rank": 0, "errno": 2, "step": "exec", "what": "x"}),
        ("rank.spawned", {"pids": [[4, 100], [6, 101]]}), ("rank.spawned", {"pids": [[4, 0]]}),
        ("rank.spawned", {"pids": [[4, True]]}), ("node.swept", {"killed": 0, "left": [-1]}),
        ("node.sampled", {**GOOD["node.sampled"], "gpus": [["0", 1.0, 1, 1, 1.0, 1.0, 1.0, 1.0]]}),
        ("node.swept", {"killed": 0, "left": list(range(1, LIST_LIMIT + 2))}),
        ("node.probed", {"reached": ["a"] * (LIST_LIMIT + 1)}),
        ("node.ready", {"facts": {**FACTS, "port": b"4000"}, "problems": []}),
        ("node.ready", {"facts": {**FACTS, "gpus": True}, "problems": []}),
        ("node.ready", {"facts": {**FACTS, "visible": 7}, "problems": []}),
        ("node.ready", {"facts": FACTS, "problems": [["one"]]}),
        ("node.ready", {"facts": FACTS, "problems": [["one", 2]]}), ("nonsense", {}),
        ("start", {"ranks": []}), ("__class__", {}), ("mpi.inside", {"ranks": [6]}),
        ("mpi.inside", {"ranks": [[4, 0]]}), ("mpi.inside", {"over": [6]}),
        *(("rank.exited", {"rank": 4, "status": 0, "mpi": way}) for way in ("x", 7, b"never")),
    ],
)  # fmt: skip
def test_a_lie_is_refused(type: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ReportError):
        read(type, **fields)


@cases("type", GOOD)
def test_a_field_that_its_event_does_not_have_is_refused(type: str) -> None:
    for more in ({"node": 3}, {"x": 3}, {"facts": {**FACTS, "x": 1}}):
        with pytest.raises(ReportError, match="not a field"):
            read(type, **{**GOOD[type], **more})


def test_every_field_of_every_report_is_tried_and_has_a_bound() -> None:
    assert GOOD.keys() == CLASSES.keys()
    for cls in CLASSES.values():
        fields, needed = reports.fields_of(cls)
        assert needed <= fields.keys() >= cls._defaults.keys() - {"node", "attempt"}


@cases("wanted", [int, str, bytes, float, tuple[int, ...], tuple[str, int], int | None])
def test_a_type_without_a_bound_is_a_mistake_of_ours(wanted: Any) -> None:
    with pytest.raises(TypeError, match="no bound"):
        reports.reader(wanted)


@cases("message", [None, 1, "rank.exited", [], ["rank.exited"], {}, {"type": 1}, b"x"])
def test_what_is_no_report_is_refused(message: Any) -> None:
    with pytest.raises(ReportError):
        reports.read(3, RANKS, pack(message))


def test_long_texts_are_cut() -> None:
    """What is for people says how much is missing: a text of bytes is four times as long shown."""
    for type, field in (("node.noticed", "text"), ("node.dying", "why")):
        (told,) = read(type, **{field: "x" * WORDS_LIMIT})
        assert getattr(told, field) == "x" * WORDS_LIMIT
        (told,) = read(type, **{field: "\x80" * 100_000})
        assert getattr(told, field) == "\x80" * WORDS_LIMIT + " ... (99,600 more characters)"
    (found,) = read("mpi.found", **{**GOOD["mpi.found"], "library": "x" * 100_000})
    assert isinstance(found, MpiFound)
    assert found.library == "x" * TEXT_LIMIT


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4) | st.floats(-1, 1),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*FACTS, "rank"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(list(GOOD)),
    st.dictionaries(st.sampled_from(sorted({name for f in GOOD.values() for name in f})), plain),
)
def test_any_fields_give_events_or_a_report_error(type: str, fields: dict[str, Any]) -> None:
    try:
        found = read(type, **{**GOOD[type], **fields})
    except ReportError:
        return
    assert found
    assert all(isinstance(event, ev.Event) for event in found)


@given(st.binary(max_size=100))
def test_any_bytes_give_a_report_error(data: bytes) -> None:
    with pytest.raises(ReportError):
        reports.read(3, RANKS, data)
