"""The link as the loop serves it, in this process: two lanes, credit, its end.

The subject is the half of ``agent_loop`` that has no mirror of its own here.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
from functools import partial
from pathlib import Path

import pytest

from dispatcher.remote.agent import agent_loop
from dispatcher.remote.agent.agent_loop import LANE_LIMIT
from dispatcher.remote.agent.node import DRAIN, EXIT_LIFELINE, EXIT_OK
from dispatcher.remote.pmi.pmix_upcalls import LOG_LIMIT
from dispatcher.remote.protocol import frames
from dispatcher.runner.run.host_intake import Credit
from remote.agent.played import PREPARE, Played

TERM, CONT = 15, 18
WIDE = 1031  # F_SETPIPE_SZ of fcntl(2)


def start(played: Played, *ranks: bytes, **fields: object) -> None:
    played.prepare(**fields)
    played.start(*([rank] for rank in ranks or (b"a",)))
    played.hear()


def pass_by(played: Played) -> float:
    """A clock that goes on a little at each look, so that who only looks at it also ends."""
    played.now += 0.001
    return played.now


def held_back(played: Played) -> bool:
    """Whether the ranks' pipes are left unread."""
    return played.loop.node.held_back


def waits(played: Played) -> bool:
    """Whether the loop waits for the link to take more."""
    return played.loop.link_out in played.loop.poll.calls


def fill(played: Played) -> None:
    """Let the link take nothing more: what it holds is not heard."""
    try:
        while os.write(played.loop.link_out, bytes(frames.HEADER.size)):
            pass
    except BlockingIOError:
        pass


