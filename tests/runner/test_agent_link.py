"""One host's thread against a far side that says what we script: right, wrong, hostile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.core import connect
from dispatcher.core.events import run_events as ev
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import (
    CONTROL,
    COUNT,
    ENDED,
    HEADER,
    INPUT,
    OUTPUT,
    SYNC,
    TAKEN,
    Decoder,
    control,
    encode,
)
from dispatcher.remote.protocol.packing import unpack
from dispatcher.runner.loop import ConnectGate, HostExecutor
from dispatcher.runner.run import agent_link, host_intake, reports
from dispatcher.runner.run.agent_link import AgentLink
from dispatcher.transport.base import Link, LinkClosed, Target, Transport

READY = control(
    "node.ready",
    facts={
        "hostname": "n1", "pid": 7, "python": "3.8.0", "cores": 2, "gpus": 0, "addresses": [],
        "machine": "m", "error_folder": None,
    },
    problems=[],
)  # fmt: skip


class ScriptedLink(Link):
    """Says ``script`` (chunks; b"" is the end), and keeps what it is told."""

    address = "10.0.0.1"

    def __init__(self, script: list[bytes], errors: bytes = b"", status: int | None = 0) -> None:
        self._script = script
        self._errors = errors
        self._status = status
        self.heard = bytearray()
        self.closed = threading.Event()
        self.is_let_end = False
        self.expected: list[float] = []
        self.watchable = True
        self.silent = 0.0, False
        self._told: Callable[[], None] = lambda: None  # nobody watches yet: the script is read then

    def watch(self, ready: Callable[[], None]) -> None:
        self._told = ready
        ready()

    def say(self, chunk: bytes) -> None:
        """One more chunk of the script."""
        self._script.append(chunk)
        self._told()

    def read(self, limit: int) -> bytes | None:
        return self._script.pop(0) if self._script else None

    def read_errors(self, limit: int) -> bytes:
        said, self._errors = self._errors, b""
        return said

    def write(self, data: bytes) -> None:
        if self.closed.is_set():
            raise LinkClosed
        self.heard += data

    def end_input(self) -> None:
        pass

    def expect_answers(self, seconds: float) -> bool:
        self.expected.append(seconds)
        return self.watchable

    def silence(self) -> tuple[float, bool]:
        return self.silent

    def gone(self) -> bool:
        return not self._script

    def errors_ended(self) -> bool:
        return not self._script and not self._errors

    def close(self) -> None:
        self.closed.set()

    def let_end(self) -> None:
        self.is_let_end = True
        self.close()

    def ending(self, timeout: float) -> Ending:
        return Ending(self._status)


class ScriptedTransport(Transport):
    name = "scripted"

    def __init__(self, answers: Sequence[Link | Failure]) -> None:
        self._answers = list(answers)

    def open(
        self, target: Target, command: str, deadline: float, window: object = None
    ) -> Link | Failure:
        return self._answers.pop(0)


class Watched:
    """A host's thread with what it told and what came out of it."""

    def __init__(
        self,
        *answers: Link | Failure,
        boot_timeout: float = 30.0,
        heartbeat: float = 100.0,
        connect_limit: float = 60.0,
        **more: Any,
    ) -> None:
        self.ranks: frozenset[int] | None = frozenset({6, 7})
        self.transport = ScriptedTransport(answers)
        self.events: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        self.output: list[tuple[int, int, int, bytes]] = []
        self.beats: list[int] = []
        self.host = AgentLink(
            node=3, target=Target("n1"), transport=self.transport, command="agent",
            prepare=b"PREPARE", gate=ConnectGate(1, connect_limit), boot_timeout=boot_timeout,
            heartbeat=heartbeat, credit=1000, tell=self._tell,
            output=lambda *told: self.output.append(told), on_heartbeat=self.beats.append,
            **more,
        )  # fmt: skip
        self.executor = HostExecutor()
        self.executor.serve(self.host)

    def join(self) -> None:
        """Wait until the host's thread has ended."""
        ((thread, _),) = self.executor._threads
        thread.join(60)
        assert not thread.is_alive()

    def _tell(self, event: ev.Event) -> None:
        """Who is ready is given ranks at once, if there are any."""
        if isinstance(event, ev.NodeReady) and self.ranks is not None:
            self.host.intake.ranks = self.ranks
        self.events.put(event)

    def until(self, kind: type[ev.Event]) -> list[ev.Event]:
        seen: list[ev.Event] = []
        while not seen or not isinstance(seen[-1], kind):
            seen.append(self.events.get(timeout=60))
        return seen

    def failure(self) -> Failure:
        lost = self.until(ev.NodeLost)[-1]
        assert isinstance(lost, ev.NodeLost)
        return lost.failure


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def start(*answers: Link | Failure, **options: Any) -> Watched:
        made.append(Watched(*answers, **options))
        return made[-1]

    yield start
    for watched in made:
        watched.host.close()
        watched.join()


