"""Log files: exact bytes, in pieces where asked, one merged file that can be taken apart."""

from __future__ import annotations

import os
import re
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from cases import cases
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.core.events.run_events import Entry, NodeBooted, OutputEnded, RanksPlaced
from dispatcher.model.errors import UsageError
from dispatcher.model.paths import Rotation
from dispatcher.output.files import rank_logs
from dispatcher.output.files.rank_logs import PART, HostFiles, LogFile, MergedLog, RankFiles
from dispatcher.output.text.lines import Spill
from dispatcher.plan.job.placement import FIRST
from output.descriptors import open_below


def silent(text: str) -> None:
    raise AssertionError(text)


def pieces(path: Path) -> list[Path]:
    numbered = path.parent.glob(path.name + ".*")
    return [*sorted(numbered, key=lambda piece: int(piece.suffix[1:])), path]


@given(data=st.binary(max_size=400), size=st.integers(1, 50), step=st.integers(1, 70))
@example(data=b"1\n23", size=3, step=1)
def test_pieces_in_order_are_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int, step: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "x.out"
    file = LogFile(path, Rotation(size))
    for at in range(0, len(data), step):
        file.write(data[at : at + step])
        file.release()
    file.release()
    found = [piece.read_bytes() for piece in pieces(path)]
    assert b"".join(found) == data
    assert max(map(len, found)) <= size
    cut = 0
    for before, _ in pairwise(found):
        cut += len(before)
        line = data.rfind(b"\n", 0, cut) + 1
        # inside a line only where it is longer than a piece, or its beginning was written before
        assert line == cut or b"\n" not in before or line // step < cut // step


def test_more_ranks_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_logs, "MOST_OPEN", 3)
    files = RankFiles(tmp_path, silent)
    for turn in range(3):
        for rank in range(8):
            files.output(rank, 1, b"%d %d\n" % (turn, rank))
    assert sum(file._fd is not None for file in files._files.values()) == 3
    files.close()
    for rank in range(8):
        assert files.path(rank, 1).read_bytes() == b"".join(
            b"%d %d\n" % (t, rank) for t in range(3)
        )


def test_a_gap_is_marked_in_its_file(tmp_path: Path) -> None:
    said: list[str] = []
    files = RankFiles(tmp_path, said.append)
    files.output(0, 1, b"a\n")
    files.gap({(0, 1): 5000})
    files.output(0, 1, b"b\n")
    files.close()
    assert files.path(0, 1).read_bytes() == (b"a\n[dispatch: 5,000 bytes left out here]\nb\n")
    assert said == [f"{tmp_path}: 5,000 bytes of output are missing from the files"]


LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z (\S+) (out|err) ([FPX]) ", re.DOTALL)


def taken_apart(path: Path) -> dict[tuple[bytes, bytes], bytes]:
    found: dict[tuple[bytes, bytes], bytes] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        match = LINE.match(line)
        assert match, line
        content = line[match.end() :] + (b"\n" if match[3] == b"F" else b"")
        found[match[1], match[2]] = found.get((match[1], match[2]), b"") + content
    return found


CHUNKS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), st.binary(min_size=1)))


