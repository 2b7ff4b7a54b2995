"""What an inner host may say, and what is made of what it must not say."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.tree_relay import Frames, frame
from dispatcher.transport.base import Common, Link, LinkClosed
from dispatcher.transport.tree.branch import Branch
from dispatcher.transport.tree.tree_transport import Detours, told

BODIES = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=300)), max_size=8
)


@given(BODIES, st.data())
def test_any_split_gives_the_same_frames(
    said: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    text = b"".join(frame(*one) for one in said)
    frames, found = Frames(), []
    while text:
        size = data.draw(st.integers(1, len(text)))
        found += frames.feed(text[:size])
        text = text[size:]
    assert found == said


class Far(Link):
    """A link whose far side is the test: ``say`` what it says, look at what was ``written``."""

    address = "10.0.0.9"

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._said = bytearray()
        self._ended = threading.Event()
        self._ready = threading.Event().set

    def say(self, data: bytes) -> None:
        self._said += data
        self._ready()

    def end(self) -> None:
        self._ended.set()
        self._ready()

    def watch(self, ready: object) -> None:
        assert callable(ready)
        self._ready = ready
        ready()

    def read(self, limit: int) -> bytes | None:
        data = bytes(self._said[:limit])
        del self._said[:limit]
        return data or (b"" if self._ended.is_set() else None)

    def read_errors(self, limit: int) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def end_input(self) -> None: ...

    def gone(self) -> bool:
        return self._ended.is_set()

    def errors_ended(self) -> bool:
        return True

    def close(self) -> None:
        self.end()

    def ending(self, timeout: float) -> Ending:
        return Ending(None)


@pytest.fixture
def far() -> Far:
    return Far()


def branch_to(far: Far) -> Branch:
    branch = Branch("n1", b"", lambda: far)
    far.say(b"Welcome!\n" + SYNC)
    assert branch.wait(10) is None
    return branch


def ended(branch: Branch, seconds: float = 10) -> Failure:
    """Why the branch ended, which it does soon."""
    deadline = time.monotonic() + seconds
    while branch.failure is None:
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
    return branch.failure


@pytest.mark.parametrize(
    "said",
    [
        tree_relay.HEADER.pack(1, tree_relay.OUTPUT, tree_relay.LARGEST + 1),
        frame(1, tree_relay.OUTPUT, b"x" * tree_relay.LARGEST) * 17,
        frame(1, tree_relay.ERRORS, b"x" * tree_relay.LARGEST) * 5,
        frame(1, tree_relay.TAKEN, tree_relay.COUNT.pack(1)),
        frame(1, tree_relay.TAKEN, b"x"),
        frame(1, tree_relay.ENDED, b""),
        frame(1, tree_relay.OPEN, b"x"),
        frame(1, 99),
        frame(1, tree_relay.OUTPUT_END) + frame(1, tree_relay.OUTPUT, b"more"),
    ],
)
def test_whoever_breaks_the_rules_is_left(far: Far, said: bytes) -> None:
    branch = branch_to(far)
    stream = branch.stream(["cat"], "n1")
    far.say(said)
    assert ended(branch).kind is Kind.PROTOCOL
    with pytest.raises(LinkClosed):
        stream.write(b"x")
    assert stream.failure(0.0) == branch.failure
    branch.close()


def test_frames_of_streams_that_are_closed_are_nothing(far: Far) -> None:
    branch = branch_to(far)
    branch.stream(["cat"], "n1").close()
    other = branch.stream(["cat"], "n1")
    far.say(
        frame(1, 99) + frame(77, tree_relay.OUTPUT, b"?") + frame(2, tree_relay.OUTPUT, b"hello")
    )
    deadline = time.monotonic() + 10
    while (data := other.read(100)) is None and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert data == b"hello"
    assert branch.failure is None
    branch.close()


def test_what_all_are_told_crosses_once() -> None:
    far = Far()
    branch = Branch("n1", b"", lambda: far, Common(b"agent" * 1000))
    for _ in range(2):
        branch.stream(["cat"], "n1").write(b"agent" * 1000 + b"order")
    last = branch.stream(["cat"], "n1")
    last.write(b"another")
    frames = Frames()
    found: list[tuple[int, int, bytes]] = []
    deadline = time.monotonic() + 10
    while not found or found[-1] != (3, tree_relay.INPUT, b"another"):
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
        while far.written:
            found += frames.feed(far.written.pop(0))
    kept = [one for one in found if one[1] == tree_relay.KEEP]
    assert kept == [(0, tree_relay.KEEP, b"agent" * 1000)]
    for number in (1, 2):
        mine = [one for one in found if one[0] == number and one[1] != tree_relay.OPEN]
        assert mine == [
            (number, tree_relay.KEPT, tree_relay.COUNT.pack(0)), (number, tree_relay.INPUT,
            b"order"),
        ]  # fmt: skip
    branch.close()


def test_those_behind_a_lost_host_name_it(far: Far) -> None:
    branch = branch_to(far)
    own, behind = branch.stream(["cat"], "n1"), branch.stream(["ssh"], "n2", "n2 key\n")
    far.end()
    ended(branch)
    assert behind.arrived(time.monotonic() + 10) == Failure(
        Kind.LOST, "n1, through which it was reached, is gone: the link ended"
    )
    assert own.failure(10) == Failure(Kind.LOST, "the link ended")
    assert branch.stream(["cat"], "n1").read(1) == b""
    branch.close()


def test_a_host_that_is_not_reached_is_not_waited_for(far: Far) -> None:
    branch = branch_to(far)
    behind = branch.stream(["ssh"], "n2", "n2 key\n")
    answers: list[Failure | None] = []
    asked = threading.Thread(
        target=lambda: answers.append(behind.arrived(time.monotonic() + 0.1)), daemon=True
    )
    asked.start()
    asked.join(10)
    assert answers == [Failure(Kind.TIMEOUT, "n1 did not reach it in time")]
    branch.close()


def test_detours_are_told_together(far: Far) -> None:
    said: list[str] = []
    detours = Detours(said.append)
    refused = Failure(Kind.AUTH, "ssh says: root@n2: Permission denied")
    with detours.under_way():
        for host in ("n2", "n3"):
            with detours.under_way():
                detours.add(host, "n1", refused)
        assert not said
    assert said == told(Kind.AUTH, [("n2", "n1", refused), ("n3", "n1", refused)])
    assert said[0] == f"note: n[2-3]: connected from here, not through n1: {refused.why}"
    assert said[1].startswith("  hint: ssh n1 ssh n2 true")
    with detours.under_way():
        pass
    assert len(said) == 2
