"""The loop of a fan-out command.

As the loop of a run: events from the inbox, decisions from the core.
"""

from __future__ import annotations

import os
import signal
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
from dispatcher.runner.exec.command_link import STDOUT, CommandLink
from dispatcher.runner.exec.stdio import StdioHandler
from dispatcher.runner.loop import JOIN_LIMIT, EventLoop, HostExecutor, chance, signals_to
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
        self._commands: dict[int, CommandLink] = {}
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
                    self._executor.close(JOIN_LIMIT)
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
        command = self._commands[node] = CommandLink(
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
