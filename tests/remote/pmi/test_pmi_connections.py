"""Connections of ranks and their worlds: real sockets, no processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.remote.host.poll import Poll
from dispatcher.remote.pmi.pmi_connections import PmiConnections

FIRST = 1 << 20  # the number of a spawned rank 0, as the launcher gives it
PLANNED = {"name": b"kvs", "size": 2, "mapping": b"(vector,(0,1,2))", "patience": 30.0}
SPAWNED = {
    **PLANNED, "world": 1, "first": FIRST, "name": b"kvs_1", "universe": 8, "apps": [1, 1],
    "preput": [[b"parent", b"port"]],
}  # fmt: skip


class Ranks:
    """A ``PmiConnections`` and the ends that its ranks would hold."""

    def __init__(self) -> None:
        self.poll = Poll()
        self.connections = PmiConnections(self.poll)
        self.ends: dict[int, int] = {}
        self.known: dict[int, dict[bytes, bytes]] = {}

    def add(self, job: dict[str, Any], *numbers: int) -> None:
        self.connections.add(job, list(numbers))
        # who speaks first is looked at, which only one test wants
        self.connections.mpis.update((number, ("PMI-1", "", number)) for number in numbers)
        for number in numbers:
            self.ends[number], self.known[number] = self.connections.open(number)

    def say(self, rank: int, line: bytes) -> list[Any]:
        """``rank`` writes ``line``, and the connections reads it; what is not a reply."""
        os.write(self.ends[rank], line + b"\n")
        return self.connections.read(rank, 0.0)

    def hear(self, rank: int) -> bytes:
        os.set_blocking(self.ends[rank], False)
        try:
            return os.read(self.ends[rank], 1 << 16)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        for end in (*self.ends.values(), *self.connections.ends.values()):
            os.close(end)
        self.poll.epoll.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.fixture
def two(ranks: Ranks) -> Ranks:
    """Two planned ranks, 0 and 1, and a spawned world of two."""
    ranks.add(PLANNED, 0, 1)
    ranks.add(SPAWNED, FIRST, FIRST + 1)
    return ranks


def test_each_world_counts_from_0(two: Ranks) -> None:
    for first in (0, FIRST):
        for rank in (0, 1):
            known = two.known[first + rank]
            assert (known[b"PMI_RANK"], known[b"PMI_SIZE"]) == (b"%d" % rank, b"2")
            assert known[b"PMI_FD"] == b"%d" % two.ends[first + rank]
            assert known.get(b"PMI_SPAWNED") == (b"1" if first else None)
    name = two.connections.replies().name
    assert [name(rank) for rank in (1, FIRST, FIRST + 1)] == ["1", "1.0", "1.1"]


def test_worlds_share_no_keys_and_no_fences(two: Ranks) -> None:
    two.say(0, b"cmd=put kvsname=kvs key=k value=v")
    two.say(FIRST, b"cmd=get kvsname=kvs_1 key=k")
    assert b"key_not_found" in two.hear(FIRST)
    two.say(FIRST, b"cmd=get kvsname=kvs_1 key=parent")
    assert b"value=port" in two.hear(FIRST)
    assert b"put_result rc=0" in two.hear(0)
    two.say(0, b"cmd=barrier_in")
    two.say(FIRST, b"cmd=barrier_in")
    two.say(FIRST + 1, b"cmd=barrier_in")
    assert b"barrier_out" in two.hear(FIRST)
    assert two.hear(0) == b""


def test_a_fence_over_hosts_says_its_world(ranks: Ranks) -> None:
    ranks.add({**SPAWNED, "size": 3}, FIRST, FIRST + 2)
    ranks.say(FIRST, b"cmd=init pmi_version=1")
    ranks.say(FIRST, b"cmd=barrier_in")
    waiting = {"type": "ask_waiting", "world": 1, "fence": "WORLD:0", "epoch": 0, "seconds": 1.0}
    ((_, kind, who),) = ranks.connections.replies().order(waiting)
    assert (kind, who["never"]) == ("pmi.waiting", [FIRST + 2])
    ((_, kind, fence),) = ranks.say(FIRST + 2, b"cmd=barrier_in")
    assert (kind, fence["world"], fence["epoch"]) == ("pmi.committed", 1, 0)
    release = {"type": "release_fence", "world": 1, "fence": "WORLD:0", "epoch": 0, "keys": []}
    assert ranks.connections.replies().order({**release, "world": 0}) == []
    assert ranks.connections.replies().order(release) == []
    assert b"barrier_out" in ranks.hear(FIRST + 2)


def test_an_answer_finds_its_rank(two: Ranks) -> None:
    two.say(FIRST + 1, b"cmd=lookup_name service=s")
    answer = {"type": "answer_rank", "rank": FIRST + 1, "line": b"cmd=lookup_result rc=1\n"}
    assert two.connections.replies().order({**answer, "rank": 1}) == []
    two.connections.replies().order(answer)
    assert (two.hear(1), two.hear(FIRST + 1)) == (b"", answer["line"])


def test_the_server_is_loaded_when_a_rank_speaks(two: Ranks) -> None:
    assert two.connections.next_deadline() == math.inf
    assert two.connections.tick(1e9) == []
    assert all(world.server is None for world in two.connections.worlds.values())
    two.say(0, b"cmd=init pmi_version=1")
    assert two.connections.next_deadline() == 30.0
    ((_, kind, who),) = two.connections.tick(31.0)
    assert (kind, who["never"]) == ("pmi.waiting", [1])


def test_a_rank_that_ended_before_anyone_spoke_opens_no_barrier(two: Ranks) -> None:
    assert two.connections.ended(1, 0, 0.0) == []
    two.say(0, b"cmd=barrier_in")
    assert two.hear(0) == b""


@pytest.mark.parametrize(
    ("lines", "way"),
    [
        ((), "never"),
        ((b"cmd=get_maxes",), "never"),
        ((b"cmd=init pmi_version=1",), "open"),
        ((b"cmd=init pmi_version=1", b"cmd=finalize"), ""),
        ((b"cmd=init pmi_version=1", b"cmd=finalize", b"cmd=init pmi_version=1"), "open"),
    ],
)
def test_where_a_rank_stood_when_it_ended(two: Ranks, lines: tuple[bytes, ...], way: str) -> None:
    for line in lines:
        os.write(two.ends[FIRST], line + b"\n")  # its last words, not read yet
    two.connections.ended(FIRST, 0, 0.0)
    assert two.connections.way == way


@pytest.mark.parametrize(
    ("holds", "served", "way"),
    [
        (b"..mpich_shm_%x..", "PMI-1", "open"),
        (b"..", "PMI-1", "inside"),
        (None, "PMI-1", "open"),
        (b"..mpich_shm_%x..", "OpenPMIx 5.0", "inside"),
    ],
)
def test_some_libraries_tell_of_their_end_too_late(
    two: Ranks, tmp_path: Path, holds: bytes | None, served: str, way: str
) -> None:
    library = tmp_path / "libmpi.so.12"
    if holds is not None:
        library.write_bytes(holds)
    two.connections.mpis[0] = (served, str(library), 0)
    two.say(0, b"cmd=init pmi_version=1")
    two.connections.ended(0, 0, 0.0)
    assert two.connections.way == way


def test_each_rank_is_looked_at_when_it_first_speaks(two: Ranks) -> None:
    two.connections.mpis.clear()
    assert two.say(FIRST, b"cmd=get_maxes") == [("mpi", FIRST, "PMI-1")]
    two.connections.mpis[FIRST] = ("PMI-1", "/lib/libmpi.so", 7)
    assert two.say(FIRST, b"cmd=get_maxes") == []
    assert two.say(0, b"cmd=get_maxes") == [("mpi", 0, "PMI-1")]


def test_the_last_words_of_a_rank_count(two: Ranks) -> None:
    os.write(two.ends[FIRST], b"cmd=abort exitcode=9\n")
    ((_, kind, fields),) = two.connections.ended(FIRST, 9, 0.0)
    assert (kind, fields["rank"], fields["code"]) == ("pmi.aborted", FIRST, 9)


def test_an_abort_tells_the_error_file(two: Ranks, tmp_path: Path) -> None:
    two.connections.place_hook(str(tmp_path), {}, None)
    (tmp_path / f"rank-{FIRST}.json").write_bytes(b"why")
    ((_, _, fields),) = two.say(FIRST, b"cmd=abort exitcode=9")
    assert fields["error"] == b"why"
    ((_, _, fields),) = two.say(FIRST + 1, b"cmd=abort exitcode=9")
    assert "error" not in fields


def test_a_world_is_forgotten_with_its_last_rank(two: Ranks) -> None:
    two.say(FIRST, b"cmd=get_maxes")
    two.connections.ended(FIRST, 0, 0.0)
    assert set(two.connections.worlds) == {0, 1}
    two.connections.leave(FIRST + 1)  # it could not be started
    assert set(two.connections.worlds) == {0}
    assert set(two.connections.ends) == {0, 1}
    assert (
        two.connections.replies().order({"type": "answer_rank", "rank": FIRST, "line": b"x"}) == []
    )


def test_a_rank_that_reads_no_answers_is_broken(two: Ranks) -> None:
    actions: list[Any] = []
    while not actions:
        actions = two.say(0, b"cmd=get_maxes")
    assert actions == [("break", 0, "it does not read its answers")]
    assert two.say(1, b"cmd=get_maxes") == []


def test_a_rank_that_closes_its_end_is_let_go(two: Ranks) -> None:
    os.close(two.ends.pop(0))
    assert two.connections.read(0, 0.0) == []
    assert 0 not in two.connections.ends
    assert two.connections.ended(0, 0, 0.0) == []


def test_the_hook_is_placed_once_and_named_first(ranks: Ranks, tmp_path: Path) -> None:
    env = {b"PYTHONPATH": b"/mine"}
    ranks.connections.place_hook(str(tmp_path), env, b"first")
    assert env[b"PYTHONPATH"] == os.fsencode(tmp_path) + b":/mine"
    ranks.connections.place_hook(str(tmp_path), {}, b"second")
    assert (tmp_path / "sitecustomize.py").read_bytes() == b"first"
    for folder, hook in ((None, b"x"), (str(tmp_path), None), (str(tmp_path / "none"), b"x")):
        env = {}
        ranks.connections.place_hook(folder, env, hook)
        assert env == {}


def test_a_rank_that_is_dying_when_it_is_answered_is_let_go(two: Ranks) -> None:
    os.write(two.ends[0], b"cmd=get_maxes\n")
    os.close(two.ends.pop(0))
    assert two.connections.read(0, 0.0) == []
    assert set(two.connections.ends) == {1, FIRST, FIRST + 1}
    two.say(1, b"cmd=get_maxes")
    assert b"cmd=maxes" in two.hear(1)


def test_who_ends_badly_is_still_waited_for(two: Ranks) -> None:
    for rank in (0, 1):
        two.say(rank, b"cmd=init pmi_version=1")
    two.say(0, b"cmd=barrier_in")
    two.hear(0)
    assert two.connections.ended(1, 9, 0.0) == []
    assert two.hear(0) == b""
    assert two.connections.worlds[0].never == []


def test_who_ends_well_is_waited_for_no_more(two: Ranks) -> None:
    for rank in (0, 1):
        two.say(rank, b"cmd=init pmi_version=1")
    two.say(0, b"cmd=barrier_in")
    two.hear(0)
    two.connections.ended(1, 0, 0.0)
    assert b"barrier_out" in two.hear(0)
    two.connections.ended(FIRST + 1, 0, 0.0)
    assert two.connections.worlds[1].never == [FIRST + 1]


def test_each_world_is_told_of_what_it_waits_for(two: Ranks) -> None:
    two.say(FIRST, b"cmd=init pmi_version=1")
    os.write(two.ends[0], b"cmd=init pmi_version=1\n")
    two.connections.read(0, 4.0)
    assert two.connections.next_deadline() == 30.0
    ((_, _, fields),) = two.connections.tick(31.0)
    assert fields["never"] == [FIRST + 1]
    assert two.connections.next_deadline() == 34.0
    ((_, _, fields),) = two.connections.tick(34.0)
    assert fields["never"] == [1]
    assert two.connections.next_deadline() == math.inf


def test_an_answer_to_nobody_is_nothing(two: Ranks) -> None:
    for order in (
        {"type": "answer_rank", "rank": 7, "line": b"x"},
        {"type": "ask_waiting", "world": 9, "fence": "WORLD:0", "epoch": 0, "seconds": 1.0},
    ):
        assert two.connections.replies().order(order) == []
    assert two.connections.replies().name(7) == "7"  # it has ended


def test_segments_that_mpi_made_are_removed_at_the_end(two: Ranks) -> None:
    segment = Path(f"/dev/shm/mpich_shm_test_{os.getpid()}")
    segment.write_bytes(bytes(4096))
    text = (
        "import mmap, sys; file = open(sys.argv[1], 'r+b'); data = mmap.mmap(file.fileno(), 0);"
        "print(1, flush=True); sys.stdin.read()"
    )
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", text, str(segment)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as holder:  # fmt: skip
            assert holder.stdout is not None
            assert holder.stdout.readline()
            two.connections.note_segments()
            assert two.connections.segments == set()  # nobody has spoken to PMI
            two.say(0, b"cmd=get_maxes")
            two.connections.note_segments()
            assert os.fsencode(segment) in two.connections.segments
            holder.communicate(b"")
        two.connections.segments = {os.fsencode(segment)}
        two.connections.remove_segments()
        assert not segment.exists()
    finally:
        segment.unlink(missing_ok=True)
