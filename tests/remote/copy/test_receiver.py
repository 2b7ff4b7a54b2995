"""What a host takes: all of a file or nothing, whatever becomes of the copy."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.model.errors import CannotCopy
from dispatcher.remote.copy.arriving import WORTH
from dispatcher.remote.copy.disk import DEEPEST, PART, STAGE, NotTaken, same_time
from dispatcher.remote.copy.receiver import Receiver
from dispatcher.remote.protocol.copy_frames import CHUNK, DATA, entry_columns, frames, rows
from dispatcher.transfer.put_files import Sources, needs_of

BIG = random.Random(1).randbytes(3 * WORTH)


class Copy:
    """One copy of ``paths`` to ``dest``, by hand."""

    def __init__(self, paths: list[Path], dest: Path, **how: bool) -> None:
        self.sources = Sources(
            [(str(dest), tuple(map(str, paths)))], checksum=how.get("checksum", False)
        )
        groups = [[str(dest), [path.name for path in paths]]]
        self.receiver = Receiver(
            rows(entry_columns(self.sources.entries)), groups,
            checksum=how.get("checksum", False), resume=how.get("resume", True),
        )  # fmt: skip

    def frames(self) -> Iterator[tuple[int, bytes]]:
        needed, starts = needs_of(self.receiver.needs(), self.sources.entries)
        come = frames(1 << 20)
        for piece in self.sources.pieces(needed, starts):
            for _, kind, body in come.feed(piece):
                yield kind, body

    def all(self) -> dict[str, Any]:
        try:
            for kind, body in self.frames():
                self.receiver.take(kind, body)
            assert self.receiver.done
            self.receiver.commit()
        finally:
            self.close(keep=False)
        return self.receiver.report()

    def some(self, come: Iterator[tuple[int, bytes]], count: int = 1 << 30) -> None:
        for kind, body in itertools.islice(come, count):
            self.receiver.take(kind, body)

    def interrupt(self, count: int, *, keep: bool = True) -> None:
        """End after ``count`` frames."""
        self.some(self.frames(), count)
        self.close(keep)

    def close(self, keep: bool) -> None:
        self.receiver.close(keep)
        self.sources.close()


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(BIG)
    return path


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    (tmp_path / "dest").mkdir()
    return tmp_path / "dest"


def test_an_interrupted_file_goes_on_where_it_stopped(big: Path, dest: Path) -> None:
    Copy([big], dest).interrupt(5)
    assert [name[: len(PART)] for name in os.listdir(dest)] == [PART]
    done = Copy([big], dest).all()
    assert done["bytes"] == len(BIG) - 5 * (256 << 10)
    assert (dest / "big").read_bytes() == BIG
    assert os.listdir(dest) == ["big"]


@cases("count", [5, -1])
def test_a_part_of_something_else_is_not_gone_on_with(big: Path, dest: Path, count: int) -> None:
    """count: the frames of which there is a part; -1: of all but the end."""
    Copy([big], dest).interrupt(count if count > 0 else len(BIG) // CHUNK)
    (part,) = dest.iterdir()
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(data)
    assert (len(data) == len(BIG)) is (count < 0)
    assert Copy([big], dest).all()["bytes"] == len(BIG)
    assert (dest / "big").read_bytes() == BIG


def test_a_part_of_more_bytes_than_the_file_is_begun_anew(big: Path, dest: Path) -> None:
    Copy([big], dest).interrupt(5)
    (part,) = dest.iterdir()
    part.write_bytes(BIG + b"x")
    assert Copy([big], dest).all()["bytes"] == len(BIG)
    assert (dest / "big").read_bytes() == BIG


def test_a_changed_source_has_another_part(big: Path, dest: Path) -> None:
    Copy([big], dest).interrupt(5)
    big.write_bytes(BIG[::-1])
    assert Copy([big], dest).all()["bytes"] == len(BIG)
    assert (dest / "big").read_bytes() == BIG[::-1]


def test_nothing_is_kept_or_used_without_resume(big: Path, dest: Path) -> None:
    Copy([big], dest, resume=False).interrupt(5, keep=False)
    assert os.listdir(dest) == []
    Copy([big], dest).interrupt(5)
    assert Copy([big], dest, resume=False).all()["bytes"] == len(BIG)


def test_two_at_once_do_not_share_a_part(big: Path, dest: Path) -> None:
    one, two = Copy([big], dest), Copy([big], dest)
    first, second = one.frames(), two.frames()
    one.some(first, 4)
    two.some(second, 4)
    for copy, rest in ((two, second), (one, first)):
        copy.some(rest)
        copy.receiver.commit()
        copy.close(keep=True)
        assert (dest / "big").read_bytes() == BIG
    assert os.listdir(dest) == ["big"]


@cases("links", [True, False])
def test_a_large_file_that_is_whole_stays_when_another_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """However old it is. links: whether the file system has them."""
    big, other, dest = (tmp_path / name for name in ("big", "other", "dest"))

    def refused(path: str, other: str, **folders: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    dest.mkdir()
    for path, data in ((big, BIG), (other, BIG[::-1])):
        path.write_bytes(data)
        os.utime(path, (1, 1))
    copy = Copy([big, other], dest)
    come = copy.frames()
    copy.some(come, len(BIG) // (256 << 10) + 2)  # all of one and its end, and of the other a frame
    late = Copy([big, other], dest)  # which neither shares nor sweeps it
    copy.close(keep=True)
    late.close(keep=False)
    assert [name[: len(PART)] for name in os.listdir(dest)] == [PART, PART]
    done = Copy([big, other], dest).all()
    assert (done["found"], done["bytes"]) == (len(BIG) + (256 << 10), len(BIG) - (256 << 10))
    assert {path.name: path.stat().st_mtime for path in dest.iterdir()} == {"big": 1, "other": 1}
    assert (dest / "other").read_bytes() == BIG[::-1]


def test_a_damaged_file_never_gets_its_name(big: Path, dest: Path) -> None:
    copy = Copy([big], dest)
    come = ((kind, body[:-1] + b"!" if kind == DATA else body) for kind, body in copy.frames())
    with pytest.raises(NotTaken, match="damaged"):
        copy.some(come)
    copy.close(keep=True)
    assert os.listdir(dest) == []


def test_no_more_is_written_than_was_announced(big: Path, dest: Path) -> None:
    """Before its end, where the digest is judged: a sender must not fill the disk."""
    copy = Copy([big], dest)
    copy.receiver.needs()
    copy.receiver.take(DATA, BIG)
    with pytest.raises(NotTaken, match="big: more bytes came than it has"):
        copy.receiver.take(DATA, b"x")
    (part,) = dest.iterdir()
    assert part.read_bytes() == BIG
    copy.close(keep=False)
    assert os.listdir(dest) == []


def test_a_file_that_changes_while_it_is_sent(big: Path, dest: Path) -> None:
    copy = Copy([big], dest)
    come = copy.frames()
    copy.some(come, 1)
    os.truncate(big, WORTH)
    with pytest.raises(NotTaken, match="big: changed while it was copied"):
        copy.some(come)
    copy.close(keep=False)
    assert os.listdir(dest) == []


def test_a_tree_appears_in_one_step_and_is_swept_when_it_does_not(
    tmp_path: Path, dest: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    for i in range(5):
        (tree / "sub" / str(i)).write_text(str(i))
    copy = Copy([tree], dest)
    copy.some(copy.frames(), 9)  # all but the last end
    (stage,) = os.listdir(dest)
    assert stage.startswith(STAGE)
    os.close(copy.receiver._groups[0]._staged)  # it is killed here
    copy.receiver._groups[0]._staged, copy.receiver._groups[0].stage = -1, ""
    copy.close(keep=True)
    os.utime(dest / stage, (1, 1))
    assert Copy([tree], dest).all() == {"sent": 5, "equal": 0, "bytes": 5, "found": 0}
    assert os.listdir(dest) == ["tree"]


def test_a_folder_of_another_copy_that_just_came_is_merged_into(tmp_path: Path, dest: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_text("a")
    one, two = Copy([tree], dest), Copy([tree], dest)
    come = iter(list(one.frames())), iter(list(two.frames()))
    for copy, its_frames in zip((one, two), come, strict=True):
        copy.some(its_frames)
        copy.receiver.commit()
        copy.close(keep=True)
    assert os.listdir(dest) == ["tree"]
    assert (dest / "tree" / "a").read_text() == "a"


def test_a_folder_that_may_not_be_written_to(tmp_path: Path, dest: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "f").write_text("f")
    (tree / "sub").chmod(0o555)
    tree.chmod(0o500)
    Copy([tree], dest).all()
    assert (dest / "tree").stat().st_mode & 0o777 == 0o500
    assert (dest / "tree" / "sub").stat().st_mode & 0o777 == 0o555
    assert (dest / "tree").stat().st_mtime_ns == tree.stat().st_mtime_ns


def test_a_tree_as_deep_as_there_can_be(tmp_path: Path) -> None:
    deepest = tmp_path / "t" / "/".join("d" * (DEEPEST - 2))
    deepest.mkdir(parents=True)
    (deepest / "f").write_text("x")
    copy = Copy([tmp_path / "t"], tmp_path / "dest")
    copy.some(copy.frames())
    copy.close(keep=False)  # it is taken back
    assert os.listdir(tmp_path) == ["t"]
    (tmp_path / "dest").mkdir()
    assert Copy([tmp_path / "t"], tmp_path / "dest").all()["sent"] == 1
    (deepest / "g").write_text("x")
    assert Copy([tmp_path / "t"], tmp_path / "dest").all()["equal"] == 1
    (deepest / "d").mkdir()
    (deepest / "d" / "f").touch()
    with pytest.raises(CannotCopy, match=rf"\.\.\.: more than {DEEPEST} folders deep$"):
        Copy([tmp_path / "t"], tmp_path / "dest")


@cases(
    ("there", "here", "same"),
    [(5, 5, True), (5, 6, False), (10**9, 10**9 + 7, True), (10**9, 2 * 10**9, False)],
)
def test_times_kept_in_whole_seconds_are_the_same(there: int, here: int, same: bool) -> None:
    assert same_time(there, here) is same


def test_what_is_there_is_not_asked_for_again(tmp_path: Path, dest: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "in").mkdir(parents=True)
    (tree / "in" / "file").write_text("x")
    (tree / "link").symlink_to("in/file")
    assert Copy([tree], dest).all()["sent"] == 1
    again = Copy([tree], dest)
    assert again.receiver.needs()["need"] == bytes(4)
    again.close(keep=False)
    report = Copy([tree], dest).all()
    assert (report["sent"], report["equal"]) == (0, 1)


@cases(
    ("there", "sent"),
    [
        ({}, {"sent": 0, "equal": 3, "bytes": 0, "found": 0}),
        ({"small": b"other"}, {"sent": 1, "equal": 2, "bytes": 5, "found": 0}),
        ({"big": BIG[:-1] + b"!"}, {"sent": 1, "equal": 2, "bytes": len(BIG), "found": 0}),
        ({"small": b"longer"}, {"sent": 1, "equal": 2, "bytes": 5, "found": 0}),
    ],
)
def test_what_has_another_time_alone_is_not_sent(
    there: dict[str, bytes], sent: dict[str, int], tmp_path: Path
) -> None:
    """Nor replaced: who has it open reads on. there: what differs there."""
    tree, dest = tmp_path / "tree", tmp_path / "dest"
    files = {"small": b"small", "big": BIG, "empty": b""}
    for folder, texts in ((tree, files), (dest / "tree", {**files, **there})):
        folder.mkdir(parents=True)
        for at, (name, text) in enumerate(texts.items()):
            (folder / name).write_bytes(text)
            (folder / name).chmod(0o644)
            os.utime(folder / name, (at, at + (folder == tree)))
    (tree / "small").chmod(0o750)
    inodes = {name: (dest / "tree" / name).stat().st_ino for name in files}
    assert Copy([tree], dest).all() == sent
    for name, text in files.items():
        now, source = (dest / "tree" / name).stat(), (tree / name).stat()
        assert (dest / "tree" / name).read_bytes() == text
        mode = 0o755 if name == "small" else 0o644  # its own, and to be executed as ours
        assert (now.st_mtime_ns, now.st_mode & 0o777) == (source.st_mtime_ns, mode)
        assert (now.st_ino == inodes[name]) == (name not in there)
    assert Copy([tree], dest).all()["sent"] == 0


def test_a_whole_file_is_sent_unread(big: Path, dest: Path) -> None:
    (dest / "big").write_bytes(BIG)
    os.utime(dest / "big", (1, 1))
    copy = Copy([big], dest, resume=False)
    assert copy.receiver.needs()["start"] == ""
    copy.close(keep=False)
    sent = Copy([big], dest, resume=False).all()
    assert (sent["sent"], sent["bytes"]) == (1, len(BIG))


def test_one_of_the_same_size_is_read_once_to_be_compared(
    big: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dest / "big").write_bytes(BIG[:-1] + b"!")
    os.utime(dest / "big", (1, 1))
    n_read: dict[str, int] = {}
    really = os.read

    def read(fd: int, size: int) -> bytes:
        data, path = really(fd, size), os.readlink(f"/proc/self/fd/{fd}")
        n_read[path] = n_read.get(path, 0) + len(data)
        return data

    copy = Copy([big], dest)
    monkeypatch.setattr(os, "read", read)
    come = copy.frames()
    first = next(come)
    assert n_read[f"{dest}/big"] == len(BIG)
    assert n_read[str(big)] < len(BIG) + WORTH  # to compare it, and the first piece
    copy.receiver.take(*first)
    copy.some(come)
    copy.receiver.commit()
    copy.close(keep=False)
    assert (dest / "big").read_bytes() == BIG


def test_one_that_changes_while_it_is_compared(tmp_path: Path, dest: Path) -> None:
    for folder in (tmp_path, dest):
        (folder / "file").write_bytes(b"text")
        os.utime(folder / "file", (1, folder == dest))
    copy = Copy([tmp_path / "file"], dest)
    come = copy.frames()
    copy.some(come, 1)
    (dest / "file").write_bytes(b"mine")
    with pytest.raises(NotTaken, match="file: changed while it was compared"):
        copy.some(come)
    copy.close(keep=False)
    assert (dest / "file").read_bytes() == b"mine"


def test_bytes_may_be_passed_on_as_soon_as_they_are_here(big: Path, dest: Path) -> None:
    small = big.with_name("small")
    small.write_text("12345")
    copy = Copy([small, big], dest)
    come = copy.frames()
    first = next(come)
    assert [copy.receiver.available(index) for index in (0, 1)] == [-1, -1]
    copy.receiver.take(*first)
    assert copy.receiver.available(0) == 5
    assert copy.receiver.available(1) == -1
    copy.some(come)
    assert [copy.receiver.available(index) for index in (0, 1)] == [5, len(BIG)]
    copy.close(keep=False)
