"""Archives of hosts that mean harm, and of those that do not."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.errors import CannotCopy, UsageError
from dispatcher.remote.copy.disk import scan
from dispatcher.transfer import tars
from dispatcher.transfer.dest_dir import SECOND, BadArchive
from dispatcher.transfer.tars import Unpacked, pack_tar, unpack


def member(name: str, data: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data if info.isreg() else b""


def link(name: str, target: str, type: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, b"", type=type, linkname=target)


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def raw(kind: bytes, data: bytes = b"", size: bytes = b"") -> bytes:
    """A header of the file ``a`` with ``data`` behind it, as nobody's tar would write it."""
    size = size or b"%011o\0" % len(data)
    block = b"a".ljust(100, b"\0") + b"0000644\0" * 3 + size + b"00000000000\0"
    block = (block + b" " * 8 + kind).ljust(512, b"\0")
    block = block[:148] + b"%06o\0 " % sum(block) + block[156:]
    return block + data + bytes(-len(data) % 512)


def take(data: bytes, folder: Path, limit: int = 1 << 20) -> Unpacked:
    return unpack(io.BytesIO(data), str(folder / "in" / "n1"), {"a", "b"}, limit)


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_files_folders_links_modes_and_times(tmp_path: Path) -> None:
    data = tar(
        member("./a", b"", type=tarfile.DIRTYPE, mode=0o750, mtime=5),
        member("./a/f", b"hello", mode=0o4755, mtime=1_000_000),
        link("./a/l", "f"),
        link("./a/h", "./a/f", tarfile.LNKTYPE),
    ) + tar(member("b", b"second"))
    done = take(data, tmp_path)
    place = tmp_path / "in" / "n1"
    assert (done.files, done.left_out) == (3, [])
    assert (place / "a" / "f").read_bytes() == (place / "a" / "h").read_bytes() == b"hello"
    assert (place / "a" / "f").stat().st_mode & 0o7777 == 0o755  # set-user-id is not kept
    assert (place / "a" / "f").stat().st_mtime == 1_000_000
    assert os.readlink(place / "a" / "l") == "f"
    assert (place / "a").stat().st_mtime == 5
    assert (place / "b").read_bytes() == b"second"


@cases(
    "members",
    [
        [member("../x")],
        [member("/etc/x")],
        [member("a/../../x")],
        [member("c")],
        [member("a//x")],
        [member(".")],
        [link("a", "b", tarfile.LNKTYPE)],
        [link("a", "/etc/passwd", tarfile.LNKTYPE)],
        [member("a/x")],
        [member("a/" + "n" * 300)],
    ],
)
def test_what_it_may_not_is_refused(
    members: list[tuple[tarfile.TarInfo, bytes]], tmp_path: Path
) -> None:
    with pytest.raises(BadArchive):
        take(tar(*members), tmp_path)
    outside = {name for name in everything(tmp_path) if not name.startswith("in/n1")}
    assert outside <= {"in"}
    assert not [name for name in everything(tmp_path) if ".dispatch-get" in name]


@cases(
    ("members", "error"),
    [
        ([member("a/" + "d/" * 70 + "x")], CannotCopy),
        ([member("a", b"x" * (2 << 20))], CannotCopy),
        ([link("a", "."), member("a/x")], NotADirectoryError),
        ([member("a"), member("a/x")], NotADirectoryError),
        ([member("a", b"", type=tarfile.DIRTYPE), member("a")], IsADirectoryError),
    ],
)
def test_what_is_too_much_or_has_no_place_here(
    members: list[tuple[tarfile.TarInfo, bytes]], error: type[Exception], tmp_path: Path
) -> None:
    """Of an honest host, too: what stands here may be of another time."""
    with pytest.raises(error):
        take(tar(*members), tmp_path)
    assert {name for name in everything(tmp_path) if not name.startswith("in/n1/a")} == {
        "in", "in/n1",
    }  # fmt: skip


