"""The node's rules N-1 to N-4: as tables, and held against any sequence of events."""

from __future__ import annotations

from signal import SIGCONT, SIGSTOP, SIGTERM
from typing import Any

from cases import cases
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dispatcher.remote.agent.node import DRAIN, DYING, EXIT_LIFELINE, EXIT_OK, OVER, RUNNING, Node

PREPARE = {
    "type": "prepare", "lease": 30.0, "lifeline_grace": 1.0, "heartbeat": 5.0, "credit": 100,
}  # fmt: skip
START = {"type": "start_ranks"}


def order(type: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return ("order", {"type": type, **fields})


def running(*ranks: int) -> Node:
    node = Node(0.0)
    node.handle(("order", PREPARE), 0.0)
    node.handle(("order", START), 0.0)
    node.handle(("spawned", [[rank, 100 + rank] for rank in ranks]), 0.0)
    return node


class TestOrders:
    def test_a_good_run(self) -> None:
        node = Node(0.0)
        assert node.handle(("order", PREPARE), 0.0) == [("credit", 100), ("prepare", PREPARE)]
        assert node.handle(order("probe"), 0.0) == [("probe", {"type": "probe"})]
        assert node.handle(("order", START), 0.0) == [("start_ranks", START)]
        spawned = node.handle(("spawned", [[0, 100]]), 0.0)
        assert spawned == [("send", "rank.spawned", {"pids": [[0, 100]]})]
        exited = node.handle(("exited", 0, 0), 1.0)
        assert exited == [("send", "rank.exited", {"rank": 0, "status": 0})]
        assert node.handle(("drained", 0), 1.0) == []
        assert node.handle(order("finish"), 1.0) == [("sweep",)]
        swept = ("send", "node.swept", {"killed": 0, "left": [], "mark": None, "stuck": []})
        assert node.handle(("swept", 0, [], None, []), 1.0) == [swept, ("exit", EXIT_OK)]

    @cases("kind", ["prepare", "start_ranks", "probe", "nonsense", None])
    def test_an_order_out_of_place_is_a_notice(self, kind: str | None) -> None:
        node = running(0)
        (action,) = node.handle(("order", {**PREPARE, "type": kind}), 0.0)
        assert action[:2] == ("send", "node.noticed")
        assert node.state == RUNNING

    def test_nothing_starts_before_a_prepare(self) -> None:
        (action,) = Node(0.0).handle(("order", START), 0.0)
        assert action[:2] == ("send", "node.noticed")

    def test_signals_reach_the_living_and_what_the_ended_left(self) -> None:
        node = running(0, 1, 2)
        node.handle(("exited", 1, 0), 0.0)  # its pipes are still held by somebody
        everyone = order("signal_ranks", ranks=None, signum=10)
        assert node.handle(everyone, 0.0) == [("signal_ranks", [0, 1, 2], 10, "all")]
        node.handle(("drained", 1), 0.0)
        assert node.handle(everyone, 0.0) == [("signal_ranks", [0, 2], 10, "all")]
        some = order("signal_ranks", ranks=[1, 2], signum=10)
        assert node.handle(some, 0.0) == [("signal_ranks", [2], 10, "all")]
        assert node.handle(order("signal_ranks", ranks=[1, 7], signum=10), 0.0) == []

    def test_beats_come_in_time(self) -> None:
        node = running(0)
        assert node.next_deadline() == 5.0
        assert node.tick(4.9) == []
        assert node.tick(5.0) == [("send", "node.heard", {}), ("alive",)]
        assert node.next_deadline() == 10.0

    def test_a_sweep_while_running_is_answered_and_goes_on(self) -> None:
        node = running(0)
        assert node.handle(order("sweep"), 0.0) == [("sweep",)]
        assert node.handle(("swept", 2, [9], None, []), 0.0) == [
            ("send", "node.swept", {"killed": 2, "left": [9], "mark": None, "stuck": []})
        ]
        assert node.state == RUNNING

    def test_credit_is_passed_on(self) -> None:
        for node in (Node(0.0), running(0)):
            assert node.handle(order("credit", count=77), 0.0) == [("credit", 77)]

    def test_why_a_rank_failed_is_told_with_its_exit(self) -> None:
        (told,) = running(3).handle(("exited", 3, 1, {"hint": "x"}), 0.0)
        assert told == ("send", "rank.exited", {"rank": 3, "status": 1, "hint": "x"})

    def test_before_any_order_only_the_lease_runs(self) -> None:
        node = Node(7.0)
        assert node.next_deadline() == 37.0
        assert node.handle(order("ping"), 20.0) == []
        assert (node.tick(49.9), node.next_deadline()) == ([], 50.0)
        assert node.tick(50.0)[-1] == ("sweep",)

    def test_deadlines_are_met_in_their_order(self) -> None:
        """However late we look: first a beat, then what the lease's end brings."""
        node = running(0)
        assert [action[:2] for action in node.tick(100.0)] == [
            ("send", "node.heard"), ("alive",), ("send", "node.dying"), ("signal_ranks", [0]),
            ("signal_ranks", [0]),
        ]  # fmt: skip
        assert node.next_deadline() == 101.0
        node.handle(("exited", 0, -15), 100.5)
        assert node.next_deadline() == 100.5 + DRAIN


class TestN5:
    def test_an_attempt_follows_when_nothing_is_left_of_the_last(self) -> None:
        node = running(0, 1)
        further = {**PREPARE, "attempt": 1, "lease": 9.0, "credit": 5}

        def prepared() -> list[Any]:
            return node.handle(("order", further), 1.0)

        assert prepared()[0][:2] == ("send", "node.noticed")
        node.handle(("exited", 0, 1), 1.0)
        node.handle(("exited", 1, 1), 1.0)
        node.handle(("drained", 0), 1.0)
        assert prepared()[0][:2] == ("send", "node.noticed")  # its pipes are open
        assert node.state == RUNNING
        node.handle(("drained", 1), 1.0)
        assert prepared() == [("prepare", further)]  # credit, lease and beats go on
        assert node.deadlines == {"lease": 31.0, "beat": 5.0}
        assert node.handle(order("probe"), 1.0) == [("probe", {"type": "probe"})]
        assert prepared() == [("prepare", further)]  # another, before it has started
        assert node.handle(("order", START), 1.0) == [("start_ranks", START)]


class TestN1:
    @cases("ending", [("lifeline", "link"), order("finish")])
    def test_nothing_starts_after_the_end_began(self, ending: Any) -> None:
        node = Node(0.0)
        node.handle(("order", PREPARE), 0.0)
        node.handle(ending, 0.0)
        assert node.handle(("order", START), 0.0) == []
        assert node.handle(("order", PREPARE), 0.0) == []

    def test_what_ends_is_not_ended_again(self) -> None:
        node = running(0)
        assert node.handle(order("finish"), 1.0) == [("sweep",)]
        assert (node.state, node.next_deadline()) == (OVER, float("inf"))
        assert node.handle(("lifeline", "link"), 1.0) == []
        assert node.handle(order("sweep"), 1.0) == []
        assert node.state == OVER


class TestN2:
    def test_terms_then_kills(self) -> None:
        node = running(0, 1)
        assert node.handle(("lifeline", "link"), 10.0) == [
            ("send", "node.dying", {"why": "link"}),
            ("signal_ranks", [0, 1], SIGTERM),
            ("signal_ranks", [0, 1], SIGCONT),
        ]
        assert node.next_deadline() == 11.0
        assert node.tick(10.9) == []
        assert node.tick(11.0) == [("sweep",)]
        assert node.handle(("swept", 2, [], None, []), 11.0) == [("exit", EXIT_LIFELINE)]

    def test_does_not_wait_for_the_dead(self) -> None:
        node = running(0, 1)
        node.handle(("lifeline", "link"), 10.0)
        assert ("sweep",) not in node.handle(("exited", 0, -15), 10.1)
        assert node.handle(("exited", 1, -15), 10.2)[-1] == ("sweep",)

    def test_all_is_swept_once_when_the_last_has_ended(self) -> None:
        node = running(0)
        node.handle(("lifeline", "link"), 10.0)
        assert node.handle(("exited", 0, -15), 10.2)[1:] == [("sweep",)]
        assert node.next_deadline() == 10.2 + DRAIN
        assert node.tick(11.0) == []
        assert node.handle(("swept", 1, [], 5, ["D"]), 11.0) == [("exit", EXIT_LIFELINE)]

    def test_a_rank_that_ends_in_a_run_sweeps_nothing(self) -> None:
        assert len(running(0).handle(("exited", 0, 0), 10.0)) == 1

    def test_without_ranks_it_sweeps_at_once(self) -> None:
        assert Node(0.0).handle(("lifeline", "link"), 0.0)[-1] == ("sweep",)

    def test_silence_beyond_the_lease_is_a_loss(self) -> None:
        node = running(0)
        node.handle(order("ping"), 20.0)
        assert node.tick(49.9) == [("send", "node.heard", {}), ("alive",)]
        why = {"why": "the agent heard nothing from the launcher for 30 s"}
        assert node.tick(50.0)[0] == ("send", "node.dying", why)
        assert node.state == DYING

    def test_a_second_loss_changes_nothing(self) -> None:
        node = running(0)
        node.handle(("lifeline", "link"), 10.0)
        assert node.handle(("lifeline", "signal"), 10.5) == []
        assert node.next_deadline() == 11.0


class TestN6:
    def test_a_paused_node_outlives_its_lease_and_says_nothing(self) -> None:
        node = running(0, 1)
        assert node.handle(order("pause_ranks"), 1.0) == [
            ("signal_ranks", [0, 1], SIGSTOP), ("send", "node.paused", {}),
        ]  # fmt: skip
        assert {tuple(node.tick(now)) for now in range(5, 4000, 5)} == {(("alive",),)}
        assert node.handle(order("resume_ranks"), 4000.0) == [
            ("signal_ranks", [0, 1], SIGCONT), ("send", "node.heard", {}),
        ]  # fmt: skip
        node.tick(4030.0)
        assert node.state == DYING

    def test_no_order_makes_the_lease_run_while_it_is_paused(self) -> None:
        node = running(0)
        node.handle(order("pause_ranks"), 1.0)
        for kind in ("ping", "credit", "odd"):
            node.handle(order(kind, count=0), 2.0)
        assert "lease" not in node.deadlines
        node.handle(order("resume_ranks"), 50.0)
        assert node.deadlines["lease"] == 80.0
        assert not node.paused
        node.handle(order("ping"), 60.0)
        assert node.deadlines["lease"] == 90.0

    def test_only_the_living_are_stopped_and_continued(self) -> None:
        node = running(2, 0, 1)
        node.handle(("exited", 1, 0), 0.0)
        assert node.handle(order("pause_ranks"), 1.0)[0] == ("signal_ranks", [0, 2], SIGSTOP)
        assert node.handle(order("resume_ranks"), 2.0)[0] == ("signal_ranks", [0, 2], SIGCONT)

    def test_the_end_of_the_link_counts_all_the_same(self) -> None:
        node = running(0)
        node.handle(order("pause_ranks"), 1.0)
        assert ("signal_ranks", [0], SIGCONT) in node.handle(("lifeline", "link"), 2.0)


class TestN3:
    def test_an_exit_is_told_once(self) -> None:
        node = running(0)
        assert len(node.handle(("exited", 0, 1), 0.0)) == 1
        assert node.handle(("exited", 0, 1), 0.0) == []
        assert node.handle(("exited", 5, 1), 0.0) == []


class TestN4:
    def test_held_pipes_are_cut(self) -> None:
        node = running(0)
        node.deadlines.pop("beat")
        node.handle(("exited", 0, 0), 1.0)
        assert node.tick(1.0 + DRAIN - 0.1) == []
        assert node.tick(1.0 + DRAIN) == [("send", "rank.leaked", {"rank": 0}), ("cut", 0)]

    def test_ended_pipes_are_not_cut(self) -> None:
        node = running(0)
        node.deadlines.pop("beat")
        node.handle(("exited", 0, 0), 1.0)
        node.handle(("drained", 0), 1.1)
        assert node.tick(1.0 + DRAIN) == []

    def test_output_held_back_for_credit_is_not_cut(self) -> None:
        node = running(0)
        node.deadlines.pop("beat")
        node.handle(("exited", 0, 0), 1.0)
        node.held_back = True
        assert node.tick(1.0 + DRAIN) == []
        node.held_back = False
        assert node.tick(1.0 + 2 * DRAIN)[-1] == ("cut", 0)


class AnyRun(RuleBasedStateMachine):
    """Plays the loop: carries out the actions, with ranks that end whenever they like."""

    @initialize(ranks=st.sets(st.integers(0, 5)))
    def begin(self, ranks: set[int]) -> None:
        self.now = 0.0
        self.node = Node(0.0)
        self.planned = ranks
        self.alive: set[int] = set()
        self.spawned: set[int] = set()
        self.told: list[int] = []
        self.exits: list[int] = []
        self.ending = False  # the lifeline is lost or the job finished
        self.dying_since: float | None = None

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            kind, *rest = action
            if kind == "start_ranks":
                assert not self.ending, "N-1"
                self.alive |= self.planned
                self.spawned |= self.planned
                self.tell(("spawned", [[rank, 100 + rank] for rank in sorted(self.planned)]))
            elif kind == "sweep":
                ended, self.alive = self.alive, set()
                for rank in sorted(ended):
                    self.tell(("exited", rank, -9))
                self.tell(("swept", len(ended), [], None, []))
            elif kind == "cut":
                self.tell(("drained", rest[0]))
            elif kind == "exit":
                self.exits.append(rest[0])
            elif kind == "send" and rest[0] == "rank.exited":
                self.told.append(rest[1]["rank"])
            elif kind == "signal_ranks":
                assert set(rest[0]) <= self.spawned

    def tell(self, event: Any) -> None:
        if not self.exits:
            self.act(self.node.handle(event, self.now))
        if self.node.state in (DYING, OVER):
            self.ending = True

    @rule(
        kind=st.sampled_from(["prepare", "probe", "start_ranks", "ping", "sweep", "finish", "odd"])
    )
    def ordered(self, kind: str) -> None:
        self.tell(("order", {**PREPARE, "type": kind}))

    @rule(ranks=st.none() | st.lists(st.integers(0, 9)), signum=st.sampled_from([10, 15]))
    def signalled(self, ranks: list[int] | None, signum: int) -> None:
        self.tell(order("signal_ranks", ranks=ranks, signum=signum))

    @rule(why=st.sampled_from(["link", "signal"]))
    def lifeline_lost(self, why: str) -> None:
        self.tell(("lifeline", why))

    @rule(rank=st.integers(0, 5), status=st.sampled_from([0, 1, -15]))
    def rank_ends(self, rank: int, status: int) -> None:
        if rank in self.alive:
            self.alive.discard(rank)
            self.tell(("exited", rank, status))

    @rule(rank=st.integers(0, 5))
    def pipes_end(self, rank: int) -> None:
        if rank in self.spawned - self.alive:
            self.tell(("drained", rank))

    @rule(held=st.booleans())
    def credit_changes(self, held: bool) -> None:
        self.node.held_back = held

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if not self.exits:
            self.act(self.node.tick(self.now))
        if self.node.state in (DYING, OVER):
            self.ending = True

    @invariant()
    def each_exit_is_told_once(self) -> None:  # N-3
        if hasattr(self, "told"):
            assert sorted(self.told) == sorted(self.spawned - self.alive)

    @invariant()
    def at_most_one_exit(self) -> None:
        assert len(getattr(self, "exits", [])) <= 1

    def teardown(self) -> None:
        """Whatever happened: a lost lifeline ends everything within the grace (N-2)."""
        if not hasattr(self, "node"):
            return
        self.tell(("lifeline", "link"))
        self.now += PREPARE["lifeline_grace"]  # type: ignore[operator]
        if not self.exits:
            self.act(self.node.tick(self.now))
        assert not self.alive
        assert len(self.exits) == 1


AnyRun.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
TestAnyRun = AnyRun.TestCase


class TestPeer:  # N-7
    """The launcher's machine, which may cease to answer."""

    def watching(self) -> Node:
        node = Node(0.0)
        assert node.handle(order("watch"), 0.0) == [("watch",)]
        node.handle(("order", PREPARE), 0.0)
        node.watches = True  # as the loop says when it has found the connection
        node.handle(("order", START), 0.0)
        node.handle(("spawned", [[0, 100]]), 0.0)
        return node

    def test_a_late_ping_is_a_doubt_and_the_next_one_its_end(self) -> None:
        node = self.watching()
        asks: list[Any] = [("ask_peer", True), ("send", "node.heard", {})]
        beat: list[Any] = [("send", "node.heard", {}), ("alive",)]
        assert node.tick(6.0) == beat
        assert node.tick(6.25) == asks
        assert node.tick(7.25) == [("ask_peer", False), ("send", "node.heard", {})]
        assert node.tick(11.0)[-1] == (
            "send",
            "node.heard",
            {},
        )  # the guardian hears nothing meanwhile
        assert ("alive",) not in node.tick(16.0)
        node.handle(order("ping"), 20.0)
        node.tick(21.0)
        assert node.tick(26.25)[-2:] == asks

    def test_nobody_asks_where_the_launcher_did_not(self) -> None:
        node = running(0)
        assert "peer" not in node.deadlines
        (action,) = node.handle(order("watch"), 1.0)
        assert action[:2] == ("send", "node.noticed")

    def test_a_stopped_job_is_nobodys_doubt(self) -> None:
        node = self.watching()
        assert node.handle(order("pause_ranks"), 1.0)[0] == ("watch_peer", False)
        assert not any(action[0] == "ask_peer" for action in node.tick(100.0))
        assert node.handle(order("resume_ranks"), 100.0)[0] == ("watch_peer", True)
        assert node.handle(order("ping"), 100.0) == []
        assert node.deadlines["peer"] == 106.25
