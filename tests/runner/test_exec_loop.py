"""The loop of a fan-out command: in which order its end comes."""

from __future__ import annotations

import threading

from dispatcher.core.events.run_events import Sink
from dispatcher.model.host import Host
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.runner.exec.exec_loop import ExecRunner
from dispatcher.transport.base import Link
from dispatcher.transport.process.command import LocalTransport


class Terminal:
    """Stands for the user's terminal, which is given back by ``close``."""

    takes_output = False
    problem: str | None = None

    def __init__(self) -> None:
        self.given_back = threading.Event()

    def start(self, node: int, link: Link) -> None: ...

    def take_output(self, node: int, data: bytes) -> None: ...

    def finish(self, node: int) -> None: ...

    def close(self) -> None:
        self.given_back.set()


class Shown(Sink):
    """Output that takes its time on the way to the terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.after: list[bool] = []

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.after.append(self._terminal.given_back.wait(0.5))


def test_the_terminal_is_given_back_when_all_is_shown() -> None:
    """Or the last lines are written on a terminal that puts a CR before each LF once more."""
    terminal, transport = Terminal(), LocalTransport()
    shown = Shown(terminal)
    plan = ExecPlan((Host("localhost"),), ("echo", "last words"))
    try:
        runner = ExecRunner(plan, lambda host: transport, [shown], stdio=terminal)
        runner.run(())
    finally:
        transport.close()
    assert shown.after == [False]
    assert terminal.given_back.is_set()