def test_good_start_in_one_byte_chunks(watch: Callable[..., Watched]) -> None:
    told = (
        b"motd\n" + SYNC + READY + encode(OUTPUT, b"hi", 6, 1) + encode(ENDED, COUNT.pack(2), 6, 1)
    )
    link = ScriptedLink([told[at : at + 1] for at in range(len(told))])
    watched = watch(link)
    names = [event.name for event in watched.until(ev.OutputEnded)]
    assert names == [
        "node.connecting", "node.connected", "node.booted", "node.ready", "output.ended",
    ]  # fmt: skip
    assert watched.output == [(3, 6, 1, b"hi")]
    assert link.heard.startswith(payload.payload() + b"PREPARE")


def test_who_is_ready_for_a_further_attempt_has_no_ranks_yet(watch: Callable[..., Watched]) -> None:
    link = ScriptedLink([SYNC + READY])
    watched = watch(link)
    watched.until(ev.NodeReady)
    watched.ranks = None
    watched.host.again(b"AGAIN", 1)
    facts = unpack(Decoder().feed(READY)[0].body)["facts"]
    link.say(
        control("node.ready", facts=facts, problems=[], attempt=1) + encode(OUTPUT, b"x", 6, 1)
    )
    assert watched.failure() == Failure(Kind.PROTOCOL, "output of rank 6, which is not this node's")


def test_of_a_link_that_is_to_be_closed_nothing_more_is_taken(
    watch: Callable[..., Watched],
) -> None:
    link = ScriptedLink([SYNC + READY])
    watched = watch(link)
    watched.until(ev.NodeReady)

    def close(*told: Any) -> None:
        watched.output.append(told)
        link.say(encode(OUTPUT, b"more", 6, 1))
        watched.host.close()

    watched.host.intake._output = close
    link.say(encode(OUTPUT, b"hi", 6, 1))
    watched.join()
    assert watched.output == [(3, 6, 1, b"hi")]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (READY, "ready for attempt 0, which was not asked for"),
        (encode(OUTPUT, b"x", 5, 1), "output of rank 5"),
        (encode(ENDED, COUNT.pack(0), 6, 1) + encode(OUTPUT, b"x", 6, 1), "output of rank 6"),
        (control("rank.exited", rank=0, status=0), "rank 0, which runs elsewhere"),
        (control("rank.exited", rank=6, status=256), "status"),
        (control("rm -rf"), "unknown report"),
        (HEADER.pack(1, 0, 0, 0, 1 << 31), "bad frame"),
        (HEADER.pack(9, 0, 0, 0, 1), "bad frame"),
        (encode(1, b"garbage"), "malformed report"),
        (b"\xff" * 12, "bad frame"),
        (encode(INPUT, b"x"), "input for the launcher"),
        (encode(TAKEN, COUNT.pack(1)), "credit for input that it was not sent"),
        (encode(OUTPUT, bytes(60_000), 6, 1) * 100, "more output than it was given credit for"),
    ],
)
def test_hostile_agents_lose_their_link(
    watch: Callable[..., Watched], told: bytes, why: str
) -> None:
    link = ScriptedLink([SYNC + READY + told])
    failure = watch(link).failure()
    assert failure.kind is Kind.PROTOCOL
    assert why in failure.why
    assert link.closed.wait(60)


