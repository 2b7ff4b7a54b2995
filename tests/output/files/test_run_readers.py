"""What a run's ranks have written, read back: by rank or merged, of all or one, from any moment."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cases import cases, examples
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Counts, Entry, Sink
from dispatcher.model.paths import Rotation
from dispatcher.output.files import log_reader
from dispatcher.output.files.log_reader import MergedLogReader, RankLogReader, names_in
from dispatcher.output.files.rank_logs import MergedLog, RankFiles
from dispatcher.plan.job.placement import FIRST


class Heard(Sink):
    """What a reader gave, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.told.append((rank, stream, data))

    def gap(self, missing: Counts) -> None:
        self.told.append(dict(missing))

    def say(self, line: str) -> None:
        self.told.append(line)

    def taken(self) -> list[Any]:
        told, self.told = self.told, []
        return told


def no_warning(text: str) -> None:
    raise AssertionError(text)


# -- by rank ----------------------------------------------------------------------------


def test_ranks_and_attempts_come_in_order(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, no_warning)
    for rank, stream, data in (
        (10, 1, b"ten"),
        (2, 2, b"err"),
        (2, 1, b"out"),
        (FIRST + 1, 1, b"w"),
    ):
        files.output(rank, stream, data)
    for restart in (2, 10):
        files.event(Entry(1, 0.0, ev.RanksPlaced(2, "a", 1, restart)))
        files.output(2, 1, b"again %d" % restart)
    files.close()
    (tmp_path / "restart-x").mkdir()
    (tmp_path / "restart-3").touch()  # no folder
    (tmp_path / "rank-2.out").write_text("another's")
    (tmp_path / "report.json").write_text("{}")
    reader, heard = RankLogReader(tmp_path), Heard()
    assert reader.read(heard)
    assert heard.taken() == [
        (2, 1, b"out"), (2, 2, b"err"), (10, 1, b"ten"), (FIRST + 1, 1, b"w"),
        (2, 1, b"\n"), (2, 1, b"again 2"), (2, 1, b"\n"), (2, 1, b"again 10"),
    ]  # fmt: skip
    assert not reader.read(heard)
    assert heard.taken() == []


def test_one_rank_alone(tmp_path: Path) -> None:
    files, log = RankFiles(tmp_path, no_warning), MergedLog(tmp_path / "merged.log", no_warning)
    for rank in (0, 1, FIRST):
        for sink in (files, log):
            sink.output(rank, 1, b"%d\n" % rank)
    files.close()
    log.close()
    for rank in (0, 1, FIRST):
        readers = RankLogReader(tmp_path, rank), MergedLogReader(tmp_path / "merged.log", rank)
        for reader in readers:
            heard = Heard()
            reader.read(heard)
            assert heard.told == [(rank, 1, b"%d\n" % rank)]


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, no_warning)
    files.output(0, 1, b"0123456789")
    reader, heard = RankLogReader(tmp_path), Heard()
    assert reader.read(heard)
    assert not reader.read(heard)
    files.output(0, 1, b"abc")
    assert reader.read(heard)
    files.event(Entry(1, 0.0, ev.RanksPlaced(1, "a", 1, 1)))
    files.output(0, 1, b"next")
    assert reader.read(heard)
    files.close()
    assert [one[2] for one in heard.told] == [b"0123456789", b"abc", b"\n", b"next"]


def test_what_was_removed_is_told_before_the_rest(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, no_warning, Rotation(4, keep=1))
    files.output(0, 2, b"aaa\nbbb\nccc\ndd")
    files.close()
    reader, heard = RankLogReader(tmp_path), Heard()
    assert reader.read(heard)
    assert heard.taken() == [{(0, 2): 8}, (0, 2, b"ccc\n"), (0, 2, b"dd")]


def test_names_of_pieces(tmp_path: Path) -> None:
    for name in ("a", "a.1", "a.20", "b.3", "c.x", "d.1234567890", ".5"):
        (tmp_path / name).touch()
    found = names_in(tmp_path)
    assert (sorted(found["a"].pieces), found["a"].inode) == (
        [1, 20],
        (tmp_path / "a").stat().st_ino,
    )
    assert (found["b"].pieces, found["b"].inode) == ([3], None)
    assert {"c.x", "d.1234567890", ".5"} <= found.keys()


# -- merged -----------------------------------------------------------------------------


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def merged(folder: Path, rotation: Rotation | None = None) -> MergedLog:
    return MergedLog(folder / "merged.log", no_warning, rotation, Clock())


def test_lines_come_as_they_came(tmp_path: Path) -> None:
    log = merged(tmp_path)
    log.output(0, 1, b"one\ntwo\nhal")
    log.output(FIRST, 2, b"world\n")
    log.output(0, 1, b"f\n")
    log.output(1, 1, b"no end")
    log._file.release()
    reader, heard = MergedLogReader(tmp_path / "merged.log"), Heard()
    assert reader.read(heard)
    assert heard.taken() == [
        (0, 1, b"one\n"), (0, 1, b"two\n"), (FIRST, 2, b"world\n"), (0, 1, b"half\n"),
    ]  # fmt: skip
    assert not reader.read(heard)
    log.close()
    assert reader.read(heard)
    assert heard.taken() == [(1, 1, b"no end")]


LINE = b"2026-01-31T14:25:01.123456Z 12 out F text\n"


