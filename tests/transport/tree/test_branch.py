"""Our end of the link to an inner host: what is written first, who is told of its end, and how."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from cases import cases
from rig import wait_for

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import COUNT, frame
from dispatcher.transport.base import Link, LinkClosed
from dispatcher.transport.tree import branch as module
from dispatcher.transport.tree.branch import Branch

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
        return mux.Frames().feed(b"".join(self.writes).removeprefix(PAYLOAD))

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


def test_what_waits_goes_in_few_writes_that_are_not_too_long(far: Far, to: Make) -> None:
    far.takes.clear()
    branch = to(far)
    stream = branch.stream(("cat",), "n1")
    for _ in range(40):
        branch.send(1, mux.INPUT, bytes(5000))
    far.takes.set()
    wait_for(lambda: len(far.frames()) == 41, 20, lambda: len(far.frames()))
    sizes = [len(data) for data in far.writes[1:]]
    assert max(sizes) < (64 << 10) + 5100
    assert len(sizes) <= 5
    stream.close()


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


def test_its_thread_has_a_name_and_keeps_nobody_alive(far: Far, to: Make) -> None:
    before = set(threading.enumerate())
    branch = to(far)
    assert branch.failure is None
    new = set(threading.enumerate()) - before
    assert [(one.name, one.daemon) for one in new] == [("tree:n1", True)]
