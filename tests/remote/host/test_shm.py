"""Shared memory of MPI ranks: found while they live, removed when they are dead."""

from __future__ import annotations

import io
import mmap
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import cases

from dispatcher.remote.host import shm


@pytest.fixture
def segment() -> Iterator[str]:
    """A name in /dev/shm as MPICH would choose it."""
    path = f"/dev/shm/mpich_shm_{uuid.uuid4().hex}"
    yield path
    if os.path.exists(path):
        os.unlink(path)


def mapping(path: str) -> mmap.mmap:
    with open(path, "wb+") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)


def test_what_a_process_has_mapped_is_found_and_removed(segment: str) -> None:
    with mapping(segment):
        found = shm.mapped([os.getpid()])
    assert segment.encode() in found
    shm.remove({segment.encode()})
    assert not os.path.exists(segment)
    shm.remove({segment.encode()})  # again: nothing is there, nothing happens


def test_what_a_program_made_itself_is_not_ours() -> None:
    path = f"/dev/shm/torch_{uuid.uuid4().hex}"
    try:
        with mapping(path):
            assert path.encode() not in shm.mapped([os.getpid()])
    finally:
        os.unlink(path)


def test_a_segment_that_was_removed_while_mapped_is_left_out(segment: str) -> None:
    with mapping(segment):
        os.unlink(segment)  # the map then says "(deleted)"
        assert not [path for path in shm.mapped([os.getpid()]) if b"deleted" in path]


def test_a_process_that_ended_is_no_error() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert shm.mapped([pid]) == set()


def maps(*lines: str) -> bytes:
    """/proc/PID/maps with a mapping of each of ``lines``."""
    head = "7f0000000000-7f0000001000 rw-s 00000000 00:1a 99   "
    return "".join(f"{head}{line}\n" for line in lines).encode()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[int, bytes]:
    """pid -> what its maps say; others have ended."""
    known: dict[int, bytes] = {}
    usual = open

    def opened(path: str, mode: str) -> io.BufferedIOBase:
        if not path.startswith("/proc/"):
            return usual(path, mode)  # type: ignore[return-value]
        pid = int(path.split("/")[2])
        if pid not in known:
            raise FileNotFoundError
        return io.BytesIO(known[pid])

    monkeypatch.setattr(shm, "open", opened, raising=False)
    return known


def test_segments_are_known_by_the_names_that_mpi_gives(processes: dict[int, bytes]) -> None:
    ours = ["mpich_shm_a", "mpich_shar_tmpX1", "Intel_MPI_u_1", "ucx_shm_posix_77"]
    processes[5] = maps(*(f"/dev/shm/{name}" for name in ours[:2]), "", "[heap]", "/usr/lib/x.so")
    processes[6] = maps(*(f"/dev/shm/{name}" for name in ours[1:]))
    processes[7] = maps(
        "/dev/shm/torch_1", "/dev/shm/folder/mpich_shm_b", "/dev/shm/mpich_shm_c/d",
        "/dev/shm/mpich_shm_e (deleted)", "/tmp/mpich_shm_f", "/dev/shm/my_mpich_shm_g",
    )  # fmt: skip
    assert shm.mapped([5, 6, 7, 8]) == {b"/dev/shm/" + name.encode() for name in ours}
    assert shm.mapped([]) == set()


def test_files_are_told_once_and_whole(processes: dict[int, bytes]) -> None:
    processes[5] = maps("/usr/lib/a.so", "/usr/lib/a.so", "/opt/my lib/b.so")
    assert shm.files(5) == [b"/usr/lib/a.so", b"/opt/my lib/b.so"]
    assert shm.files(6) == []


def test_the_library_that_a_process_has_loaded(processes: dict[int, bytes], tmp_path: Path) -> None:
    path = tmp_path / "libmpi.so.12"
    path.touch()
    other = tmp_path / "libmpich.so"
    other.write_bytes(b"")
    processes[5] = maps("/usr/lib/libc.so", "/usr/lib/libmpi.txt", str(path), str(other))
    assert shm.loaded_mpi(5) == str(path)
    processes[5] = maps("/gone/libmpi.so", str(path))
    assert shm.loaded_mpi(5) == ""  # another than the one it runs would be worse
    assert shm.loaded_mpi(6) == ""


@cases(
    ("content", "keeps"),
    [(b"..mpich_shm_..", True), (b"..Intel_MPI_..", False), (b"", False), (None, True)],
)
def test_which_library_keeps_a_segment(tmp_path: Path, content: bytes | None, keeps: bool) -> None:
    path = tmp_path / "libmpi.so"
    if content is not None:
        path.write_bytes(content)
    assert shm.keeps(str(path)) == keeps
