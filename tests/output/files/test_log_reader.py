"""A log file read while it is written and cut: every byte once, or counted as removed."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from cases import cases, examples
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.paths import Rotation
from dispatcher.output.files.log_reader import RotatedReader, names_in
from dispatcher.output.files.rank_logs import LogFile


def taken(pieces: RotatedReader) -> tuple[int, bytes]:
    """(bytes removed, bytes read) of one look."""
    found = list(pieces.read())
    return sum(missing for missing, _ in found), b"".join(data for _, data in found)


@examples(60)
@given(
    writes=st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    looks=st.lists(st.integers(0, 12), max_size=4),
    size=st.none() | st.integers(1, 30),
    keep=st.none() | st.integers(0, 2),
)
def test_all_is_read_once_or_counted(
    writes: list[bytes], looks: list[int], size: int | None, keep: int | None
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "rank-00000.out")
        reader = RotatedReader(path)
        assert taken(reader) == (0, b"")
        file = LogFile(path, Rotation(size, None if size is None else keep))
        all_of_it, position = b"".join(writes), 0
        for number, data in enumerate([*writes, b""]):
            for _ in range(looks.count(number)):
                missing, got = taken(reader)
                position += missing
                assert got == all_of_it[position : position + len(got)]
                position += len(got)
            file.write(data)
        file.release()
        missing, got = taken(reader)
        assert got == all_of_it[position + missing :]
        assert keep is not None or missing == 0
        assert reader.position == len(all_of_it)


@cases("rotation", [Rotation(), Rotation(4), Rotation(4, keep=1)])
def test_only_what_comes_after_a_moment(tmp_path: Path, rotation: Rotation) -> None:
    reader = RotatedReader(tmp_path / "x")
    reader.skip()  # there is no file yet
    file = LogFile(tmp_path / "x", rotation)
    file.write(b"abcdefghij")
    reader.skip()
    assert (taken(reader), reader.position) == ((0, b""), 10)
    file.write(b"k")
    assert taken(reader) == (0, b"k")
    file.release()


def test_names_of_a_moment_ago_may_be_wrong_by_now(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "x", Rotation(4, keep=1))
    file.write(b"abc")
    names = names_in(tmp_path)["x"]
    with open(tmp_path / "x"):  # its number goes to no other file
        file.write(b"defghijkl")
        file.release()
        found = list(RotatedReader(tmp_path / "x").read(names=names))
    assert sum(missing for missing, _ in found) + sum(len(data) for _, data in found) == 12
    assert b"abcdefghijkl".endswith(b"".join(data for _, data in found))


def test_what_looks_like_a_mark_and_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.1").write_bytes(b"[dispatch: 9,99 bytes left out here]\n")
    (tmp_path / "x").write_bytes(b"end")
    (tmp_path / "x.old").write_bytes(b"another's")
    (tmp_path / "x.1x").write_bytes(b"another's")
    assert taken(RotatedReader(tmp_path / "x")) == (0, b"[dispatch: 9,99 bytes left out here]\nend")


def test_a_cut_that_was_never_finished_is_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "x.3").write_bytes(b"three")
    assert taken(RotatedReader(tmp_path / "x")) == (0, b"three")


@cases("keep", [None, 2])
def test_while_it_is_written(tmp_path: Path, keep: int | None) -> None:
    path = tmp_path / "x"
    line = b"%06d\n"
    count = 20_000
    halfway, looked, over = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        file = LogFile(path, Rotation(700, keep))
        for number in range(0, count, 10):
            if number == count // 2:
                halfway.set()
                looked.wait(30)
            file.write(b"".join(line % n for n in range(number, number + 10)))
        file.release()
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    reader = RotatedReader(path)
    halfway.wait(30)
    try:
        done = False
        while not done:
            done = over.is_set()
            before = reader.position
            for missing, data in reader.read():
                before += missing
                first = before // 7
                whole = b"".join(line % n for n in range(first, first + len(data) // 7 + 2))
                assert data == whole[before % 7 : before % 7 + len(data)]
                before += len(data)
            looked.set()
    finally:
        looked.set()
        writer.join()
    assert reader.position == count * 7