class TestCredit:
    def test_output_comes_as_far_as_there_is_credit(self, played: Played) -> None:
        start(played, credit=7)
        played.says(0, b"0123456789")
        played.turn()
        played.turn()
        played.hear()
        assert played.output == {(0, 1): b"0123456"}
        played.order("credit", count=2)
        played.turn()
        played.order("credit", count=100)
        played.says(0, b"err", stream=2)
        played.turn()
        played.hear()
        assert played.output == {(0, 1): b"0123456789", (0, 2): b"err"}
        played.closes(0)
        played.hear()
        assert played.counts == {(0, 1): 10, (0, 2): 3}

    def test_without_credit_the_pipes_are_left_alone(self, played: Played) -> None:
        start(played, credit=0)
        played.says(0, b"x")
        assert played.ready() == []
        assert held_back(played)
        played.order("credit", count=1)
        assert not held_back(played)
        assert len(played.ready()) == 1
        played.turn()
        assert held_back(played)

    def test_a_rank_that_starts_while_nothing_is_read_is_read_later(self, played: Played) -> None:
        played.prepare(credit=0)
        played.start([b"a"])
        played.says(0, b"x")
        played.closes(0)
        played.exits(0)
        played.order("credit", count=2)  # more than it wrote, or its end would not be seen
        for _ in range(3):
            played.turn()
        played.hear()
        assert played.output == {(0, 1): b"x"}
        assert played.counts == {(0, 1): 1, (0, 2): 0}

    def test_little_credit_is_shared_by_all_ranks(self, played: Played) -> None:
        """Each portion of credit is used up by the first pipe read: it must not be the same."""
        start(played, b"a", b"b", b"c", b"d", credit=0)
        for rank in range(4):
            played.says(rank, b"x" * 50_000)
        for _ in range(8):
            played.order("credit", count=1000)
            played.turn()
        played.hear()
        assert {place: len(data) for place, data in played.output.items()} == {
            (rank, 1): 2000 for rank in range(4)
        }

    @pytest.mark.parametrize("size", [0, 10, 50_000, 1 << 18])
    def test_a_cut_loses_nothing_the_rank_wrote(self, played: Played, size: int) -> None:
        """Another process still holds the pipe, and no credit was left to read it before."""
        start(played, credit=1)
        fcntl.fcntl(played.ends[0][0], WIDE, 1 << 20)
        played.says(0, b"x" * size)
        played.cuts(0)
        played.hear()
        assert len(played.output.get((0, 1), b"")) == size
        assert played.counts == {(0, 1): size, (0, 2): 0}

    @pytest.mark.parametrize("size", [0, 500, 50_000, 1 << 18])
    def test_who_is_cut_at_once_sends_no_more_than_the_launcher_lets_in(
        self, played: Played, size: int
    ) -> None:
        """Five ranks end together, others hold their pipes, and what they wrote waits there."""
        ranks = range(5)
        start(played, *[b"a"] * 5, credit=1000)
        credit, heard = Credit(1000), 0
        for rank in ranks:
            fcntl.fcntl(played.ends[rank][0], WIDE, 1 << 20)
            played.says(rank, b"x" * size)
            played.exits(rank)

        def taken() -> int:
            total = sum(map(len, played.output.values()))
            credit.given(total - heard)
            return total - heard

        for _ in ranks:
            played.pass_time(DRAIN)
            played.hear()
            assert taken() <= 1000 + size  # nobody takes any
        for _ in ranks:
            count = taken()
            heard += count
            played.order("credit", count=max(1, credit.taken(count)))
            played.pass_time(DRAIN)
            played.hear()
        assert played.counts == {(rank, n): size * (2 - n) for rank in ranks for n in (1, 2)}
        assert {place: len(data) for place, data in played.output.items() if data} == (
            {(rank, 1): size for rank in ranks} if size else {}
        )

    def test_what_is_said_for_a_rank_is_its_output(self, played: Played) -> None:
        start(played)
        for rank, stream, text in ((0, 2, b"why\n"), (0, 2, b"so\n"), (99, 2, b"nobody")):
            played.loop.do_output(rank, stream, text)
        played.exits(0)
        played.cuts(0)
        played.loop.do_output(0, 2, b"late")  # its end was told
        played.hear()
        assert played.all_of("node.noticed") == []  # nothing was left out
        assert played.output == {(0, 2): b"why\nso\n"}
        assert played.counts == {(0, 1): 0, (0, 2): 7}

    def test_a_flood_that_is_said_for_a_rank_is_cut_and_counted(self, played: Played) -> None:
        start(played, credit=0)
        said = 3 * agent_loop.LANE_LIMIT // 1000
        for _ in range(said):
            played.loop.do_output(0, 2, b"x" * 1000)
        assert agent_loop.LANE_LIMIT <= played.loop.second_size < agent_loop.LANE_LIMIT + 2000
        played.exits(0)
        played.hear()
        played.order("credit", count=1 << 20)
        played.cuts(0)
        played.hear()
        rest = said * 1000 - len(played.output[0, 2])
        assert rest > 0
        text = f"rank 0: {rest} bytes that its MPI logged are left out"
        assert played.one("node.noticed")["text"] == text

    def test_what_is_said_for_a_rank_needs_no_credit_up_to_what_a_cut_may_bring(
        self, played: Played
    ) -> None:
        start(played, credit=0)
        text = b"x" * LOG_LIMIT
        for _ in range(100):
            played.loop.do_output(0, 2, text)
            played.hear()  # the link takes all
        assert len(played.output[0, 2]) == agent_loop.PIPE_LIMIT
        played.order("credit", count=1)
        played.loop.do_output(0, 2, text)
        played.loop.do_output(0, 2, text)
        played.hear()
        assert len(played.output[0, 2]) == agent_loop.PIPE_LIMIT + len(text)

    def test_a_cut_ends_though_somebody_goes_on_writing(
        self, played: Played, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start(played)
        monkeypatch.setattr(agent_loop, "read_ready", lambda fd, size: b"x" * size)
        played.cuts(0)
        monkeypatch.undo()
        played.hear()
        most = agent_loop.PIPE_LIMIT
        assert all(most <= count < most + frames.OUTPUT_LIMIT for count in played.counts.values())
        assert {place: len(data) for place, data in played.output.items()} == played.counts


class TestLanes:
    def test_ranks_are_not_read_while_the_lane_is_long(self, played: Played) -> None:
        """A launcher that takes nothing: what is read is bounded, and it goes on when it does."""
        start(played, b"a")
        fill(played)
        data = b"x" * frames.OUTPUT_LIMIT
        for _ in range(20):
            played.says(0, data)
            if not played.ready():
                break
            played.turn()
        frame = len(data) + frames.HEADER.size
        assert LANE_LIMIT <= played.loop.second_size <= LANE_LIMIT + frame
        assert held_back(played)

    def test_what_a_slow_link_does_not_take_waits_and_loses_nothing(self, played: Played) -> None:
        start(played)
        data = os.urandom(60_000)
        for _ in range(4):
            played.says(0, data)
            played.turn()
        played.loop.flush()  # more than a pipe holds
        assert waits(played)
        played.order("odd")  # it waits for no output that was not begun
        for _ in range(9):
            played.hear()
            played.turn()
        assert played.output == {(0, 1): data * 4}
        kinds = [frame.kind for frame in played.frames]
        assert frames.OUTPUT in kinds[kinds.index(frames.CONTROL, 2) :]
        assert not waits(played)
        assert not held_back(played)
        assert played.loop.link_out not in played.ready()

    def test_a_link_that_nobody_reads_any_more_keeps_nothing(self, played: Played) -> None:
        start(played)
        played.nobody_listens()
        played.says(0, b"x" * 1000)
        played.turn()
        played.order("odd")
        played.loop.flush()
        loop = played.loop
        assert (loop.sending, len(loop.first), len(loop.second), loop.second_size) == (b"", 0, 0, 0)
        assert not waits(played)


class TestEnd:
    def test_a_link_that_ends_ends_the_ranks(self, played: Played) -> None:
        start(played, b"a", b"b")
        played.hang_up()
        assert played.one("node.dying")["why"] == "the link ended"
        assert sorted(pid for pid, number in played.signals if number == TERM) == sorted(
            -one.pid for one in played.started.values()
        )
        assert played.ready() == []  # its end is told once
        assert played.loop.exit_code is None
        played.pass_time(0.5)
        assert played.loop.exit_code == EXIT_LIFELINE

    @pytest.mark.parametrize(
        ("frame", "why"),
        [
            (frames.encode(frames.OUTPUT, b"x", 0, 1), "bad order: output from the launcher"),
            (b"\xff" * frames.HEADER.size, "bad order: bad frame"),
            (frames.encode(frames.CONTROL, b"\xff"), "bad order: "),
        ],
    )
    def test_nonsense_is_told_and_ends_the_link(
        self, played: Played, frame: bytes, why: str
    ) -> None:
        start(played)
        played.write(frame)
        assert played.one("node.noticed")["text"].startswith(why)
        assert played.one("node.dying")["why"] == "the link ended"

    def test_input_before_any_rank_is_no_nonsense(self, played: Played) -> None:
        played.write(frames.encode(frames.INPUT, b"x") + frames.control("odd"))
        assert "'odd' ignored while fresh" in played.one("node.noticed")["text"]

    def test_a_finish_exits_when_all_is_swept(self, played: Played) -> None:
        start(played)
        played.exits(0)
        played.closes(0)
        played.order("finish")
        assert played.one("node.swept")["killed"] == 0
        assert played.loop.exit_code == EXIT_OK

    def test_nothing_is_left_behind_and_the_last_words_are_said(self, played: Played) -> None:
        facts = played.prepare(reserve=0)["facts"]
        left: list[bool] = []
        played.guardian.leave = lambda: left.append(True)  # type: ignore[method-assign]
        played.order("finish")
        played.loop.drain()
        assert played.loop.rendezvous is not None
        assert played.loop.rendezvous.fileno() == -1
        with socket.socket() as sock:
            sock.bind(("", facts["port"]))
        assert not Path(facts["error_folder"]).exists()
        assert left == [True]
        assert played._take()  # without another flush
        assert played.reports[-1]["type"] == "node.swept"

    def test_a_reader_that_comes_late_still_gets_the_last_words(
        self, played: Played, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start(played)
        data = os.urandom(60_000)
        for _ in range(3):
            played.says(0, data)
            played.turn()
        monkeypatch.setattr(agent_loop, "monotonic", partial(pass_by, played))
        waits: list[object] = []

        def wait(*what: object) -> None:
            waits.append(what)
            played._take()

        monkeypatch.setattr(select, "select", wait)
        played.loop.drain()
        assert waits
        played._take()
        assert played.output == {(0, 1): data * 3}

    def test_an_agent_that_was_never_prepared_has_nothing_to_tidy_up(self, played: Played) -> None:
        played.hang_up()
        played.loop.drain()
        assert played._take()
        assert [report["type"] for report in played.reports] == ["node.dying"]
        assert played.loop.exit_code == EXIT_LIFELINE


def test_orders_may_come_in_any_pieces(played: Played) -> None:
    data = frames.control("prepare", **PREPARE) + frames.control("odd")
    for at in range(0, len(data), 7):
        played.write(data[at : at + 7])
    assert [report["type"] for report in played.hear()] == ["node.ready", "node.noticed"]
