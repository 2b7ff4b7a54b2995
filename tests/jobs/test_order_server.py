"""What other shells ask and order of a run in the foreground, or of a program's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Event, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import LONGEST_ORDER, Frames, JobConnection, Malformed, restart_of
from dispatcher.jobs.status import OnAnswer, OrderServer
from dispatcher.model.errors import CannotRestart
from dispatcher.model.formats import Gathered


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the record of a job whose launcher is the test; its socket is ``control`` from here.

    Its whole name may be longer than the 107 bytes that a socket's can have.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = registry.enroll(
        "20260131-142501-k3f9x2", program=["a"], hosts=[], ranks=1, logs=None, detached=True,
        reach={},
    )  # fmt: skip
    monkeypatch.chdir(made)
    return made


def order_server(
    folder: Path,
    ask: Callable[[], None] = lambda: None,
    make: Callable[[OnAnswer], Sink] | None = None,
    restart: Callable[[Mapping[str, Any]], None] = lambda order: None,
    stop: Callable[[str], None] = lambda way: None,
    *,
    begun: bool = True,
) -> OrderServer:
    server = OrderServer(folder, stop, gather=ask, make_sink=make or Answering, restart=restart)
    if begun:
        server.start()
    return server


FOUND: Gathered = {"groups": [], "hosts": {}, "late": [], "collective": None}


class Answering(Sink):
    """Answers, with how many of them there were, once it hears an event."""

    made = 0

    def __init__(self, answer: OnAnswer) -> None:
        Answering.made += 1
        self._answer = answer
        self._number = 0

    def event(self, entry: Entry) -> None:
        self._number += 1
        lines = [f"asked {self._number}, made {Answering.made}"]
        self._answer(self._number, lines, FOUND)


def test_one_caller_after_the_other_is_told_where_the_ranks_are(folder: Path) -> None:
    Answering.made = 0
    asked = threading.Semaphore(0)
    server = order_server(folder, asked.release)

    def call(pieces: list[bytes]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(60)
            link.connect("control")
            for piece in pieces:
                link.sendall(piece)
            assert asked.acquire(timeout=60)
            server.event(Entry(2, 0.0, Event()))
            data = link.recv(1 << 16)
            assert link.recv(1) == b""  # one answer, and the line is free
            ((fields, _),) = Frames().feed(data)
            return fields

    whole = b'{"order": "stacks"}\n'
    assert call([whole]) == {
        "type": "stacks", "number": 1, "lines": ["asked 1, made 1"], "found": FOUND,
    }  # fmt: skip
    server.event(Entry(3, 0.0, Event()))  # an answer that nobody waits for any more
    assert call([whole[:7], whole[7:]])["number"] == 3
    server.finish(0)
    assert not server._thread.is_alive()


@pytest.mark.parametrize(
    "said", [b"", b"noise\n", b"x" * (LONGEST_ORDER + 1), b'{"order": "attach"}\n']
)
def test_who_wants_anything_else_is_hung_up_on(folder: Path, said: bytes) -> None:
    asked: list[None] = []
    server = order_server(folder, lambda: asked.append(None))
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(60)
        link.connect("control")
        try:
            link.sendall(said)
            link.shutdown(socket.SHUT_WR)
            assert link.recv(1) == b""
        except (BrokenPipeError, ConnectionResetError):
            pass  # before it had said all
    server.finish(0)
    assert asked == []
    assert not server._thread.is_alive()


def test_a_run_that_ends_before_it_begins_has_nobody_to_ask(folder: Path) -> None:
    server = order_server(folder, begun=False)
    assert (folder / "control").exists()
    server.finish(0)
    assert not (folder / "control").exists()


def test_a_record_that_cannot_be_changed_any_more_is_no_failure(folder: Path) -> None:
    server = order_server(folder)
    folder.rename(folder.with_name("moved"))
    folder.touch()
    server.finish(0)
    assert not server._thread.is_alive()


def test_who_waits_for_an_answer_is_told_that_the_run_has_ended(folder: Path) -> None:
    asked = threading.Event()
    server = order_server(folder, asked.set, lambda told: Sink())
    with JobConnection(registry.find(None)) as stranger, JobConnection(registry.find(None)) as call:
        stranger.order("attach")
        assert list(stranger.frames())[-1:] in ([], [({}, b"")])  # hung up on
        call.order("stacks")
        assert asked.wait(60)
        server.finish(3)
        (told,) = (fields for fields, _ in call.frames() if fields)
    assert (told["type"], told["exit_code"]) == ("verdict", 3)
    assert not (folder / "control").exists()


def _refuse(order: Mapping[str, Any]) -> None:
    raise CannotRestart("no such script", hint="look")


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([ev.RestartRefused("over")], {"type": "refused", "why": "over", "hint": None}),
        ([ev.RanksPlaced(4, "n1", 1), ev.RestartWanted(), ev.RanksPlaced(8, "n1", 1, 2)],
         {"type": "restarted", "world_size": 8, "restart": 2}),
        (
            [ev.RestartWanted(), ev.RestartWanted(), ev.RestartRefused("already"),
             ev.RanksPlaced(8, "n1", 1, 2)],
            {"type": "restarted", "world_size": 8, "restart": 2},  # another's order was refused
        ),
        ([], {"type": "refused", "why": "no such script", "hint": "look"}),
    ],
)  # fmt: skip
def test_who_has_the_ranks_started_again_is_told_when_they_are(
    folder: Path, events: list[Event], told: dict[str, Any]
) -> None:
    orders: list[Mapping[str, Any]] = []
    server = order_server(folder, restart=orders.append if events else _refuse)
    with JobConnection(registry.find(None)) as call:
        call.order("restart", words=["a.py"], exports=[["LR", "3"]])
        wait_for(lambda: bool(orders) or not events)
        if len(events) == 1:
            server.event(Entry(2, 0.0, ev.RestartWanted()))
        for event in events:
            server.event(Entry(2, 0.0, event))
        assert [fields for fields, _ in call.frames() if fields] == [told]
    if events:
        assert restart_of(orders[0]) == (("a.py",), (("LR", "3"),))
    server.finish(0)


def test_a_run_is_stopped_by_others_who_do_not_wait_for_each_other(folder: Path) -> None:
    stopped: list[str] = []
    server = order_server(folder, stop=stopped.append)
    with JobConnection(registry.find(None)) as first, JobConnection(registry.find(None)) as second:
        first.order("stop", signal=10)
        wait_for(lambda: stopped == ["10"])
        second.order("stop", now=True)
        wait_for(lambda: stopped == ["10", "kill"])
        first.__exit__()  # by Ctrl-C
        wait_for(lambda: len(server._clients) == 1)
        server.finish(130)
        (told,) = (fields for fields, _ in second.frames() if fields)
    assert (told["type"], told["exit_code"]) == ("verdict", 130)
    assert server._clients == []


@cases("order", [{"words": "a.py"}, {"words": [3]}, {"exports": [["A"]]}, {"exports": [["A", 3]]}])
def test_what_is_no_order_to_start_again(order: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        restart_of(order)
