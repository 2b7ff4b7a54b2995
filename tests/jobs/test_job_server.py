"""The launcher's end of a job's socket: each client is told what it asked for, none holds it up."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Event
from dispatcher.jobs import job_server
from dispatcher.jobs.job_server import MOST_NOTES, MOST_WAITING, JobServer
from dispatcher.jobs.job_socket import (
    LONGEST_ORDER,
    MOST_CLIENTS,
    Frames,
    Malformed,
    restart_of,
)
from dispatcher.model.errors import CannotRestart
from dispatcher.model.formats import Gathered


class Run:
    """What is asked and ordered of a run."""

    def __init__(self) -> None:
        self.ways: list[str] = []
        self.sampled: list[float] = []
        self.restarts: list[Mapping[str, Any]] = []
        self.asked: list[str] = []
        self.shown: dict[str, Any] = {"p": 1}

    def picture(self) -> Mapping[str, Any]:
        self.asked.append("picture")
        return self.shown

    def progress(self) -> Mapping[str, Any]:
        return {"reached": "step 3/9", "left": 2.5}

    def table(self) -> Mapping[str, Any]:
        self.asked.append("table")
        return {"t": 2}

    def sample(self, seconds: float) -> None:
        self.sampled.append(seconds)

    def gather(self) -> None:
        self.asked.append("stacks")

    def stop(self, way: str) -> None:
        self.ways.append(way)

    def restart(self, order: Mapping[str, Any]) -> None:
        if order.get("words") == ["none.py"]:
            raise CannotRestart("no such script", hint="look")
        self.restarts.append(order)


class Viewer:
    """A client at the socket in ``folder``."""

    def __init__(self, folder: Path, *orders: bytes) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(60)
        self.link.connect(str(folder / "control"))
        self.heard: list[dict[str, Any]] = []
        self._frames = Frames()
        for order in orders:
            with contextlib.suppress(BrokenPipeError):  # hung up on already
                self.link.sendall(order + b"\n")

    def until(self, type: str) -> dict[str, Any]:
        """The fields of the next frame of this type. Raises: AssertionError at the end."""
        while True:
            for at, fields in enumerate(self.heard):
                if fields["type"] == type:
                    del self.heard[: at + 1]
                    return fields
            data = self.link.recv(1 << 16)
            assert data, f"hung up; no {type}"
            self.heard += self._frames.feed(data)

    def is_hung_up(self) -> bool:
        try:
            while self.link.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def __del__(self) -> None:
        self.link.close()


Made = Callable[..., JobServer]


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Iterator[JobServer]:
    monkeypatch.chdir(tmp_path)
    made = JobServer(tmp_path, run)
    made.start()
    yield made
    made.finish(0, [])


def entry(event: Event) -> Entry:
    return Entry(1, 0.5, event)


ATTACH = b'{"order": "attach", "notes": true}'


def greeted(server: JobServer, folder: Path, order: bytes = ATTACH) -> Viewer:
    """A client whose ``order`` has been heard."""
    before = len(server._clients)
    viewer = Viewer(folder, order)

    def heard() -> bool:
        return len(server._clients) > before and all(one.has_ordered for one in server._clients)

    wait_for(heard, 30, "the order is heard")
    return viewer


def test_a_viewer_hears_what_went_before_and_all_that_comes(
    server: JobServer, tmp_path: Path
) -> None:
    server.say("note: one")
    viewer = Viewer(tmp_path, ATTACH)
    assert viewer.until("say")["line"] == "note: one"
    server.say("note: two")
    assert viewer.until("say")["line"] == "note: two"
    server.finish(7, ["error: it failed"])
    verdict = viewer.until("verdict")
    assert (verdict["exit_code"], verdict["lines"]) == (7, ["error: it failed"])
    assert viewer.is_hung_up()
    assert not (tmp_path / "control").exists()


def test_the_progress_is_told_once_and_costs_no_picture(
    server: JobServer, tmp_path: Path, run: Run
) -> None:
    viewer = Viewer(tmp_path, b'{"order": "progress"}')
    assert viewer.until("progress") == {"type": "progress", "reached": "step 3/9", "left": 2.5}
    assert run.asked == []


def test_a_run_that_ends_before_it_begins_has_nobody_to_ask(tmp_path: Path, run: Run) -> None:
    server = JobServer(tmp_path, run)
    assert (tmp_path / "control").exists()
    server.finish(0)
    assert not (tmp_path / "control").exists()


def test_a_record_that_cannot_be_changed_any_more_is_no_failure(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    server = JobServer(folder, run)
    folder.rename(tmp_path / "moved")
    folder.touch()
    server.finish(0, [])


@pytest.mark.parametrize("order", [b'{"order": "attach"}', b'{"order": "stop", "notes": true}'])
def test_old_notes_are_for_who_wants_them(server: JobServer, tmp_path: Path, order: bytes) -> None:
    server.say("note: old")
    viewer = greeted(server, tmp_path, order)
    server.say("note: new")
    assert viewer.until("say")["line"] == "note: new"
    assert viewer.heard == []


def test_newcomers_are_told_the_last_notes(server: JobServer, tmp_path: Path) -> None:
    for number in range(MOST_NOTES + 3):
        server.say(f"note: {number}")
    assert Viewer(tmp_path, ATTACH).until("say")["line"] == "note: 3"


def test_pictures_and_tables_are_for_who_wants_them(
    server: JobServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_server, "PICTURE", 0.01)
    plain = greeted(server, tmp_path)
    viewer = Viewer(tmp_path, b'{"order": "attach", "picture": true, "table": 1.5}')
    for _ in range(2):
        assert viewer.until("picture")["picture"] == {"p": 1}
        assert viewer.until("table")["table"] == {"t": 2}
    assert run.sampled == [1.5]
    plain.link.settimeout(0.1)
    with pytest.raises(TimeoutError):
        plain.until("picture")
    assert plain.heard == []


@pytest.mark.parametrize("wish", [b'"picture": 1', b'"picture": "yes"', b'"table": true'])
def test_what_is_not_plainly_wanted_is_not_given(
    server: JobServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: bytes
) -> None:
    monkeypatch.setattr(job_server, "PICTURE", 0.01)
    viewer = greeted(server, tmp_path, b'{"order": "attach", ' + wish + b"}")
    for number in range(5):
        server.say(f"note: {number}")
        assert viewer.until("say")["line"] == f"note: {number}"
    assert (run.asked, run.sampled) == ([], [])


FOUND: Gathered = {"groups": [], "hosts": {}, "late": ["n1"], "collective": None}


def test_stacks_are_for_who_asked(server: JobServer, run: Run, tmp_path: Path) -> None:
    other, viewer = greeted(server, tmp_path), Viewer(tmp_path, b'{"order": "stacks"}')
    wait_for(lambda: run.asked == ["stacks"], 30, "the stacks are asked for")
    server.stacks(3, ["rank 0: here"], FOUND)
    assert viewer.until("stacks") == {
        "type": "stacks", "number": 3, "lines": ["rank 0: here"], "found": FOUND,
    }  # fmt: skip
    server.say("note: x")
    assert other.until("say")["line"] == "note: x"
    assert other.heard == []


@pytest.mark.parametrize(
    ("order", "way"),
    [(b'{"order": "stop"}', "stop"), (b'{"order": "stop", "now": true}', "kill"),
     (b'{"order": "stop", "signal": 10}', "10")],
)  # fmt: skip
def test_a_job_can_be_ended(
    server: JobServer, run: Run, tmp_path: Path, order: bytes, way: str
) -> None:
    viewer = greeted(server, tmp_path, order)
    server.finish(130, [])
    assert viewer.until("verdict")["exit_code"] == 130
    assert run.ways == [way]


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
    ],
)  # fmt: skip
def test_who_has_the_ranks_started_again_is_told_when_they_are(
    server: JobServer, run: Run, tmp_path: Path, events: list[Event], told: dict[str, Any]
) -> None:
    order = b'{"order": "restart", "words": ["a.py"], "exports": [["LR", "3"]]}'
    viewer = Viewer(tmp_path, order)
    wait_for(lambda: bool(run.restarts))
    if len(events) == 1:
        server.event(entry(ev.RestartWanted()))
    for event in events:
        server.event(entry(event))
    assert viewer.until(told["type"]) == told
    assert restart_of(run.restarts[0]) == (("a.py",), (("LR", "3"),))


def test_a_restart_that_cannot_be_done_is_refused(server: JobServer, tmp_path: Path) -> None:
    viewer = Viewer(tmp_path, b'{"order": "restart", "words": ["none.py"]}')
    assert viewer.until("refused") == {"type": "refused", "why": "no such script", "hint": "look"}


@cases("order", [{"words": "a.py"}, {"words": [3]}, {"exports": [["A"]]}, {"exports": [["A", 3]]}])
def test_what_is_no_order_to_start_again(order: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        restart_of(order)


@pytest.mark.parametrize(
    "noise", [b"noise\n", b"\n", b'{"order": "kill"}\n', b"x" * (LONGEST_ORDER + 1)]
)
def test_who_speaks_something_else_is_hung_up_on(
    server: JobServer, run: Run, tmp_path: Path, noise: bytes
) -> None:
    good, odd = greeted(server, tmp_path), Viewer(tmp_path)
    odd.link.sendall(noise)
    assert odd.is_hung_up()
    server.say("note: still here")
    assert good.until("say")["line"] == "note: still here"
    assert (run.asked, run.ways, run.restarts) == ([], [], [])


def test_so_many_may_look_on(server: JobServer, tmp_path: Path) -> None:
    server.say("note: x")
    viewers = []
    for _ in range(MOST_CLIENTS):
        viewers.append(Viewer(tmp_path, ATTACH))
        viewers[-1].until("say")
    more = Viewer(tmp_path, ATTACH)
    assert more.until("refused")["why"] == f"{MOST_CLIENTS} others are attached to it"
    assert more.is_hung_up()
    viewers.pop()
    end = time.monotonic() + 60
    while True:  # its place is free as soon as its end was seen
        try:
            Viewer(tmp_path, ATTACH).until("say")
            break
        except (AssertionError, OSError):
            assert time.monotonic() < end


def test_who_stops_the_job_has_room_beside_those_who_look_on(
    server: JobServer, run: Run, tmp_path: Path
) -> None:
    server.say("note: x")
    viewers = [Viewer(tmp_path, ATTACH) for _ in range(MOST_CLIENTS)]
    for viewer in viewers:
        viewer.until("say")
    more = [Viewer(tmp_path, b'{"order": "stop"}') for _ in range(MOST_CLIENTS)]
    wait_for(lambda: run.ways == ["stop"] * len(more), 30, "all are heard")
    assert Viewer(tmp_path, ATTACH).is_hung_up()


def test_an_order_may_come_in_pieces_and_more_than_one(
    server: JobServer, run: Run, tmp_path: Path
) -> None:
    server.say("note: x")
    viewer = Viewer(tmp_path)
    for piece in (ATTACH[:9], ATTACH[9:] + b"\n" + b'{"order": "stop"', b"}\n" + ATTACH + b"\n"):
        viewer.link.sendall(piece)
    wait_for(lambda: run.ways, 30, "the second order is heard")
    server.say("note: y")
    assert viewer.until("say")["line"] == "note: x"  # it is greeted once
    assert viewer.until("say")["line"] == "note: y"
    assert (run.ways, viewer.heard) == (["stop"], [])


def test_who_has_not_said_what_it_wants_is_told_nothing(server: JobServer, tmp_path: Path) -> None:
    viewer = greeted(server, tmp_path)
    silent = Viewer(tmp_path)
    server.say("note: x")
    server.event(entry(ev.RanksPlaced(1, "", 0)))
    viewer.until("say")
    server.finish(0, [])
    viewer.until("verdict")
    assert silent.link.recv(1 << 16) == b""


def test_who_reads_nothing_is_disconnected_and_holds_up_nobody(
    server: JobServer, tmp_path: Path
) -> None:
    stuck = greeted(server, tmp_path)
    good = greeted(server, tmp_path)
    for number in range(2 * MOST_WAITING):
        server.say(f"note: {number} " + "x" * 1000)  # more than a socket holds
        good.until("say")
    wait_for(lambda: len(server._clients) == 1, 30, "it is disconnected")
    assert stuck.is_hung_up()
    server.say("note: last")
    assert good.until("say")["line"] == "note: last"


def test_a_viewer_that_stands_still_does_not_hold_up_the_end(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_server, "FLUSH", 0.2)
    stuck = greeted(server, tmp_path)
    for _ in range(60):
        server.say("x" * (1 << 16))  # more than a socket holds
    server.finish(4, [])
    server._thread.join(60)
    assert not server._thread.is_alive()
    assert not (tmp_path / "control").exists()
    assert stuck.is_hung_up()


def test_the_rest_is_read_before_the_line_is_closed(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_server, "FLUSH", 60.0)
    viewer = greeted(server, tmp_path)
    for number in range(40):
        server.say(f"{number:02} " + "x" * (1 << 16))
    ends = threading.Thread(target=server.finish, args=(4, ["error: x"]))
    ends.start()
    heard = [viewer.until("say")["line"][:2] for _ in range(40)]
    assert heard == [f"{number:02}" for number in range(40)]
    told = {"type": "verdict", "exit_code": 4, "lines": ["error: x"]}
    assert viewer.until("verdict") == told
    ends.join()
    assert viewer.heard == []
    assert viewer.is_hung_up()


def test_who_looks_on_and_reads_nothing_is_shown_little(
    server: JobServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures do not pile up for a viewer that stands still, while others go on seeing them.

    None comes after the verdict, or the end would wait for whoever reads them.
    """
    monkeypatch.setattr(job_server, "FLUSH", 60.0)
    monkeypatch.setattr(job_server, "PICTURE", 0.001)
    run.shown = {"what": "x" * (1 << 20)}  # more than a socket holds
    attach = b'{"order": "attach", "picture": true}\n'
    with socket.socket(socket.AF_UNIX) as stuck, socket.socket(socket.AF_UNIX) as reads:
        for link in (stuck, reads):
            link.connect(str(tmp_path / "control"))
            link.sendall(attach)
            link.settimeout(60)
        frames = Frames()
        seen: list[str] = []
        while seen.count("picture") < 6:
            seen += [fields["type"] for fields in frames.feed(reads.recv(1 << 16))]
        ends = threading.Thread(target=server.finish, args=(0, []))
        ends.start()
        while "verdict" not in seen:  # which both were told at once
            seen += [fields["type"] for fields in frames.feed(reads.recv(1 << 16))]
        frames, late = Frames(), []
        while data := stuck.recv(1 << 16):
            late += [fields["type"] for fields in frames.feed(data)]
        ends.join()
    assert late == ["picture", "verdict"]
