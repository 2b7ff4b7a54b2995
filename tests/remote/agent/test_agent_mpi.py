"""What the loop of ``agent_loop`` does for ranks that speak MPI, in this process."""

from __future__ import annotations

import os
from pathlib import Path
from socket import socket
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.remote.host import shm
from remote.agent.played import FIRST_PID, MPI, Played

KILL, TERM = 9, 15


class Connected:
    """In the place of ``PmiConnections``: notes what it is asked, and answers as it was told."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.mpis: dict[int, tuple[str, str, int]] = {}
        self.way = ""
        self.asked: list[Any] = []
        self.answer: list[Any] = []
        self.pid = 0

    def serving(self) -> int:
        return self.pid

    def __getattr__(self, name: str) -> Any:
        def note(*what: Any) -> Any:
            self.asked.append((name, *what))
            return self.answer

        return note


@pytest.fixture
def connected(played: Played) -> Connected:
    played.prepare()
    played.start([b"a"], [b"b"], [b"c"])
    played.hear()
    played.loop.pmi = one = Connected()  # type: ignore[assignment]
    return one


class TestMpi:
    def test_ranks_are_heard_and_answered(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"], [b"b"], pmi={**MPI, "hook": b"hook"})
        folder = os.fsencode(played.all_of("node.ready")[0]["facts"]["error_folder"])
        assert played.started[1].env[b"PYTHONPATH"].split(b":")[0] == folder
        assert Path(os.fsdecode(folder), "sitecustomize.py").read_bytes() == b"hook"
        keep = played.started[1].keep
        os.write(keep, b"cmd=init pmi_version=1 pmi_subversion=1\n")
        played.turn()
        assert os.read(keep, 99).startswith(b"cmd=response_to_init rc=0")
        played.exits(1)
        # it may be through, and cannot say so
        assert played.all_of("rank.exited")[0]["mpi"] == "open"
        played.exits(0)
        assert played.all_of("rank.exited")[1]["mpi"] == "never"

    def test_ranks_with_a_python_path_of_their_own_load_the_hook_too(self, played: Played) -> None:
        played.prepare()
        ranks = [[0, [b"a"], []], [1, [b"b"], [[b"PYTHONPATH", b"/own"]]]]
        common = [[b"PYTHONPATH", b"/all"]]
        played.order(
            "start_ranks", ranks=ranks, common=common, scrub=[], pmi={**MPI, "hook": b"hook"}
        )
        folder = os.fsencode(played.all_of("node.ready")[0]["facts"]["error_folder"])
        found = [played.started[rank].env[b"PYTHONPATH"] for rank in range(2)]
        assert found == [folder + b":/all", folder + b":/own"]

    @pytest.mark.parametrize("how", [{"pmix": [b"URI"]}, {"port": True}])
    def test_nobody_can_come_to_the_ports_of_an_attempt_that_is_over(
        self, played: Played, how: dict[str, Any]
    ) -> None:
        played.prepare()
        played.start([b"a"], pmi={**MPI, "size": 1, **how})
        known = played.started[0].env
        port = (known.get(b"URI") or known[b"PMI_PORT"]).rpartition(b":")[2]
        played.exits(0)
        played.closes(0)
        played.prepare(attempt=1)
        with socket() as caller:
            assert caller.connect_ex(("127.0.0.1", int(port))) != 0
        assert played.ready() == []

    def test_a_second_world_is_added_to_the_first(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"], pmi={**MPI, "size": 1})
        spawned = {**MPI, "size": 1, "world": 1, "first": 1 << 20}
        ranks = [[1 << 20, [b"b"], []]]
        played.order("spawn_ranks", ranks=ranks, common=[], scrub=[], pmi=spawned)
        assert set(played.started) == {0, 1 << 20}
        assert played.loop.pmi is not None
        assert set(played.loop.pmi.worlds) == {0, 1}

    def test_whoever_comes_by_another_way_is_heard(self, played: Played) -> None:
        heard: list[Any] = []
        out, into = os.pipe()

        def hear(now: float, events: int) -> list[Any]:
            heard.append((os.read(out, 9), now))
            return [("send", "node.noticed", {"text": "heard"})]

        played.loop.poll.add(out, hear)
        os.write(into, b"x")
        played.turn()
        played.loop.poll.remove(out)
        os.close(out)
        os.close(into)
        assert heard == [(b"x", played.now)]
        assert played.one("node.noticed")["text"] == "heard"

    def test_a_library_is_told_once(
        self, played: Played, connected: Connected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        there = {FIRST_PID: "/a/libmpi.so", FIRST_PID + 1: "/a/libmpi.so", FIRST_PID + 2: ""}
        monkeypatch.setattr(shm, "loaded_mpi", there.__getitem__)
        for rank in range(3):
            played.loop.act([("mpi", rank, "PMI-1", "/said.so")])
        played.loop.act([("mpi", 9, "PMI-1")])  # it has ended meanwhile
        told = [(one["rank"], one["library"]) for one in played.all_of("mpi.found")]
        assert told == [(0, "/a/libmpi.so"), (2, "/said.so")]
        assert all(one["served"] == "PMI-1" for one in played.all_of("mpi.found"))
        assert connected.mpis[1] == ("PMI-1", "/a/libmpi.so", FIRST_PID + 1)
        played.loop.act([("mpi", 1, "PMIx")])
        assert played.all_of("mpi.found")[2]["served"] == "PMIx"

    def test_one_that_makes_no_sense_is_killed(self, played: Played, connected: Connected) -> None:
        connected.answer = SimpleNamespace(name="1.{}".format)  # type: ignore[assignment]
        played.loop.act([("break", 2, "it stutters")])
        assert played.one("node.noticed")["text"] == "rank 1.2 was killed: MPI: it stutters"
        assert played.signals == [(-FIRST_PID - 2, KILL)]
        played.loop.act([("break", 7, "it stutters")])  # nobody
        connected.answer = []
        played.exits(2)
        connected.answer = SimpleNamespace(name="1.{}".format)  # type: ignore[assignment]
        played.loop.act([("break", 2, "it stutters")])  # its number may be another's
        assert len(played.signals) == 1
        played.loop.pmi = None
        played.loop.act([("break", 0, "x")])
        assert played.all_of("node.noticed")[-1]["text"] == "rank 0 was killed: MPI: x"

    @pytest.mark.parametrize(("code", "way", "told"), [(0, "open", "open"), (0, "", None),
                                                       (1, "open", "open")])  # fmt: skip
    def test_how_a_rank_stood_is_told(
        self, played: Played, connected: Connected, code: int, way: str, told: str | None
    ) -> None:
        connected.way = way
        connected.answer = [("send", "node.noticed", {"text": "last words"})]
        played.exits(1, code=code)
        assert connected.asked == [("ended", 1, code, played.now)]
        assert played.one("rank.exited").get("mpi") == told
        assert played.one("node.noticed")["text"] == "last words"

    def test_segments_are_noted_before_a_signal_and_go_when_all_are_dead(
        self, played: Played, connected: Connected
    ) -> None:
        played.order("signal_ranks", ranks=[0], signum=TERM)
        assert connected.asked == [("note_segments",)]
        played.left = [44]
        played.order("sweep")
        assert connected.asked == [("note_segments",)] * 2
        played.left, played.found, connected.pid = [], {60, 61}, 60
        played.order("sweep")
        assert connected.asked[2:] == [("note_segments",), ("remove_segments",)]
        assert [one["killed"] for one in played.all_of("node.swept")] == [0, 1]
