"""The loop of a fan-out command, and the threads that serve its hosts.

As the loop of a run: events from the inbox, decisions from the core. A host that is reached by a
call (``Transport.call``: kept connections) costs no thread: one looks after all of those. Where a
connection must be made, or the user types to the command, a host may make us wait, and gets its own
thread.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from dispatcher.bootstrap import shell
from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, Tell
from dispatcher.core.events.exec_events import Outcome, PasswordTold
from dispatcher.core.events.run_events import Sink
from dispatcher.core.exec_machine import (
    AskPassword,
    CloseHost,
    ExecMachine,
    Finished,
    SendPassword,
    SignalCommand,
    StartCommand,
)
from dispatcher.model.host import Host
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.runner.exec.host_command import STDOUT, HostCommand
from dispatcher.runner.exec.stdio import StdioHandler
from dispatcher.runner.loop import JOIN_LIMIT, EventLoop, chance, join, signals_to
from dispatcher.transport.base import PromptTimer, Target, Transport, Window

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class ExecRunner(EventLoop):
    """Carries out one ``ExecPlan``. transport_for: host -> the way to reach it; sinks: get events.

    stdio: the link of the commands to standard input, or None. ask: asks the user for the sudo
    password, on its own thread; again, with True, if it was wrong. None when the user gives none.
    """

    def __init__(
        self,
        exec_plan: ExecPlan,
        transport_for: Callable[[Host], Transport],
        sinks: Sequence[Sink],
        *,
        stdio: StdioHandler | None = None,
        ask: Callable[[bool], bytes | None] = lambda again: None,
        sink_failed: Callable[[Sink, Exception], None] = lambda sink, error: None,
    ) -> None:
        super().__init__(sinks, sink_failed, len(exec_plan.hosts))
        self._plan = exec_plan
        self._transport_for = transport_for
        self._stdio = stdio
        self._ask = ask
        self._password: bytes | None = None
        special = exec_plan.sudo is not None or exec_plan.terminal is not None
        sent = exec_plan.script
        self._script = (
            shell.SentScript(
                "dispatch-" + os.urandom(16).hex(), sent.name, sent.content, len(sent.words) - 1
            )
            if sent is not None
            else None
        )
        self._wrapper = (
            shell.wrapper(
                "dispatch" + os.urandom(8).hex(),
                terminal=exec_plan.terminal is not None,
                sudo=exec_plan.sudo,
            )
            if special
            else None
        )
        self._machine = ExecMachine(exec_plan, chance)
        self._commands: dict[int, HostCommand] = {}
        self._executor = HostExecutor()
        self._typing = PromptTimer()
        self._outcomes: tuple[Outcome, ...] | None = None

    def typing(self, began: bool) -> None:
        """The user begins, or ends, to type a secret; from any thread."""
        self._typing.changed(began)
        self.tell(exec_events.Typing(began))

    def run(self, handled: Sequence[signal.Signals] = HANDLED) -> tuple[Outcome, ...]:
        """Run to the end; one outcome a host, in the hosts' order. handled: see ``Runner``."""
        self._feed.start()
        with signals_to(lambda signum: self.tell(ev.SignalReceived(signum)), handled):
            try:
                self._do(self._machine.begin(time.monotonic()))
                while self._outcomes is None:
                    self._step()
            finally:
                try:
                    for command in self._commands.values():
                        command.close()
                    self._executor.join(JOIN_LIMIT)
                    self._feed.finish(self._asks_to_leave)
                finally:
                    if self._stdio is not None:  # the terminal is the command's to its last byte
                        self._stdio.close()
        return self._outcomes

    def _step(self) -> None:
        # arrived events go before due ones, so that our own delay makes no host late
        for event in self._wait(self._machine.next_deadline()):
            self._record(event)
            self._do(self._machine.handle(event, time.monotonic()))
        self._do(self._machine.tick(time.monotonic()))

    def _taken(self, node: int, nbytes: int) -> None:
        self._commands[node].taken(nbytes)

    def _output(self, node: int, stream: int, data: bytes) -> None:
        if stream == STDOUT and self._stdio is not None and self._stdio.takes_output:
            self._stdio.take_output(node, data)
            self._taken(node, len(data))
        else:
            self._feed.output(node, node, stream, data)

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case StartCommand():
                    self._begin(action)
                case SignalCommand(node, name):
                    self._commands[node].signal(name)
                case AskPassword(again):
                    threading.Thread(
                        target=self._asking, args=(again,), name="asking", daemon=True
                    ).start()
                case SendPassword(node, seconds):
                    assert self._password is not None
                    self._commands[node].answer(self._password, seconds)
                case CloseHost(node):
                    if node in self._commands:
                        self._commands[node].close()
                case Tell(event):
                    self._record(event)
                case Finished(outcomes):
                    self._outcomes = outcomes

    def _asking(self, again: bool) -> None:
        self._password = None  # the last password was wrong: do not send it again
        try:
            self._password = self._ask(again)
        finally:
            self.tell(PasswordTold(self._password is not None))

    def _begin(self, order: StartCommand) -> None:
        exec_plan, node = self._plan, order.node
        host = exec_plan.hosts[node]
        transport = self._transport_for(host)
        transport.typing = self.typing
        command = self._commands[node] = HostCommand(
            node=node,
            attempt=order.attempt,
            target=Target(host.name, host.user, host.port),
            transport=transport,
            opening=shell.opening(
                exec_plan.words_for(node),
                exec_plan.environment(node),
                exports=exec_plan.exports,
                stdin=exec_plan.stdin,
                script=self._script,
                terminal=exec_plan.terminal is not None,
                one_pipe=exec_plan.one_pipe,
            ),
            wrapper=self._wrapper,
            plain=exec_plan.plain_for(node),
            sudo=exec_plan.sudo is not None,
            window=None if exec_plan.terminal is None else Window(*exec_plan.terminal),
            seconds=order.seconds,
            credit=self._credit,
            stdio=self._stdio,
            timer=self._typing,
            tell=self.tell,
            output=self._output,
        )
        self._executor.serve(command)


