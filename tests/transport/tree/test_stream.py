"""What an inner host may say, and what is made of what it must not say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from cases import cases

from dispatcher.bootstrap.payload import NOISE_LIMIT
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import frame
from dispatcher.transport.base import LinkClosed
from dispatcher.transport.tree.branch import Branch, Stream
from dispatcher.transport.tree.tree_transport import FallbackReport, fallback_lines

from ..far_link import FarLink


@pytest.fixture
def far() -> FarLink:
    return FarLink()


def branch_to(far: FarLink) -> Branch:
    branch = Branch("n1", b"", lambda: far)
    far.say(b"Welcome!\n" + SYNC)
    assert branch.wait(60) is None
    return branch


def ended(branch: Branch, seconds: float = 60) -> Failure:
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
    deadline = time.monotonic() + 60
    while (data := other.read(100)) is None and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert data == b"hello"
    assert branch.failure is None
    branch.close()


def test_those_behind_a_lost_host_name_it(far: FarLink) -> None:
    branch = branch_to(far)
    own, behind = branch.stream(["cat"], "n1"), branch.stream(["ssh"], "n2", "n2 key\n")
    far.end()
    ended(branch)
    assert behind.arrived(time.monotonic() + 60) == Failure(
        Kind.LOST, "n1, through which it was reached, is gone: the link ended"
    )
    assert own.failure(60) == Failure(Kind.LOST, "the link ended")
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
    asked.join(60)
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


# -- a stream by itself -----------------------------------------------------------------------


class Played(Branch):
    """The branch of an inner host: what its streams say."""

    def __init__(self) -> None:
        self.name = "n1"
        self.said: list[tuple[int, int, bytes]] = []

    def send(self, channel: int, kind: int, body: bytes = b"") -> None:
        self.said.append((channel, kind, body))

    def forget(self, channel: int) -> None: ...


def through(branch: Played | None = None) -> Stream:
    return Stream(branch or Played(), 7, "n2", by_ssh=True)


def own() -> Stream:
    return Stream(Played(), 7, "n1", by_ssh=False)


def say(stream: Stream, *frames: tuple[int, bytes]) -> None:
    for kind, body in frames:
        stream.take(kind, body)


def ends(stream: Stream, status: int, errors: bytes = b"") -> None:
    say(
        stream, (mux.ERRORS, errors), (mux.OUTPUT_END, b""), (mux.ERRORS_END, b""),
        (mux.ENDED, tree_relay.STATUS.pack(status)),
    )  # fmt: skip


def test_what_a_stream_is() -> None:
    for stream, behind in ((through(), True), (own(), False)):
        assert (stream.is_behind(), stream.by) == (behind, "tree")


@cases("cut", [1, 3, len(SYNC) - 1, len(SYNC)])
def test_the_marker_is_no_output(cut: int) -> None:
    stream = through()
    now = time.monotonic()
    assert stream.arrived(now) == Failure(Kind.TIMEOUT, "n1 did not reach it in time")
    say(stream, (mux.OUTPUT, b"motd\n" + SYNC[:cut]), (mux.OUTPUT, SYNC[cut:] + b"hello"))
    assert stream.arrived(now) is None
    assert stream.read(99) == b"motd\nhello"
    say(stream, (mux.OUTPUT, SYNC))  # from here on bytes are bytes
    assert stream.read(99) == SYNC


def test_without_a_marker_all_is_noise_for_the_owner() -> None:
    stream = through()
    say(stream, (mux.OUTPUT, b"no shell" + SYNC[:3]), (mux.ERRORS_END, b""))
    assert stream.read(99) is None
    say(stream, (mux.OUTPUT_END, b""))
    assert (stream.read(99), stream.read(99)) == (b"no shell" + SYNC[:3], b"")


def test_a_stream_of_its_own_host_has_no_marker() -> None:
    stream = own()
    assert stream.arrived(time.monotonic() - 1) is None
    say(stream, (mux.OUTPUT, SYNC))
    assert stream.read(99) == SYNC


def test_noise_has_a_bound() -> None:
    stream = through()
    little = [(mux.OUTPUT, bytes(1000))] * (NOISE_LIMIT // 1100)
    say(stream, *little)
    assert stream.arrived(time.monotonic()) is not None
    with pytest.raises(mux.Malformed, match="nothing but noise"):
        say(stream, *little[: len(little) // 5])


def test_the_marker_is_given_back_as_credit() -> None:
    branch = Played()
    stream = through(branch)
    quarter = mux.OUTPUT_WINDOW // 4
    say(stream, (mux.OUTPUT, SYNC + bytes(quarter - len(SYNC))))
    assert len(stream.read(quarter) or b"") == quarter - len(SYNC)
    assert branch.said == [(7, mux.MORE_OUTPUT, mux.COUNT.pack(quarter))]


@cases(("status", "ending"), [(0, Ending(0)), (3, Ending(3)), (-9, Ending(None, "KILL"))])
def test_a_status(status: int, ending: Ending) -> None:
    for stream in (own(), through()):
        ends(stream, status)
        assert (stream.ending(0), stream.failure(0)) == (ending, None)


@cases("body", [b"", b"\0\0\0", b"\0\0\0\0\0"])
def test_what_is_no_status(body: bytes) -> None:
    with pytest.raises(mux.Malformed):
        say(own(), (mux.ENDED, body))


DENIED = b"me@n2: Permission denied (publickey).\n"


@cases(
    ("status", "errors", "kind", "why"),
    [
        (255, DENIED, Kind.AUTH, "ssh says: me@n2: Permission denied (publickey)"),
        (255, b"", Kind.LOST, "ssh failed without a word"),
        (1, DENIED, Kind.BOOT, "the login there ended before its shell answered"),
        (-15, b"", Kind.BOOT, "the login there ended before its shell answered"),
        # the first words tell it
        (255, DENIED + b"x" * 9000, Kind.AUTH, "ssh says: me@n2: Permission denied (publickey)"),
        (255, b" " * 8192 + DENIED, Kind.LOST, "ssh failed without a word"),
    ],
)
def test_a_host_that_was_not_reached(status: int, errors: bytes, kind: Kind, why: str) -> None:
    stream = through()
    ends(stream, status, errors)
    failure = stream.arrived(time.monotonic() + 20)
    assert failure is not None
    assert (failure.kind, failure.why) == (kind, why)
    assert kind is not Kind.AUTH or "n2" in (failure.hint or "")


def test_an_inner_host_that_was_lost_meanwhile() -> None:
    stream, lost = through(), Failure(Kind.LOST, "n1 is gone")
    stream.lose(lost)
    assert stream.arrived(time.monotonic() + 20) == lost
    reached = through()
    say(reached, (mux.OUTPUT, SYNC))
    reached.lose(lost)
    assert reached.arrived(time.monotonic()) is None


@cases(
    ("make", "status", "errors", "ending"),
    [
        (through, 255, b"Connection to n2 closed by remote host.\n", Ending(None)),
        (through, 255, b"my own words", Ending(255)),
        (through, 255, b" \n", Ending(255)),
        (through, 3, DENIED, Ending(3)),
        (own, 255, DENIED, Ending(255)),  # no ssh has said it
    ],
)
def test_whose_status_it_is(
    make: Callable[[], Stream], status: int, errors: bytes, ending: Ending
) -> None:
    stream = make()
    say(stream, (mux.OUTPUT, SYNC))
    ends(stream, status, errors)
    assert stream.ending(20) == ending
