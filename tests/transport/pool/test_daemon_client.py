"""One client of the daemon: its commands over links that the test plays; no host, no daemon."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rig import wait_for

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.mux import Decoder, Malformed, frame
from dispatcher.transport.base import Link, LinkClosed, Window
from dispatcher.transport.pool import daemon_client
from dispatcher.transport.pool.daemon_client import Channel, Client
from dispatcher.transport.pool.daemon_socket import (
    ACCEPTED,
    DROP,
    FAILED,
    LARGEST,
    LET_END,
    LIST,
    NOT_POOLED,
    OPENING,
    RESIZE,
    fields,
    json_frame,
)

ORDER = {"opening": "go\n"}


class Far(Link):
    """A command; the test says what it writes and how it ends."""

    address = "10.0.0.7"

    def __init__(self) -> None:
        self.output, self.errors = bytearray(), bytearray()
        self.output_over = self.errors_over = False
        self.status: Ending | None = None
        self.lost: Failure | None = None
        self.heard: list[bytes] = []
        self.closed = 0
        self.resized: list[Window] = []
        self.waited, self.over = threading.Event(), threading.Event()
        self.taking = threading.Event()
        self.taking.set()
        self._ready: Callable[[], None] = lambda: None

    def ring(self) -> None:
        self._ready()

    def watch(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        ready()

    def read(self, limit: int) -> bytes | None:
        data = bytes(self.output[:limit])
        del self.output[:limit]
        return data or (b"" if self.output_over else None)

    def read_errors(self, limit: int) -> bytes:
        data = bytes(self.errors[:limit])
        del self.errors[:limit]
        return data

    def errors_ended(self) -> bool:
        return self.errors_over and not self.errors

    def gone(self) -> bool:
        return self.status is not None

    def ending(self, timeout: float) -> Ending:
        self.waited.set()
        self.over.wait(max(0.0, timeout))
        return self.status or Ending(None)

    def failure(self, timeout: float) -> Failure | None:
        return self.lost

    def write(self, data: bytes) -> None:
        self.taking.wait(60)
        if self.closed:
            raise LinkClosed
        self.heard.append(data)

    def end_input(self) -> None:
        self.heard.append(b"<end>")

    def resize(self, window: Window) -> None:
        self.resized.append(window)

    def close(self) -> None:
        self.closed += 1

    def ends(self, status: int = 0, *, complete: bool = True) -> None:
        self.status = Ending(status)
        self.over.set()
        self.output_over = self.errors_over = complete


def read(frames: list[bytes]) -> list[tuple[int, bytes]]:
    """(kind, body) of frames of channel 3."""
    found = Decoder(LARGEST).feed(b"".join(frames))
    assert all(number == 3 for number, _, _ in found)
    return [(kind, body) for _, kind, body in found]


class TestChannel:
    @pytest.fixture
    def far(self) -> Far:
        return Far()

    @pytest.fixture
    def put(self) -> list[bytes | int]:
        return []

    @pytest.fixture
    def channel(self, far: Far, put: list[bytes | int]) -> Channel:
        return Channel(3, far, put.append)

    def test_all_that_is_said_and_then_the_end_once(self, channel: Channel, far: Far) -> None:
        far.output += b"out"
        far.errors += b"err"
        assert read(channel.output_frames()) == [(mux.ERRORS, b"err"), (mux.OUTPUT, b"out")]
        assert channel.output_frames() == []
        far.ends(5)
        (*ends, (kind, body)) = read(channel.output_frames())
        assert ends == [(mux.OUTPUT_END, b""), (mux.ERRORS_END, b"")]
        assert (kind, fields(body)) == (mux.ENDED, {"code": 5, "signal": None, "silence": None})
        assert (channel.over, far.closed, channel.look_at) == (True, 1, None)
        assert channel.output_frames() == []

    def test_a_silent_host_is_told_with_the_end(self, channel: Channel, far: Far) -> None:
        far.ends()
        far.lost = Failure(Kind.TIMEOUT, "no answer")
        assert fields(read(channel.output_frames())[-1][1])["silence"] == "no answer"

    def test_no_more_is_said_than_there_is_credit_for(
        self, channel: Channel, far: Far, put: list[bytes | int]
    ) -> None:
        for buffer, kind, window, more in (
            (far.output, mux.OUTPUT, mux.OUTPUT_WINDOW, mux.MORE_OUTPUT),
            (far.errors, mux.ERRORS, mux.ERRORS_WINDOW, mux.MORE_ERRORS),
        ):
            buffer += bytes(window + 9)
            sizes = 0
            while frames := read(channel.output_frames()):
                assert {one for one, _ in frames} == {kind}
                sizes += sum(len(body) for _, body in frames)
            assert sizes == window
            put.clear()
            channel.obey(more, mux.COUNT.pack(5))
            assert put == [3]  # our turn again
            assert read(channel.output_frames()) == [(kind, bytes(5))]

    def test_input_that_a_host_does_not_take_holds_up_nobody(
        self, channel: Channel, far: Far, put: list[bytes | int]
    ) -> None:
        far.taking.clear()
        channel.obey(mux.INPUT, b"a" * (OPENING + 1))
        rest = mux.INPUT_WINDOW - OPENING - 1
        channel.obey(mux.INPUT, b"b" * rest)
        channel.obey(mux.INPUT_END, b"")
        assert far.heard == []
        with pytest.raises(Malformed):  # there is no credit for more
            channel.obey(mux.INPUT, b"c")
        far.taking.set()
        wait_for(lambda: far.heard[-1:] == [b"<end>"], 30, lambda: far.heard)
        assert far.heard == [b"a" * (OPENING + 1), b"b" * rest, b"<end>"]
        grants = [Decoder(LARGEST).feed(one)[0] for one in put if isinstance(one, bytes)]
        assert {(number, kind) for number, kind, _ in grants} == {(3, mux.MORE_INPUT)}
        assert sum(mux.COUNT.unpack(body)[0] for _, _, body in grants) == mux.INPUT_WINDOW
        channel.leave()
        assert far.closed == 1

    def test_a_window_that_changes(self, channel: Channel, far: Far) -> None:
        channel.obey(RESIZE, b'{"columns": 80, "rows": 25}')
        assert far.resized == [Window(columns=80, rows=25)]


class House:
    """The daemon's side of hosts: what is at hand, and what opening one gives."""

    def __init__(self) -> None:
        self.near: list[Link] = []
        self.opens: list[Link | Failure | None] = []
        self.may_open = threading.Event()
        self.may_open.set()
        self.dropped: list[Any] = []

    def at_hand(self, order: dict[str, Any], ask: Any = None) -> Link | None:
        return self.near.pop(0) if self.near else None

    def open(self, order: dict[str, Any], ask: Any = None) -> Link | Failure | None:
        self.may_open.wait(60)
        return self.opens.pop(0)

    def listed(self) -> dict[str, Any]:
        return {"hosts": ["n1"]}

    def drop(self, names: set[str] | None) -> None:
        self.dropped.append(names)