@cases("cut", [0, 1, 511, 513, 700, 2000 + 512, 2048 + 512, 3 * 1024, 4096])
def test_half_an_archive_is_no_archive(cut: int, tmp_path: Path) -> None:
    whole = tar(member("a", b"y" * 2000), member("b", b"y" * 700))
    with pytest.raises(BadArchive):
        take(whole[:cut], tmp_path)


@cases("size", [0, 1, 511, 512, 513, 5000, 100_000])
def test_what_stands_behind_a_hard_link(size: int, tmp_path: Path) -> None:
    """The link itself has no bytes in the tar, however large the file is that it names."""
    linked = link("a/3", "a/1", tarfile.LNKTYPE)
    after = [member(f"a/{number}", b"%d" % number) for number in range(4, 30)]
    folder = member("a", b"", type=tarfile.DIRTYPE)
    one = tar(folder, member("a/1", b"y" * size), linked, linked, *after)
    done = take(one + tar(member("b", b"last")), tmp_path)
    place = tmp_path / "in" / "n1"
    assert (done.files, done.bytes) == (30, 3 * size + sum(len(data) for _, data in after) + 4)
    assert (place / "a" / "3").read_bytes() == b"y" * size
    assert [(place / "a" / str(n)).read_text() for n in range(4, 30)] == [*map(str, range(4, 30))]
    assert (place / "b").read_bytes() == b"last"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=1500), st.integers(0, 3000))
def test_any_bytes(noise: bytes, at: int) -> None:
    whole = bytearray(tar(member("a/f", b"y" * 700), link("b", "a/f")))
    whole[at : at + len(noise)] = noise
    with tempfile.TemporaryDirectory() as folder:
        try:
            take(bytes(whole), Path(folder))
        except (BadArchive, CannotCopy, OSError):
            pass
        assert {n for n in everything(Path(folder)) if not n.startswith("in/n1")} <= {"in"}