_CALL = object()


class HostExecutor:
    """Carries out commands, and knows their threads."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[HostCommand, object] | None] = queue.SimpleQueue()
        self._here: set[HostCommand] = set()  # commands on our thread
        self._due: dict[HostCommand, float] = {}  # when to look at each of them
        self._threads: list[tuple[threading.Thread, Callable[[], None]]] = []
        self._ours: threading.Thread | None = None

    def serve(self, command: HostCommand) -> None:
        """Begin ``command``; returns at once."""
        if not command.never_blocks:
            self._apart(command)
            return
        command.post = lambda item: self._inbox.put((command, item))
        if self._ours is None:
            self._ours = threading.Thread(target=self._run, name="commands", daemon=True)
            self._ours.start()
        self._inbox.put((command, _CALL))

    def join(self, seconds: float) -> None:
        """Wait for the threads to end, at most ``seconds`` in all; commands are over by then."""
        self._inbox.put(None)
        ours = [] if self._ours is None else [(self._ours, lambda: None)]
        join([*ours, *self._threads], seconds)

    # -- a thread for one -----------------------------------------------------------------

    def _apart(self, command: HostCommand) -> None:
        own: queue.SimpleQueue[object] = queue.SimpleQueue()
        command.post = own.put
        thread = threading.Thread(
            target=_alone, args=(command, own), name=command.name, daemon=True
        )
        self._threads.append((thread, command.break_off))
        thread.start()

    # -- a thread for all -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            due = min(self._due.values(), default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            items: list[tuple[HostCommand, object] | None] = []
            try:
                items.append(self._inbox.get(timeout=wait))
            except queue.Empty:
                pass
            items += [self._inbox.get() for _ in range(self._inbox.qsize())]
            now = time.monotonic()
            late = [command for command, when in self._due.items() if when <= now]
            items += [(command, None) for command in late]
            for one in items:
                if one is None:
                    return
                self._step(*one)

    def _step(self, command: HostCommand, item: object) -> None:
        if item is not _CALL and command not in self._here:
            if not command.over:
                command.post(item)  # it has its own thread by now
            return
        self._here.add(command)
        stays = True
        try:
            stays = command.call() if item is _CALL else command.step(item)
        except Exception as error:  # noqa: BLE001 - the others go on
            command.failed(error)
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._ours)))
        due = None if command.over or not stays else command.due()
        if due is None:
            self._due.pop(command, None)
        else:
            self._due[command] = due
        if command.over or not stays:
            self._here.discard(command)
        if command.over:
            command.leave()
        elif not stays:
            self._apart(command)


def _alone(command: HostCommand, inbox: queue.SimpleQueue[object]) -> None:
    try:
        command.open()
        while not command.over:
            due = command.due()
            try:
                item = inbox.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            except queue.Empty:
                item = None
            command.step(item)
    except Exception as error:
        command.failed(error)
        raise
    finally:
        command.leave()
