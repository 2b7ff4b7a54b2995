"""A host's thread between its states: heartbeats, further attempts, last words, the way out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rig import wait_for

from dispatcher.core.events import run_events as ev
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import (
    COUNT,
    ENDED,
    HEADER,
    INPUT,
    OUTPUT,
    SYNC,
    Decoder,
    control,
    encode,
)
from dispatcher.remote.protocol.packing import unpack
from dispatcher.runner.loop import ConnectGate, HostExecutor
from dispatcher.runner.run import agent_link
from dispatcher.transport.base import Link, Target
from runner.test_agent_link import READY, ScriptedLink, ScriptedTransport, Watched

FACTS = unpack(Decoder().feed(READY)[0].body)["facts"]
PING = control("ping")


def ready(attempt: int) -> bytes:
    return control("node.ready", facts=FACTS, problems=[], attempt=attempt)


Start = Callable[..., Watched]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Watched] = []

    def begin(*answers: Link | Failure, heartbeat: float = 100.0, **options: Any) -> Watched:
        watched = Watched(*answers, heartbeat=heartbeat, **options)
        made.append(watched)
        return watched

    yield begin
    for watched in made:
        watched.host.close()
        watched.join()


def sent(link: ScriptedLink) -> list[bytes]:
    """The bodies of all frames that were written behind the first order."""
    return [frame.body for frame in Decoder().feed(bytes(link.heard).partition(b"PREPARE")[2])]


# -- heartbeats -------------------------------------------------------------------------


def test_we_show_that_we_live_though_nothing_is_heard(start: Start) -> None:
    began = time.monotonic()
    link = ScriptedLink([SYNC + READY])
    start(link, heartbeat=0.05)
    wait_for(lambda: sent(link).count(PING[HEADER.size :]) >= 4, 20, "pings come by the clock")
    # each a quarter later than its own would come, so that one wake-up serves both
    assert len(sent(link)) <= 1 + (time.monotonic() - began) / 0.06


# -- attempts ---------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, 1])
@pytest.mark.parametrize("answered", [0, 1, 2])
def test_an_agent_is_ready_for_what_it_was_asked_only(
    start: Start, asked: int | None, answered: int
) -> None:
    link = ScriptedLink([SYNC + READY])
    watched = start(link)
    watched.until(ev.NodeReady)
    assert watched.host.intake.attempt == 0
    if asked is not None:
        watched.host.again(b"AGAIN", asked)
    link.say(ready(answered) + control("node.noticed", text="x"))
    if asked == answered:
        told = watched.until(ev.NodeNoticed)
        assert [event.attempt for event in told if isinstance(event, ev.NodeReady)] == [1]
        assert watched.host.intake.attempt == 1
    else:
        assert watched.failure().why == f"ready for attempt {answered}, which was not asked for"


def test_a_further_attempt_counts_output_anew(start: Start) -> None:
    stream = encode(OUTPUT, b"hi", 6, 1) + encode(ENDED, COUNT.pack(2), 6, 1)
    link = ScriptedLink([SYNC + READY + encode(OUTPUT, b"half", 7, 1)])
    watched = start(link)
    watched.until(ev.NodeReady)
    watched.host.again(b"AGAIN", 1)
    link.say(ready(1) + stream + encode(OUTPUT, b"x", 7, 1) + encode(ENDED, COUNT.pack(5), 7, 1))
    ends = [watched.until(ev.OutputEnded)[-1] for _ in range(2)]
    assert ends == [
        ev.OutputEnded(3, 6, 1, 2, 2, attempt=1), ev.OutputEnded(3, 7, 1, 1, 5, attempt=1),
    ]  # fmt: skip
    wait_for(lambda: bytes(link.heard).endswith(b"AGAIN"), 20, "the order is on its way")


# -- the end of a link ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "ending"), [(0, Ending(0)), (3, Ending(3)), (255, None), (None, None)]
)
def test_how_an_agent_ended_is_told_unless_only_its_connection_did(
    start: Start, status: int | None, ending: Ending | None
) -> None:
    watched = start(ScriptedLink([SYNC + READY, b""], b"said\n", status))
    lost = watched.until(ev.NodeLost)[-1]
    assert isinstance(lost, ev.NodeLost)
    assert lost.ending == ending
    assert lost.failure.why.endswith("; it said: said")


def test_a_transport_that_knows_why_is_believed(start: Start) -> None:
    known = Failure(Kind.AUTH, "no key", "ssh-add")

    class Knows(ScriptedLink):
        def failure(self, timeout: float) -> Failure | None:
            return known

    assert start(Knows([b""])).failure() == known


def test_who_takes_nothing_and_says_nothing_is_lost_after_a_while(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "LAST_WORDS", 0.1)
    link = ScriptedLink([SYNC + READY])
    watched = start(link)
    watched.until(ev.NodeReady)
    watched.host.send_input(encode(INPUT, b"x"))
    wait_for(lambda: len(sent(link)) == 1, 20, "it takes what we write")
    link.closed.set()
    watched.host.send(control("credit", count=1))
    watched.host.send_input(encode(INPUT, b"y"))
    assert watched.failure() == Failure(Kind.LOST, "the link was closed")


def test_what_a_deaf_host_says_still_counts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "LAST_WORDS", 60.0)
    link = ScriptedLink([SYNC + READY])
    watched = start(link)
    watched.until(ev.NodeReady)
    link.closed.set()
    watched.host.send(control("credit", count=1))
    link.say(control("rank.exited", rank=6, status=3) + control("node.heard"))
    exited = watched.until(ev.RankExited)[-1]
    assert isinstance(exited, ev.RankExited)
    assert exited.status == 3


def test_who_is_late_is_quoted(start: Start) -> None:
    watched = start(ScriptedLink([b"motd"], b"bash: slow\n"), boot_timeout=2.0)
    failure = watched.failure()
    assert failure.why == "no answer from the agent within 2 s; remote said: bash: slow"
    assert failure.hint is not None
    assert failure.hint.startswith("time ssh n1 true </dev/null  # are its login files slow? ")
    assert failure.hint.endswith(": [ -t 0 ] || return")


def test_an_answer_after_noise_without_an_end_is_waited_for(start: Start) -> None:
    watched = start(ScriptedLink([SYNC]), boot_timeout=0.1)
    assert watched.failure().kind is Kind.TIMEOUT  # it lives, but is never ready


def test_a_bug_of_ours_is_no_silent_host(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))

    class Broken(ScriptedLink):
        def watch(self, ready: Callable[[], None]) -> None:
            raise KeyError("x")

    link = Broken([])
    watched = start(link)
    assert watched.failure() == Failure(Kind.PROTOCOL, "internal error: KeyError: 'x'")
    assert link.closed.wait(60)
    watched.join()
    assert [type(error) for error in reported] == [KeyError]


# -- the way out ------------------------------------------------------------------------


def test_an_answer_without_having_been_asked_to_finish_is_no_end(start: Start) -> None:
    swept = control("node.swept", killed=0, left=[])
    link = ScriptedLink([SYNC + READY + swept, b""])
    watched = start(link)
    assert isinstance(watched.until(ev.NodeSwept)[-1], ev.NodeSwept)
    assert watched.failure().kind is Kind.LOST
    asked = ScriptedLink([SYNC + READY])
    other = start(asked)
    other.until(ev.NodeReady)
    other.host.finish()
    wait_for(lambda: control("finish")[HEADER.size :] in sent(asked), 20, "it is told to finish")


def test_a_host_that_is_given_up_before_its_turn_is_not_called() -> None:
    """It waits for room, and finds when it has some that nobody wants it any more."""
    never = ScriptedTransport(())
    gate = ConnectGate(1, 60.0)
    gate.enter(0)
    told: list[ev.Event] = []
    host = agent_link.AgentLink(
        node=3, target=Target("n1"), transport=never, command="agent",
        prepare=b"", gate=gate, boot_timeout=1.0, heartbeat=1.0, credit=1000, tell=told.append,
        output=lambda *said: None,
    )  # fmt: skip
    executor = HostExecutor()
    executor.serve(host)
    host.close()
    gate.reached(0)
    executor.close(60)
    assert told == []
    assert gate.enter(4).number == 1  # its room is free again


def test_of_a_host_s_errors_the_last_are_kept(start: Start) -> None:
    link = ScriptedLink([SYNC, b""], b"x" * (agent_link.ERRORS_LIMIT + 5) + b"\nlast\n", 1)
    watched = start(link)
    assert watched.failure().why.endswith("it said: last")
    assert len(watched.host._errors) == agent_link.ERRORS_LIMIT
