"""Checks the reports of an agent and turns them into events; pure.

Everything here came from a host and is hostile until shown otherwise: types, ranges and lengths are
checked, and a report about a rank counts only if that rank was given to this very node, which is
known from the link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import mpi_events, verdicts
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.stack_frames import HOW, in_words
from dispatcher.plan.job.binding import Device, Topology
from dispatcher.remote.protocol.packing import PackError, unpack

#: bytes of one report; two bytes can become an object of a hundred, so this is far below a frame's
BODY_LIMIT = 1 << 20
#: values in one report; a sample of 4096 ranks has 40,000
MOST_VALUES = 1 << 16
TEXT_LIMIT = 4096
#: characters of a host's text for the user
WORDS_LIMIT = 400
#: bytes of a value that is published by PMIx
VALUE_LIMIT = 256 << 10
LIST_LIMIT = 4096
#: characters of a host's name: Linux has 64 bytes for it, DNS 253
MOST_NAME = 255
#: addresses of a host, all of which every other host may have to try; an agent sends 32
MOST_ADDRESSES = 64
#: a GPU's index at most, and a NUMA node's
MOST_GPU = MOST_NODE = 1 << 10
#: bytes of a rank's error file
ERROR_LIMIT = 64 << 10
#: bytes of one stack or dump
STACK_LIMIT = 256 << 10


class ReportError(ValueError):
    """A report that breaks the protocol; its link cannot be trusted any more."""


def read(node: int, ranks: frozenset[int], body: bytes) -> list[ev.Event]:
    """Read one control frame of ``node``, which was given ``ranks``; returns its events.

    Raises: ReportError.
    """
    if len(body) > BODY_LIMIT:
        raise ReportError(f"report too long: {len(body)} bytes")
    try:
        message = unpack(body, MOST_VALUES)
    except PackError as error:
        raise ReportError(f"malformed report: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ReportError("report without a type")
    reader = _READERS.get(message["type"])
    if reader is None:
        raise ReportError(f"unknown report {message['type'][:40]!r}")
    return reader(Fields(message, ranks), node)


class Fields:
    """Checked access to a report's fields. Raises: ReportError, of every method."""

    def __init__(self, fields: dict[str, Any], ranks: frozenset[int]) -> None:
        self._fields = fields
        self._ranks = ranks

    def integer(self, name: str, low: int = 0, high: int = 1 << 32) -> int:
        """The field, an integer from ``low`` to ``high``."""
        return _integer(self._fields.get(name), name, low, high)

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        """As ``integer``; None where it is missing."""
        return None if self._fields.get(name) is None else self.integer(name, low, high)

    def has(self, name: str) -> bool:
        """Whether the field is there, and not None."""
        return self._fields.get(name) is not None

    def text(self, name: str) -> str:
        """The field, a text of bounded length."""
        return _text(self._fields.get(name), name)

    def words(self, name: str, most: int = WORDS_LIMIT) -> str:
        """The field, a text for the user; a long text is cut, with a note on the rest's size."""
        text = self.text(name)[:most]
        more = len(self._fields[name]) - len(text)
        return f"{text} ... ({more:,} more characters)" if more else text

    def optional_text(self, name: str) -> str | None:
        """As ``text``; None where it is missing."""
        return None if self._fields.get(name) is None else self.text(name)

    def bytes(self, name: str, most: int) -> bytes:
        """The field, at most ``most`` bytes."""
        value = self._fields.get(name)
        if not isinstance(value, bytes) or len(value) > most:
            raise ReportError(f"{name}: not at most {most} bytes")
        return value

    def number(self, name: str) -> float:
        """The field, a duration in seconds."""
        value = self._fields.get(name)
        if not isinstance(value, float) or not 0 <= value < 1e9:
            raise ReportError(f"{name}: not a duration")
        return value

    def flag(self, name: str) -> bool:
        """The field, true or false."""
        value = self._fields.get(name)
        if not isinstance(value, bool):
            raise ReportError(f"{name}: neither true nor false")
        return value

    def items(self, name: str) -> list[Any]:
        """The field, a list of bounded length."""
        value = self._fields.get(name)
        if not isinstance(value, list) or len(value) > LIST_LIMIT:
            raise ReportError(f"{name}: not a list of at most {LIST_LIMIT}")
        return value

    def rows(self, name: str, size: int) -> list[list[Any]]:
        """The field, a list of lists of ``size`` values each."""
        found = self.items(name)
        if any(not isinstance(row, list) or len(row) != size for row in found):
            raise ReportError(f"{name}: not rows of {size}")
        return found

    def rank(self) -> int:
        """The field ``rank``, one of this node's."""
        return self.own(self._fields.get("rank"))

    def own(self, value: Any) -> int:
        """``value`` as a rank, one of this node's."""
        rank = _integer(value, "rank", 0, 1 << 32)
        if rank not in self._ranks:
            raise ReportError(f"report about rank {rank}, which runs elsewhere")
        return rank

    def fields(self, name: str) -> Fields:
        """The field, a dict, with the same checks."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise ReportError(f"{name}: not a dict")
        return Fields(value, self._ranks)


def _integer(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ReportError(f"{name}: not an integer from {low} to {high}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ReportError(f"{name}: not a text")
    return value[:TEXT_LIMIT]


def _ready(fields: Fields, node: int) -> list[ev.Event]:
    facts = fields.fields("facts")
    problems = [(_text(a, "problem"), _text(b, "problem")) for a, b in fields.rows("problems", 2)]
    return [
        ev.NodeReady(
            node,
            ev.Facts(
                hostname=_hostname(facts),
                pid=facts.integer("pid"),
                python=facts.text("python"),
                cores=facts.integer("cores", 1, 1 << 16),
                gpus=facts.integer("gpus", 0, MOST_GPU),
                addresses=_addresses(facts),
                machine=facts.text("machine"),
                error_folder=facts.optional_text("error_folder"),
                port=facts.optional_integer("port", 1, 65535),
                mark=facts.optional_integer("mark", 0, 1 << 63),
                script=facts.optional_integer("script", 0, (1 << 32) - 1),
                code=tuple(
                    (_text(name, "code"), _integer(sum, "code", 0, (1 << 32) - 1))
                    for name, sum in (facts.rows("code", 2) if facts.has("code") else ())
                ),
                room=(
                    facts.optional_integer("tmp", 0, 1 << 63),
                    facts.optional_integer("shm", 0, 1 << 63),
                ),
                visible=facts.optional_text("visible"),
                self_fencing=bool(facts.optional_integer("self_fencing", 0, 1)),
                topology=_topology(facts),
                ifaces=tuple(
                    (_text(address, "ifaces"), _text(name, "ifaces")[:15])
                    for address, name in (facts.rows("ifaces", 2) if facts.has("ifaces") else ())
                ),
            ),
            tuple(problems),
            attempt=fields.optional_integer("attempt", 0, 1 << 16) or 0,
        )
    ]


def _hostname(facts: Fields) -> str:
    name = facts.text("hostname")
    if len(name) > MOST_NAME or not name.isprintable():
        raise ReportError("hostname: not the name of a host")
    return name


def _addresses(facts: Fields) -> tuple[str, ...]:
    found = tuple(_text(item, "address") for item in facts.items("addresses"))
    if len(found) > MOST_ADDRESSES:
        raise ReportError(f"addresses: more than {MOST_ADDRESSES}")
    try:
        for each in found:
            inet_pton(AF_INET6 if ":" in each else AF_INET, each)
    except (OSError, ValueError):
        raise ReportError("addresses: not numeric") from None
    return found


def _topology(facts: Fields) -> Topology | None:
    if not facts.has("topology"):
        return None
    there = facts.fields("topology")

    def devices(name: str) -> tuple[Device, ...]:
        return tuple(
            (_text(who, name), _integer(node, name, -1, MOST_NODE), _text(path, name))
            for who, node, path in there.rows(name, 3)
        )

    try:
        found = Topology(
            there.text("allowed"),
            tuple(
                (_integer(number, "nodes", 0, MOST_NODE), _text(cpus, "nodes"))
                for number, cpus in there.rows("nodes", 2)
            ),
            tuple(_text(cpus, "cores") for cpus in there.items("cores")),
            devices("gpus"),
            devices("nics"),
            tuple(_text(cpus, "sockets") for cpus in there.items("sockets"))
            if there.has("sockets")
            else (),
        )
        found.check()
    except ValueError as error:
        raise ReportError(f"topology: {error}") from None
    return found


def _probed(fields: Fields, node: int) -> list[ev.Event]:
    return [ev.NodeProbed(node, tuple(_text(i, "address") for i in fields.items("reached")))]


def _spawned(fields: Fields, node: int) -> list[ev.Event]:
    return [
        ev.RankSpawned(node, fields.own(rank), _integer(pid, "pid", 1, 1 << 32))
        for rank, pid in fields.rows("pids", 2)
    ]


def _failed(fields: Fields, node: int) -> list[ev.Event]:
    number = fields.integer("errno", 0, 4095)
    step, what = fields.text("step"), fields.text("what")
    return [ev.RankFailedToStart(node, fields.rank(), number, step, what)]


def _exited(fields: Fields, node: int) -> list[ev.Event]:
    status = fields.integer("status", -64, 255)
    hint = fields.optional_text("hint") or ""
    mpi = fields.optional_text("mpi") or ""
    if mpi not in ("", "never", "inside", "open"):
        raise ReportError("mpi: not where a rank may stand")
    return [ev.RankExited(node, fields.rank(), status, _error(fields), hint, mpi)]


def _error(fields: Fields) -> verdicts.ErrorFile | None:
    if not fields.has("error"):
        return None
    return verdicts.read_error_file(fields.bytes("error", ERROR_LIMIT))


def _swept(fields: Fields, node: int) -> list[ev.Event]:
    left = tuple(_integer(pid, "pid", 1, 1 << 32) for pid in fields.items("left"))
    mark = fields.optional_integer("mark", 0, 1 << 63)
    where = fields.items("stuck") if fields.has("stuck") else []
    stuck = tuple(in_words(_text(item, "stuck")) for item in where)
    return [ev.NodeSwept(node, fields.integer("killed"), left, mark, stuck)]


def _sample(fields: Fields, node: int) -> list[ev.Event]:
    ranks, gpus = [], []
    for rank, state, cpu, *counts, mine, every, silent in fields.rows("ranks", 9):
        if not isinstance(state, str) or len(state) != 1 or not state.isalpha():
            raise ReportError("state: not a letter")
        rss, threads, processes = (_integer(n, "count", 0, 1 << 62) for n in counts)
        own, used = fields.own(rank), _number(cpu, "cpu")
        wrote = None if silent is None else _number(silent, "silent")
        gpus_of = (_indices(mine), _indices(every))
        ranks.append(mon.RankSample(own, state, used, rss, threads, processes, *gpus_of, wrote))
    for index, *rest, reasons, xids in fields.rows("gpus", 10):
        held = None if reasons is None else _integer(reasons, "reasons", 0, 1 << 62)
        at_most = _integer(index, "gpu", 0, MOST_GPU)
        figures = [None if n is None else _number(n, "gpu") for n in rest]
        gpu = mon.GpuSample(at_most, *figures)  # type: ignore[arg-type]
        gpus.append(replace(gpu, reasons=held, xids=_indices(xids) or ()))
    at, late = fields.number("at"), fields.flag("late")
    mark = fields.optional_integer("mark", 0, 1 << 63)
    return [mon.NodeSampled(node, at, tuple(ranks), tuple(gpus), late, mark)]


def _indices(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MOST_GPU:
        raise ReportError("gpus of a rank: not a list")
    return tuple(_integer(index, "gpu", 0, MOST_GPU) for index in value)


def _stacks(fields: Fields, node: int) -> list[ev.Event]:
    ranks, flights = [], dict[int, mon.Flight]()
    for item in fields.items("ranks"):
        rank, pid, state, how, text = _row(item, (int, int, str, str, bytes))
        if how not in HOW or len(state) != 1 or not (state.isalpha() or state == "-"):
            raise ReportError("ranks: not stacks")
        ranks.append(mon.RankStack(fields.own(rank), pid, state, how, text))
    for item in fields.items("flights"):
        rank, path, size, data = _row(item, (int, str, int, bytes))
        if rank in flights:  # each rank has one file
            raise ReportError("flights: a rank twice")
        flights[rank] = mon.Flight(fields.own(rank), path[:TEXT_LIMIT], size, data)
    number, ras = fields.integer("number"), fields.bytes("ras", STACK_LIMIT)
    recorders, natives = (_rank_texts(fields, name) for name in ("recorders", "natives"))
    dumps = tuple(flights.values())
    return [mon.NodeStacks(node, number, tuple(ranks), ras, dumps, recorders, natives)]


def _rank_texts(fields: Fields, name: str) -> tuple[mon.RankText, ...]:
    rows = (_row(item, (int, bytes)) for item in fields.items(name))
    return tuple(mon.RankText(fields.own(rank), text) for rank, text in rows)


def _row(item: Any, kinds: tuple[type, ...]) -> list[Any]:
    """``item``, a list of values of ``kinds``, none below 0 or longer than ``STACK_LIMIT``."""
    if not isinstance(item, list) or [type(value) for value in item] != list(kinds):
        raise ReportError("stacks: not a row of them")
    for value in item:
        if (type(value) is int and value < 0) or (
            type(value) is bytes and len(value) > STACK_LIMIT
        ):
            raise ReportError("stacks: out of bounds")
    return item


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e15:
        raise ReportError(f"{name}: not a number")
    return float(value)


def _pmi_fence(fields: Fields, node: int) -> list[ev.Event]:
    world, epoch = fields.integer("world"), fields.integer("epoch")
    keys = fields.bytes("keys", BODY_LIMIT)
    return [mpi_events.PmiCommitted(node, world, fields.text("fence"), epoch, keys)]


def _pmi_abort(fields: Fields, node: int) -> list[ev.Event]:
    code = fields.integer("code", 0, 255)
    return [mpi_events.PmiAborted(node, fields.rank(), code, fields.text("text"), _error(fields))]


def _pmi_name(fields: Fields, node: int) -> list[ev.Event]:
    verb = fields.text("verb")
    if verb not in ("publish", "lookup", "unpublish"):
        raise ReportError("verb: not one of a name service")
    ask = fields.optional_integer("ask", 1, 1 << 62) or 0  # as PMIx's have, whose values are longer
    service = fields.bytes("service", TEXT_LIMIT)
    port = fields.bytes("address", VALUE_LIMIT if ask else TEXT_LIMIT)
    if b"\n" in service + (b"" if ask else port):
        raise ReportError("a name or port of two lines")
    wait, once = (bool(ask) and fields.flag(name) for name in ("wait", "once"))
    return [mpi_events.PmiAsked(node, fields.rank(), verb, service, port, ask, wait, once)]


def _pmi_spawn(fields: Fields, node: int) -> list[ev.Event]:
    segments = []
    for count, argv, info in fields.rows("segments", 3):
        words = tuple(_all_bytes(argv, "argv"))
        if any(b"\0" in word for word in words):
            raise ReportError("argv: a NUL byte")
        segments.append(
            mpi_events.Segment(_integer(count, "nprocs", 0, 1 << 31), words, _pairs(info))
        )
    flat = _all_bytes(fields.items("preput"), "preput")
    preput = tuple(zip(flat[::2], flat[1::2], strict=False))
    ask = fields.optional_integer("ask", 1, 1 << 62) or 0
    return [mpi_events.PmiSpawnAsked(node, fields.rank(), tuple(segments), preput, ask)]


def _all_bytes(value: Any, name: str) -> list[bytes]:
    if not isinstance(value, list) or len(value) > 2 * LIST_LIMIT:
        raise ReportError(f"{name}: not a list")
    if not all(isinstance(item, bytes) for item in value):
        raise ReportError(f"{name}: not bytes")
    return value


def _pairs(value: Any) -> tuple[tuple[bytes, bytes], ...]:
    if not isinstance(value, list) or len(value) > LIST_LIMIT:
        raise ReportError("info: not a list")
    pairs = [_all_bytes(pair, "info") for pair in value]
    if any(len(pair) != 2 for pair in pairs):
        raise ReportError("info: not pairs")
    if any(b"\0" in word for pair in pairs for word in pair):
        raise ReportError("info: a NUL byte")
    return tuple((key, value) for key, value in pairs)


def _pmi_waiting(fields: Fields, node: int) -> list[ev.Event]:
    never, absent = (
        tuple(fields.own(rank) for rank in fields.items(name)) for name in ("never", "absent")
    )
    some = fields.has("some") and fields.flag("some")
    return [mpi_events.PmiWaiting(node, never, absent, fields.number("seconds"), some)]


def _mpi(fields: Fields, node: int) -> list[ev.Event]:
    library, served = fields.text("library"), fields.text("served")
    return [mpi_events.MpiFound(node, library, served, fields.rank())]


def _mpi_inside(fields: Fields, node: int) -> list[ev.Event]:
    inside, over = (
        tuple(fields.own(rank) for rank in fields.items(name)) for name in ("inside", "over")
    )
    return [mpi_events.MpiInside(node, inside, over)]


_READERS: dict[str, Callable[[Fields, int], list[ev.Event]]] = {
    "ready": _ready,
    "probed": _probed,
    "spawned": _spawned,
    "failed": _failed,
    "exited": _exited,
    "input_closed": lambda fields, node: [
        ev.InputClosed(node, fields.rank(), fields.integer("taken", 0, 1 << 62))
    ],
    "leaked": lambda fields, node: [ev.RankLeaked(node, fields.rank())],
    "beat": lambda fields, node: [ev.NodeHeard(node)],
    "paused": lambda fields, node: [ev.NodePaused(node)],
    "dying": lambda fields, node: [ev.NodeDying(node, fields.words("why"))],
    "pmi_fence": _pmi_fence,
    "pmi_abort": _pmi_abort,
    "pmi_name": _pmi_name,
    "pmi_spawn": _pmi_spawn,
    "pmi_waiting": _pmi_waiting,
    "pmix_wanted": lambda fields, node: [mpi_events.PmixWanted(node)],
    "pmix_failed": lambda fields, node: [
        mpi_events.PmixFailed(node, fields.text("library"), fields.words("tried", 4 * WORDS_LIMIT))
    ],
    "mpi": _mpi,
    "mpi_inside": _mpi_inside,
    "sample": _sample,
    "stacks": _stacks,
    "swept": _swept,
    "notice": lambda fields, node: [ev.NodeNoticed(node, fields.words("text"))],
}
