"""Bytes under an SSH session: none is lost, and nobody waits for them longer than told."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from open_files import open_files
from rig import gone, wait_for

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.process.pump import Pump
from dispatcher.transport.ssh import byte_stream as module
from dispatcher.transport.ssh.byte_stream import (
    ByteStream,
    Unanswered,
    over_command,
    over_socket,
    read_identification,
)
from dispatcher.transport.ssh.dial import USER_TIMEOUT_MS

from ..zombies import zombies


class _Stream:
    """A socket that gives what it has in pieces of its own."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes
        self.settimeout = self.send = lambda *_: None

    def recv(self, size: int) -> bytes:
        size = min(size, self._sizes[len(self._data) % len(self._sizes)])
        data, self._data = self._data[:size], self._data[size:]
        return data


@given(
    st.binary(max_size=300),
    st.lists(st.integers(1, 40), min_size=1),
    st.lists(st.integers(1, 40), min_size=1),
    st.integers(0, 5),
)
def test_a_wire_gives_what_was_sent(
    data: bytes, sizes: list[int], reads: list[int], back: int
) -> None:
    stream = ByteStream(_Stream(data, sizes), lambda: None, lambda: None)
    got = b""
    while part := stream.recv(reads[len(got) % len(reads)]):
        keep = max(1, len(part) - back)
        stream.give_back(part[keep:])
        got += part[:keep]
    assert got == data
    assert stream.recv(1) == b""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = socket.create_connection(door.getsockname())
        theirs, _ = door.accept()
    with ours, theirs:
        yield ours, theirs


