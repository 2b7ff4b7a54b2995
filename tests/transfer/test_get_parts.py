"""What is asked of hosts that mean well: what we lack, what is here in part, or a tar."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from transport.far_link import FarLink

from dispatcher.bootstrap import payload
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.copy_frames import Entry
from dispatcher.remote.protocol.packing import unpack
from dispatcher.transfer.dest_dir import BadArchive
from dispatcher.transfer.get_files import Fetching, HostPaths, Receiving

from .test_get_files import LIMIT, fetch, file, listing, offered, sent


def fetching(folder: Path, *names: str, **how: Any) -> Fetching:
    """What gets /x/a from one host, into a group a name."""
    groups = tuple(HostPaths(str(folder / name), (("/x/a", "a"), ("/x/b", "b"))) for name in names)
    limit, checksum = how.get("limit", LIMIT), how.get("checksum", False)
    return Fetching([groups], limit=limit, checksum=checksum, resume=how.get("resume", True))


def talk(one: Fetching, said: bytes) -> FarLink:
    wire = FarLink()
    one.start(0, wire)
    for at in range(0, len(said), 100_000):
        one.take_output(0, said[at : at + 100_000])
    one.finish(0)
    one.close()
    return wire


def values(wire: FarLink) -> list[Any]:
    """What a host with Python was told."""
    text = bytes(wire.written).removeprefix(payload.copy_payload())
    return [unpack(body) for _, _, body in copy_frames.frames(1 << 20).feed(text)]


@cases("checksum", [False, True])
def test_what_a_host_is_asked_for(tmp_path: Path, checksum: bool) -> None:
    one = fetching(tmp_path, "n1", "n2", checksum=checksum)
    listed = listing(Entry("0/a", "f", 0o644, 1, 1), Entry("1/b", "f", 0o644, 2, 1))
    wire = talk(one, listed + sent(b"x") + sent(b"yz"))
    order, answer = values(wire)
    paths = [["/x/a", "0/a"], ["/x/b", "0/b"], ["/x/a", "1/a"], ["/x/b", "1/b"]]
    assert order == {"do": "get", "paths": paths, "checksum": checksum}
    assert answer == {"need": b"\1\1", "start": "", "seen": ""}
    assert (tmp_path / "n1" / "a").read_bytes() == b"x"
    assert (tmp_path / "n2" / "b").read_bytes() == b"yz"
    told = one.copies[0]
    assert (told.python, told.sent, told.equal, told.bytes, told.wanted, told.found) == (
        True, 2, 0, 3, 3, 0,
    )  # fmt: skip


def test_what_a_host_cannot_give_is_told_in_few_words(tmp_path: Path) -> None:
    said = payload.PYTHON + copy_frames.message({"error": "no such file" * 99})
    told, wire = fetch(tmp_path, said)
    assert told.error == ("no such file" * 99)[:500]
    assert (told.hostile, told.sent, wire.closed) == (False, None, False)


class TestEqual:
    def same(self, tmp_path: Path, entry: Entry, *, checksum: bool = False) -> bool:
        """Whether the file is not asked for."""
        receiving = Receiving(
            [HostPaths(str(tmp_path), (("/a", "a"),))], limit=LIMIT, checksum=checksum, resume=True
        )
        receiving.offer(offered(entry))
        needed = receiving.needs()["need"]
        assert (receiving.equal, receiving.sent, receiving.wanted) == (
            (1, 0, 0) if needed == b"\0" else (0, 1, entry.size)
        )
        receiving.close()
        return bool(needed == b"\0")

    def test_by_size_and_time(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("hello")
        os.utime(tmp_path / "a", ns=(1, 5))
        assert self.same(tmp_path, Entry("0/a", "f", 0o644, 5, 5))
        assert not self.same(tmp_path, Entry("0/a", "f", 0o644, 5, 6))
        assert not self.same(tmp_path, Entry("0/a", "f", 0o644, 4, 5))
        assert not self.same(tmp_path, Entry("0/a", "f", 0o644, 6, 5))
        (tmp_path / "a").unlink()
        assert not self.same(tmp_path, Entry("0/a", "f", 0o644, 5, 5))
        (tmp_path / "a").symlink_to("hello")
        assert not self.same(tmp_path, Entry("0/a", "f", 0o644, 5, 5))

    def test_by_contents(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("hello")
        known = hashlib.sha256(b"hello").hexdigest()
        assert self.same(tmp_path, Entry("0/a", "f", 0o644, 5, 1, known), checksum=True)
        other = hashlib.sha256(b"hallo").hexdigest()
        assert not self.same(tmp_path, Entry("0/a", "f", 0o644, 5, 1, other), checksum=True)

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        size = (tmp_path / "a").stat().st_size
        mtime = (tmp_path / "a").stat().st_mtime_ns
        assert not self.same(tmp_path, Entry("0/a", "f", 0o644, size, mtime))


def big(tmp_path: Path, data: bytes) -> Receiving:
    entry = file("a", len(data))
    group = HostPaths(str(tmp_path / "n1"), (("/a", "a"),))
    one = Receiving([group], limit=LIMIT, checksum=False, resume=True)
    one.offer(offered(entry))
    return one


def test_a_part_that_came_damaged_is_not_kept(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    one = big(tmp_path, data)
    one.needs()
    one.take(copy_frames.DATA, data)
    with pytest.raises(BadArchive, match="it came damaged: '0/a'"):
        one.take(copy_frames.END, hashlib.sha256(b"").digest())
    one.close()
    assert os.listdir(tmp_path / "n1") == []


def test_what_fills_the_disk_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(1 << 20)
    one = big(tmp_path, data)
    one.needs()
    one.take(copy_frames.DATA, data[:1000])

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left on device"):
            one.take(copy_frames.DATA, data[1000:])
    one.close()
    assert os.listdir(tmp_path / "n1") == []


def archive(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class TestWithoutPython:
    def test_a_tar_is_taken_apart_when_it_is_whole(self, tmp_path: Path) -> None:
        one = fetching(tmp_path, "n1")
        data = archive(a=b"hello", b=b"x" * 200_000)
        wire = talk(one, payload.SHELL + data)
        assert bytes(wire.written) == b""
        assert one.copies[0].bytes == len(data)
        assert os.listdir(tmp_path) == []  # its command may still fail
        one.unpack(0)
        told = one.copies[0]
        assert (told.python, told.sent, told.bytes, told.wanted, told.error) == (
            False, 2, 200_005, 200_005, None,
        )  # fmt: skip
        assert (tmp_path / "n1" / "a").read_bytes() == b"hello"
        one.unpack(0)  # there is nothing more
        assert one.copies[0] == told

    def test_what_our_disk_refuses_is_told(self, tmp_path: Path) -> None:
        one = fetching(tmp_path, "n1")
        talk(one, payload.SHELL + archive(a=b"x"))
        (tmp_path / "n1").write_text("in its place")
        one.unpack(0)
        told = one.copies[0]
        assert told.error == f"{tmp_path}/n1: file exists"
        assert not told.hostile

    def test_a_folder_for_each_rank_needs_python(self, tmp_path: Path) -> None:
        one = fetching(tmp_path, "n1", "n2")
        wire = talk(one, payload.SHELL + archive(a=b"x"))
        assert one.copies[0].error == "{rank} in the folder needs a python3 on the host"
        assert wire.closed
        one.unpack(0)

    def test_a_folder_that_is_not_there_yet(self, tmp_path: Path) -> None:
        one = fetching(tmp_path / "not" / "yet", "n1")
        talk(one, payload.SHELL + archive(a=b"x"))
        one.unpack(0)
        assert (tmp_path / "not" / "yet" / "n1" / "a").read_bytes() == b"x"
