"""The thread that talks with one host: what it reads, in which order, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from cases import cases
from rig import wait_for
from transport.far_link import FarLink

from dispatcher.bootstrap import payload
from dispatcher.model.errors import UsageError
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.copy_frames import DATA, VALUE
from dispatcher.remote.protocol.mux import HEADER, Malformed, frame
from dispatcher.transfer import host_copy
from dispatcher.transfer.dest_dir import BadArchive
from dispatcher.transfer.host_copy import CopyHandler, Ended, FrameReader, HostCopy
from dispatcher.transport.base import Link, LinkClosed

LIMIT = 60


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks often whether anybody listens still."""
    monkeypatch.setattr(host_copy, "_POLL", 0.01)


class TestReader:
    def test_a_line_and_then_frames_however_they_come(self) -> None:
        said = b"P\n" + frame(0, DATA, b"one") + frame(0, DATA, b"two")
        said += copy_frames.message({"a": 1}) + b"rest"
        for cut in (1, 2, 3, 7, len(said)):
            reader = FrameReader(100)
            pieces = [said[at : at + cut] for at in range(0, len(said), cut)]
            putting = threading.Thread(target=lambda p=pieces, r=reader: [*map(r.put, p)])
            putting.start()
            assert reader.line(2) == b"P\n"
            assert [reader.frame(), reader.frame()] == [(DATA, b"one"), (DATA, b"two")]
            assert reader.value() == {"a": 1}
            putting.join(LIMIT)
            assert not putting.is_alive()

    def test_the_end(self) -> None:
        reader = FrameReader(100)
        reader.put(b"P")
        reader.finish()
        with pytest.raises(Ended):
            reader.line(2)
        reader = FrameReader(100)
        reader.stop()
        for read in (reader.chunk, reader.frame, reader.value):
            with pytest.raises(Ended):
                read()

    def test_a_value_is_bounded(self) -> None:
        for size, fits in ((50, True), (51, False)):
            reader = FrameReader(50)
            reader.put(HEADER.pack(0, VALUE, size))
            reader.put(b"b%d:" % (size - 4) + bytes(size - 4))
            with pytest.raises(Malformed, match="no dictionary" if fits else "a frame of 51 bytes"):
                reader.value()

    def test_who_says_much_waits_until_it_is_read(self) -> None:
        reader = FrameReader(100)
        said = [b"%02d" % number for number in range(20)]
        putting = threading.Thread(target=lambda: [*map(reader.put, said)], daemon=True)
        putting.start()
        wait_for(lambda: reader._chunks.full())
        assert putting.is_alive()
        assert [reader.chunk() for _ in said] == said
        putting.join(LIMIT)
        assert not putting.is_alive()

    def test_nobody_waits_for_who_does_not_listen(self) -> None:
        reader = FrameReader(100)
        putting = threading.Thread(target=lambda: [*map(reader.put, [b"x"] * 99)])
        putting.start()
        wait_for(lambda: reader._chunks.full())
        reader.stop()
        putting.join(LIMIT)
        assert not putting.is_alive()
        reader.finish()

    def test_finishing_waits_for_the_thread_that_talks(self) -> None:
        reader, go = FrameReader(100), threading.Event()
        seen: list[str] = []

        def talk() -> None:
            assert reader.chunk() == b"x"
            go.wait(LIMIT)
            seen.append(threading.current_thread().name)

        reader.talk("put:3", talk)
        reader.put(b"x")
        threading.Timer(0.05, go.set).start()
        reader.finish()
        assert seen == ["put:3"]


class Wire(FarLink):
    """A link that knows whether its input was ended."""

    input_ended = False

    def end_input(self) -> None:
        self.input_ended = True


class Handler(CopyHandler):
    """Does ``act`` with whatever host."""

    def __init__(self, act: Callable[[str], None]) -> None:
        super().__init__("copy", 100, [HostCopy(), HostCopy()])
        self.act = act

    def _by_python(self, node: int, link: Link) -> None:
        self.act(f"python {node}")

    def _by_tar(self, node: int, link: Link) -> None:
        self.act(f"tar {node}")


def talked(said: bytes, act: Callable[[str], None]) -> tuple[HostCopy, Wire]:
    """What is known of node 1 when it says ``said`` and ``act`` is done."""
    handler, wire = Handler(act), Wire()
    handler.start(1, wire)
    handler.take_output(1, said)
    handler.finish(1)
    handler.close()
    assert handler.copies[0] == HostCopy()
    return handler.copies[1], wire


@cases(
    ("said", "python", "way"),
    [(payload.PYTHON, True, ["python 1"]), (payload.SHELL, False, ["tar 1"])],
)
def test_its_first_line_says_who_answers(said: bytes, python: bool, way: list[str]) -> None:
    ways: list[str] = []
    told, wire = talked(said, ways.append)
    assert (ways, told) == (way, HostCopy(python=python))
    assert (wire.input_ended, wire.closed) == (True, False)


def test_who_says_something_else_is_left() -> None:
    told, wire = talked(b"Login incorrect", pytest.fail)
    assert (told.error, told.hostile, told.python) == (
        "it did not say how it copies", True, False,
    )  # fmt: skip
    assert wire.closed


@cases(
    ("error", "why", "hostile"),
    [
        (Malformed("a frame of 9 bytes"), "a frame of 9 bytes", True),
        (BadArchive("a bad name"), "a bad name", True),
        (UsageError("needs python"), "needs python", False),
        (OSError(28, "No space left", "/x/f"), "/x/f: no space left", False),
        (OSError(28, "No space left"), "no space left", False),
        (OSError("Odd"), "Odd", False),
    ],
)
def test_what_goes_wrong_is_told_and_ends_the_link(
    error: Exception, why: str, hostile: bool
) -> None:
    def act(way: str) -> None:
        raise error

    told, wire = talked(payload.PYTHON, act)
    assert (told.error, told.hostile) == (why, hostile)
    assert (wire.closed, wire.input_ended) == (True, False)


@cases("error", [Ended(), LinkClosed()])
def test_the_end_of_its_command_says_more_than_we_could(error: Exception) -> None:
    def act(way: str) -> None:
        raise error

    told, wire = talked(payload.PYTHON, act)
    assert (told.error, wire.closed) == (None, False)


def test_a_host_that_says_nothing() -> None:
    told, _ = talked(b"", pytest.fail)
    assert told == HostCopy()
