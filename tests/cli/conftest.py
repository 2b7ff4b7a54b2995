"""Commands called in this process: their options typed, a terminal, a job in the background."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import socket
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from rig import wait_for

from dispatcher.cli import COMMANDS, object_at
from dispatcher.cli.entry import load_command, shown_name
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import listen

Parsed = Callable[..., Any]


@pytest.fixture
def parsed() -> Iterator[Parsed]:
    """``parsed("run", *words)`` gives the ``RunOptions`` of a line of ``dispatch run``."""
    with ExitStack() as stack:

        def parse(name: str, *words: str) -> Any:
            command = load_command(name)
            shown = shown_name("" if name == "run" else name)
            context = command.make_context(shown, list(words), obj=words)
            stack.enter_context(context)
            return object_at(COMMANDS[name][0])(**context.params)

        yield parse


@pytest.fixture
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No batch job, no files of the user's, an empty folder: that one."""
    for name in [n for n in os.environ if n.startswith(("SLURM", "PBS", "LSB", "PE_", "FLUX"))]:
        monkeypatch.delenv(name)
    for name in ("PWD", "DISPATCH_SSH_CONFIG", "DISPATCH_PROFILE", "NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


Given = Callable[[bytes], None]


@pytest.fixture
def given() -> Iterator[Given]:
    """``given(b"...")``: from now on that is standard input, as descriptor 0."""
    kept = os.dup(0)
    made: list[int] = []

    def give(data: bytes) -> None:
        source, end = os.pipe()
        made.append(source)
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.write(end, data)
        os.close(end)
        os.dup2(source, 0)

    yield give
    os.dup2(kept, 0)
    for fd in (kept, *made):
        os.close(fd)


class Terminal:
    """A terminal of 80 columns, which this process has as its standard streams from ``take`` on."""

    def __init__(self) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self._seen = bytearray()
        self._kept: dict[int, int] = {}
        self._streams = ExitStack()
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def take(self) -> Terminal:
        """Put the terminal where this process reads and writes: ``sys.stdout`` and the like too.

        In the test itself, since pytest's own capture goes on just before it.
        """
        self._kept = {fd: os.dup(fd) for fd in (0, 1, 2)}
        patch = self._streams.enter_context(pytest.MonkeyPatch.context())
        for name, fd in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
            os.dup2(self._slave, fd)
            stream = open(fd, "w" if fd else "r", buffering=1, closefd=False)  # noqa: SIM115 - closed below
            self._streams.callback(stream.close)
            patch.setattr(sys, name, stream)
        return self

    def _read(self) -> None:
        with suppress(OSError):
            while data := os.read(self._master, 1 << 16):
                self._seen += data

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str) -> str:
        """All that was shown, once ``text`` was."""
        wait_for(lambda: text in self.text, 30, lambda: f"{text!r} is shown; shown: {self.text!r}")
        return self.text

    @property
    def text(self) -> str:
        """What was written so far, as bytes came."""
        return bytes(self._seen).decode("utf-8", "replace")

    @property
    def plain(self) -> str:
        """The same without colours and moves of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._slave)[3] & termios.ECHO)

    @property
    def path(self) -> str:
        return os.ttyname(self._slave)

    def leave(self) -> str:
        """Give the streams back; all that was shown."""
        self._streams.close()
        for fd, kept in self._kept.items():
            os.dup2(kept, fd)
            os.close(kept)
        self._kept.clear()
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1
            self._reader.join(60)
            os.close(self._master)
        return self.text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal that can do all, not yet taken."""
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    yield terminal
    terminal.leave()


class FakeLauncher:
    """A job on record whose launcher is this process: hears orders, and says what it was told to.

    before: called once the order is there, before anything is said. stays: it does not hang up.
    """

    def __init__(
        self, folder: Path, said: tuple[bytes, ...], before: Callable[[], None], *, stays: bool
    ) -> None:
        self.folder = folder
        self.run_id = folder.name
        self.orders: list[dict[str, Any]] = []
        self.called = False
        self._said = said
        self._before = before
        self._stays = stays
        self._socket = listen(folder)
        self._socket.setblocking(True)
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError, ValueError):  # a caller may leave without an order
            link, _ = self._socket.accept()
            self.called = True
            with link, link.makefile("rb") as lines:
                self.orders.append(json.loads(lines.readline()))
                self._before()
                for frame in self._said:
                    link.sendall(frame)
                if not self._stays:
                    link.shutdown(socket.SHUT_WR)
                self.orders += map(json.loads, lines)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._socket.close()


OnRecord = Callable[..., Path]


@pytest.fixture
def on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnRecord:
    """``on_record(run_id, **about)``: a job written down by this process; the record's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def enroll(run_id: str = "20260131-142501-k3f9x2", **about: Any) -> Path:
        usual: dict[str, Any] = {
            "program": ("train.py",), "hosts": [("n1", None, None), ("n2", None, None)],
            "ranks": 2, "logs": None, "detached": True, "reach": {},
        }  # fmt: skip
        return registry.enroll(run_id, **{**usual, **about})

    return enroll


Launched = Callable[..., FakeLauncher]


@pytest.fixture
def launched(on_record: OnRecord, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launched]:
    """``launched(*frames, code=0, lines=(), **about)``: a job whose launcher says these and ends.

    code: None for a launcher that goes without a verdict.
    """
    monkeypatch.setattr(registry, "DYING", 0.05)
    with ExitStack() as stack:

        def launch(
            *said: bytes, code: int | None = 0, lines: tuple[str, ...] = (),
            before: Callable[[], None] = lambda: None, stays: bool = False, **about: Any,
        ) -> FakeLauncher:  # fmt: skip
            folder = on_record(**about)

            def end() -> None:
                before()
                if code is not None:
                    registry.conclude(folder, code, lines)

            launcher = FakeLauncher(folder, said, end, stays=stays)
            stack.callback(launcher.close)
            return launcher

        yield launch


@contextmanager
def full_disk() -> Iterator[None]:
    """Standard output is on a full disk meanwhile."""
    kept = os.dup(1)
    with open("/dev/full", "w") as disk:
        os.dup2(disk.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
