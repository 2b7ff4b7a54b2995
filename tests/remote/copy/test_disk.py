"""What a copy does with a disk: lists and reads files, renames, sweeps, leaves others' alone."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import cases
from open_files import open_files

from dispatcher.remote.copy import disk
from dispatcher.remote.copy.disk import (
    DEAD,
    PART,
    STAGE,
    STAGE_HERE,
    STALE,
    Incoming,
    NotGiven,
    at_home,
    digest,
    file_frames,
    locked,
    open_part,
    same_file,
    scan,
    sweep_stages,
)
from dispatcher.remote.protocol.copy_frames import BROKEN, CHUNK, DATA, END, HOLE, START, frames

Parsed = list[tuple[int, bytes]]


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def given(
    path: Path, size: int, start: int = 0, seen: str = "", until: int | None = None
) -> Parsed:
    """What ``give`` sends; until: bytes of a file that grows, after which no more will come."""
    come = frames(1 << 20)
    more = None if until is None else lambda at: at < until
    pieces = file_frames(str(path), size, start, seen, more)
    return [(kind, body) for piece in pieces for _, kind, body in come.feed(piece)]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class TestGive:
    @cases("size", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK])
    def test_all_of_it_and_its_digest(self, tmp_path: Path, size: int) -> None:
        data = os.urandom(size)
        (tmp_path / "f").write_bytes(data)
        *pieces, last = given(tmp_path / "f", size)
        assert last == (END, sha(data))
        assert b"".join(body for kind, body in pieces if kind == DATA) == data
        assert [len(body) for _, body in pieces] == [
            min(CHUNK, size - at) for at in range(0, size, CHUNK)
        ]

    @cases("holes", [True, False])
    def test_holes_are_told_and_zeros_are_sent(self, tmp_path: Path, holes: bool) -> None:
        data = b"x" * CHUNK + bytes(2 * CHUNK) + b"y" * 9 + bytes(CHUNK - 9) + bytes(5)
        with open(tmp_path / "f", "wb") as file:
            for at in range(0, len(data), CHUNK):
                piece = data[at : at + CHUNK]
                if piece.strip(b"\0") or not holes:
                    file.seek(at)
                    file.write(piece)
            file.truncate(len(data))
        *pieces, last = given(tmp_path / "f", len(data))
        assert last == (END, sha(data))
        if not holes:
            assert [kind for kind, _ in pieces] == [DATA] * 5
            return
        hole = (HOLE, CHUNK.to_bytes(8, "big"))
        assert pieces == [
            (DATA, data[:CHUNK]), hole, hole,
            (DATA, data[3 * CHUNK : 4 * CHUNK]), (HOLE, (5).to_bytes(8, "big")),
        ]  # fmt: skip
        come = Incoming(os.open(tmp_path / "g", os.O_RDWR | os.O_CREAT), "g")
        for kind, body in pieces:
            come.take(kind, body)
        assert (come.size, come.hash.digest()) == (len(data), sha(data))
        os.close(come.fd)
        assert (tmp_path / "g").read_bytes() == data
        assert (tmp_path / "g").stat().st_blocks * 512 < len(data) - CHUNK

    @cases("start", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
    def test_what_is_there_is_compared_and_not_sent(self, tmp_path: Path, start: int) -> None:
        data = os.urandom(2 * CHUNK)
        (tmp_path / "f").write_bytes(data)
        first, *pieces, last = given(tmp_path / "f", len(data), start, sha(data[:start]).hex())
        assert first == (START, start.to_bytes(8, "big"))
        assert b"".join(body for _, body in pieces) == data[start:]
        assert last == (END, sha(data))

    @cases(("size", "listed"), [(9, 10), (0, 1)])
    def test_a_file_that_has_become_smaller(self, tmp_path: Path, size: int, listed: int) -> None:
        path = tmp_path / "f"
        path.write_bytes(bytes(size))
        kind, why = given(path, listed)[-1]
        assert (kind, why) == (BROKEN, os.fsencode(path) + b": changed while it was copied")

    @cases(("size", "listed"), [(11, 10), (1, 0), (CHUNK + 10, 10), (CHUNK + 10, CHUNK)])
    def test_a_log_that_has_grown_is_given_as_it_was(
        self, tmp_path: Path, size: int, listed: int
    ) -> None:
        path = tmp_path / "f"
        path.write_bytes(b"x" * size)
        *pieces, last = given(path, listed)
        assert b"".join(body for _, body in pieces) == b"x" * listed
        assert last == (END, sha(b"x" * listed))

    @cases(
        ("change", "at", "last"),
        [
            ("over", 0, BROKEN), ("over", CHUNK, BROKEN), ("grow", 0, END), ("grow", CHUNK, END),
            ("cut", CHUNK, BROKEN), ("coming", 0, END),
        ],
    )  # fmt: skip
    def test_a_file_that_is_written_over_meanwhile(
        self, tmp_path: Path, change: str, at: int, last: int
    ) -> None:
        """at: where it is written to, and how; when the first of its pieces has been given."""
        path = tmp_path / "f"
        path.write_bytes(bytes(2 * CHUNK))
        os.utime(path, (1, 1))
        more = (lambda at: True) if change == "coming" else None
        pieces = file_frames(str(path), 2 * CHUNK, more=more)
        first = next(pieces)
        if change == "cut":
            os.truncate(path, at)
        with open(path, "ab" if change == "grow" else "r+b") as file:
            file.seek(at)
            file.write(b"x")
        come = frames(1 << 20)
        kinds = [kind for piece in (first, *pieces) for _, kind, _ in come.feed(piece)]
        assert kinds[-1] == last

    @cases("name", ["/proc/self/status", "/proc/cpuinfo", "/sys/kernel/uevent_seqnum"])
    def test_a_file_that_tells_another_size_than_it_has_is_refused_as_such(self, name: str) -> None:
        why = b": its size is unknown, as in /proc and /sys; dispatch exec and cat can read it"
        assert given(Path(name), os.stat(name).st_size)[-1] == (BROKEN, os.fsencode(name) + why)

    def test_a_file_that_grows_is_waited_for(self, tmp_path: Path) -> None:
        data = bytes(range(100))
        (tmp_path / "f").write_bytes(data)
        assert given(tmp_path / "f", 100, until=100)[-1] == (END, sha(data))
        *_, last = given(tmp_path / "f", 100, until=0)
        assert last[0] == BROKEN
        (first, *_) = given(tmp_path / "f", 100, 50, sha(data[:50]).hex(), until=0)
        assert first == (START, bytes(8))

    def test_one_that_cannot_be_read_is_told_of(self, tmp_path: Path) -> None:
        absent = tmp_path / "absent"
        told = os.fsencode(absent) + b": no such file or directory"
        assert given(absent, 5) == [(BROKEN, told)]
        (tmp_path / "link").symlink_to(absent)
        assert given(tmp_path / "link", 5)[0][0] == BROKEN

    def test_descriptors_are_given_back(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(bytes(3 * CHUNK))
        before = open_files()
        for size in (3 * CHUNK, 1):
            given(tmp_path / "f", size)
        pieces = file_frames(str(tmp_path / "f"), 3 * CHUNK)
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        assert not open_files() - before


class TestScan:
    def test_every_kind_and_the_folder_before_what_is_in_it(self, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "b").mkdir(parents=True)
        (tree / "b" / "x").write_text("hello")
        (tree / "b" / "x").chmod(0o4751)
        (tree / "a").symlink_to("b/x")
        os.mkfifo(tree / "c")
        os.utime(tree / "b" / "x", ns=(1, 1_000_000_007))
        found = list(scan(str(tree), "0/tree"))
        assert [(e.path, e.kind, e.size, e.more, place) for e, place in found] == [
            ("0/tree", "d", 0, "", f"{tree}"),
            ("0/tree/a", "l", 0, "b/x", f"{tree}/a"),
            ("0/tree/b", "d", 0, "", f"{tree}/b"),
            ("0/tree/b/x", "f", 5, "", f"{tree}/b/x"),
            ("0/tree/c", "o", 0, "", f"{tree}/c"),
        ]
        assert (found[3][0].mode, found[3][0].mtime) == (0o4751, 1_000_000_007)

    @cases(
        ("path", "found"),
        [
            ("file", [("f", "real/x")]), ("file2", [("f", "real/x")]),
            ("real/up", [("f", "real/x")]), ("fifo", [("o", "fifo")]), ("link", [("l", "link")]),
            ("link/", [("d", "link/"), ("l", "link/up"), ("f", "link/x")]),
        ],
    )  # fmt: skip
    def test_a_link_that_is_named_is_followed(
        self, tmp_path: Path, path: str, found: list[tuple[str, str]]
    ) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "x").write_text("hello")
        (tmp_path / "real" / "x").chmod(0o640)
        os.mkfifo(tmp_path / "real2")
        for name, target in (("file", "real/x"), ("file2", "file"), ("link", "real"),
                             ("real/up", "x"), ("fifo", "real2")):  # fmt: skip
            (tmp_path / name).symlink_to(target)
        listed = list(scan(f"{tmp_path}/{path}", "0/name", named=True))
        assert [(e.kind, place[len(f"{tmp_path}/") :]) for e, place in listed] == found
        assert listed[0][0].path == "0/name"
        if found[0][0] == "f":
            assert (listed[0][0].mode, listed[0][0].size) == (0o640, 5)
        (other, _), *_ = scan(f"{tmp_path}/file", "0/name")
        assert other.kind == "l"  # nobody has named it

    def test_a_named_link_to_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "x").symlink_to("gone")
        with pytest.raises(NotGiven, match=f"^{tmp_path}/x: no such file or directory$"):
            list(scan(str(tmp_path / "x"), "x", named=True))

    def test_what_cannot_be_read_in_a_tree(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "shut", "z"):
            (tmp_path / "t" / name).mkdir(parents=True)
            (tmp_path / "t" / name / "f").touch()
        really = os.listdir

        def listdir(path: str) -> list[str]:
            if path.endswith("shut"):
                raise PermissionError(13, "Permission denied")
            return really(path)

        monkeypatch.setattr(os, "listdir", listdir)
        top = f"{tmp_path}/t"
        listed = [entry for entry, _ in scan(top, "0/t", named=True, partial=True)]
        assert [f"{one.kind} {one.path[2:]} {one.more}" for one in listed] == [
            "d t ", "d t/a ", "f t/a/f ", "d t/shut ", "u t/shut permission denied", "d t/z ",
            "f t/z/f ",
        ]  # fmt: skip
        for shut, named in ((top, False), (f"{top}/shut", True)):
            with pytest.raises(NotGiven, match=f"^{top}/shut: permission denied$"):
                list(scan(shut, "x", named=named, partial=named))

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(NotGiven, match=f"{tmp_path}/x: no such file or directory"):
            list(scan(str(tmp_path / "x"), "x"))


def test_a_digest_of_all(tmp_path: Path, here: int) -> None:
    (tmp_path / "f").write_text("hello")
    assert digest(str(tmp_path / "f")) == digest("f", here) == sha(b"hello").hex()


class TestHome:
    @cases("path", ["a/~", "/x", "./~", ""])
    def test_other_paths_stay_as_they_are(self, path: str) -> None:
        assert at_home(path) == path

    def test_ours_and_another_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/our/home")
        assert (at_home("~"), at_home("~/x")) == ("/our/home", "/our/home/x")
        assert at_home("~root/x") == "/root/x"
        with pytest.raises(NotGiven, match=r"^~nobody-there/x: no such home folder$"):
            at_home("~nobody-there/x")

    def test_an_empty_home_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "")
        assert at_home("~/x") == os.path.join(os.path.expanduser(f"~{_user()}"), "x")


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


class TestSweep:
    def aged(self, path: Path, seconds: float) -> None:
        at = time.time() - seconds
        os.utime(path, (at, at))

    @cases(
        ("name", "age", "goes"),
        [
            (STAGE + "1", DEAD + 30, True), (STAGE + "1", DEAD - 30, False),
            (STAGE_HERE + "1", DEAD + 30, True), (STAGE_HERE + "1", DEAD - 30, False),
            (PART + "1", STALE + 30, True), (PART + "1", STALE - 30, False),
            (PART + "1", DEAD + 30, False), ("mine", STALE + 30, False),
            ("x" + STAGE, STALE + 30, False),
        ],
    )  # fmt: skip
    def test_only_what_is_ours_and_old_goes(
        self, tmp_path: Path, name: str, age: float, goes: bool
    ) -> None:
        path = tmp_path / name
        if name.startswith(PART):
            path.touch()
        else:
            (path / "in").mkdir(parents=True)
            (path / "in" / "f").touch()
            (path / "in").chmod(0o500)
        (tmp_path / "other").touch()
        self.aged(path, age)
        here = os.open(tmp_path, os.O_RDONLY)
        sweep_stages(here)
        os.close(here)
        assert path.exists() is not goes
        assert (tmp_path / "other").exists()

    def test_what_is_locked_lives(self, tmp_path: Path, here: int) -> None:
        for name in (STAGE + "1", STAGE + "2"):
            (tmp_path / name).mkdir()
            self.aged(tmp_path / name, DEAD + 30)
        fd = os.open(tmp_path / (STAGE + "1"), disk.FOR_READING)
        assert locked(fd)
        before = open_files()
        sweep_stages(here)
        assert os.listdir(tmp_path) == [STAGE + "1"]
        assert not open_files() - before
        os.close(fd)

    @cases("name", [STAGE + "1", STAGE_HERE + "1", PART + "1"])
    def test_what_another_user_has_put_there_stays(
        self, tmp_path: Path, here: int, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        path = tmp_path / name
        path.touch() if name.startswith(PART) else (path / "in").mkdir(parents=True)
        self.aged(path, STALE + 30)
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        before = names(tmp_path)
        sweep_stages(here)
        assert names(tmp_path) == before

    def test_a_folder_whose_name_becomes_a_link_leads_nowhere(
        self, tmp_path: Path, here: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "f").touch()
        inner = tmp_path / (STAGE + "1") / "in"
        inner.mkdir(parents=True)
        self.aged(inner.parent, DEAD + 30)
        really = os.listdir

        def exchanged(at: str | int) -> list[str]:
            if os.path.samefile(at, inner):
                inner.rename(tmp_path / "aside")
                inner.symlink_to(tmp_path / "kept")
            return really(at)

        monkeypatch.setattr(os, "listdir", exchanged)
        sweep_stages(here)
        assert inner.is_symlink()
        assert names(tmp_path / "kept") == ["f"]

    def test_a_link_is_not_followed(self, tmp_path: Path, here: int) -> None:
        (tmp_path / "real").mkdir()
        self.aged(tmp_path / "real", STALE + 30)
        (tmp_path / (STAGE + "1")).symlink_to("real")
        sweep_stages(here)
        assert names(tmp_path) == [STAGE + "1", "real"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("use", "comes"),
    [
        (lambda fifo: sweep_stages(os.open(fifo.parent, os.O_RDONLY)), None),
        (lambda fifo: digest(str(fifo)), sha(b"").hex()),
        (lambda fifo: [kind for kind, _ in given(fifo, 1)], [BROKEN]),
    ],
)
def test_the_writer_of_a_fifo_is_not_waited_for(
    tmp_path: Path, use: Callable[[Path], object], comes: object
) -> None:
    """Anybody may leave one under such a name, or in the place of a file that was listed."""
    fifo = tmp_path / (STAGE + "1")
    os.mkfifo(fifo)
    os.utime(fifo, (1, 1))
    assert use(fifo) == comes
    assert fifo.exists()


def test_a_name_may_have_got_another_file(tmp_path: Path, here: int) -> None:
    path = tmp_path / "f"
    path.touch()
    about = path.stat()
    assert same_file(about, "f", here)
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(path)
    assert not same_file(about, "f", here)
    path.unlink()
    assert not same_file(about, "f", here)


def test_a_part_is_ours_alone(tmp_path: Path, here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ours", "two", "theirs"):
        (tmp_path / name).touch()
    os.link(tmp_path / "two", tmp_path / "names")
    (tmp_path / "link").symlink_to("ours")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("two", "link", "folder", "fifo", "none"):
        assert open_part(name, here, make=False) is None
    assert open_part("folder", here, make=True) is None
    for name in ("ours", "new"):
        fd = open_part(name, here, make=True)
        assert fd is not None
        assert open_part(name, here, make=True) is None  # somebody is at it
        os.close(fd)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert open_part("theirs", here, make=False) is None


def test_a_part_that_is_given_up_meanwhile_has_a_second_name(
    tmp_path: Path, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fills it gives it one before the lock goes: it is that one's still."""
    path = tmp_path / "part"
    path.touch()

    def late(fd: int) -> bool:
        os.link(path, tmp_path / "staged")
        return locked(fd)

    monkeypatch.setattr(disk, "locked", late)
    assert open_part("part", here, make=True) is None


class TestIncoming:
    def opened(self, path: Path, data: bytes) -> Incoming:
        path.write_bytes(data)
        return Incoming(os.open(path, os.O_RDWR), str(path))

    @cases("size", [0, 5, CHUNK + 5])
    def test_it_goes_on_behind_what_is_there(self, tmp_path: Path, size: int) -> None:
        data = os.urandom(size)
        come = self.opened(tmp_path / "f", data)
        come.resume()
        assert come.size == size
        come.take(DATA, b"more")
        assert (come.size, come.hash.digest()) == (size + 4, sha(data + b"more"))
        assert (tmp_path / "f").read_bytes() == data + b"more"
        os.close(come.fd)
