"""What a run's ranks have written, read back: by rank or merged, of all or one, up to a bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Counts, Entry, Sink
from dispatcher.model.paths import Rotation
from dispatcher.output.files import log_reader
from dispatcher.output.files.log_reader import MergedLogReader, RankLogReader, names_in, rest_of
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
    assert reader.taken == {(2, 1): 18, (2, 2): 3, (10, 1): 3, (FIRST + 1, 1): 1}
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


def test_it_goes_on_where_it_was_and_up_to_a_bound(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, no_warning)
    files.output(0, 1, b"0123456789")
    reader, heard = RankLogReader(tmp_path), Heard()
    assert reader.read(heard, {(0, 1): 4})
    assert not reader.read(heard, {(0, 1): 4})
    assert not reader.read(heard, {})  # of this stream nothing is wanted
    assert not reader.read(heard, {(0, 1): 2})
    files.output(0, 1, b"abc")
    assert reader.read(heard, {(0, 1): 11})
    files.event(Entry(1, 0.0, ev.RanksPlaced(1, "a", 1, 1)))
    files.output(0, 1, b"next")
    assert reader.read(heard, {(0, 1): 15})  # counted over the attempts
    assert reader.read(heard)
    files.close()
    data = b"".join(one[2] for one in heard.told)
    assert data == b"0123456789abc\nnext"
    assert [one[2] for one in heard.told] == [b"0123", b"456789a", b"bc", b"\n", b"ne", b"xt"]


def test_what_was_removed_is_told_before_the_rest(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, no_warning, Rotation(4, keep=1))
    files.output(0, 2, b"aaa\nbbb\nccc\ndd")
    files.close()
    reader, heard = RankLogReader(tmp_path), Heard()
    assert reader.read(heard)
    assert heard.taken() == [{(0, 2): 8}, (0, 2, b"ccc\n"), (0, 2, b"dd")]
    assert reader.taken == {(0, 2): 14}


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
    assert reader.taken == {(0, 1): 13, (FIRST, 2): 6, (1, 1): 6}
    assert not reader.is_trimmed


def test_a_merged_log_up_to_a_bound(tmp_path: Path) -> None:
    log = merged(tmp_path)
    log.output(0, 1, b"0123\n4567\n")
    log.output(1, 1, b"x\n")
    log.close()
    reader, heard = MergedLogReader(tmp_path / "merged.log"), Heard()
    assert reader.read(heard, {(0, 1): 7})
    assert heard.taken() == [(0, 1, b"0123\n"), (0, 1, b"45")]
    assert reader.taken == {(0, 1): 7, (1, 1): 0}


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


def test_where_the_beginning_was_removed_the_time_makes_the_seam(tmp_path: Path) -> None:
    log = merged(tmp_path, Rotation(100, keep=1))
    for number in range(8):  # two lines fit into a piece, which came at 1000001 and so on
        log.output(0, 1, b"line %03d\n" % number)
    log.close()
    reader = MergedLogReader(tmp_path / "merged.log", until=1_000_007.0)
    heard = Heard()
    assert reader.read(heard, {(0, 1): 0})
    assert reader.is_trimmed
    *lines, note = heard.told
    assert lines[-1] == (0, 1, b"line 006\n")
    assert b"line 000\n" not in [data for _, _, data in lines]
    assert note.startswith("note: the oldest ")
    assert note.endswith(" bytes of the log were removed (--log-keep)")
    whole = MergedLogReader(tmp_path / "merged.log")
    whole.read(heard)
    assert heard.told[-2] == (0, 1, b"line 007\n")


@cases(("missing", "rest"), [(0, b""), (-2, b""), (2, b"ef"), (6, b"abcdef"), (9, b"abcdef")])
def test_the_end_of_a_line_that_no_file_has(missing: int, rest: bytes) -> None:
    assert rest_of({(0, 1): b"abcdef"}, (0, 1), missing) == rest
    assert rest_of({}, (0, 1), missing) == b""