@cases(
    ("line", "told"),
    [
        (LINE, [(12, 1, b"text\n")]),
        (LINE.replace(b" F ", b" P "), [(12, 1, b"text")]),
        (LINE.replace(b"out", b"err"), [(12, 2, b"text\n")]),
        (LINE.replace(b" 12 ", b" 1.00012 "), [(FIRST + 12, 1, b"text\n")]),
        (LINE.replace(b" F text", b" X ... 5 bytes of rank 12 left out"), [{(12, 1): 5}]),
        (LINE.replace(b" F text", b" X noise"), [{(12, 1): 0}]),
        (LINE.replace(b" F ", b" Q "), []), (LINE[1:], []), (b"\n", []), (b"noise\n", []),
        (LINE.replace(b"text", b""), [(12, 1, b"\n")]),
    ],
)  # fmt: skip
def test_one_line_of_a_merged_log(tmp_path: Path, line: bytes, told: list[Any]) -> None:
    (tmp_path / "merged.log").write_bytes(line + LINE.replace(b"12", b"13"))
    heard = Heard()
    MergedLogReader(tmp_path / "merged.log").read(heard)
    assert heard.told == [*told, (13, 1, b"text\n")]


def test_a_line_too_long_to_be_held_comes_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "LONG", 64)
    monkeypatch.setattr(log_reader, "CHUNK", 50)
    text = LINE.replace(b"text", b"x" * 200)
    (tmp_path / "merged.log").write_bytes(text + LINE)
    reader, heard = MergedLogReader(tmp_path / "merged.log"), Heard()
    reader.read(heard)
    assert len(heard.told) > 2
    assert b"".join(data for _, _, data in heard.told) == b"x" * 200 + b"\ntext\n"
    assert {(rank, stream) for rank, stream, _ in heard.told} == {(12, 1)}


def test_where_the_beginning_was_removed_it_is_counted(tmp_path: Path) -> None:
    log = merged(tmp_path, Rotation(100, keep=1))
    for number in range(8):  # two lines fit into a piece
        log.output(0, 1, b"line %03d\n" % number)
    log.close()
    heard = Heard()
    assert MergedLogReader(tmp_path / "merged.log").read(heard)
    *lines, note = heard.told
    assert lines[-1] == (0, 1, b"line 007\n")
    assert b"line 000\n" not in [data for _, _, data in lines]
    assert note.startswith("note: the oldest ")
    assert note.endswith(" bytes of the log were removed (--log-keep)")


# -- from a moment on ---------------------------------------------------------------------

Chunk = tuple[int, int, bytes]
PART = st.sampled_from([b"\n", b"a", b"0123456789", b"x" * 40])
CHUNKS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, FIRST]),
        st.sampled_from([1, 2]),
        st.lists(PART, min_size=1).map(b"".join),
    ),
    max_size=12,
)


@examples(60)
@given(
    chunks=CHUNKS,
    skipped=st.integers(0, 12),
    looks=st.frozensets(st.integers(0, 12)),
    rotation=st.sampled_from([Rotation(), Rotation(20), Rotation(120), Rotation(20, keep=1)]),
    restarts=st.frozensets(st.integers(1, 12), max_size=2),
)
def test_what_comes_after_a_moment_comes_once(
    chunks: list[Chunk],
    skipped: int,
    looks: frozenset[int],
    rotation: Rotation,
    restarts: frozenset[int],
) -> None:
    """Of each stream, whenever the reader looks, through restarts and pieces."""
    wrote: dict[tuple[int, int], bytes] = defaultdict(bytes)
    with TemporaryDirectory() as name:
        files, reader, heard = RankFiles(Path(name), no_warning, rotation), None, Heard()
        for number in range(len(chunks) + 1):
            if number in restarts:
                nth = sorted(restarts).index(number) + 1
                files.event(Entry(0, 0.0, ev.RanksPlaced(2, "", 0, nth)))
            if number == min(skipped, len(chunks)):
                reader = RankLogReader(Path(name))
                reader.skip()
            if number in looks and reader is not None:
                reader.read(heard)
            if number < len(chunks):
                rank, stream, data = chunks[number]
                files.output(rank, stream, data)
                if reader is not None:
                    wrote[rank, stream] += data
        files.close()
        assert reader is not None
        reader.read(heard)
    got: dict[tuple[int, int], bytes] = defaultdict(bytes)
    missing: dict[tuple[int, int], int] = defaultdict(int)
    for told in heard.told:
        if isinstance(told, dict):
            ((key, count),) = told.items()
            missing[key] += count
        else:
            got[told[:2]] += told[2]
    for key in {*wrote, *got, *missing}:
        if restarts:  # a line may have been ended there
            assert len(wrote[key]) <= len(got[key]) + missing[key] <= len(wrote[key]) + 2
        else:
            assert len(got[key]) + missing[key] == len(wrote[key])
            assert wrote[key].endswith(got[key][-20:] if missing[key] else got[key])


def test_a_merged_log_from_a_moment_on(tmp_path: Path) -> None:
    log = merged(tmp_path)
    log.output(0, 1, b"old\nha")
    log._file.release()
    reader, heard = MergedLogReader(tmp_path / "merged.log"), Heard()
    reader.skip()
    log.output(0, 1, b"lf\nnew\n")
    log.close()
    assert reader.read(heard)
    assert heard.told == [(0, 1, b"half\n"), (0, 1, b"new\n")]
