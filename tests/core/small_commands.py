"""Small worlds to be explored: a command on a few hosts, with all that may happen.

A fault is what no good world has; a world allows a few. Hosts are reached, ask for a password,
end and are lost in any order; somebody types, time passes and a signal comes at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.core.events import actions as act
from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.exec_machine import AskPassword, CloseHost, SendPassword, SignalCommand

from .explorer import BEGIN, WAIT, Step, clone, freeze, need
from .test_exec_machine import DROPPED, REFUSED, Table


@dataclass(frozen=True)
class SmallCommand:
    """A small fan-out. limits: of ``ExecLimits``; sudo: whether hosts ask for a password."""

    hosts: int = 3
    faults: int = 2
    sudo: bool = False
    limits: tuple[tuple[str, Any], ...] = ()

    def world(self) -> Command:
        return Command(self)


class Command:
    """A command of ``ExecMachine`` on hosts that connect, run and end. Rules: E-1 to E-8."""

    def __init__(self, small: SmallCommand) -> None:
        self.small = small
        self.faults = small.faults
        self.table = Table(small.hosts, begin=BEGIN, **{"connect": 10.0, **dict(small.limits)})
        self.stopped = False  # by a signal
        self.asking = False
        self.asked = 0
        self.typing = 0  # passphrases that are being typed
        self.wanting: frozenset[int] = frozenset()  # hosts whose sudo waits for the password
        self.told: frozenset[int] = frozenset()  # hosts that look at it
        self.dying: frozenset[int] = frozenset()  # hosts whose command was sent a signal

    @property
    def code(self) -> int | None:
        return None if self.table.result is None else 0

    @property
    def bounded(self) -> bool:
        """E-5"""
        return self.stopped and not self.typing

    def copy(self) -> Command:
        other = object.__new__(Command)
        other.__dict__.update(self.__dict__)
        other.table = clone(self.table, {})
        return other

    def key(self) -> Step:
        if self.code is not None:
            return ("ended",)
        table = self.table
        return (
            freeze(table.rounds, table.now, {}), *map(frozenset, (table.connecting, table.running)),
            tuple(table.begun), self.wanting, self.told, self.dying, self.faults, self.stopped,
            self.asking, self.asked, self.typing,
        )  # fmt: skip

    def steps(self) -> Iterator[Step]:
        """All that can happen next; faults last."""
        table, faults = self.table, self.faults
        if self.code is not None:
            return
        for node in sorted(table.connecting):
            asks = self.small.sudo and node not in self.told
            if node not in self.wanting:
                yield ("asks" if asks else "starts", node)
            if faults:
                yield from ((what, node) for what in ("drops", "refuses"))
                if node in self.told:
                    yield ("wrong", node)
        for node in sorted(table.running):
            yield ("dies" if node in self.dying else "ends", node)
            if faults:
                yield from ((what, node) for what in ("fails", "drops"))
        if self.asking:
            yield ("types",)
        if self.typing:
            yield ("typed",)
        if table.rounds.next_deadline() is not None:
            yield WAIT
        if faults:
            yield ("signal",)
            yield ("typing",)
            if self.asking:
                yield ("declines",)

    def take(self, step: Step) -> None:
        """Let ``step`` happen. Raises: Broken."""
        what, node = step[0], step[-1]
        self.faults -= what in (
            "drops", "refuses", "wrong", "fails", "signal", "typing", "declines",
        )  # fmt: skip
        match what:
            case "wait":
                due = self.table.rounds.next_deadline()
                assert due is not None
                self.table.now = max(self.table.now, due)
                self.do(self.table.rounds.tick(self.table.now))
            case "asks" | "wrong":
                self.wanting |= {node}
                self.told -= {node}
                self.see(exec_events.PasswordAwaited(node))
            case "types" | "declines":
                self.asking = False
                self.see(exec_events.PasswordTold(what == "types"))
            case "typing" | "typed":
                self.typing += 1 if what == "typing" else -1
                self.see(exec_events.Typing(what == "typing"))
            case "signal":
                again, self.stopped = self.stopped, True
                self.see(ev.SignalReceived(9 if again else 2))  # as ``Stop`` orders it
            case "starts":
                self.see(ev.NodeBooted(node, 0))
            case "drops":
                self.see(ev.NodeLost(node, DROPPED))
            case "refuses":
                self.see(ev.NodeLost(node, REFUSED))
            case "ends" | "fails":
                self.see(exec_events.CommandEnded(node, int(what == "fails")))
            case "dies":
                self.see(exec_events.CommandEnded(node, None, "TERM"))

    def see(self, event: ev.Event) -> None:
        table = self.table
        match event:
            case ev.NodeBooted(node):
                table.connecting.discard(node)
                table.running.add(node)
                self.told -= {node}
            case ev.NodeLost(node) | exec_events.CommandEnded(node):
                table.connecting.discard(node)
                table.running.discard(node)
                self._forget(node)
        self.do(table.rounds.handle(event, table.now))

    def do(self, actions: Sequence[act.Action]) -> None:
        table, before = self.table, set(self.table.connecting)
        for action in actions:
            match action:
                case AskPassword(again):
                    need(not self.asking, "E-6: asked while it is being typed")
                    need(again == (self.asked > 0), "E-6: asked twice for the first time")
                    self.asking, self.asked = True, self.asked + 1
                    need(self.asked < 3, "E-6: asked a third time")
                case SendPassword(node):
                    need(node in self.wanting & before, "E-6: sent to who does not want it")
                    self.wanting, self.told = self.wanting - {node}, self.told | {node}
                case SignalCommand(node):
                    need(node in table.running, f"{action}, where nothing runs")
                    self.dying |= {node}
                case CloseHost(node):
                    self._forget(node)
        table.take(list(actions))
        need(not self.stopped or table.connecting <= before, "E-1: begun after the stop")
        fanout = table.limits.fanout
        need(len(table.connecting) <= fanout, f"E-2: more than {fanout} connect")
        if table.result is not None:
            need(len(table.done) == self.small.hosts, "E-3: a host without an outcome")
        table.told.clear()
        table.signals.clear()

    def _forget(self, node: int) -> None:
        self.wanting, self.told = self.wanting - {node}, self.told - {node}
        self.dying -= {node}
