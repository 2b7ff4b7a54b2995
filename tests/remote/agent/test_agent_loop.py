"""Orders as the loop carries them out, in this process: starts, endings, samples."""

from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from open_files import open_files
from rig import wait_for

from dispatcher.remote.agent import agent_loop, rendezvous_port
from dispatcher.remote.agent.guardian import SLACK
from dispatcher.remote.host import failure_info, host_facts, process
from dispatcher.remote.host.poll import Poll
from dispatcher.remote.probe import sampler
from dispatcher.remote.protocol.frames import INPUT, encode
from remote.agent.played import FIRST_PID, MPI, Played
from remote.driver import noting

HUP, USR1, KILL, USR2, TERM, CONT, STOP = 1, 10, 9, 12, 15, 18, 19


class TestPrepare:
    def test_what_is_answered_and_what_the_guardian_is_told(
        self, played: Played, tmp_path: Path
    ) -> None:
        ready = played.prepare(lease=12.0, lifeline_grace=1.5)
        folder = ready["facts"]["error_folder"]
        assert (ready["attempt"], ready["problems"]) == (0, [])
        assert Path(folder).parent == tmp_path
        assert (ready["facts"]["mark"], "port" in ready["facts"]) == (None, False)
        words = f"{12.0 + SLACK:f} {1.5 + SLACK:f} {0:f} {folder}\n\n"
        assert played.guarded() == words.encode()

    def test_where_a_file_system_does_not_answer_nothing_more_is_tried(
        self, played: Played, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        silent = [["silent", "/tmp: its file system does not answer"]]
        monkeypatch.setattr(host_facts, "judged", lambda asked, watched: ({"script": None}, silent))
        monkeypatch.setattr("dispatcher.remote.host.own_folder.make", lambda *_: 1 // 0)
        ready = played.prepare(watch=b"mark")
        assert (ready["problems"], ready["facts"]["error_folder"]) == (silent, None)
        assert played.guarded().count(b"\n") == 2  # the guardian knows what to expect

    def test_a_further_attempt_has_nothing_of_the_last(self, played: Played) -> None:
        first = played.prepare(reserve=0)["facts"]
        played.start([b"a"], pmi=MPI)
        played.exits(0)
        played.closes(0)
        again = played.prepare(reserve=0, attempt=3)
        assert again["attempt"] == 3
        assert again["facts"]["port"] != first["port"]
        assert not os.path.exists(first["error_folder"])
        assert os.path.exists(again["facts"]["error_folder"])
        with socket.socket() as sock:  # nobody keeps the old port
            sock.bind(("", first["port"]))
        played.start([b"a"])
        assert b"PMI_RANK" not in played.started[0].env

    @pytest.mark.parametrize("path", [None, b"given"])
    def test_where_the_program_is_looked_for(
        self, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: object
    ) -> None:
        """In what the order says, else where this host's login looks."""
        (tmp_path / "tool").write_text("")
        (tmp_path / "tool").chmod(0o755)
        here = os.fsencode(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path) if path is None else "/nowhere")
        ready = played.prepare(check={"program": b"tool"}, path=path and here)
        assert ready["problems"] == []
        elsewhere = played.prepare(check={"program": b"tool"}, path=b"/nowhere")
        assert elsewhere["problems"] == [["missing", "tool: not found"]]

    @pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # let go of, not closed
    def test_a_port_that_is_taken_is_a_problem(
        self, played: Played, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as taken:
            taken.bind(("", 0))
            taken.listen()
            port = taken.getsockname()[1]
            ready = played.prepare(reserve=port)
        why = os.strerror(errno.EADDRINUSE)
        assert ready["problems"] == [["port", f"port {port} cannot be kept free: {why}"]]
        assert "port" not in ready["facts"]

        def refuse(*_: object) -> None:
            raise OSError(errno.EMFILE, "no more")

        monkeypatch.setattr(rendezvous_port, "RendezvousPort", refuse)
        ready = played.prepare(reserve=0)
        assert ready["problems"] == [["port", "any port cannot be kept free: no more"]]
        gc.collect()

    def test_the_port_greets_until_ranks_start(self, played: Played) -> None:
        port = played.prepare(reserve=0, token=b"0123456789abcdef")["facts"]["port"]
        with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
            wait_for(lambda: played.ready(), 30, "the call comes")
            played.turn()
            assert caller.recv(99) == b"0123456789abcdef"
        played.start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)
        with socket.socket() as sock, pytest.raises(OSError, match="in use"):
            sock.bind(("", port))

    def test_progress_is_when_a_file_was_changed(self, played: Played, tmp_path: Path) -> None:
        cwd = os.fsencode(tmp_path)
        assert played.prepare(cwd=cwd, watch=b"mark")["facts"]["mark"] is None
        (tmp_path / "mark").touch()
        os.utime(tmp_path / "mark", ns=(5, 1_234_567_891))
        assert played.prepare(cwd=cwd, watch=b"mark")["facts"]["mark"] == 1_234_567_891
        assert played.prepare(cwd=cwd)["facts"]["mark"] is None
        assert played.prepare(cwd=b"/", watch=cwd + b"/mark")["facts"]["mark"] == 1_234_567_891

    def test_parts_of_any_order_can_be_loaded_from_then_on(
        self, played: Played, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sources: dict[str, str] = {"x": "old"}
        loader = agent_loop.__spec__.loader
        monkeypatch.setattr(loader, "sources", sources, raising=False)
        played.prepare(parts={"x": "new"})
        played.order("ping")
        played.order("ping", parts={"y": "other"})
        assert sources == {"x": "new", "y": "other"}

    def test_a_probe_says_who_answered(
        self, played: Played, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []
        monkeypatch.setattr(rendezvous_port, "probe", noting(asked, ["a"]))
        played.prepare(token=b"T")
        played.order("probe", addresses=["a", "b"], port=7, seconds=2.5)
        assert asked == [(["a", "b"], 7, b"T", 2.5)]
        assert played.one("node.probed")["reached"] == ["a"]


class TestStart:
    def test_what_a_rank_is_given(
        self, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SCRUBBED", "1")
        monkeypatch.setenv("KEPT", "host")
        monkeypatch.setenv("BOTH", "host")
        (tmp_path / "tool").write_text("")
        (tmp_path / "tool").chmod(0o755)
        here = os.fsencode(tmp_path)
        played.prepare(cwd=b"/usr")
        ranks = [
            [0, [b"tool", b"x"], [[b"RANK", b"0"], [b"BOTH", b"rank"]]],
            [1, [b"tool"], [], b"bin"],
            [2, [b"tool"], [], b"/tmp", here],
            [3, [b"tool"], [], None, b"/nowhere:" + here],
        ]
        played.start(ranks=ranks, common=[[b"BOTH", b"common"]], scrub=[b"SCRUB*"])
        found = {rank: (one.argv, one.cwd) for rank, one in played.started.items()}
        assert found == {
            0: ([b"tool", b"x"], b"/usr"), 1: ([b"tool"], b"/usr/bin"),
            2: ([here + b"/tool"], b"/tmp"), 3: ([here + b"/tool"], b"/usr"),
        }  # fmt: skip
        first, second = played.started[0].env, played.started[1].env
        assert (first[b"RANK"], first[b"BOTH"], first[b"PWD"]) == (b"0", b"rank", b"/usr")
        assert b"RANK" not in second
        assert (second[b"BOTH"], second[b"KEPT"], second[b"PWD"]) == (
            b"common", b"host", b"/usr/bin",
        )  # fmt: skip
        assert b"SCRUBBED" not in first
        assert played.one("rank.spawned")["pids"] == [[rank, FIRST_PID + rank] for rank in range(4)]
        assert all(one.lent == (-1, -1) for one in played.started.values())

    def test_a_long_start_is_no_silence(
        self, played: Played, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The launcher, and the guardian, give up who says nothing for so long."""
        played.prepare(heartbeat=5.0)
        quick = process.spawn
        told: list[bytes] = []

        def slow(*args: Any) -> process.Process:
            told.append(played.guarded())
            played.now += 3.0
            return quick(*args)

        monkeypatch.setattr(process, "spawn", slow)
        played.guarded()
        played.start(*([b"a"] for _ in range(6)))
        assert len(played.one("rank.spawned")["pids"]) == 6
        assert told == [b"", b"", b"\n", b"", b"\n", b""]
        assert len(played.all_of("node.heard")) == 2

    def test_who_cannot_be_started_is_told_and_the_others_run(self, played: Played) -> None:
        played.prepare()
        played.refusals = {b"bad": process.SpawnError("exec", errno.ENOENT, "bad")}
        played.start([b"bad"], [b"good"])
        assert played.one("rank.failed_to_start") == {
            "type": "rank.failed_to_start", "rank": 0, "errno": errno.ENOENT, "step": "exec",
            "what": "bad",
        }  # fmt: skip
        assert played.one("rank.spawned")["pids"] == [[1, FIRST_PID + 1]]
        played.order("signal_ranks", ranks=None, signum=TERM)
        assert played.signals == [(-FIRST_PID - 1, TERM)]

    @pytest.mark.parametrize("number", [errno.EMFILE, None])
    def test_no_descriptor_for_a_rank_is_a_failed_start(
        self, played: Played, number: int | None
    ) -> None:
        """And nothing of what it was to have stays open."""
        played.prepare()
        before = open_files()
        played.refusals = {b"bad": OSError(number, "none")}
        played.start([b"bad"], pmi={**MPI, "size": 1}, stdin=[0])
        failed = played.one("rank.failed_to_start")
        assert (failed["step"], failed["what"]) == ("fork", "rank 0")
        assert failed["errno"] == (number or errno.EIO)
        assert not open_files() - before
        assert played.loop.pmi is not None
        assert not played.loop.pmi.worlds

    def test_what_a_rank_inherits_is_not_kept_here(self, played: Played) -> None:
        played.prepare()
        before = open_files()
        played.start([b"a"], [b"b"], pmi=MPI, stdin=[1])
        first, second = played.started[0], played.started[1]
        assert first.stdin == -1
        assert [first.env[b"PMI_FD"], second.env[b"PMI_FD"]] == [
            b"%d" % one.lent[0] for one in (first, second)
        ]
        # two pairs of output, a connection each with the rank's end, input with the rank's end
        assert len(open_files() - before) == 2 * 4 + 2 * 2 + 2
        played.write(encode(INPUT, b"line\n"))
        assert os.read(second.stdin, 99) == b"line\n"

    def test_input_that_nobody_wants_is_dropped(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"])
        played.write(encode(INPUT, b"line\n"))
        assert played.started[0].stdin == -1
        assert played.all_of("node.noticed") == played.all_of("node.dying") == []

    def test_a_reader_that_has_left_is_told(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"], stdin=[0])
        played.write(encode(INPUT, b"line\n"))
        os.close(played.started[0].stdin)
        played.started[0].stdin = -1
        played.turn()
        assert played.one("input.closed") == {"type": "input.closed", "rank": 0, "taken": 0}

    def test_a_reader_that_has_ended_is_told(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"], stdin=[0])
        played.exits(0)
        assert [report["type"] for report in played.hear()[2:]] == ["input.closed", "rank.exited"]


class TestEndings:
    def test_only_ranks_are_told_of_and_each_once(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"], [b"b"], [b"c"])
        played.dead = [(77, 0)]
        played.exits(1, code=7)
        played.exits(1, code=8)
        played.exits(2, signum=KILL)
        assert [(one["rank"], one["status"]) for one in played.all_of("rank.exited")] == [
            (1, 7), (2, -KILL),
        ]  # fmt: skip

    @pytest.mark.parametrize("first", ["exit", "output"])
    def test_who_has_left_pipes_open_is_still_reached(self, played: Played, first: str) -> None:
        """By its group, until both have ended; then nobody is."""
        played.prepare()
        played.start([b"a"])
        if first == "exit":
            played.exits(0)
            played.order("signal_ranks", ranks=None, signum=USR1)
            assert (played.signals, played.leftovers) == ([], [(FIRST_PID, USR1)])
            played.closes(0)
        else:
            played.closes(0)
            played.order("signal_ranks", ranks=None, signum=USR1)
            assert (played.signals, played.leftovers) == ([(-FIRST_PID, USR1)], [])
            played.exits(0)
        played.hear()
        assert played.counts == {(0, 1): 0, (0, 2): 0}
        sent = len(played.signals) + len(played.leftovers)
        played.order("signal_ranks", ranks=None, signum=USR1)
        played.order("signal_ranks", ranks=[0], signum=USR1)
        assert len(played.signals) + len(played.leftovers) == sent == 1
        played.pass_time(5.0)
        assert played.all_of("rank.leaked") == []

    @pytest.mark.parametrize(
        ("to", "program", "alone"),
        [
            ("rank", "sh", True), ("auto", "python3.11", True), ("auto", "pypy3", True),
            ("auto", "bash", False), ("auto", "", False), ("all", "python3.11", False),
        ],
    )  # fmt: skip
    def test_the_rank_may_be_told_before_what_it_started(
        self, played: Played, monkeypatch: pytest.MonkeyPatch, to: str, program: str, alone: bool
    ) -> None:
        monkeypatch.setattr(os, "readlink", lambda path: f"/usr/bin/{program}")
        played.prepare()
        played.start([b"a"], [b"b"])
        for signum in (USR1, TERM, CONT):
            played.order("signal_ranks", ranks=[0], signum=signum, to=to)
        whom = FIRST_PID if alone else -FIRST_PID
        assert played.signals == [(whom, USR1), (whom, TERM), (-FIRST_PID, CONT)]
        played.order("signal_ranks", ranks=[1], signum=USR1, to=to)  # ends nothing
        played.exits(0)
        played.exits(1)
        assert played.leftovers == ([(FIRST_PID, TERM)] if alone else [])

    def test_one_output_that_is_held_is_cut_in_time(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"])
        played.says(0, b"last")
        played.exits(0)
        played.turn()
        played.pass_time(1.9)
        assert played.all_of("rank.leaked") == []
        played.pass_time(0.2)
        assert played.one("rank.leaked")["rank"] == 0
        assert (played.counts, played.output) == ({(0, 1): 4, (0, 2): 0}, {(0, 1): b"last"})

    @pytest.mark.parametrize(
        ("signum", "examined"),
        [(None, True), (USR1, True), (USR2, True), (STOP, True), (CONT, True), (TERM, False),
         (KILL, False), (HUP, False)],
    )  # fmt: skip
    def test_only_a_failure_that_we_did_not_bring_about_is_looked_into(
        self,
        played: Played,
        monkeypatch: pytest.MonkeyPatch,
        signum: int | None,
        examined: bool,
    ) -> None:
        asked: list[Any] = []
        monkeypatch.setattr(host_facts, "oom_kills", lambda: 5)
        monkeypatch.setattr(failure_info, "exit_fields", noting(asked, {"hint": "x"}))
        folder = played.prepare()["facts"]["error_folder"]
        played.now = 1111.0
        played.start([b"a"], [b"b"], [b"c"])
        played.now = 1112.0
        played.exits(0)  # no failure
        if signum is not None:
            played.order("signal_ranks", ranks=[1], signum=signum)
            played.order("signal_ranks", ranks=[1], signum=CONT)  # makes nothing good
        played.exits(1, code=3)
        played.exits(2, code=4)
        assert asked == ([(1, FIRST_PID + 1, 3, folder, 5, 1111.0)] if examined else [])
        hints = [report.get("hint") for report in played.all_of("rank.exited")]
        assert hints == [None, "x" if examined else None, None]

    def test_a_sweep_counts_what_the_ranks_have_left(self, played: Played, tmp_path: Path) -> None:
        (tmp_path / "mark").touch()
        played.prepare(watch=os.fsencode(tmp_path / "mark"))
        played.start([b"a"], [b"b"])
        played.exits(1)
        played.closes(1)
        played.found, played.left = {FIRST_PID, 51, 52, 53}, list(range(100, 120))
        played.order("sweep")
        assert played.one("node.swept") == {
            "type": "node.swept", "killed": 3, "left": list(range(100, 120)),
            "mark": (tmp_path / "mark").stat().st_mtime_ns,
            "stuck": [f"D at-{pid}" for pid in range(100, 116)],
        }  # fmt: skip


class Sampling:
    """In the place of ``Sampler``."""

    made: list[Sampling]

    def __init__(self, poll: Poll, silence: object) -> None:
        self.poll = poll
        self.fd, self.into = os.pipe()
        self.seconds, self.pid = 0.0, 70
        self.begun: list[Any] = []
        self.refuses = False
        self.drops: list[bool] = []
        Sampling.made.append(self)

    def begin(self, order: dict[str, Any], *what: Any) -> None:
        if self.refuses:
            raise OSError(errno.EAGAIN, "no more processes")
        self.seconds = order["seconds"]
        self.stop()
        self.begun.append((order, *what))

    def read(self, drop: bool) -> list[Any]:
        self.drops.append(bool(drop))
        return [("send", "node.sampled", {})]

    def stop(self) -> set[int]:
        self.poll.remove(self.fd)
        return {self.pid}


def test_for_how_long_a_rank_is_silent(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank writes while nobody takes it is not seen: it does not count as silent then."""
    played.prepare()
    played.start([b"a"], [b"b"])
    now = monotonic()
    monkeypatch.setattr(agent_loop, "monotonic", lambda: now)
    loop = played.loop
    loop.ranks[0].wrote = loop.ranks[1].wrote = now - 12.34
    loop.take_output(loop.ranks[1], 1, b"step 7\n")
    assert [loop.silence(rank) for rank in (0, 1, 2)] == [12.3, 0.0, None]
    loop.node.held_back = True
    assert [loop.silence(rank) for rank in (0, 2)] == [0.0, None]


class TestSamples:
    @pytest.fixture(autouse=True)
    def played_sampler(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        Sampling.made = []
        monkeypatch.setattr(sampler, "Sampler", Sampling)
        yield
        for one in Sampling.made:
            os.close(one.fd)
            os.close(one.into)

    def test_those_who_are_there_are_sampled_and_who_comes_later_too(self, played: Played) -> None:
        folder = played.prepare()["facts"]["error_folder"]
        played.start([b"a"], [b"b"])
        played.exits(0)
        played.closes(0)
        played.order("sample", seconds=2.5, stacks={"number": 1})
        played.order("spawn_ranks", ranks=[[5, [b"c"], []]], common=[], scrub=[])
        (one,) = Sampling.made
        (order, ranks, place, mark), (again, more, *_) = one.begun
        assert (order["seconds"], order["stacks"]) == (2.5, {"number": 1})
        assert (ranks, place, mark()) == ({1: FIRST_PID + 1}, folder, None)
        assert (again, set(more)) == ({"seconds": 2.5}, {1, 5})

    def test_one_that_cannot_be_started_is_told(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"])
        played.order("sample", seconds=1.0)
        Sampling.made[0].refuses = True
        played.order("sample", seconds=1.0)
        assert played.one("node.noticed")["text"] == "nothing is sampled: no more processes"

    def test_its_processes_are_none_of_the_ranks(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"])
        played.order("sample", seconds=1.0)
        played.found = {70, 71}
        played.order("sweep")
        played.order("sweep")
        # the second has no sampler any more to spare
        assert [one["killed"] for one in played.all_of("node.swept")] == [1, 2]

    def test_samples_do_not_pile_up_where_nobody_reads(self, played: Played) -> None:
        played.prepare()
        played.start([b"a"])
        played.order("sample", seconds=1.0)
        (one,) = Sampling.made
        os.write(one.into, b"x")
        for waiting in (0, 64, 65):
            played.loop.first.clear()
            played.loop.first.extend([b""] * waiting)
            played.turn()
        assert one.drops == [False, False, True]
        played.loop.first.clear()
        played.order("pause_ranks")
        played.loop.first.clear()
        played.turn()
        assert one.drops[-1] is True
