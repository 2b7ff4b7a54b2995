"""Our end of the link to an inner host: what is written first, who is told of its end, and how."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from cases import cases
from rig import wait_for

from dispatcher.bootstrap.payload import NOISE_LIMIT
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import COUNT, frame
from dispatcher.transport.base import Link, LinkClosed
from dispatcher.transport.tree import branch as module
from dispatcher.transport.tree.branch import Branch, Stream
from dispatcher.transport.tree.tree_transport import FallbackReport, fallback_lines

from ..far_link import FarLink


class Far(FarLink):
    """The link of an inner host: how it ends, and when it takes something."""

    def __init__(self, said: bytes = b"") -> None:
        super().__init__(said)
        self.status = Ending(None)
        self.known: Failure | None = None
        self.errors = bytearray()
        self.writes: list[bytes] = []
        self.takes = threading.Event()
        self.takes.set()
        self.broken = False

    def write(self, data: bytes) -> None:
        assert self.takes.wait(60)
        if self.broken:
            raise LinkClosed
        self.writes.append(data)

    def read_errors(self, limit: int) -> bytes:
        data = bytes(self.errors[:limit])
        del self.errors[:limit]
        return data

    def ending(self, timeout: float) -> Ending:
        return self.status

    def failure(self, timeout: float) -> Failure | None:
        return self.known

    def frames(self) -> list[tuple[int, int, bytes]]:
        """All that was told after the payload."""
        return mux.Decoder().feed(b"".join(self.writes).removeprefix(PAYLOAD))

    def close(self) -> None:
        super().close()
        self.takes.set()


PAYLOAD = b"the relay"


@pytest.fixture
def far() -> Far:
    return Far()


@pytest.fixture
def branches() -> Iterator[list[Branch]]:
    made: list[Branch] = []
    yield made
    for branch in made:
        branch.close()


Make = Callable[..., Branch]


@pytest.fixture
def to(branches: list[Branch]) -> Make:
    def make(link: Link | Failure | Callable[[], Link | Failure]) -> Branch:
        gives = link if callable(link) else lambda: link
        branches.append(Branch("n1", PAYLOAD, gives))
        return branches[-1]

    return make


def ended(branch: Branch) -> Failure:
    wait_for(lambda: branch.failure, 20, "its end")
    assert branch.failure is not None
    return branch.failure


# -- what is written ------------------------------------------------------------------------


def test_the_relay_comes_first_and_then_what_waited(far: Far, to: Make) -> None:
    far.takes.clear()
    branch = to(far)
    stream = branch.stream(("/bin/sh", "-c", "\udcff"), "n1")
    other = branch.stream(("ssh", "n2"), "n2", "n2 key\nn2 other\n")
    stream.write(b"before any answer")
    far.takes.set()
    wait_for(lambda: len(far.frames()) == 3, 20, lambda: far.writes)
    assert far.writes[0] == PAYLOAD
    assert far.frames() == [
        (1, mux.OPEN, b"\0/bin/sh\0-c\0\xff"), (2, mux.OPEN, b"n2 key\nn2 other\n\0ssh\0n2"),
        (1, mux.INPUT, b"before any answer"),
    ]  # fmt: skip
    assert (stream.is_behind(), other.is_behind()) == (False, True)


def test_what_is_urgent_passes_all_input(far: Far, to: Make) -> None:
    far.takes.clear()
    branch = to(far)
    for kind in (mux.INPUT, mux.MORE_OUTPUT, mux.INPUT_END, mux.MORE_ERRORS, mux.CLOSE):
        if kind == mux.INPUT:
            branch.stream(("cat",), "n1")
        branch.send(1, kind, b"")
    branch.send(9, mux.CLOSE)  # to nobody
    far.takes.set()
    wait_for(lambda: len(far.frames()) >= 6, 20, lambda: far.frames())
    assert [kind for _, kind, _ in far.frames()] == [
        mux.OPEN, mux.MORE_OUTPUT, mux.MORE_ERRORS, mux.CLOSE, mux.INPUT, mux.INPUT_END,
    ]  # fmt: skip


# -- what comes ------------------------------------------------------------------------------


def test_an_answer_settles_it(far: Far, to: Make) -> None:
    branch = to(far)
    assert branch.wait(0.01) == Failure(Kind.TIMEOUT, "no answer from n1 in time")
    assert branch.wait(-1.0) is not None
    for piece in (b"Welcome\n", SYNC[:5], SYNC[5:] + frame(1, mux.OUTPUT, b"x")):
        assert branch.failure is None
        far.say(piece)
    assert branch.wait(60) is None
    assert branch.address == "10.0.0.9"
    assert not branch.unreached


@cases(
    ("said", "errors", "why"),
    [
        (frame(9, mux.MORE_INPUT, COUNT.pack(0)) * 60_000, b"", "more than 10,000 frames without"),
        (frame(9, mux.OUTPUT, b"for nobody") * 60_000, b"", "more than 10,000 frames without"),
        (b"", b"x" * ((16 << 20) + 1), "16 MiB of noise"),
    ],
    ids=["no data", "for nobody", "errors"],
)
def test_a_relay_that_floods(to: Make, said: bytes, errors: bytes, why: str) -> None:
    far = Far()
    far.errors += errors
    branch = to(far)
    far.say(SYNC + said)
    failure = ended(branch)
    assert failure.kind is Kind.PROTOCOL
    assert failure.why.startswith(f"a flood: {why}")


# -- how it ends -----------------------------------------------------------------------------


def test_a_host_that_is_not_reached(to: Make) -> None:
    refused = Failure(Kind.REFUSED, "port 22")
    go = threading.Event()

    def open_link() -> Failure:
        go.wait(60)
        return refused

    branch = to(open_link)
    own, behind = branch.stream(("cat",), "n1"), branch.stream(("ssh",), "n2", "keys")
    go.set()
    assert branch.wait(60) == refused
    assert branch.unreached
    assert own.failure(20) == refused
    assert behind.failure(20) == Failure(Kind.LOST, "n1 was not reached: port 22")
    late = branch.stream(("ssh",), "n3", "keys")
    assert late.failure(0) == Failure(Kind.LOST, "n1 was not reached: port 22")
    late.close()


@pytest.mark.parametrize(
    ("said", "status", "errors", "why"),
    [
        (b"motd\n", Ending(127), b"sh: python3: not found\n",
         "exit status 127 before the agent answered; remote said: sh: python3: not found"),
        (b"motd\n", Ending(None), b"",
         "the link ended before the agent answered; remote said: motd"),
    ],
)  # fmt: skip
def test_a_host_without_a_relay(
    far: Far, to: Make, said: bytes, status: Ending, errors: bytes, why: str
) -> None:
    far.status = status
    far.errors += errors
    branch = to(far)
    behind = branch.stream(("ssh",), "n2", "keys")
    far.say(said)
    far.end()
    failure = branch.wait(60)
    assert failure is not None
    assert (failure.kind, failure.why, branch.unreached) == (Kind.BOOT, why, False)
    assert behind.failure(20) == Failure(Kind.LOST, f"no relay on n1: {why}")
    assert far.closed


@pytest.mark.parametrize(
    ("status", "errors", "why"),
    [
        (Ending(None), b"", "the link ended"),
        (Ending(3), b"Traceback\nboom\n", "its relay ended with 3; it said: boom"),
        (Ending(None, "KILL"), b"", "its relay was killed by SIGKILL"),
        (Ending(1), b"x" * 9000 + b"\nlast", "its relay ended with 1; it said: last"),
    ],
)
def test_a_relay_that_ends(far: Far, to: Make, status: Ending, errors: bytes, why: str) -> None:
    far.status = status
    branch = to(far)
    far.say(SYNC)
    assert branch.wait(60) is None
    order: list[str] = []
    behind, own = branch.stream(("ssh",), "n2", "keys"), branch.stream(("cat",), "n1")
    for stream, name in ((behind, "behind"), (own, "own")):
        stream.watch(lambda name=name: order.append(name))  # type: ignore[misc]
    order.clear()
    far.errors += errors
    far.end()
    assert ended(branch) == Failure(Kind.LOST, why)
    gone = f"n1, through which it was reached, is gone: {why}"
    assert behind.failure(20) == Failure(Kind.LOST, gone)
    assert own.failure(20) == Failure(Kind.LOST, why)
    assert order == ["own", "behind"]  # the cause is told before what follows from it
    assert branch.wait(0) == Failure(Kind.LOST, why)


@pytest.mark.parametrize("answered", [False, True])
def test_a_link_that_knows_why_it_ended(far: Far, to: Make, answered: bool) -> None:
    """As ssh does; before the answer that host was not reached."""
    far.known = denied = Failure(Kind.AUTH, "ssh says: no")
    branch = to(far)
    if answered:
        far.say(SYNC)
    far.end()
    assert ended(branch) == denied
    assert branch.unreached is not answered


@pytest.mark.parametrize("speaks", [False, True])
def test_a_link_that_takes_nothing_any_more(
    far: Far, to: Make, monkeypatch: pytest.MonkeyPatch, speaks: bool
) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS", 20.0 if speaks else 0.05)
    far.takes.clear()
    far.broken = True
    branch = to(far)
    far.takes.set()
    if speaks:
        far.status = Ending(3)
        far.say(SYNC)
        far.end()
        assert ended(branch) == Failure(Kind.LOST, "its relay ended with 3")
    else:
        assert ended(branch) == Failure(Kind.LOST, "the link was closed")


def test_closing_ends_the_streams_and_frees_who_writes(far: Far, to: Make) -> None:
    far.takes.clear()  # the thread is in the midst of a write
    branch = to(far)
    stream = branch.stream(("cat",), "n1")
    branch.close()
    assert far.closed
    assert ended(branch).kind is Kind.LOST
    assert stream.failure(20) is not None
    branch.close()


def test_closing_it_while_it_is_opened(to: Make, far: Far) -> None:
    opening, go = threading.Event(), threading.Event()

    def open_link() -> Link:
        opening.set()
        go.wait(60)
        return far

    branch = to(open_link)
    assert opening.wait(60)
    closing = threading.Thread(target=branch.close)
    closing.start()
    wait_for(lambda: not closing.is_alive() or branch._closing, 20, "it was told")
    go.set()
    closing.join(60)
    assert ended(branch) == Failure(Kind.LOST, "closed")
    assert far.closed
    assert far.writes == []


@pytest.fixture
def plain() -> FarLink:
    return FarLink()


def branch_to(far: FarLink) -> Branch:
    branch = Branch("n1", b"", lambda: far)
    far.say(b"Welcome!\n" + SYNC)
    assert branch.wait(60) is None
    return branch


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
def test_whoever_breaks_the_rules_is_left(plain: FarLink, said: bytes) -> None:
    branch = branch_to(plain)
    stream = branch.stream(["cat"], "n1")
    plain.say(said)
    assert ended(branch).kind is Kind.PROTOCOL
    with pytest.raises(LinkClosed):
        stream.write(b"x")
    assert stream.failure(0.0) == branch.failure
    branch.close()


def test_frames_of_streams_that_are_closed_are_nothing(plain: FarLink) -> None:
    branch = branch_to(plain)
    branch.stream(["cat"], "n1").close()
    other = branch.stream(["cat"], "n1")
    plain.say(frame(1, 99) + frame(77, mux.OUTPUT, b"?") + frame(2, mux.OUTPUT, b"hello"))
    deadline = time.monotonic() + 60
    while (data := other.read(100)) is None and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert data == b"hello"
    assert branch.failure is None
    branch.close()


def test_fallbacks_are_told_together() -> None:
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
        (1, DENIED, Kind.BOOT, "the login ended before the host's shell answered"),
        (-15, b"", Kind.BOOT, "the login ended before the host's shell answered"),
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