class TestPack:
    def packed(self, *paths: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
        found = {}
        with pack_tar(one for path in paths for one in scan(str(path), f"0/{path.name}")) as file:
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                for one in archive:
                    content = archive.extractfile(one) if one.isreg() else None
                    found[one.name] = (one, content.read() if content else b"")
        return found

    def test_files_folders_and_links_under_their_names(self, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "in").mkdir(parents=True)
        (tree / "in" / "f").write_text("hello")
        (tree / "in" / "f").chmod(0o640)
        os.utime(tree / "in" / "f", ns=(0, 7 * SECOND + 5))
        os.link(tree / "in" / "f", tree / "in" / "h")
        (tree / "l").symlink_to("in/f")
        found = self.packed(tree, tree / "l")
        assert list(found) == ["tree", "tree/in", "tree/in/f", "tree/in/h", "tree/l", "l"]
        one, content = found["tree/in/f"]
        assert (one.mode, one.mtime, one.uid, one.gid, one.uname, one.gname, content) == (
            0o640, 7, 0, 0, "", "", b"hello",
        )  # fmt: skip
        assert found["tree/in/h"][1] == b"hello"  # a second name of a file is a file
        assert found["tree/l"][0].linkname == found["l"][0].linkname == "in/f"
        assert found["tree"][0].isdir()

    def test_a_log_that_has_grown_is_packed_as_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("as listed")
        listed = list(scan(str(tmp_path / "f"), "0/f"))
        (tmp_path / "f").write_text("as listed, and more")
        with pack_tar(listed) as packed:
            packed.seek(0)
            with tarfile.open(fileobj=packed) as archive:
                (member,) = archive
                assert archive.extractfile(member).read() == b"as listed"  # type: ignore[union-attr]

    @cases(("now", "why"), [(None, "no such file"), ("short", "unexpected end")])
    def test_what_has_changed_since_it_was_listed(
        self, tmp_path: Path, now: str | None, why: str
    ) -> None:
        (tmp_path / "f").write_text("as listed")
        listed = list(scan(str(tmp_path / "f"), "0/f"))
        (tmp_path / "f").unlink()
        if now is not None:
            (tmp_path / "f").write_text(now)
        with pytest.raises(UsageError, match=f"^{tmp_path}/f: {why}"):
            pack_tar(listed)


class TestBounds:
    def test_bytes_of_all_files_together(self, tmp_path: Path) -> None:
        two = tar(member("a", b"x" * 60), member("b", b"x" * 40))
        assert take(two, tmp_path, 100).bytes == 100
        with pytest.raises(CannotCopy, match="more than 99 B"):
            take(two, tmp_path, 99)

    def test_members(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        three = tar(member("a", b"", type=tarfile.DIRTYPE), member("a/x"), member("b"))
        monkeypatch.setattr(tars, "MOST_MEMBERS", 3)
        assert take(three, tmp_path).files == 2
        monkeypatch.setattr(tars, "MOST_MEMBERS", 2)
        with pytest.raises(CannotCopy, match="more than 2 files and folders"):
            take(three, tmp_path)

    def test_a_tar_behind_zeros_and_another(self, tmp_path: Path) -> None:
        one, other = tar(member("a", b"1")), tar(member("b", b"2"))
        done = take(bytes(1024) + one + bytes(512) + other + bytes(512), tmp_path)
        assert (done.files, done.bytes) == (2, 2)

    def test_a_tar_of_nothing(self, tmp_path: Path) -> None:
        assert take(bytes(5000), tmp_path) == Unpacked(0, 0, [])

    @cases(
        "headers",
        [
            raw(b"L", b"n" * (1 << 20)),  # a name of a megabyte
            raw(b"x", b"19 path=a/" + b"n" * (1 << 17)),
            raw(b"x", b"10 path=a\n") * 9,  # each of which would be a call within the last
            raw(b"x", b"99999999 path=a\n"), raw(b"x", b"3 x\n"), raw(b"x", b"path=a\n"),
            raw(b"x", b"13 mtime=1.5\nmtime="),  # whose last record has no length
            raw(b"x", b"11 size=-1\n"), raw(b"x", b"11 size=1e\n"), raw(b"x", b"10 size=\xff\n"),
            raw(b"x", b"22 GNU.sparse.major=1\n"), raw(b"S"),
            raw(b"0", size=b"\x80" + b"\xff" * 11),
        ],
    )  # fmt: skip
    def test_headers_that_claim_too_much(self, tmp_path: Path, headers: bytes) -> None:
        tracemalloc.start()
        with pytest.raises(BadArchive):
            take(headers + raw(b"0") + bytes(1024), tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()

    def test_many_members_take_no_memory(self, tmp_path: Path) -> None:
        many = io.BytesIO(raw(b"5") * 1000 + bytes(1024))
        tracemalloc.start()
        unpack(many, str(tmp_path / "n1"), {"a"}, 1)
        assert tracemalloc.get_traced_memory()[1] < 256 << 10
        tracemalloc.stop()

    @cases("flavour", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
    def test_what_other_programs_write(self, tmp_path: Path, flavour: int) -> None:
        long = "a/" + "d" * 90 + "/" + "n" * 80
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=flavour) as archive:
            for info, data in (
                member("a/", b"", type=tarfile.DIRTYPE, mode=0o755),
                member(os.path.dirname(long), b"", type=tarfile.DIRTYPE, mode=0o755),
                member(long, b"hello", mtime=1_000_000_000, mode=0o640),
                link("a/l", "d" * 90 + "/n"), link("a/h", long, tarfile.LNKTYPE),
            ):  # fmt: skip
                if flavour != tarfile.USTAR_FORMAT or info.type != tarfile.LNKTYPE:
                    archive.addfile(info, io.BytesIO(data))
        root = tmp_path / str(flavour)
        file.seek(0)
        unpack(file, str(root), {"a"}, 100)
        found = root / long
        assert (found.read_bytes(), found.stat().st_mode & 0o777) == (b"hello", 0o640)
        assert found.stat().st_mtime == 1_000_000_000
        assert os.readlink(root / "a" / "l") == "d" * 90 + "/n"
        assert flavour == tarfile.USTAR_FORMAT or (root / "a" / "h").read_bytes() == b"hello"
