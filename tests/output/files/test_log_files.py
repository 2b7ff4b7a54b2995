"""Files of ranks: where each lies, where it is cut, what is kept, and descriptors given back."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases

from dispatcher.core.events.run_events import Entry, OutputEnded, RanksPlaced
from dispatcher.model.paths import Rotation
from dispatcher.output.files.rank_logs import LogFile, RankFiles, mark
from dispatcher.plan.job.placement import FIRST
from output.descriptors import open_below
from output.files.test_rank_logs import pieces, silent


def test_files_of_ranks_and_their_attempts(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, silent)
    for rank, stream in ((3, 1), (3, 2), (FIRST + 12, 1)):
        files.output(rank, stream, b"x")
    files.event(Entry(1, 0.0, RanksPlaced(1, "a", 1, 0)))  # the first attempt is here
    files.output(3, 1, b"y")
    files.event(Entry(1, 0.0, RanksPlaced(1, "a", 1, 2)))
    files.output(3, 1, b"z")
    files.close()
    found = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*.???")}
    assert found == {
        "rank-00003.out": b"xy", "rank-00003.err": b"x", "rank-1.00012.out": b"x",
        "restart-2/rank-00003.out": b"z",
    }  # fmt: skip
    assert (tmp_path / "restart-2").stat().st_mode & 0o777 == 0o700
    assert not any(file._fd for file in files._files.values())


def test_a_folder_of_an_attempt_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    files = RankFiles(tmp_path, said.append)
    (tmp_path / "restart-1").touch()
    files.event(Entry(1, 0.0, RanksPlaced(1, "a", 1, 1)))
    assert said == [f"{tmp_path / 'restart-1'}: cannot be made: file exists"]


def test_a_stream_that_ended_gives_its_descriptor_back(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, silent)
    for stream in (1, 2):
        files.output(0, stream, b"x")
    files.event(Entry(1, 0.0, OutputEnded(0, 0, 1, 1, 1)))
    assert open_below(tmp_path) == ["rank-00000.err"]
    files.event(Entry(1, 0.0, OutputEnded(0, 7, 1, 0, 0)))  # it never wrote
    files.close()
    assert open_below(tmp_path) == []


def test_a_gap_in_a_file_that_cannot_be_written_is_counted_once() -> None:
    said: list[str] = []
    files = RankFiles(Path("/proc/self/absent"), said.append)
    files.gap({(0, 1): 7})
    files.output(0, 1, b"abc")
    files.close()
    assert said[-1] == "/proc/self/absent: 10 bytes of output are missing from the files"
    assert len(said) == 2


@cases(
    ("writes", "found"),
    [
        ([b"1234567890"], [b"1234567890"]),  # just as much as fits
        ([b"12345678901"], [b"1234567890", b"1"]),
        ([b"ab\ncd\nefghij"], [b"ab\ncd\n", b"efghij"]),
        ([b"1234567", b"89ab"], [b"1234567", b"89ab"]),  # a line that fits is not cut
        ([b"123\n567", b"89ab"], [b"123\n567", b"89ab"]),
        ([b"1234567", b"8\n9ab"], [b"12345678\n", b"9ab"]),
        ([b"x" * 25], [b"x" * 10, b"x" * 10, b"x" * 5]),
        ([b"123456789\n", b"ab"], [b"123456789\n", b"ab"]),
        ([b""], [b""]),
    ],
)
def test_where_a_file_is_cut(tmp_path: Path, writes: list[bytes], found: list[bytes]) -> None:
    file = LogFile(tmp_path / "x", Rotation(10))
    for data in writes:
        file.write(data)
    file.release()
    assert [piece.read_bytes() for piece in pieces(tmp_path / "x")] == found


@cases(("size", "count"), [(4, 1), (6, 1), (7, 2)])
def test_what_belongs_together_begins_a_new_piece(tmp_path: Path, size: int, count: int) -> None:
    file = LogFile(tmp_path / "x", Rotation(10))
    file.reserve(99)  # an empty piece is as good as a new one
    file.write(b"1234")
    file.reserve(size)
    file.release()
    assert len(pieces(tmp_path / "x")) == count
    plain = LogFile(tmp_path / "y", Rotation())
    plain.write(b"1234")
    plain.reserve(1 << 30)
    plain.release()
    assert len(pieces(tmp_path / "y")) == 1


@cases(
    ("keep", "names", "gone"),
    [(0, ["x.5", "x"], 50), (1, ["x.4", "x.5", "x"], 40),
     (4, ["x.1", "x.2", "x.3", "x.4", "x.5", "x"], 10),
     (5, ["x.1", "x.2", "x.3", "x.4", "x.5", "x"], 0)],
)  # fmt: skip
def test_how_many_pieces_are_kept(tmp_path: Path, keep: int, names: list[str], gone: int) -> None:
    file = LogFile(tmp_path / "x", Rotation(10, keep))
    for number in range(6):
        file.write(b"line %04d\n" % number)
    file.release()
    assert [piece.name for piece in pieces(tmp_path / "x")] == names
    assert {piece.stat().st_mode & 0o777 for piece in pieces(tmp_path / "x")} == {0o600}
    assert (pieces(tmp_path / "x")[0].read_bytes() == mark(gone)) == (gone > 0)


def test_links_in_the_way_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("kept")
    (tmp_path / "x").symlink_to("real")
    with pytest.raises(FileExistsError):
        LogFile(tmp_path / "x", Rotation())
    file = LogFile(tmp_path / "y", Rotation())
    file.release()
    (tmp_path / "y").unlink()
    (tmp_path / "y").symlink_to("real")
    with pytest.raises(OSError):
        file.write(b"data")
    assert (tmp_path / "real").read_text() == "kept"
