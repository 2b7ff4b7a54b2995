"""Archives of hosts that mean harm, and of those that do not."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.transfer import dest_dir
from dispatcher.transfer.dest_dir import BadArchive, Unpacked, unpack


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


@pytest.mark.parametrize(
    "members",
    [
        [member("../x")],
        [member("/etc/x")],
        [member("a/../../x")],
        [member("c")],
        [member("a//x")],
        [member(".")],
        [link("a", "."), member("a/x")],
        [link("a", "b", tarfile.LNKTYPE)],
        [link("a", "/etc/passwd", tarfile.LNKTYPE)],
        [member("a"), member("a/x")],
        [member("a", b"", type=tarfile.DIRTYPE), member("a")],
        [member("a/" + "d/" * 70 + "x")],
        [member("a/" + "n" * 300)],
        [member("a", b"x" * (2 << 20))],
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


def test_links_that_lead_outside_and_devices_are_left_out(tmp_path: Path) -> None:
    done = take(
        tar(
            link("a", "/etc/passwd"),
            link("b", "../n2/b"),
            member("a", b"", type=tarfile.FIFOTYPE),
            member("a", b"", type=tarfile.CHRTYPE),
        ),
        tmp_path,
    )
    assert len(done.left_out) == 4
    assert everything(tmp_path) == {"in", "in/n1"}


def test_links_that_are_there_already_are_not_followed(tmp_path: Path) -> None:
    place = tmp_path / "in" / "n1"
    place.mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "file").write_text("precious")
    (place / "a").symlink_to(tmp_path / "victim")
    (place / "b").symlink_to(tmp_path / "file")
    with pytest.raises(BadArchive):
        take(tar(member("a/x")), tmp_path)
    take(tar(member("b", b"new")), tmp_path)
    assert not list((tmp_path / "victim").iterdir())
    assert (tmp_path / "file").read_text() == "precious"
    assert (place / "b").read_bytes() == b"new"


def test_the_place_of_a_host_may_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "in" / "n1").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=r"."):
        take(tar(member("a")), tmp_path)
    assert not list((tmp_path / "victim").iterdir())


@pytest.mark.parametrize("cut", [1, 511, 513, 700])
def test_half_an_archive_is_no_archive(cut: int, tmp_path: Path) -> None:
    with pytest.raises(BadArchive):
        take(tar(member("a", b"y" * 2000))[:cut], tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=1500), st.integers(0, 3000))
def test_any_bytes(noise: bytes, at: int) -> None:
    whole = bytearray(tar(member("a/f", b"y" * 700), link("b", "a/f")))
    whole[at : at + len(noise)] = noise
    with tempfile.TemporaryDirectory() as folder:
        try:
            take(bytes(whole), Path(folder))
        except BadArchive:
            pass
        assert {n for n in everything(Path(folder)) if not n.startswith("in/n1")} <= {"in"}


@pytest.mark.parametrize(
    ("error", "why"), [(OSError(28, "No space left"), "no space left"), (OSError("odd"), "")]
)
def test_why_a_disk_refuses(error: OSError, why: str) -> None:
    assert dest_dir._why(error) == why
