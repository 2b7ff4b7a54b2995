"""Shared memory of MPI ranks: found while they live, removed when they are dead."""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Iterator

import pytest

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
