"""What an inner host may say, and what is made of what it must not say."""

from __future__ import annotations

import threading
import time

import pytest

from dispatcher.model.failure import Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import frame
from dispatcher.transport.base import Common, LinkClosed
from dispatcher.transport.tree.branch import Branch
from dispatcher.transport.tree.tree_transport import FallbackReport, fallback_lines

from ..far_link import FarLink


@pytest.fixture
def far() -> FarLink:
    return FarLink()


def branch_to(far: FarLink) -> Branch:
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
        mux.HEADER.pack(1, mux.OUTPUT, mux.LARGEST + 1),
        frame(1, mux.OUTPUT, b"x" * mux.LARGEST) * 17,
        frame(1, mux.ERRORS, b"x" * mux.LARGEST) * 5,
        frame(1, mux.MORE_INPUT, mux.COUNT.pack(1)),
        frame(1, mux.MORE_INPUT, b"x"),
        frame(1, mux.ENDED, b""),
        frame(1, mux.OPEN, b"x"),
        frame(1, 99),
        frame(1, mux.OUTPUT_END) + frame(1, mux.OUTPUT, b"more"),
    ],
)
def test_whoever_breaks_the_rules_is_left(far: FarLink, said: bytes) -> None:
    branch = branch_to(far)
    stream = branch.stream(["cat"], "n1")
    far.say(said)
    assert ended(branch).kind is Kind.PROTOCOL
    with pytest.raises(LinkClosed):
        stream.write(b"x")
    assert stream.failure(0.0) == branch.failure
    branch.close()


def test_frames_of_streams_that_are_closed_are_nothing(far: FarLink) -> None:
    branch = branch_to(far)
    branch.stream(["cat"], "n1").close()
    other = branch.stream(["cat"], "n1")
    far.say(frame(1, 99) + frame(77, mux.OUTPUT, b"?") + frame(2, mux.OUTPUT, b"hello"))
    deadline = time.monotonic() + 10
    while (data := other.read(100)) is None and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert data == b"hello"
    assert branch.failure is None
    branch.close()


def test_what_all_are_told_crosses_once() -> None:
    far = FarLink()
    branch = Branch("n1", b"", lambda: far, Common(b"agent" * 1000))
    for _ in range(2):
        branch.stream(["cat"], "n1").write(b"agent" * 1000 + b"order")
    last = branch.stream(["cat"], "n1")
    last.write(b"another")
    frames = mux.Frames()
    found: list[tuple[int, int, bytes]] = []
    deadline = time.monotonic() + 10
    while not found or found[-1] != (3, mux.INPUT, b"another"):
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
        found += frames.feed(far.take_written())
    kept = [one for one in found if one[1] == tree_relay.KEEP]
    assert kept == [(0, tree_relay.KEEP, b"agent" * 1000)]
    for number in (1, 2):
        mine = [one for one in found if one[0] == number and one[1] != mux.OPEN]
        assert mine == [
            (number, tree_relay.KEPT, mux.COUNT.pack(0)), (number, mux.INPUT,
            b"order"),
        ]  # fmt: skip
    branch.close()


def test_those_behind_a_lost_host_name_it(far: FarLink) -> None:
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


def test_a_host_that_is_not_reached_is_not_waited_for(far: FarLink) -> None:
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


def test_fallbacks_are_told_together(far: FarLink) -> None:
    said: list[str] = []
    fallbacks = FallbackReport(said.append)
    refused = Failure(Kind.AUTH, "ssh says: root@n2: Permission denied")
    with fallbacks.under_way():
        for host in ("n2", "n3"):
            with fallbacks.under_way():
                fallbacks.add(host, "n1", refused)
        assert not said
    assert said == fallback_lines(Kind.AUTH, [("n2", "n1", refused), ("n3", "n1", refused)])
    assert said[0] == f"note: n[2-3]: connected from here, not through n1: {refused.why}"
    assert said[1].startswith("  hint: ssh n1 ssh n2 true")
    with fallbacks.under_way():
        pass
    assert len(said) == 2
