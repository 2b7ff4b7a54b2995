"""Who is inside MPI on a host, by what ranks said and what their processes hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.remote.pmi.pmi_connections import PmiConnections
from dispatcher.remote.pmi.pmi_replies import MARK
from dispatcher.remote.pmi.pmix_server import Found

from .test_pmi_connections import PLANNED, Ranks

LOOK = {"type": "query_inside", "over": False}


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    ranks.add({**PLANNED, "size": 3}, 0, 1, 2)
    yield ranks
    ranks.close()


def look(connections: PmiConnections, **fields: Any) -> dict[str, Any]:
    ((_, kind, found),) = connections.replies().order({**LOOK, **fields})
    assert kind == "mpi.inside"
    return dict(found)


def test_those_between_init_and_finalize(ranks: Ranks) -> None:
    ranks.connections.mpis.update({1: ("PMI-1", "/b", 1), 2: ("PMI-1", "/a", 1)})
    for rank in (0, 1, 2):
        ranks.say(rank, b"cmd=init pmi_version=1")
    ranks.say(0, b"cmd=finalize")
    assert look(ranks.connections) == {"ranks": [1, 2], "over": []}
    ranks.connections.ended(2, 0, 0.0)
    assert look(ranks.connections)["ranks"] == [1]


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


def test_where_a_library_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "lib" / "openmpi").mkdir(parents=True)
    beside = tmp_path / "lib" / "openmpi" / "libpmix.so.2"
    beside.touch()
    found = Found([os.getpid(), 1 << 30])
    assert found.named("libc.so")  # of a process that runs
    found.prefixes, found.mpi, found.pmix = [], str(tmp_path / "lib" / "libmpi.so.40"), ""
    assert found.candidates() == [str(beside), "libpmix.so.2", "libpmix.so"]
    found.pmix = str(tmp_path)
    assert found.candidates()[0] == str(tmp_path)  # what the rank itself has loaded


def test_the_nearest_library_is_the_first(tmp_path: Path) -> None:
    """Beside the MPI, then below its prefix, then below those that the ranks name."""
    places = [
        "mpi/lib/libpmix.so.2", "mpi/lib/libpmix.so", "mpi/lib64/libpmix.so.2",
        "env/lib/libpmix.so.2", "env/lib/pmix2/lib/libpmix.so.2", "env/lib/libpmix.so",
    ]  # fmt: skip
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    found = Found([])
    assert found.candidates() == ["libpmix.so.2", "libpmix.so"]
    found.mpi, found.prefixes = str(tmp_path / "mpi/lib/libmpi.so.40"), [str(tmp_path / "env")] * 2
    expected = [str(tmp_path / place) for place in places[:-1]]
    assert found.candidates() == [*expected, "libpmix.so.2", "libpmix.so"]


def test_what_processes_have_loaded_and_where_their_environments_are() -> None:
    env = {"VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda", "HOME": "/home", "MPI_HOME_X": "/no"}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE, env=env
    )
    try:
        found = Found([process.pid])
        while "libc.so.6" not in found.files:  # it is not yet that far
            assert process.poll() is None
            found = Found([process.pid])
        assert {"/venv", "/conda"} <= set(found.prefixes)
        assert not {"/home", "/no"} & set(found.prefixes)
        program = os.path.realpath(sys.executable)
        assert found.prefixes[-1] == os.path.dirname(os.path.dirname(program))
        assert found.files["libc.so.6"].startswith("/")
        assert all(".so" in name for name in found.files)
        assert (found.mpi, found.pmix) == ("", "")
    finally:
        process.communicate(b"\n")


def test_a_name_or_its_beginning() -> None:
    found = Found([])
    found.files = {"libmpi.so.40": "/b", "libmpi.so.12": "/a", "libmpich.so": "/c"}
    assert [found.named(start) for start in ("libmpi.so.40", "libmpi", "libmpic", "libpmix")] == [
        "/b", "/a", "/c", "",
    ]  # fmt: skip


@cases(
    ("loaded", "pmix"),
    [
        (["/o/lib/libmpi.so.40", "/o/lib/libopen-pal.so.40"], "/o/lib/libopen-pal.so.40"),
        (["/o/libopen-pal.so.40", "/usr/lib/libpmix.so.2.6.2"], "/usr/lib/libpmix.so.2.6.2"),
        (["/o/lib/libmpi.so.40", "/o/lib/libopen-pal.so.80"], ""),
        (["/o/lib/libmpi.so.12"], ""),
    ],
)
def test_what_serves_ranks_is_what_they_have_loaded(
    monkeypatch: pytest.MonkeyPatch, loaded: list[str], pmix: str
) -> None:
    """Open MPI 4 may have PMIx built in; it was then served by the system's, or not at all."""
    files = [os.fsencode(path) for path in loaded]
    monkeypatch.setattr("dispatcher.remote.host.shm.files", lambda pid: files)
    monkeypatch.setattr(os.path, "exists", lambda path: path in loaded)
    found = Found([1])
    assert found.pmix == pmix
    assert found.candidates() == [*([pmix] if pmix else []), "libpmix.so.2", "libpmix.so"]
