"""A child of this machine as a link: its pipes or its terminal, its end, its failures."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from open_files import open_files
from rig import gone, wait_for

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import Link, LinkClosed, Window
from dispatcher.transport.process.child import (
    ChildLink,
    on_terminal,
    signal_name,
    start,
)
from dispatcher.transport.process.pump import Pump

from ..conftest import Reader, gather
from ..zombies import zombies


@pytest.fixture
def pump() -> Iterator[Pump]:
    made = Pump("test:child")
    yield made
    made.close()


class Children:
    """Starts children; all are gone after the test."""

    def __init__(self, pump: Pump) -> None:
        self.pump = pump
        self.links: list[Link] = []

    def sh(self, text: str) -> Link:
        return self._kept(start(("/bin/sh", "-c", text), self.pump))

    def on_terminal(self, text: str, window: Window | None = None) -> Link:
        argv = ("/bin/sh", "-c", text)
        return self._kept(on_terminal(argv, self.pump, window or Window()))

    def _kept(self, link: Link | Failure) -> Link:
        assert isinstance(link, Link), link
        self.links.append(link)
        return link


@pytest.fixture
def children(pump: Pump) -> Iterator[Children]:
    made = Children(pump)
    yield made
    for link in made.links:
        link.close()


# -- on pipes ---------------------------------------------------------------------------


def test_it_leads_a_session_and_has_no_terminal(children: Children) -> None:
    link = children.sh("echo $$; cut -d' ' -f6,7 /proc/$$/stat")
    pid, session, terminal = gather(link)[0].split()
    assert (session, terminal) == (pid, b"0")


def test_the_program_gets_its_words_as_they_are(pump: Pump) -> None:
    link = start((sys.executable, "-S", "-c", "import sys; print(sys.argv[1:])", "a  b", "'"), pump)
    assert isinstance(link, Link)
    assert gather(link)[0] == b"""['a  b', "'"]\n"""
    link.close()


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("exit 0", Ending(0)),
        ("exit 7", Ending(7)),
        ("exit 255", Ending(255)),
        ("kill -9 $$", Ending(None, "KILL")),
        ("kill -TERM $$", Ending(None, "TERM")),
    ],
)
def test_how_it_ended(children: Children, text: str, ending: Ending) -> None:
    link = children.sh(text)
    assert link.ending(20) == ending
    assert (link.ending(-1), link.gone(), link.failure(0)) == (ending, True, None)


def test_one_that_goes_on_has_not_ended(children: Children) -> None:
    link = children.sh("cat")
    assert (link.ending(0.01), link.ending(-1), link.gone()) == (
        Ending(None), Ending(None), False,
    )  # fmt: skip
    assert not link.errors_ended()


def hold(pump: Pump, wait: Callable[[], object]) -> None:
    """Have the thread of ``pump`` do nothing but ``wait``."""
    held = threading.Event()

    def sink(data: bytes) -> bool:
        held.set()
        wait()
        return True

    reading, writing = os.pipe()
    os.close(writing)
    pump.add(reading, sink)
    assert held.wait(60)


def test_why_a_connection_failed_is_heard_though_the_pump_is_late(children: Children) -> None:
    hold(children.pump, lambda: time.sleep(0.5))
    link = children.sh("echo why >&2; exit 255")
    assert isinstance(link, ChildLink)
    assert link.ending(20) == Ending(255)
    assert link._first_errors(0.01) == b"why\n"


@pytest.mark.parametrize(
    ("text", "lies"),
    [("echo x >&2; exec sleep 1000", True), ("echo x; exec sleep 1000", True), ("exit", True),
     ("sleep 1000 & exit", False), ("exec sleep 1000 >&-", True)],
)  # fmt: skip
def test_what_lies_unread_is_known(children: Children, text: str, lies: bool) -> None:
    """The pump does not run; what one that goes on has not written yet does not lie there."""
    go = threading.Event()
    hold(children.pump, lambda: go.wait(60))
    link = children.sh(text)
    if lies:
        wait_for(link.lies_unread, 20, "it lies there")
    else:
        assert link.ending(20) == Ending(0)
        assert not link.lies_unread()
    go.set()
    wait_for(lambda: not link.lies_unread(), 20, "it is read")


@cases(("number", "name"), [(9, "KILL"), (15, "TERM"), (34, "RTMIN"), (50, "50"), (1000, "1000")])
def test_names_of_signals(number: int, name: str) -> None:
    assert signal_name(number) == name


def test_input_is_ended_once_and_output_still_comes(children: Children) -> None:
    link = children.sh("cat; echo end >&2")
    link.write(b"all of it")
    link.end_input()
    link.end_input()
    with pytest.raises(LinkClosed, match="link closed"):
        link.write(b"more")
    assert gather(link) == (b"all of it", b"end\n")
    assert link.ending(20) == Ending(0)


def test_input_that_nobody_takes_any_more(children: Children) -> None:
    link = children.sh("exec <&-; echo closed; cat /dev/null; sleep 1000")
    reader = Reader(link)
    reader.until(lambda: reader.output == b"closed\n")
    with pytest.raises(LinkClosed, match="the other end is gone: Broken pipe"):
        link.write(b"x")


def test_the_end_of_errors_is_known_when_they_were_read(children: Children) -> None:
    link = children.sh("printf err >&2")
    assert link.ending(20) == Ending(0)
    assert not link.errors_ended()
    reader = Reader(link)
    reader.until(link.errors_ended)
    assert (bytes(reader.errors), link.read_errors(9)) == (b"err", b"")


def test_close_rings_reaps_and_is_done_once(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rang = zombies(), list[object]()
    link = children.sh("exec sleep 1000")
    assert isinstance(link, ChildLink)
    wait = link._process.wait  # on a busy machine one that was killed may take its time
    monkeypatch.setattr(link._process, "wait", lambda timeout=None: wait(60 if timeout else 0))
    link.watch(lambda: rang.append(None))
    rang.clear()
    link.close()
    assert rang
    assert link.ending(0) == Ending(None, "KILL")
    assert zombies() <= before
    rang.clear()
    link.close()
    assert not rang


def test_close_ends_what_a_child_has_left_behind(children: Children) -> None:
    """Its group may live on when it has ended itself."""
    link = children.sh("sleep 1000 & echo $!; exit 3")
    reader = Reader(link)
    reader.until(lambda: reader.output.endswith(b"\n"))
    assert link.ending(20) == Ending(3)
    left = int(reader.output)
    assert not gone(left)
    link.close()
    wait_for(lambda: gone(left), 20, "what was left is gone")
    assert link.ending(0) == Ending(3)


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_left_open(pump: Pump, terminal: bool) -> None:
    argv = ("/bin/sh", "-c", "echo up; cat")
    before = None
    for _ in range(2):  # what is made once is made the first time
        link = on_terminal(argv, pump, Window()) if terminal else start(argv, pump)
        assert isinstance(link, Link)
        reader = Reader(link)
        reader.until(lambda reader=reader: b"up" in reader.output)
        link.close()
        before = before or open_files()
    wait_for(lambda: open_files() <= (before or open_files()), 20, "all is closed")


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program"])
def test_a_program_that_is_not_there(pump: Pump, program: str) -> None:
    assert start((program, "x"), pump) == Failure(
        Kind.BOOT, f"{program}: no such program", hint=f"command -v {program}  # on this host"
    )


def test_a_program_that_cannot_be_started(pump: Pump, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no program")
    assert start((str(file),), pump) == Failure(
        Kind.BOOT, f"{file}: Permission denied", retryable=True
    )


# -- on a terminal ----------------------------------------------------------------------


def test_a_terminal_of_that_size_for_all_three(children: Children) -> None:
    text = "test -t 0 && test -t 1 && test -t 2 && stty size && echo err >&2; exit 4"
    link = children.on_terminal(text, Window(columns=101, rows=43))
    assert gather(link) == (b"43 101\r\nerr\r\n", b"")
    assert (link.ending(20), link.errors_ended()) == (Ending(4), True)


def test_it_is_the_terminal_that_controls_its_session(children: Children) -> None:
    link = children.on_terminal("echo $$; cut -d' ' -f6 /proc/$$/stat; : </dev/tty && echo mine")
    pid, session, mine = gather(link)[0].split()
    assert (session, mine) == (pid, b"mine")


def test_a_new_size(children: Children) -> None:
    link = children.on_terminal("trap 'stty size; exit' WINCH; echo up; while :; do read x; done")
    reader = Reader(link)
    reader.until(lambda: reader.output == b"up\r\n")
    link.resize(Window(columns=70, rows=21))
    link.write(b"\n")  # a shell that reads may look at signals only then
    reader.until(lambda: b"21 70\r\n" in reader.output)
    link.close()
    link.resize(Window())  # changes nothing, and breaks nothing


def test_a_conversation_and_the_key_for_the_end(children: Children) -> None:
    link = children.on_terminal("stty -echo; echo up; while read x; do echo got $x; done; echo end")
    reader = Reader(link)
    reader.until(lambda: reader.output == b"up\r\n")
    link.write(b"word\n")
    reader.until(lambda: reader.output.endswith(b"got word\r\n"))
    link.write(b"\x04")
    reader.until(lambda: reader.ended)
    assert reader.output.endswith(b"end\r\n")


def test_ending_our_input_does_not_end_the_terminal(children: Children) -> None:
    link = children.on_terminal("echo up; sleep 0.2; echo after")
    link.end_input()
    with pytest.raises(LinkClosed):
        link.write(b"x")
    assert gather(link)[0] == b"up\r\nafter\r\n"


def test_the_end_is_known_though_nobody_read(children: Children) -> None:
    link = children.on_terminal("exit 5")
    wait_for(link.gone, 20, "it has ended")
    assert link.ending(0) == Ending(5)
    assert gather(link)[0] == b""  # nobody but the child had it open


def test_closing_hangs_up(children: Children) -> None:
    link = children.on_terminal("echo $$; exec sleep 1000")
    reader = Reader(link)
    reader.until(lambda: reader.output.endswith(b"\n"))
    link.close()
    wait_for(lambda: gone(int(reader.output)), 20, "it is gone")


def test_a_program_that_no_terminal_can_start(pump: Pump) -> None:
    link = on_terminal(("/no/such/program",), pump, Window())
    assert isinstance(link, Link)
    assert b"/no/such/program" in gather(link)[0]
    assert link.ending(20) == Ending(127)
    link.close()


@pytest.mark.parametrize("at", ["openpty", "Popen"])
def test_no_terminal(pump: Pump, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os if at == "openpty" else subprocess, at, fails)
    before = open_files()
    who = "no terminal" if at == "openpty" else "prog"
    why = f"{who}: {os.strerror(errno.ENOSPC)}"
    assert on_terminal(("prog",), pump, Window()) == Failure(Kind.BOOT, why, retryable=True)
    assert open_files() <= before