def test_a_wire_over_a_socket_waits_no_longer_than_told(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream = over_socket(pair[0])
    stream.settimeout(0.02)
    with pytest.raises(BlockingIOError):
        stream.recv(1)
    stream.settimeout(60.0)
    pair[1].sendall(b"x" * 1000)
    assert stream.recv(10) == b"x" * 10
    stream.settimeout(0.02)
    with pytest.raises(BlockingIOError):
        all(stream.send(b"y" * 100_000) for _ in range(1000))


def test_shutting_a_wire_wakes_its_reader(pair: tuple[socket.socket, socket.socket]) -> None:
    stream, got = over_socket(pair[0]), []
    stream.settimeout(60.0)
    reader = threading.Thread(target=lambda: got.append(stream.recv(1)))
    reader.start()
    stream.shut()
    reader.join(60)
    assert got == [b""]


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the kernel cannot be told")
def test_until_a_command_has_started_nothing_waits_for_an_acknowledgement(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    prompt = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    stream = over_socket(pair[0])
    pair[0].setsockopt(*prompt, 0)
    pair[1].sendall(b"x")
    assert stream.recv(1) == b"x"
    assert pair[0].getsockopt(*prompt) == 1


# -- what a stream does with what is under it -----------------------------------------------


class Under:
    """A socket that notes how it is read, and gives what it is told to."""

    def __init__(self, *gives: bytes) -> None:
        self.gives = list(gives)
        self.sizes: list[int] = []
        self.limits: list[float] = []
        self.settimeout = self.limits.append
        self.send = len

    def recv(self, size: int) -> bytes:
        self.sizes.append(size)
        return self.gives.pop(0)


@cases("problem", [None, OSError(), EOFError()])
def test_a_wire_is_shut_at_any_time_and_freed_once(problem: Exception | None) -> None:
    done: list[str] = []

    def shut() -> None:
        done.append("shut")
        if problem is not None:
            raise problem

    stream = ByteStream(Under(), shut, lambda: done.append("freed"))
    stream.shut()
    stream.shut()
    stream.close()
    stream.close()
    assert done == ["shut", "shut", "shut", "freed"]


# -- who is there -----------------------------------------------------------------------------


class Pieces(Under):
    """Says its pieces; an exception among them is raised."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        super().__init__()
        self.pieces = list(pieces)

    def recv(self, size: int) -> bytes:
        self.sizes.append(size)
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece


def identify(*pieces: bytes | Exception) -> tuple[tuple[str, str], bytes]:
    """What is read of an identification, and what of the next is left."""
    stream = ByteStream(Pieces(*pieces, b""), lambda: None, lambda: None)
    return read_identification(stream), stream.recv(99)


SLOW = BlockingIOError(errno.EAGAIN, "not yet")


@cases(
    ("pieces", "line", "before", "left"),
    [
        ((b"SSH-2.0-x\r\n",), "SSH-2.0-x", "", b""),
        ((b"SSH-2.0-x\nrest",), "SSH-2.0-x", "", b"rest"),
        ((b"SSH-", SLOW, b"2.0-", TimeoutError(), b"x", b"\nre"), "SSH-2.0-x", "", b"re"),
        ((b"one\r\ntwo\nSSH-2.0-x\r\nrest",), "SSH-2.0-x", "one two", b"rest"),
        ((b"\xff\n" * 49 + b"SSH-2.0-x\n",), "SSH-2.0-x", " ".join("\ufffd" * 49), b""),
        ((b"x" * 1024, b"\nSSH-2.0-x\n"), "SSH-2.0-x", "x" * 1024, b""),
    ],
)
def test_who_is_there(
    pieces: tuple[bytes | Exception, ...], line: str, before: str, left: bytes
) -> None:
    assert identify(*pieces) == ((line, before), left)


@cases(
    ("pieces", "words"),
    [
        ((), ""),
        ((b"Exceeded MaxStartups\nhalf",), "Exceeded MaxStartups"),
        ((b"one\ntwo\n", OSError(errno.ECONNRESET, "Connection reset by peer")), "one two"),
        ((OSError(errno.ECONNRESET, "Connection reset by peer"),), "connection reset by peer"),
    ],
)
def test_who_has_gone_before_that(pieces: tuple[bytes | Exception, ...], words: str) -> None:
    with pytest.raises(EOFError) as caught:
        identify(*pieces)
    assert str(caught.value) == words


@cases(
    ("pieces", "why"),
    [
        ((b"line\n" * 50,), "no ssh banner in its output: line"),
        ((b"l" * 90 + b"\n" + b"x\n" * 49,), "no ssh banner in its output: " + "l" * 80),
        ((b"x" * 1025, b"\n"), "no ssh banner in its output"),
    ],
)
def test_who_is_no_sshd(pieces: tuple[bytes | Exception, ...], why: str) -> None:
    with pytest.raises(ValueError) as caught:
        identify(*pieces)
    assert str(caught.value) == why


# -- a program that leads there -----------------------------------------------------------------


@pytest.fixture
def pump() -> Iterator[Pump]:
    made = Pump("test:proxy")
    yield made
    made.close()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it runs is waited for until it is gone, however busy the machine is."""
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setattr(module, "_REAPED_IN", 60.0)


@pytest.mark.usefixtures("shell")
def test_a_program_is_the_wire(pump: Pump) -> None:
    before = zombies()
    stream = over_command("sh -c 'echo $$ >&2; echo warns >&2; exec cat'", pump)
    assert isinstance(stream, ByteStream)
    stream.send(b"through it")
    assert stream.recv(99) == b"through it"
    wait_for(lambda: b"warns" in stream._words, 20, "its words")  # type: ignore[attr-defined]
    pid = int(stream.words().split()[0])
    assert stream.words() == f"{pid}\nwarns"
    assert os.getpgid(pid) != os.getpgid(0)
    stream.shut()
    assert stream.recv(9) == b""
    stream.close()
    assert gone(pid)
    assert zombies() <= before


@pytest.mark.usefixtures("shell")
def test_a_program_that_does_not_end_by_itself_is_killed(pump: Pump) -> None:
    stream = over_command("sh -c 'trap \"\" HUP TERM; sleep 1000 & echo $!; wait'", pump)
    assert isinstance(stream, ByteStream)
    child = int(stream.recv(99))
    stream.close()
    wait_for(lambda: gone(child), 20, "all of its group is gone")


@pytest.mark.usefixtures("shell")
def test_of_a_program_s_words_so_many_are_kept(pump: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS", 60.0)
    stream = over_command("sh -c 'printf first >&2; head -c 9000 /dev/zero >&2'", pump)
    assert isinstance(stream, ByteStream)
    assert stream.recv(9) == b""
    words = stream.words()
    assert (words[:5], len(words)) == ("first", 4096)
    stream.close()


def test_a_program_that_cannot_be_started(
    pump: Pump, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHELL", str(tmp_path / "no-shell"))
    before = open_files()
    assert over_command("true", pump) == Failure(
        Kind.CONFIG, "ProxyCommand: No such file or directory"
    )
    assert open_files() <= before


def test_it_is_run_by_the_shell_of_the_user(
    pump: Pump, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = tmp_path / "shell"
    mine.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    mine.chmod(0o755)
    for shell, said in ((str(mine), b"-c|exec echo   hi|"), ("", b"hi\n")):
        monkeypatch.setenv("SHELL", shell)
        stream = over_command("echo   hi", pump)
        assert isinstance(stream, ByteStream)
        assert stream.recv(99) == said
        stream.close()


class TestAnswers:
    """What the kernel finds out by itself."""

    def test_it_asks_only_while_it_is_told_to(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sock = socket.create_connection(listener.getsockname())
            stream = over_socket(sock)
        usual = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for seconds, asks, most in ((5.0, 1, 5500), (None, usual, USER_TIMEOUT_MS)):
            assert stream.expect_answers(seconds)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == asks
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == most
        stream.close()
        assert not stream.expect_answers(5.0)
        assert stream.silence() == (0.0, False)

    def test_a_silence_is_seen(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def heard() -> ByteStream | None:
                """One that was just made; a pause of ours is a silence, too."""
                made = over_socket(socket.create_connection(listener.getsockname()))
                if made.silence()[0] < 1.5:
                    return made
                made.close()
                return None

            stream = wait_for(heard, 30, "an answer")
            assert stream is not None
            wait_for(lambda: stream.silence()[0] >= 0.5, 30, "half a second without a word")
            assert stream.silence()[1]  # there is nothing that it lacks
            stream.close()

    def test_an_end_by_the_kernel_is_no_wait_that_ended(self) -> None:
        class Dead:
            settimeout = send = None

            def recv(self, size: int) -> bytes:
                raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

        stream = ByteStream(Dead(), lambda: None, lambda: None)
        with pytest.raises(Unanswered) as caught:
            stream.recv(1)
        assert not isinstance(caught.value, TimeoutError)
        assert caught.value.errno == errno.ETIMEDOUT