def test_the_end_of_output_that_never_comes_ends_the_link(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_intake, "ENDS_LIMIT", 0.1)
    exited = control("rank.exited", rank=6, status=0)
    failure = watch(
        ScriptedLink([SYNC + READY + encode(ENDED, COUNT.pack(0), 6, 1) + exited])
    ).failure()
    assert failure == Failure(Kind.PROTOCOL, "rank 6 exited, but its output was never closed")


def test_a_flood_is_left_in_the_link_and_then_ends_it(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PATIENCE", 0.2)
    monkeypatch.setattr(reports, "BURST", 800 << 10)
    chunk = control("mpi.inside", ranks=[], over=[]) * 60_000  # seconds of what may be told
    link = ScriptedLink([SYNC + READY, chunk])
    watched = watch(link)
    told = watched.until(ev.NodeLost)
    lost = told[-1]
    assert isinstance(lost, ev.NodeLost)
    assert lost.failure.kind is Kind.PROTOCOL
    assert "a flood: " in lost.failure.why
    assert " KiB of mpi.inside in " in lost.failure.why
    assert 100 < len(told) < 5_000
    assert link.closed.wait(60)
    assert lost.failure.hint is None


def test_a_flood_of_login_noise_can_be_looked_at(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PATIENCE", 0.2)
    failure = watch(ScriptedLink([b"evil\033[2J\n" * 20_000] * 200)).failure()
    assert failure.kind is Kind.PROTOCOL
    assert " MiB of login noise in " in failure.why
    assert failure.hint == "ssh n1 true 2>&1 | head -c 999 | cat -v  # what it writes at login"


def test_what_nobody_takes_is_held_back_and_nobody_is_late_for_that(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_WAITING", 100 * reports.REPORT)
    one = control("mpi.inside", ranks=[], over=[])
    watched = watch(ScriptedLink([SYNC + READY, one * 1000]), heartbeat=0.02)
    told: list[ev.Event] = []

    def arrived() -> bool:
        while not watched.events.empty():
            told.append(watched.events.get())
        return len(watched.beats) > 3

    wait_for(arrived)
    assert len(told) < 110
    for event in told:
        watched.host.done(event)
    wait_for(lambda: not watched.events.empty())


@pytest.mark.parametrize(
    ("link", "kind", "why"),
    [
        (ScriptedLink([b"no such account\n", b""], status=1), Kind.BOOT, "no such account"),
        (ScriptedLink([b""], b"sh: oops\n", 2), Kind.BOOT, "exit status 2 before the agent"),
        (
            ScriptedLink([b""], b"dispatch: no python: python3 python3.9\n", 127),
            Kind.NO_PYTHON,
            "looked for python3 python3.9",
        ),
        (ScriptedLink([SYNC, b""], b"Traceback\nKeyError: 1\n", 1), Kind.LOST, "KeyError: 1"),
        (ScriptedLink([SYNC + READY + HEADER.pack(2, 1, 0, 6, 9), b""]), Kind.LOST, "ended with 0"),
    ],
)
def test_why_a_link_ended(
    watch: Callable[..., Watched], link: ScriptedLink, kind: Kind, why: str
) -> None:
    failure = watch(link).failure()
    assert failure.kind is kind
    assert why in failure.why


def test_dropped_connections_are_tried_again(watch: Callable[..., Watched]) -> None:
    dropped = Failure(Kind.DROPPED, "MaxStartups", retryable=True)
    watched = watch(dropped, dropped, ScriptedLink([SYNC + READY]))
    attempts = [
        event.attempt
        for event in watched.until(ev.NodeReady)
        if isinstance(event, ev.NodeConnecting)
    ]
    assert attempts == [1, 2, 3]


def test_who_is_closed_between_two_tries_ends_at_once(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "FIRST_PAUSE", 1000.0)
    dropped = Failure(Kind.DROPPED, "MaxStartups", retryable=True)
    watched = watch(dropped, dropped, connect_limit=9000.0)
    wait_for(lambda: len(watched.transport._answers) == 1, 30, "the first try")
    watched.host.close()
    watched.join()
    assert len(watched.transport._answers) == 1


def test_credit_comes_back_in_portions(watch: Callable[..., Watched]) -> None:
    link = ScriptedLink([SYNC + READY])
    watched = watch(link)
    watched.until(ev.NodeReady)
    watched.host.taken(200)
    watched.host.taken(200)
    watched.host.taken(200)  # half of the credit is due at 500
    watched.host.send(control("finish"))
    watched.host.close()
    watched.join()
    sent = Decoder().feed(bytes(link.heard).partition(b"PREPARE")[2])
    bodies = [frame.body for frame in sent]
    assert bodies.count(control("credit", count=600)[HEADER.size :]) == 1


def test_input_waits_for_all_else_and_its_credit_comes_back(watch: Callable[..., Watched]) -> None:
    class Slow(ScriptedLink):
        begun, go = threading.Event(), threading.Event()
        done = threading.Event()

        def write(self, data: bytes) -> None:
            super().write(data)
            if data.endswith(b"first"):
                self.begun.set()
                assert self.go.wait(60)
            elif data.endswith(b"third"):
                self.done.set()

    link = Slow([SYNC + READY])
    watched = watch(link)
    watched.until(ev.NodeReady)
    watched.host.send_input(encode(INPUT, b"first"))
    assert link.begun.wait(60)
    watched.host.send_input(encode(INPUT, b"second"))  # while the link takes nothing
    watched.host.send(control("order"))
    watched.host.send_input(encode(INPUT, b"third"))
    watched.host.send(control("order"))
    link.go.set()
    assert link.done.wait(60)
    sent = Decoder().feed(bytes(link.heard).partition(b"PREPARE")[2])
    kept = [frame for frame in sent if frame.body != control("ping")[HEADER.size :]]
    assert [frame.kind for frame in kept] == [INPUT, CONTROL, CONTROL, INPUT, INPUT]
    taken = queue.SimpleQueue[tuple[int, ...]]()
    watched.host.intake._input_taken = lambda *told: taken.put(told)
    link._script.append(encode(TAKEN, COUNT.pack(16)))
    watched.host.wake()
    assert taken.get(timeout=60) == (3, 16)
    link._script.append(encode(TAKEN, COUNT.pack(1)))
    watched.host.wake()
    assert watched.failure().kind is Kind.PROTOCOL


def test_last_words_are_waited_for(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The far side takes nothing any more, but what it said last is still on its way."""
    monkeypatch.setattr(agent_link, "LAST_WORDS", 60.0)
    link = ScriptedLink([SYNC + READY], b"KeyError: 1\n", 1)
    watched = watch(link)
    watched.until(ev.NodeReady)
    link.closed.set()
    watched.host.send(control("credit", count=1))
    link._script.append(b"")
    watched.host.wake()
    assert "KeyError: 1" in watched.failure().why


def test_the_end_after_the_last_word_is_no_loss(watch: Callable[..., Watched]) -> None:
    swept = control("node.swept", killed=0, left=[])
    link = ScriptedLink([SYNC + READY])
    watched = watch(link)
    watched.until(ev.NodeReady)
    watched.host.finish()
    link._script += [swept, b""]
    watched.host.wake()
    assert isinstance(watched.until(ev.NodeSwept)[-1], ev.NodeSwept)
    watched.join()
    assert watched.events.empty()
    assert link.is_let_end


def test_who_is_closed_before_its_last_word_is_not_waited_for(
    watch: Callable[..., Watched],
) -> None:
    link = ScriptedLink([SYNC + READY])
    watched = watch(link)
    watched.until(ev.NodeReady)
    watched.host.finish()
    watched.host.close()
    watched.join()
    assert link.closed.is_set()
    assert not link.is_let_end


def test_output_that_comes_together_goes_on_together(watch: Callable[..., Watched]) -> None:
    frames = [
        encode(OUTPUT, b"a", 6, 1), encode(OUTPUT, b"x", 7, 1), encode(OUTPUT, b"b", 6, 1),
        encode(OUTPUT, b"e", 6, 2), encode(ENDED, COUNT.pack(2), 6, 1),
        encode(OUTPUT, b"y", 7, 1), encode(OUTPUT, b"no", 5, 1),
    ]  # fmt: skip
    watched = watch(ScriptedLink([SYNC + READY, b"".join(frames)]))
    ended = watched.until(ev.OutputEnded)[-1]
    assert isinstance(ended, ev.OutputEnded)
    assert (ended.rank, ended.received, ended.sent) == (6, 2, 2)
    assert watched.failure().kind == Kind.PROTOCOL  # of rank 5, and what came before it is kept
    assert watched.output == [
        (3, 6, 1, b"ab"), (3, 7, 1, b"x"), (3, 6, 2, b"e"), (3, 7, 1, b"y"),
    ]  # fmt: skip


def test_a_beat_is_answered_and_is_no_event_unless_it_ends_a_rest(
    watch: Callable[..., Watched],
) -> None:
    link = ScriptedLink([SYNC + READY + control("node.heard")])
    watched = watch(link)
    watched.until(ev.NodeReady)
    link.say(
        control("node.paused")
        + control("node.heard")
        + control("node.heard")
        + control("node.noticed", text="x")
    )
    told = [event.name for event in watched.until(ev.NodeNoticed)]
    assert told == ["node.paused", "node.heard", "node.noticed"]
    assert watched.beats == [3, 3]
    watched.host.close()
    watched.join()
    sent = Decoder().feed(bytes(link.heard).partition(b"PREPARE")[2])
    assert {frame.body for frame in sent} == {control("ping")[HEADER.size :]}


@cases(
    ("more", "watchable", "expected", "watches"),
    [
        ({}, True, [], False),
        ({"unreachable": 5.0}, True, [5.0], False),
        ({"unreachable": 5.0, "self_fencing": True}, True, [5.0], True),
        ({"unreachable": 5.0, "self_fencing": True}, False, [5.0], False),
    ],
)
def test_both_ends_are_told_to_expect_answers_where_the_link_can_tell(
    more: dict[str, Any], watchable: bool, expected: list[float], watches: bool
) -> None:
    link = ScriptedLink([])
    link.watchable = watchable
    watched = Watched(link, **more)
    wait_for(lambda: link.heard.endswith(b"PREPARE"), 30, "the first order")
    assert link.expected == expected
    assert link.heard.endswith(control("watch") + b"PREPARE") == watches
    watched.host.close()
    watched.join()


@cases(("has_all", "unheard"), [(True, 9.0), (False, 0.0)])
def test_beats_of_a_host_whose_kernel_is_silent_are_not_missed(
    has_all: bool, unheard: float
) -> None:
    """What it lacks may yet arrive, so the time since it was heard says nothing then."""
    link, silences = ScriptedLink([SYNC + READY]), list[tuple[int, float | None]]()
    watched = Watched(
        link, heartbeat=0.01, unreachable=15.0, on_silence=lambda *told: silences.append(told)
    )
    watched.until(ev.NodeReady)
    wait_for(lambda: silences, 30, "a late beat")
    pings = control("ping")
    wait_for(lambda: link.heard.endswith(pings), 30, "a ping")
    link.silent = 9.0, has_all
    wait_for(lambda: silences[-1][1] is not None, 30, "a silence")
    wait_for(lambda: watched.beats[1:], 30, "two looks")
    size = len(link.heard)
    since = silences[-1][1]
    assert since is not None
    assert (silences[-1][0], abs(time.monotonic() - 9.0 - since) < 5) == (3, True)
    link.say(b"")
    lost = watched.until(ev.NodeLost)[-1]
    assert isinstance(lost, ev.NodeLost)
    assert unheard <= lost.unheard < unheard + 5
    assert len(link.heard) == size  # nothing is written that would begin the wait anew
    watched.join()
