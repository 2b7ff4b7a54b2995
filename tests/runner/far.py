"""The far end of a fan-out command, said and done by a test, and a command that talks with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.model.failure import Ending, Failure
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.runner.exec import command_link
from dispatcher.runner.exec.command_link import CommandLink
from dispatcher.runner.exec.stdio import StdioHandler
from dispatcher.transport.base import Call, Link, LinkClosed, PromptTimer, Target, Transport, Window

NEVER = Ending(None)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


#: by the clock of the commands, which tests may set
TIMER = PromptTimer(lambda: command_link.time.monotonic())  # type: ignore[attr-defined]


class Far(Link):
    """The host's end: what it says is put into ``out`` and ``errors``; b"" is the end."""

    def __init__(self) -> None:
        self.address = "10.0.0.7"
        self.out: list[bytes] = []
        self.errors: list[bytes] = []
        self.did: list[Any] = []  # what was done with it
        self.status = NEVER
        self.why: Failure | None = None
        self.is_gone = False
        self.errors_open = True
        self.takes = True
        self.ready: Callable[[], None] = lambda: None
        self.waited: list[float] = []

    def watch(self, ready: Callable[[], None]) -> None:
        self.ready = ready
        self.did.append("watch")

    def read(self, limit: int) -> bytes | None:
        assert limit > 0
        return self.out.pop(0) if self.out else None

    def read_errors(self, limit: int) -> bytes:
        return self.errors.pop(0) if self.errors else b""

    def write(self, data: bytes) -> None:
        if not self.takes:
            raise LinkClosed
        self.did.append(data)

    def end_input(self) -> None:
        self.did.append("end of input")

    def gone(self) -> bool:
        return self.is_gone

    def errors_ended(self) -> bool:
        return not self.errors_open and not self.errors

    def close(self) -> None:
        self.did.append("close")

    def ending(self, timeout: float) -> Ending:
        self.waited.append(timeout)
        return self.status

    def failure(self, timeout: float) -> Failure | None:
        return self.why

    def ends(self, code: int | None = 0, signal: str | None = None, *, open: bool = False) -> None:
        self.is_gone, self.status = True, Ending(code, signal)
        if not open:
            self.out.append(b"")
            self.errors_open = False


class Ringing(Call):
    until = 1234.0

    def __init__(self) -> None:
        self.said: Link | Failure | Transport | None = None
        self.closed = False

    def watch(self, ready: Callable[[], None]) -> None:
        self.ready = ready

    def answer(self) -> Link | Failure | Transport | None:
        return self.said

    def close(self) -> None:
        self.closed = True


class Way(Transport):
    name = "way"

    def __init__(self, opened: Link | Failure | None, called: Call | None = None) -> None:
        self._opened, self._called = opened, called
        self.asked: list[tuple[Any, ...]] = []

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        self.asked.append((target, command, deadline, window))
        assert self._opened is not None
        return self._opened

    def call(self, target: Target, command: str, deadline: float, opening: bytes) -> Call | None:
        self.asked.append((target, command, deadline, opening))
        return self._called


class Talks(StdioHandler):
    def __init__(self, *, takes_output: bool = False) -> None:
        self.takes_output = takes_output
        self.did: list[tuple[Any, ...]] = []

    def start(self, node: int, link: Link) -> None:
        self.did.append(("start", node, link))

    def finish(self, node: int) -> None:
        self.did.append(("finish", node))

    def close(self) -> None:
        self.did.append(("close",))


class Host:
    """A command on ``far``; all that it told, and wrote, and wants to be given."""

    def __init__(
        self, opened: Link | Failure | None = None, called: Call | None = None, **options: Any
    ) -> None:
        self.far = Far()
        self.way = Way(opened or self.far, called)
        self.told: list[Any] = []
        self.heard: list[tuple[int, int, bytes]] = []
        self.posted: list[object] = []
        fixed = {
            "node": 3, "attempt": 2, "target": Target("n3"), "transport": self.way,
            "opening": b"OPENING", "wrapper": None, "sudo": False, "window": None, "seconds": 60.0,
            "credit": 1000, "stdio": None, "timer": TIMER, "tell": self.told.append,
            "output": lambda *said: self.heard.append(said),
        }  # fmt: skip
        self.command = CommandLink(**{**fixed, **options})
        self.command.post = self.posted.append

    def step(self, *out: bytes, errors: bytes = b"") -> None:
        """The host says something, and it is read."""
        self.far.out += out
        self.far.errors += [errors] if errors else []
        items, self.posted[:] = [*self.posted] or [None], []
        for item in items:
            self.command.step(item)

    def running(self) -> Host:
        """From now on the command runs."""
        self.command.open()
        self.step(SYNC)
        self.told.clear()
        return self

    def events(self) -> list[str]:
        return [type(event).__name__ for event in self.told]

    def text(self, stream: int = 1) -> bytes:
        return b"".join(data for _, one, data in self.heard if one == stream)
