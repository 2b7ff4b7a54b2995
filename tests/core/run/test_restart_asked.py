"""``dispatch restart``: a person has the ranks of a run that goes on started again."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import Prepare, SendFolder, SignalRanks, Tell
from dispatcher.core.run import run_machine
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.model.failure import Failure, Kind
from dispatcher.plan.job.job_plan import Change
from dispatcher.plan.job.request import Limits, Program

from .world import GONE, World, again, started

NEW = Change(Program("script", ("new.py", "--lr", "3")), (("LR", "3"),))
WANTED = ev.RestartWanted(("new.py", "--lr", "3"), ("LR",))
ASKED = verdicts.RestartAsked(WANTED.words, WANTED.names)
ALREADY = "it is being restarted already"
UNBORN = "its ranks have not been started yet"


def ask(world: World, change: Change = NEW) -> list[str]:
    """Order a restart; why it was refused, if it was."""
    at = len(world.done)
    world.take(world.run.restart(change, WANTED, world.now))
    told = [action.event for action in world.done[at:] if isinstance(action, Tell)]
    return [event.why for event in told if isinstance(event, ev.RestartRefused)]


def end_ranks(world: World) -> None:
    """The ranks end as they were told, and nothing is left."""
    world.killed(*list(world.homes))
    world.swept()


def with_sync(**options: Any) -> World:
    world = started(**options)
    world.run._sync = True
    return world


def test_ranks_end_gently_and_start_with_what_is_new_at_no_cost() -> None:
    world = started(most=1)
    at = len(world.done)
    assert ask(world) == []
    signals = [order.signum for order in world.orders(at) if isinstance(order, SignalRanks)]
    assert sorted(signals) == [signal.SIGTERM, signal.SIGTERM, signal.SIGCONT, signal.SIGCONT]
    assert ask(world) == [ALREADY]
    end_ranks(world)
    assert world.told(ev.RunRestarting) == [ev.RunRestarting(ASKED, 1, 1, 0.0)]
    assert world.orders()[-2:] == [Prepare(0, 1), Prepare(1, 1)]
    assert ask(world) == [UNBORN]
    again(world)
    plan = world.starts()[-1].plan
    assert plan.argv(0)[-3:] == ("new.py", "--lr", "3")
    assert dict(plan.exports)["LR"] == "3"
    world.fail(1)  # the one restart that is allowed is there still
    last = world.told(ev.RunRestarting)[-1]
    assert (last.number, last.most, last.asked) == (2, 1, 1)
    again(world)
    assert world.starts()[-1].plan.program == NEW.program  # it stays so
    assert world.starts()[-1].restart == 2
    world.end_well()
    assert world.ended is not None
    assert world.ended.ok
    assert world.ended.starts == 3
    assert [one.cause for one in world.ended.attempts] == [ASKED, verdicts.RankFailed(0, 1, 3)]


def test_progress_before_it_is_not_forgotten() -> None:
    world = started(most=9, delay=0.0, progress_line="step")
    for _ in range(2):
        world.fail(1)
        again(world)
    world.at(ev.RanksProgressed, 0, 1)
    assert ask(world) == []
    end_ranks(world)
    again(world)
    world.fail(1)
    assert world.ended is None


def test_any_number_where_no_restart_is_allowed_otherwise() -> None:
    world = started()
    for number in range(1, 4):
        assert ask(world, Change()) == []
        end_ranks(world)
        again(world)
        assert world.starts()[-1].restart == number
    world.fail(0, 7)
    assert world.ended is not None
    assert (world.ended.exit_code, world.ended.no_restart) == (7, None)
    assert len(world.ended.attempts) == 3


@cases(
    ("at", "why"),
    [
        ("connecting", UNBORN),
        ("probing", UNBORN),
        ("stopping", "it is ending"),
        ("finishing", "it is ending"),
        ("closing", "it is ending"),
        ("over", None),
        ("paused", None),
    ],
)
def test_only_ranks_that_run_or_wait_for_a_restart_are_started_again(
    at: str, why: str | None
) -> None:
    world = World(2, spares=1) if at in ("connecting", "probing") else None
    if world is not None:
        world.ready(*range(3 if at == "probing" else 1))
    elif at == "paused":
        world = started(most=9, delay=200.0)
        world.fail(0)
        again(world)
        world.fail(0)
        assert world.run.state == run_machine.PAUSED
    else:
        world = started(spares=1)
        if at == "stopping":
            world.exits(0, 3)
        else:
            for rank in range(4):
                world.exits(rank, 0)
        if at in ("closing", "over"):
            world.sweep(0, 1)
        if at == "over":
            world.sweep(2)
            assert world.ended is not None
    n_done = len(world.done)
    assert ask(world) == ([] if why is None else [why])
    assert (len(world.done) == n_done) == (at == "over")  # whoever waits hears the verdict


def test_one_that_waits_for_its_restart_waits_no_longer() -> None:
    world = started(most=9, delay=200.0)
    world.fail(0)
    again(world)
    world.fail(0)
    assert ask(world) == []
    assert world.told(ev.RunRestarting)[-1] == ev.RunRestarting(ASKED, 2, 9, 0.0)
    again(world)
    assert world.starts()[-1].plan.program == NEW.program
    causes = [type(one.cause) for one in world.run._attempts]
    assert causes == [verdicts.RankFailed, verdicts.RankFailed]
    assert world.run.restarts - world.run._asked == 2  # these were its own


def test_who_reads_standard_input_is_not_started_again() -> None:
    reading = RunMachine(replace(started().run.plan, stdin=0))
    (told,) = reading.restart(NEW, WANTED, 0.0)
    assert isinstance(told, Tell)
    assert isinstance(told.event, ev.RestartRefused)
    assert "--stdin" in told.event.why


@cases(
    ("what", "code", "cause"),
    [
        ("interrupt", 130, verdicts.Interrupted),
        ("time", 124, verdicts.TimeUp),
        ("lost", 125, verdicts.NodeFailed),
        ("lost late", 125, verdicts.NodeFailed),
        ("lost in the pause", 125, verdicts.NodeFailed),
        ("undying", 125, verdicts.NodeFailed),
        ("rank", None, None),
    ],
)
def test_what_it_cannot_have_caused_ends_the_run(
    what: str, code: int | None, cause: type | None
) -> None:
    world = started(limits=Limits(time_limit=5.0 if what == "time" else 0.0))
    if what == "lost in the pause":
        world.run._sync = True
    assert ask(world) == []
    if what == "interrupt":
        world.tell(ev.SignalReceived(signal.SIGINT))
    elif what == "time":
        world.wait(6.0)
    elif what == "lost":
        world.lose(1)
    elif what == "rank":
        world.exits(0, 3)
    if what == "undying":
        world.killed(*list(world.homes))
        world.at(ev.NodeSwept, 0, 0, (77,))
        world.sweep(1)
    elif what == "lost late":
        world.killed(*list(world.homes))
        world.sweep(0)
        world.lose(1)
    else:
        end_ranks(world)
    if what == "lost in the pause":
        world.lose(1)
    world.swept()
    if code is None:
        assert world.run.state == run_machine.TRYING
        return
    assert world.ended is not None
    assert (world.ended.exit_code, type(world.ended.cause)) == (code, cause)
    assert len(world.starts()) == 2


def test_the_host_that_is_missing_is_named_also_where_the_world_had_shrunk() -> None:
    world = started(3, most=3, min_nodes=2)
    world.lose(0)
    world.killed(2, 3, 4, 5)
    world.sweep(1, 2)
    world.wait(45.0)
    again(world)
    world.run._sync = True
    assert ask(world) == []
    end_ranks(world)
    world.lose(2)
    world.swept()
    assert world.ended is not None
    assert isinstance(world.ended.cause, verdicts.NodeFailed)
    assert world.run.host_at(world.ended.cause.node) == 2
    assert GONE.why in world.ended.cause.failure.why


class TestSync:
    def test_ranks_start_when_the_folder_was_sent(self) -> None:
        world = with_sync()
        ask(world)
        end_ranks(world)
        assert world.orders()[-1] == SendFolder()
        assert ask(world) == [ALREADY]
        world.wait(3.0)
        assert not [order for order in world.orders() if isinstance(order, Prepare)]
        world.tell(ev.FolderSent())
        assert world.orders()[-2:] == [Prepare(0, 1), Prepare(1, 1)]
        assert world.since(ev.FolderSent({0: GONE})) == []  # nobody waits for it

    def test_a_host_that_does_not_have_it_is_replaced_or_the_end(self) -> None:
        full = Failure(Kind.CHECK, "--sync: no space left")
        for spares in (1, 0):
            world = with_sync(spares=spares)
            ask(world)
            end_ranks(world)
            world.tell(ev.FolderSent({1: full}))
            world.swept()
            if spares:
                assert [event.by for event in world.told(ev.HostReplaced)] == [2]
                continue
            assert world.ended is not None
            assert isinstance(world.ended.cause, verdicts.NodeFailed)
            assert "no space left" in world.ended.cause.failure.why

    def test_it_is_sent_as_well_where_a_lost_host_is_the_cause_in_its_place(self) -> None:
        world = with_sync(spares=1, most=1)
        ask(world)
        world.lose(1)
        end_ranks(world)
        assert SendFolder() in world.done
        world.wait(45.0)
        assert not [order for order in world.orders() if isinstance(order, Prepare)]
        world.tell(ev.FolderSent())
        again(world)
        assert world.starts()[-1].plan.program == NEW.program

    def test_a_restart_after_a_failure_sends_nothing(self) -> None:
        world = with_sync(most=1)
        world.fail(0)
        assert SendFolder() not in world.done
