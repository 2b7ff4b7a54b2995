"""The launcher's side of a job's socket: who looks on is told all, or exactly what was left out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import wait_for

from dispatcher.core.events.run_events import Entry, Event, OutputEnded, RanksPlaced
from dispatcher.jobs import control_server, status
from dispatcher.jobs.control_server import MOST_NOTES, ControlServer
from dispatcher.jobs.job_socket import LONGEST_ORDER, MOST_CLIENTS, Frames
from dispatcher.model.formats import Gathered

Heard = list[tuple[dict[str, Any], bytes]]


class Viewer:
    """A client at the socket in ``folder``."""

    def __init__(self, folder: Path, *orders: bytes) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(60)
        self.link.connect(str(folder / "control"))
        self.heard: Heard = []
        self._frames = Frames()
        for order in orders:
            self.link.sendall(order + b"\n")

    def until(self, type: str) -> dict[str, Any]:
        """The fields of the next frame of this type. Raises: AssertionError at the end."""
        while True:
            for at, (fields, _) in enumerate(self.heard):
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


Made = Callable[..., ControlServer]


@pytest.fixture
def serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ControlServer]]:
    monkeypatch.chdir(tmp_path)
    made: list[ControlServer] = []

    def make(**how: Any) -> ControlServer:
        made.append(ControlServer(tmp_path, how.pop("stop", lambda way: None), **how))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.finish(0, [])


def entry(event: Event) -> Entry:
    return Entry(1, 0.5, event)


ATTACH = b'{"order": "attach", "rests": true}'


def test_a_viewer_hears_what_went_before_and_all_that_comes(serving: Made, tmp_path: Path) -> None:
    server = serving(heads=True)
    server.event(entry(RanksPlaced(2, "", 0, 1)))
    server.output(0, 1, b"begun")
    server.say("note: one")
    viewer = Viewer(tmp_path, ATTACH)
    hello = viewer.until("hello")
    assert (hello["world_size"], hello["passed"], hello["rests"]) == (2, [[0, 1, 5]], 1)
    assert viewer.until("rest") == {"type": "rest", "rank": 0, "stream": 1, "size": 5}
    assert viewer.until("say")["line"] == "note: one"
    server.output(1, 2, b"more")
    assert viewer.until("output") == {"type": "output", "rank": 1, "stream": 2, "size": 4}
    server.event(entry(OutputEnded(0, 1, 2, 4, 4)))
    assert viewer.until("ended") == {"type": "ended", "rank": 1, "stream": 2}
    server.event(entry(RanksPlaced(3, "", 0, 2)))
    assert viewer.until("placed") == {"type": "placed", "world_size": 3, "restart": 2}
    server.say("note: two")
    assert viewer.until("say")["line"] == "note: two"
    server.finish(7, ["error: it failed"])
    verdict = viewer.until("verdict")
    assert (verdict["exit_code"], verdict["lines"]) == (7, ["error: it failed"])
    assert viewer.is_hung_up()
    assert not (tmp_path / "control").exists()


def test_a_record_that_cannot_be_changed_any_more_is_no_failure(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    server = ControlServer(folder, lambda way: None)
    folder.rename(tmp_path / "moved")
    folder.touch()
    server.finish(0, [])


@pytest.mark.parametrize(
    ("order", "rests"),
    [(b'{"order": "attach", "output": false}', 0), (b'{"order": "stop", "rests": true}', 1)],
)
def test_who_wants_no_output_is_told_the_rest(
    serving: Made, tmp_path: Path, order: bytes, rests: int
) -> None:
    server = serving(heads=True)
    server.output(0, 1, b"begun")
    server.say("note: old")
    viewer = Viewer(tmp_path, order)
    assert viewer.until("hello")["rests"] == rests
    server.output(0, 1, b"more")
    server.say("note: new")
    assert viewer.until("say")["line"] == "note: new"
    assert viewer.heard == []


def test_newcomers_are_told_the_last_notes(serving: Made, tmp_path: Path) -> None:
    server = serving()
    for number in range(MOST_NOTES + 3):
        server.say(f"note: {number}")
    viewer = Viewer(tmp_path, ATTACH)
    viewer.until("hello")
    assert viewer.until("say")["line"] == "note: 3"


def test_pictures_and_tables_are_for_who_wants_them(
    serving: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "PICTURE", 0.01)
    sampled: list[float] = []
    serving(picture=lambda: {"p": 1}, table=lambda: {"t": 2}, sample=sampled.append)
    plain = Viewer(tmp_path, ATTACH)
    plain.until("hello")
    viewer = Viewer(tmp_path, b'{"order": "attach", "picture": true, "table": 1.5}')
    for _ in range(2):
        assert viewer.until("picture")["picture"] == {"p": 1}
        assert viewer.until("table")["table"] == {"t": 2}
    assert sampled == [1.5]
    plain.link.settimeout(0.1)
    with pytest.raises(TimeoutError):
        plain.until("picture")
    assert plain.heard == []


FOUND: Gathered = {"groups": [], "hosts": {}, "late": ["n1"], "collective": None}


def test_stacks_are_for_who_asked(serving: Made, tmp_path: Path) -> None:
    asked: list[None] = []
    server = serving(gather=lambda: asked.append(None))
    other, viewer = Viewer(tmp_path, ATTACH), Viewer(tmp_path, b'{"order": "stacks"}')
    for one in (other, viewer):
        one.until("hello")
    wait_for(lambda: asked, 30, "the stacks are asked for")
    server.stacks(3, ["rank 0: here"], FOUND)
    assert viewer.until("stacks") == {
        "type": "stacks", "number": 3, "lines": ["rank 0: here"], "found": FOUND,
    }  # fmt: skip
    server.say("note: x")
    assert other.until("say")["line"] == "note: x"
    assert other.heard == []


@pytest.mark.parametrize(
    ("order", "way"), [(b'{"order": "stop"}', "stop"), (b'{"order": "stop", "now": true}', "kill")]
)
def test_a_job_can_be_ended(serving: Made, tmp_path: Path, order: bytes, way: str) -> None:
    ways: list[str] = []
    server = serving(stop=ways.append)
    viewer = Viewer(tmp_path, order)
    viewer.until("hello")
    server.finish(130, [])
    assert viewer.until("verdict")["exit_code"] == 130
    assert ways == [way]


def test_output_alone_is_passed_on(serving: Made, tmp_path: Path) -> None:
    """Again and again, since whoever passes it on may just be awake for something else."""
    server = serving()
    viewer = Viewer(tmp_path, ATTACH)
    viewer.until("hello")
    for number in range(50):
        server.output(number, 1, b"x")
        assert viewer.until("output")["rank"] == number


@pytest.mark.parametrize(
    "noise", [b"noise\n", b"\n", b'{"order": "kill"}\n', b"x" * (LONGEST_ORDER + 1)]
)
def test_who_speaks_something_else_is_hung_up_on(
    serving: Made, tmp_path: Path, noise: bytes
) -> None:
    server = serving()
    odd, good = Viewer(tmp_path), Viewer(tmp_path, ATTACH)
    good.until("hello")
    odd.link.sendall(noise)
    assert odd.is_hung_up()
    server.say("note: still here")
    assert good.until("say")["line"] == "note: still here"


def test_so_many_may_look_on(serving: Made, tmp_path: Path) -> None:
    serving()
    viewers = []
    for _ in range(MOST_CLIENTS):
        viewers.append(Viewer(tmp_path, ATTACH))
        viewers[-1].until("hello")
    more = Viewer(tmp_path, ATTACH)
    assert more.until("refused")["why"] == f"{MOST_CLIENTS} others are attached to it"
    assert more.is_hung_up()
    viewers.pop()
    end = time.monotonic() + 60
    while True:  # its place is free as soon as its end was seen
        try:
            Viewer(tmp_path, ATTACH).until("hello")
            break
        except (AssertionError, OSError):
            assert time.monotonic() < end


def test_who_stops_the_job_has_room_beside_those_who_look_on(serving: Made, tmp_path: Path) -> None:
    ways: list[str] = []
    serving(stop=ways.append)
    viewers = [Viewer(tmp_path, ATTACH) for _ in range(MOST_CLIENTS)]
    for viewer in viewers:
        viewer.until("hello")
    more = [Viewer(tmp_path, b'{"order": "stop"}') for _ in range(MOST_CLIENTS)]
    for one in more:
        one.until("hello")
    assert ways == ["stop"] * MOST_CLIENTS
    assert Viewer(tmp_path, ATTACH).is_hung_up()


def test_an_order_may_come_in_pieces_and_more_than_one(serving: Made, tmp_path: Path) -> None:
    ways: list[str] = []
    server = serving(stop=ways.append)
    viewer = Viewer(tmp_path)
    for piece in (ATTACH[:9], ATTACH[9:] + b"\n" + b'{"order": "stop"', b"}\n" + ATTACH + b"\n"):
        viewer.link.sendall(piece)
        time.sleep(0.02)  # so that it comes alone, which the test does not need
    wait_for(lambda: ways, 30, "the second order is heard")
    server.say("note: x")
    assert viewer.until("hello")
    assert viewer.until("say")["line"] == "note: x"  # it is greeted once
    assert (ways, viewer.heard) == (["stop"], [])


def test_who_has_not_said_what_it_wants_is_told_nothing(serving: Made, tmp_path: Path) -> None:
    server = serving(picture=lambda: {"p": 1})
    silent, viewer = Viewer(tmp_path), Viewer(tmp_path, ATTACH)
    viewer.until("hello")
    server.say("note: x")
    server.output(0, 1, b"words")
    server.event(entry(RanksPlaced(1, "", 0)))
    viewer.until("placed")
    server.finish(0, [])
    viewer.until("verdict")
    assert silent.link.recv(1 << 16) == b""


@pytest.mark.parametrize(
    "wish", [b'"picture": 1', b'"picture": "yes"', b'"table": true', b'"rests": 1']
)
def test_what_is_not_plainly_wanted_is_not_given(
    serving: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: bytes
) -> None:
    monkeypatch.setattr(control_server, "PICTURE", 0.01)
    asked: list[str] = []
    server = serving(
        picture=lambda: asked.append("picture"), table=lambda: asked.append("table"), heads=True,
        sample=lambda seconds: asked.append("sample"),
    )  # fmt: skip
    server.output(0, 1, b"begun")
    viewer = Viewer(tmp_path, b'{"order": "attach", ' + wish + b"}")
    assert viewer.until("hello")["rests"] == 0
    for number in range(5):
        server.say(f"note: {number}")
        assert viewer.until("say")["line"] == f"note: {number}"
    assert asked == []


def test_a_viewer_that_stands_still_does_not_hold_up_the_end(
    serving: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "FLUSH", 0.2)
    server = serving()
    stuck, good = Viewer(tmp_path, ATTACH), Viewer(tmp_path, ATTACH)
    for one in (stuck, good):
        one.until("hello")
    for _ in range(60):
        server.output(0, 1, bytes(1 << 16))  # more than a socket holds
    server.finish(4, [])
    server._thread.join(60)
    assert not server._thread.is_alive()
    assert not (tmp_path / "control").exists()


def test_the_rest_is_read_before_the_line_is_closed(
    serving: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "FLUSH", 60.0)
    server = serving()
    viewer = Viewer(tmp_path, ATTACH)
    viewer.until("hello")
    for number in range(40):
        server.output(number, 1, bytes(1 << 16))
    ends = threading.Thread(target=server.finish, args=(4, ["error: x"]))
    ends.start()
    heard = []
    while True:
        heard += [fields for fields, _ in viewer.heard]
        viewer.heard.clear()
        data = viewer.link.recv(1 << 16)
        if not data:
            break
        viewer.heard += viewer._frames.feed(data)
    ends.join()
    assert [f["rank"] for f in heard if f["type"] == "output"] == list(range(40))
    assert heard[-1] == {"type": "verdict", "exit_code": 4, "lines": ["error: x"]}