class TestClient:
    @pytest.fixture
    def house(self) -> House:
        return House()

    @pytest.fixture
    def link(self, house: House) -> Iterator[socket.socket]:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        serving = threading.Thread(target=Client(theirs, house).serve, daemon=True)
        serving.start()
        with ours:
            yield ours
        serving.join(60)
        assert not serving.is_alive()

    def say(self, link: socket.socket, *frames: bytes) -> None:
        link.sendall(b"".join(frames))

    def heard(self, link: socket.socket, count: int) -> list[tuple[int, int, bytes]]:
        frames, found = Decoder(LARGEST), list[tuple[int, int, bytes]]()
        while len(found) < count:
            data = link.recv(1 << 16)
            assert data, found
            found += frames.feed(data)
        return found

    def test_a_command_at_hand(self, house: House, link: socket.socket) -> None:
        far = Far()
        house.near.append(far)
        self.say(link, json_frame(mux.OPEN, 3, **ORDER))
        ((number, kind, body),) = self.heard(link, 1)
        assert (number, kind, fields(body)) == (3, ACCEPTED, {"address": "10.0.0.7"})
        assert far.heard == [b"go\n"]
        far.output += b"hello"
        far.ring()
        assert self.heard(link, 1) == [(3, mux.OUTPUT, b"hello")]
        far.ends()
        far.ring()
        kinds = [kind for _, kind, _ in self.heard(link, 3)]
        assert kinds == [mux.OUTPUT_END, mux.ERRORS_END, mux.ENDED]
        assert far.closed == 1

    def test_what_comes_with_an_order_is_bounded(self, house: House, link: socket.socket) -> None:
        far = Far()
        house.near.append(far)
        self.say(link, json_frame(mux.OPEN, 3, opening="x" * (OPENING + 5)))
        self.heard(link, 1)
        assert far.heard == [b"x" * OPENING]

    @pytest.mark.parametrize(
        ("opened", "kind", "said"),
        [
            (Failure(Kind.TIMEOUT, "late", "wait", retryable=True), FAILED,
             {"kind": "timeout", "why": "late", "hint": "wait", "retryable": True}),
            (None, NOT_POOLED, {}),
        ],
    )  # fmt: skip
    def test_one_that_cannot_be_opened(
        self, house: House, link: socket.socket, opened: Failure | None, kind: int,
        said: dict[str, Any],
    ) -> None:  # fmt: skip
        house.opens.append(opened)
        self.say(link, json_frame(mux.OPEN, 3, **ORDER))
        ((number, answer, body),) = self.heard(link, 1)
        assert (number, answer) == (3, kind)
        assert fields(body) == said

    def test_opening_holds_up_nobody(self, house: House, link: socket.socket) -> None:
        house.may_open.clear()
        far = Far()
        house.opens.append(far)
        self.say(link, json_frame(mux.OPEN, 3, **ORDER), json_frame(LIST))
        ((number, kind, body),) = self.heard(link, 1)
        assert (number, kind, fields(body)) == (0, LIST, {"hosts": ["n1"]})
        house.may_open.set()
        assert [kind for _, kind, _ in self.heard(link, 1)] == [ACCEPTED]

    def test_one_that_is_called_off_meanwhile_is_closed(
        self, house: House, link: socket.socket
    ) -> None:
        house.may_open.clear()
        far = Far()
        house.opens.append(far)
        self.say(link, json_frame(mux.OPEN, 3, **ORDER), frame(3, mux.CLOSE), json_frame(LIST))
        assert [kind for _, kind, _ in self.heard(link, 1)] == [LIST]
        house.may_open.set()
        wait_for(lambda: far.closed, 30, "the command's link is closed")
        self.say(link, frame(3, mux.INPUT, b"late"), json_frame(LIST))
        assert [kind for _, kind, _ in self.heard(link, 1)] == [LIST]
        assert far.heard == []
        link.shutdown(socket.SHUT_RDWR)
        assert link.recv(1) == b""
        assert far.closed == 1  # once, and nobody has it any more

    def test_one_that_is_opened_when_the_client_has_gone_is_closed(self, house: House) -> None:
        ours, theirs = socket.socketpair()
        house.may_open.clear()
        far = Far()
        house.opens.append(far)
        serving = threading.Thread(target=Client(theirs, house).serve, daemon=True)
        serving.start()
        with ours:
            self.say(ours, json_frame(mux.OPEN, 3, **ORDER), json_frame(LIST))
            self.heard(ours, 1)
        serving.join(60)
        assert not serving.is_alive()
        assert theirs.fileno() == -1
        house.may_open.set()
        wait_for(lambda: far.closed, 30, "the command's link is closed")
        assert far.heard == []

    @pytest.mark.parametrize(
        ("said", "names"),
        [({}, None), ({"hosts": ["n1", "n2"]}, {"n1", "n2"}), ({"hosts": []}, set())],
    )
    def test_connections_are_dropped(
        self, house: House, link: socket.socket, said: dict[str, Any], names: set[str] | None
    ) -> None:
        self.say(link, json_frame(DROP, **said))
        assert [kind for _, kind, _ in self.heard(link, 1)] == [LIST]
        assert house.dropped == [names]

    def test_its_commands_end_when_it_hangs_up(self, house: House, link: socket.socket) -> None:
        far = Far()
        house.near.append(far)
        self.say(link, json_frame(mux.OPEN, 3, **ORDER))
        self.heard(link, 1)
        link.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: far.closed, 30, "the command's link is closed")

    @pytest.mark.parametrize("hangs", [False, True])
    def test_a_command_that_ends_by_itself_is_waited_for(
        self, house: House, link: socket.socket, hangs: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(daemon_client, "LAST_END", 0.2 if hangs else 60.0)
        far = Far()
        house.near.append(far)
        self.say(link, json_frame(mux.OPEN, 3, **ORDER))
        self.heard(link, 1)
        self.say(link, frame(3, LET_END))
        link.shutdown(socket.SHUT_RDWR)
        assert far.waited.wait(60)
        if not hangs:  # there it may be over at any moment
            assert not far.closed
            far.ends()
        wait_for(lambda: far.closed, 30, "the command's link is closed")

    def test_an_end_is_told_though_something_holds_the_output_open(
        self, house: House, link: socket.socket
    ) -> None:
        """Nothing rings then; and other commands go on meanwhile."""
        held, other = Far(), Far()
        house.near += [held, other]
        self.say(link, json_frame(mux.OPEN, 3, **ORDER), json_frame(mux.OPEN, 4, **ORDER))
        self.heard(link, 2)
        held.ends(7, complete=False)
        held.ring()
        other.output += b"x"
        other.ring()
        (said,) = (one for one in self.heard(link, 2) if one[1] == mux.ENDED)
        assert (said[0], fields(said[2])["code"]) == (3, 7)
        assert held.closed == 0
        held.output += b"late"
        held.output_over = held.errors_over = True
        held.ring()
        late = self.heard(link, 3)
        assert late == [
            (3, mux.OUTPUT, b"late"),
            (3, mux.OUTPUT_END, b""),
            (3, mux.ERRORS_END, b""),
        ]
        wait_for(lambda: held.closed, 30, "its connection is free again")
        other.ends()
        other.ring()
        assert {one[0] for one in self.heard(link, 3)} == {4}

    def test_a_client_that_does_not_read_is_done_with_when_it_leaves(self, house: House) -> None:
        ours, theirs = socket.socketpair()
        far = Far()
        house.near.append(far)
        serving = threading.Thread(target=Client(theirs, house).serve, daemon=True)
        serving.start()
        with ours:
            self.say(ours, json_frame(mux.OPEN, 3, **ORDER))
            self.heard(ours, 1)
            far.output += bytes(mux.OUTPUT_WINDOW)
            far.ring()
            wait_for(lambda: len(far.output) < mux.OUTPUT_WINDOW, 30, "it is being written")
            ours.shutdown(socket.SHUT_WR)
            serving.join(60)
            assert not serving.is_alive()
        assert far.closed == 1

    def test_one_that_speaks_something_else_is_hung_up_on(self, link: socket.socket) -> None:
        self.say(link, b"GET / HTTP/1.1\r\n\r\n" * 10)
        assert link.recv(100) == b""
