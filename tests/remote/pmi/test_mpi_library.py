"""Who is inside MPI on a host, by what ranks said and what their processes hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.remote.pmi.mpi_library import MARK, version
from dispatcher.remote.pmi.pmi_connections import PmiConnections

from .test_pmi_connections import PLANNED, Ranks

LOOK = {"type": "mpi_look", "parts": {}, "over": False, "versions": []}


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    ranks.add({**PLANNED, "size": 3}, 0, 1, 2)
    yield ranks
    ranks.close()


def look(connections: PmiConnections, **fields: Any) -> dict[str, Any]:
    ((_, kind, found),) = connections.replies().order({**LOOK, **fields})
    assert kind == "mpi_inside"
    return dict(found)


def test_those_between_init_and_finalize_with_their_library(ranks: Ranks) -> None:
    ranks.connections.mpis.update({1: ("PMI-1", "/b", 1), 2: ("PMI-1", "/a", 1)})
    for rank in (0, 1, 2):
        ranks.say(rank, b"cmd=init pmi_version=1")
    ranks.say(0, b"cmd=finalize")
    assert look(ranks.connections, versions=[["PMI-1", "/a"]]) == {
        "inside": [[1, 1], [2, 0]],
        "over": [],
        "libraries": [["PMI-1", "/a", ""], ["PMI-1", "/b", ""]],
    }
    ranks.connections.ended(2, 0, 0.0)
    assert [rank for rank, _ in look(ranks.connections)["inside"]] == [1]


def test_who_has_given_its_segment_up_is_through(ranks: Ranks, tmp_path: Path) -> None:
    """Only where the library is one that would hold it till then."""
    marked, other = tmp_path / "libmpi.so.12", tmp_path / "libmpi.so.40"
    marked.write_bytes(b"x" * 5000 + b"mpich_shm_%x_%d")
    other.write_bytes(b"x" * 5000)
    segment = Path(f"{os.fsdecode(MARK)}{os.getpid():x}_0")
    segment.write_bytes(bytes(4096))
    text = (
        "import mmap, sys; file = open(sys.argv[1], 'r+b'); data = mmap.mmap(file.fileno(), 0);"
        "print(1, flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", text, str(segment)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        held = ("PMI-1", str(marked), holder.pid)
        let_go = ("PMI-1", str(marked), 1 << 22)  # nobody's, so it maps nothing
        ranks.connections.mpis.update({0: held, 1: let_go, 2: ("PMI-1", str(other), 1 << 22)})
        for rank in (0, 1, 2):
            ranks.say(rank, b"cmd=init pmi_version=1")
        assert look(ranks.connections, over=True)["over"] == [1]
        assert look(ranks.connections)["over"] == []
    finally:
        segment.unlink()
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


@pytest.mark.parametrize("path", ["", "/nowhere/libmpi.so", sys.executable])
def test_what_tells_no_version(path: str) -> None:
    assert version(path) == ""


def test_a_library_tells_its_version() -> None:
    place = Path(sys.prefix) / "lib" / "libmpi.so.12"
    if not place.exists():
        pytest.skip("no MPICH in this environment: scripts/setup --dev")
    assert version(str(place)).startswith("MPICH Version:")
