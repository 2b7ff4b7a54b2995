"""A relay as a process (``tree_relay``): its link, real commands, no hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cases import cases
from rig import wait_for

from dispatcher.remote.protocol.mux import (
    CLOSE,
    COUNT,
    ENDED,
    ERRORS,
    ERRORS_WINDOW,
    INPUT,
    INPUT_END,
    INPUT_WINDOW,
    LARGEST,
    MORE_ERRORS,
    MORE_INPUT,
    MORE_OUTPUT,
    OUTPUT,
    OUTPUT_WINDOW,
    frame,
)
from dispatcher.remote.tree_relay import KNOWN, die_with_parent, in_memory

from .relay_driver import LIMIT, PROGRAM, SYNC, Relay


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay()
    yield relay
    relay.close()


def test_a_commands_bytes_and_its_end(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "cat; echo bad >&2; exit 3")
    relay.open(2, "cat")
    relay.say(1, INPUT, b"hello ")
    relay.say(2, INPUT, b"other")
    relay.say(1, INPUT, b"you")
    relay.say(1, INPUT_END)
    assert relay.over(1) == 3
    assert (relay.of(1, OUTPUT), relay.of(1, ERRORS)) == (b"hello you", b"bad\n")
    assert ENDED not in relay.kinds(2)
    relay.say(2, INPUT_END)
    assert relay.over(2) == 0
    assert relay.of(2, OUTPUT) == b"other"
    relay.say(2, INPUT, b"late")  # of what has ended nothing is made
    relay.say(77, INPUT, b"x")
    assert relay.end() == (0, b"")


def test_what_a_library_prints_is_no_frame(relay: Relay) -> None:
    print_to, errors = (os.stat(f"/proc/{relay.process.pid}/fd/{fd}") for fd in (1, 2))
    assert os.path.samestat(print_to, errors)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("sh", "-c", "kill -TERM $$"), -15, b""),
        (("/nowhere/program",), 127, b"/nowhere/program: [Errno 2]"),
        (("true",), 0, b""),
    ],
)
def test_how_a_command_ended(relay: Relay, words: tuple[str, ...], code: int, why: bytes) -> None:
    relay.open(9, *words)
    relay.say(9, INPUT_END)
    assert relay.over(9) == code
    assert relay.of(9, ERRORS).startswith(why)
    assert bool(relay.of(9, ERRORS)) == bool(why)
    assert relay.children() == []


def test_each_command_has_its_own_session_and_usual_signals(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "cut -d ' ' -f 6 /proc/$$/stat; echo $$; yes | head -n 1; exec cat")
    relay.until(lambda: relay.of(1, OUTPUT).count(b"\n") == 3)
    session, pid, word = relay.of(1, OUTPUT).split()
    assert (session, word) == (pid, b"y")
    assert relay.of(1, ERRORS) == b""  # yes was ended by SIGPIPE and wrote nothing of it


@pytest.mark.parametrize(
    ("kind", "more", "window", "to"),
    [
        (OUTPUT, MORE_OUTPUT, OUTPUT_WINDOW, ""),
        (ERRORS, MORE_ERRORS, ERRORS_WINDOW, " >&2"),
    ],
)
def test_no_more_is_read_than_there_is_credit_for(
    relay: Relay, kind: int, more: int, window: int, to: str
) -> None:
    size = window + 100_000
    relay.open(1, "sh", "-c", f"head -c {size} /dev/zero{to}")
    relay.open(2, "cat")
    relay.until(lambda: len(relay.of(1, kind)) == window)
    relay.say(2, INPUT, b"x")
    relay.until(lambda: relay.of(2, OUTPUT) == b"x")  # the others are not held up
    assert len(relay.of(1, kind)) == window
    assert max(len(body) for _, _, body in relay.said) <= LARGEST
    relay.say(1, more, COUNT.pack(60_000))
    relay.until(lambda: len(relay.of(1, kind)) == window + 60_000)
    relay.say(1, more, COUNT.pack(window))
    relay.say(1, INPUT_END)
    assert relay.over(1) == 0
    assert relay.of(1, kind) == bytes(size)


def test_who_reads_is_given_credit_for_its_input(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "cat >/dev/null")
    size = 3 * INPUT_WINDOW
    sent, end = 0, time.monotonic() + LIMIT
    while sent < size:
        assert time.monotonic() < end
        room = INPUT_WINDOW + sum(
            COUNT.unpack(body)[0] for _, kind, body in relay.said if kind == MORE_INPUT
        ) - sent  # fmt: skip
        piece = min(room, LARGEST, size - sent)
        if piece:
            relay.say(1, INPUT, bytes(piece))
            sent += piece
        else:
            relay.hear(0.05)
    relay.say(1, INPUT_END)
    assert relay.over(1) == 0
    assert relay.kinds(1).count(MORE_INPUT) <= 3 * 4  # not one for each piece


def test_input_that_is_not_read_waits_and_comes_whole(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "read -r x; wc -c")
    body = b"\n".ljust(LARGEST, b"x")
    for _ in range(INPUT_WINDOW // LARGEST):
        relay.say(1, INPUT, body)
    relay.say(1, INPUT_END)
    assert relay.over(1) == 0
    left = int(relay.of(1, OUTPUT))
    assert INPUT_WINDOW - left in (1, LARGEST)  # a shell may read ahead, by a piece at most


def test_input_for_who_reads_no_more_is_dropped(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "exec <&-; echo deaf; exec sleep 600")
    relay.until(lambda: relay.of(1, OUTPUT) == b"deaf\n")
    for _ in range(INPUT_WINDOW // LARGEST):
        relay.say(1, INPUT, bytes(LARGEST))

    def granted() -> int:
        return sum(COUNT.unpack(body)[0] for _, kind, body in relay.said if kind == MORE_INPUT)

    relay.until(lambda: granted() > 3 * INPUT_WINDOW // 4)
    relay.say(1, INPUT, b"more")
    relay.open(2, "true")
    assert relay.over(2) == 0
    (pid,) = relay.children()
    os.kill(pid, signal.SIGKILL)
    assert relay.over(1) == -9


@pytest.mark.parametrize(
    "said",
    [
        frame(1, INPUT, bytes(LARGEST)) * (2 * INPUT_WINDOW // LARGEST),
        frame(1, MORE_OUTPUT, COUNT.pack(1)),
        frame(1, MORE_ERRORS, b"x"),
    ],
)
def test_whoever_breaks_the_rules_is_left(relay: Relay, said: bytes) -> None:
    relay.open(1, "sleep", "600", known=b"n1 key")
    (pid,) = wait_for(relay.children)
    relay.go.write(said)
    assert relay.process.wait(LIMIT) == 1
    assert relay.process.stderr is not None
    assert relay.process.stderr.read() == b"malformed frames\n"
    wait_for(lambda: not _lives(pid))


def test_an_end_passes_output_that_waits(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "head -c 900000 /dev/zero; exec sleep 600")
    relay.open(2, "sh", "-c", "read -r x; exit 5")
    wait_for(lambda: len(relay.children()) == 2)
    # nothing is heard meanwhile: the link is full
    relay.say(2, INPUT, b"\n")
    wait_for(lambda: len(relay.children()) == 1)  # reaped, so its end is told
    relay.until(lambda: ENDED in relay.kinds(2))
    assert len(relay.of(1, OUTPUT)) < 600_000
    relay.until(lambda: len(relay.of(1, OUTPUT)) == 900_000)  # the others come, too


def test_known_hosts_are_in_memory_while_the_command_runs(relay: Relay) -> None:
    text = 'f=${1#*=}; echo $f; cat "$f"; cat'
    relay.open(1, "sh", "-c", text, "sh", KNOWN, known=b"n2 ssh-ed25519 AAAA\nn3 x\n")
    relay.until(lambda: relay.of(1, OUTPUT).count(b"\n") == 3)
    path, _, lines = relay.of(1, OUTPUT).partition(b"\n")
    assert lines == b"n2 ssh-ed25519 AAAA\nn3 x\n"
    assert path.startswith(b"/proc/%d/fd/" % relay.process.pid)
    assert os.path.exists(path)
    relay.say(1, INPUT_END)
    assert relay.over(1) == 0
    wait_for(lambda: not os.path.exists(path))
    relay.open(2, "sh", "-c", 'echo "$1"', "sh", KNOWN)  # without lines the word stays
    assert relay.over(2) == 0
    assert relay.of(2, OUTPUT) == KNOWN + b"\n"


def test_what_leads_to_another_host_is_killed_when_closed(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "trap '' TERM HUP; sleep 600 & echo $$ $!; wait", known=b"n2 key")
    relay.until(lambda: b"\n" in relay.of(1, OUTPUT))
    pids = relay.of(1, OUTPUT).split()
    relay.say(1, CLOSE)
    wait_for(lambda: not any(_lives(int(pid)) for pid in pids))
    said = len(relay.said)
    relay.open(2, "true")
    assert relay.over(2) == 0
    assert [n for n, _, _ in relay.said[said:] if n != 2] == []  # nobody wants to hear of it


def test_what_waited_for_one_that_is_closed_leaves_nothing_to_the_next(relay: Relay) -> None:
    """Which gets its descriptors."""

    def started(number: int) -> bool:
        return relay.of(number, OUTPUT) == b"ready\n"

    for number in (1, 2, 3):
        relay.open(number, "sh", "-c", "echo ready; read -r x; wc -c")
        relay.until(partial(started, number))
        for _ in range(INPUT_WINDOW // LARGEST):
            relay.say(number, INPUT, bytes(LARGEST))
        if number < 3:
            relay.say(number, CLOSE)
    relay.say(3, INPUT, b"\n")
    relay.say(3, INPUT_END)
    assert relay.over(3) == 0


def test_another_command_sees_the_end_of_its_input_when_closed(
    relay: Relay, tmp_path: Path
) -> None:
    relay.open(1, "sh", "-c", f"echo ready; cat; sleep 0.01; touch {tmp_path}/ended")
    relay.until(lambda: relay.of(1, OUTPUT) == b"ready\n")
    relay.say(1, CLOSE)
    wait_for((tmp_path / "ended").exists)
    wait_for(lambda: relay.children() == [])


def test_the_end_of_the_link_ends_what_it_started(tmp_path: Path) -> None:
    relay = Relay()
    relay.open(1, "sh", "-c", "trap '' HUP; echo $$; exec sleep 600", known=b"n2 key")
    relay.open(2, "sh", "-c", f"echo $$; cat; touch {tmp_path}/ended")
    relay.until(lambda: relay.of(1, OUTPUT).endswith(b"\n") and relay.of(2, OUTPUT))
    assert relay.end() == (0, b"")
    wait_for(lambda: not _lives(int(relay.of(1, OUTPUT))))
    wait_for((tmp_path / "ended").exists)
    relay.close()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_it_ends_with_who_started_it() -> None:
    """Also while its input is open, and it is stopped and cannot see the end of that."""
    # what a shell without job control starts by & reads /dev/null, whatever <&0 says
    text = 'exec 3<&0; "$0" -c "$1" <&3 3<&- & echo $! >&2; wait'
    parent = subprocess.Popen(
        ["sh", "-c", text, sys.executable, PROGRAM], bufsize=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        pid = int(parent.stderr.readline())
        assert parent.stdout.read(len(SYNC)) == SYNC
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        wait_for(lambda: not _lives(pid))


@cases("files", [13, 9])
def test_a_command_that_cannot_be_started_is_told_of(files: int) -> None:
    """However many: what was opened for one of them is closed."""
    relay = Relay(files)
    held: list[int] = []
    for number in range(6):
        relay.open(number, "true", known=b"n2 key" if number else b"")
        assert relay.over(number) == 126
        assert b"Too many open files" in relay.of(number, ERRORS)
        held.append(len(os.listdir(f"/proc/{relay.process.pid}/fd")))
    assert held[-1] <= held[0]
    assert relay.end() == (0, b"")
    relay.close()


def test_a_python_without_ctypes_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    with pytest.raises(ImportError):
        import ctypes  # noqa: F401
    die_with_parent()


def test_a_link_that_takes_no_more_is_at_its_end() -> None:
    relay = Relay()
    relay.open(1, "sh", "-c", "echo $$; exec yes", known=b"n2 key")
    relay.until(lambda: b"\n" in relay.of(1, OUTPUT))
    pid = int(relay.of(1, OUTPUT).split()[0])
    relay.come.close()
    assert relay.process.wait(LIMIT) == 0
    assert relay.process.stderr is not None
    assert relay.process.stderr.read() == b""
    wait_for(lambda: not _lives(pid))
    relay.close()


@cases("error", [None, AttributeError, OSError])
def test_lines_are_kept_where_nobody_else_finds_them(
    error: type[Exception] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, or, on old kernels, in a file without a name."""
    opened: list[tuple[str, int, int]] = []
    lines = b"n2 ssh-ed25519 AAAA\n" * 20_000

    def fail(name: str) -> int:
        assert error is not None
        raise error

    def nameless(path: str, flags: int, mode: int) -> int:
        opened.append((path, flags, mode))
        with open(tmp_path / "f", "w+b") as file:
            return os.dup(file.fileno())

    if error is not None:
        monkeypatch.setattr(os, "memfd_create", fail)
        monkeypatch.setattr(os, "open", nameless)
    fd, name = in_memory(lines)
    monkeypatch.undo()
    assert name == b"/proc/%d/fd/%d" % (os.getpid(), fd)
    assert Path(os.fsdecode(name)).read_bytes() == lines
    os.close(fd)
    if error is not None:
        assert opened == [("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)]