@given(chunks=CHUNKS)
def test_a_merged_file_can_be_taken_apart(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[tuple[int, int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "merged.log"
    merged = MergedLog(path, silent)
    wrote: dict[tuple[bytes, bytes], bytes] = {}
    for rank, stream, data in chunks:
        merged.output(rank, stream, data)
        key = (b"%d" % rank, b"out" if stream == 1 else b"err")
        wrote[key] = wrote.get(key, b"") + data
    merged.event(Entry(1, 0.0, OutputEnded(0, 0, 1, 0, 0)))
    merged.close()
    assert taken_apart(path) == wrote


@cases("end", [b"\n", b""])
@cases("size", [None, 200_000, 4096])
def test_a_merged_line_of_any_length_is_whole(tmp_path: Path, end: bytes, size: int | None) -> None:
    merged = MergedLog(tmp_path / "merged.log", silent, Rotation(size))
    for _ in range(50):
        merged.output(0, 1, b"x" * 50_000)
        merged.output(1, 1, b"y\n")
        assert all(len(rest) < PART for rest in merged._rest.values())
    merged.output(0, 1, end or b"z")
    merged.close()
    text = b"".join(piece.read_bytes() for piece in pieces(tmp_path / "merged.log"))
    lines = [line.split(b" ", 4) for line in text.splitlines()]
    assert len(lines) == 51
    assert [(tag, len(line)) for _, rank, _, tag, line in lines if rank == b"0"] == [
        (b"F", 2_500_000) if end else (b"P", 2_500_001)
    ]


def test_a_line_of_a_host_that_was_lost_is_a_part(tmp_path: Path) -> None:
    merged = MergedLog(tmp_path / "merged.log", silent)
    for text in (b"short", b"x" * 100_000):
        merged.output(0, 1, text)
        merged.event(Entry(1, 0.0, RanksPlaced(1, "a", 1, restart=1)))
    merged.output(0, 1, b"again\n")
    merged.close()
    lines = (tmp_path / "merged.log").read_bytes().splitlines()
    assert [(line.split()[3], len(line.split()[4])) for line in lines] == [
        (b"P", 5), (b"P", 100_000), (b"F", 5)
    ]  # fmt: skip


def test_merged_lines_without_room_are_in_parts_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spill.__init__, "__defaults__", (2 * PART,))
    said: list[str] = []
    merged = MergedLog(tmp_path / "merged.log", said.append)
    for _ in range(10):
        merged.output(0, 1, b"x" * 50_000)
    merged.output(0, 1, b"\n")
    merged.close()
    path = tmp_path / "merged.log"
    assert taken_apart(path) == {(b"0", b"out"): b"x" * 500_000 + b"\n"}
    assert path.read_bytes().count(b" P ") > 1
    (note,) = said
    assert note.startswith(f"{path}: 1 line of more than 64 KiB came in pieces")


def test_a_disk_that_is_full_for_a_while_tears_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    said: list[str] = []
    merged = MergedLog(tmp_path / "merged.log", said.append)
    files = RankFiles(tmp_path, said.append)
    for rank, is_full in ((1, False), (2, True), (3, False), (2, False)):
        with monkeypatch.context() as disk:
            if is_full:
                disk.setattr(rank_logs, "write_all", fill)
            for sink in (merged, files):
                sink.output(rank, 1, b"a line of rank %d\n" % rank)
    merged.close()
    files.close()
    line = b"a line of rank %d\n"
    assert taken_apart(tmp_path / "merged.log") == {
        (b"%d" % rank, b"out"): line % rank for rank in (1, 2, 3)
    }
    assert (tmp_path / "rank-00002.out").read_bytes() == line % 2
    assert sum("17 bytes of output are missing" in text for text in said) == 2


def test_hosts_have_a_file_each_and_none_of_an_earlier_command(tmp_path: Path) -> None:
    folders = {1: tmp_path / "deep" / "out", 2: tmp_path / "err"}
    folders[1].mkdir(parents=True)
    for name in ("n1", "n2", "n9"):
        (folders[1] / name).write_text("before\n")
    said: list[str] = []
    files = HostFiles(folders, ["n1", "n2"], said.append)
    assert sorted(os.listdir(folders[1])) == ["n9"]  # of a host that is not asked now
    files.output(0, 1, b"a\n")
    files.output(1, 2, b"b\n")
    files.output(0, 1, b"c\n")
    files.close()
    assert (folders[1] / "n1").read_bytes() == b"a\nc\n"
    assert (folders[2] / "n2").read_bytes() == b"b\n"
    assert said == []
    only = HostFiles({1: tmp_path / "one"}, ["n1"], said.append)
    only.output(0, 2, b"not wanted\n")
    only.close()
    assert os.listdir(tmp_path / "one") == []
    with pytest.raises(UsageError, match="n9: file exists"):
        HostFiles({1: folders[1] / "n9"}, ["n1"], said.append)


class Ticks:
    """A clock that goes on by a quarter of a second at each look."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_what_stands_before_a_merged_line(tmp_path: Path) -> None:
    merged = MergedLog(tmp_path / "merged.log", silent, clock=Ticks())
    merged.output(0, 1, b"a\nb\n")
    merged.output(FIRST + 3, 2, b"c\n")
    merged.output(0, 1, b"d")
    merged.close()
    day = "1970-01-12T13:46:40"
    assert lines_of(tmp_path / "merged.log") == [
        f"{day}.250000Z 0 out F a", f"{day}.250000Z 0 out F b", f"{day}.500000Z 1.3 err F c",
        f"{day}.750000Z 0 out P d",
    ]  # fmt: skip
    assert (tmp_path / "merged.log").stat().st_mode & 0o777 == 0o600


def test_a_stream_that_ends_ends_its_line_and_no_other(tmp_path: Path) -> None:
    merged = MergedLog(tmp_path / "merged.log", silent)
    for rank, stream in ((0, 1), (0, 2), (1, 1)):
        merged.output(rank, stream, b"half")
    merged.event(Entry(1, 0.0, OutputEnded(0, 0, 1, 4, 4)))
    merged.event(Entry(1, 0.0, OutputEnded(0, 5, 1, 0, 0)))
    merged.event(Entry(1, 0.0, NodeBooted(0, 0)))
    for rank, stream in ((0, 2), (1, 1)):
        merged.output(rank, stream, b" and half\n")
    merged.close()
    assert taken_apart(tmp_path / "merged.log") == {
        (b"0", b"out"): b"half", (b"0", b"err"): b"half and half\n",
        (b"1", b"out"): b"half and half\n",
    }  # fmt: skip
    tags = [line.split(" ")[3] for line in lines_of(tmp_path / "merged.log")]
    assert tags == ["P", "F", "F"]


def test_bytes_that_were_left_out_of_a_merged_log(tmp_path: Path) -> None:
    said: list[str] = []
    merged = MergedLog(tmp_path / "merged.log", said.append)
    merged.output(0, 1, b"a\nhalf")
    merged.output(1, 1, b"other")
    merged.gap({(0, 1): 5000, (FIRST, 2): 7})
    merged.output(0, 1, b"rest\n")
    merged.output(1, 1, b" line\n")
    merged.close()
    assert [line.split(" ", 1)[1] for line in lines_of(tmp_path / "merged.log")] == [
        "0 out F a", "0 out P half", "0 out X ... 5,000 bytes of rank 0 left out",
        "1.0 err X ... 7 bytes of rank 1.0 left out", "0 out F rest", "1 out F other line",
    ]  # fmt: skip
    assert said == [f"{tmp_path / 'merged.log'}: 5,007 bytes of output are missing"]


def test_a_merged_log_gives_all_descriptors_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    merged = MergedLog(tmp_path / "merged.log", silent)
    merged.output(0, 1, b"x" * 3 * PART)  # which waits in a file of its own
    assert open_below(tmp_path) == ["(deleted)", "merged.log"]
    merged.close()
    assert open_below(tmp_path) == []
