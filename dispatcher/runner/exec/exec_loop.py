"""The loop of a fan-out command, and on whose thread each host is served.

The loop of an errand: events from the inbox, decisions from the core, visits at their desk.

As the loop of a run (``loop``), with visits in the place of agents. It never
writes to a disk, a terminal or a socket itself.

On whose thread the visits of an errand are: one for all that wait for nobody, else one each.

A host that is reached by a call (``Transport.call``: kept connections) costs no thread; the desk
looks after all of them, each when something has come for it. Where a connection must be made,
or somebody talks with the command, a host may make us wait, and gets a thread of its own.
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
from dispatcher.core.events import exec_events as vi
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, Tell
from dispatcher.core.events.exec_events import Outcome, PasswordTold
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.core.exec_machine import Answer, AskPassword, Finished, Leave, Rounds, SignalCommand
from dispatcher.core.exec_machine import Visit as VisitHost
from dispatcher.model.host import Host
from dispatcher.plan.exec_plan import Errand
from dispatcher.runner import inbox
from dispatcher.runner.exec.host_command import STDOUT, Visit
from dispatcher.runner.exec.stdio import Dialogue, Typing
from dispatcher.runner.inbox import Inbox
from dispatcher.runner.sink_thread import Feed
from dispatcher.transport.base import Target, Transport, Window

#: output bytes that may wait for the sinks: of all hosts, and of one at most and at least
CREDIT_TOTAL, CREDIT_MOST, CREDIT_LEAST = 64 << 20, 1 << 20, 64 << 10
#: seconds the threads of all hosts together may take to end
JOIN_LIMIT = 2.0
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class ErrandRunner:
    """Carries out one errand. transport_for: host -> the way to reach it; sinks: who is told.

    dialogue: who talks with the commands, or None. ask: asks the user for the password
    that sudo wants, on a thread of its own; None when nobody answers. It is called once
    at most.
    """

    def __init__(
        self,
        errand: Errand,
        transport_for: Callable[[Host], Transport],
        sinks: Sequence[Sink],
        *,
        dialogue: Dialogue | None = None,
        ask: Callable[[], bytes | None] = lambda: None,
        sink_failed: Callable[[Sink, Exception], None] = lambda sink, error: None,
    ) -> None:
        self._errand = errand
        self._transport_for = transport_for
        self._dialogue = dialogue
        self._ask = ask
        self._password: bytes | None = None
        special = errand.sudo is not None or errand.terminal is not None
        self._door = (
            shell.door(
                "dispatch" + os.urandom(8).hex(),
                terminal=errand.terminal is not None,
                sudo=errand.sudo,
            )
            if special
            else None
        )
        self._feed = Feed(sinks, self._taken, sink_failed)
        self._rounds = Rounds(errand, _chance)
        self._inbox = Inbox()
        self._visits: dict[int, Visit] = {}
        self._desk = Desk()
        self._typing = Typing()
        self._credit = min(CREDIT_MOST, max(CREDIT_LEAST, CREDIT_TOTAL // len(errand.hosts)))
        self._seq = 0
        self._began = time.monotonic()
        self._outcomes: tuple[Outcome, ...] | None = None

    def tell(self, event: ev.Event) -> None:
        """Put ``event`` into the inbox; from any thread or signal handler."""
        self._inbox.put(event)

    def typing(self, began: bool) -> None:
        """The user begins, or ends, to type a secret; from any thread."""
        self._typing.told(began)
        self.tell(vi.Typing(began))

    def run(self, handled: Sequence[signal.Signals] = HANDLED) -> tuple[Outcome, ...]:
        """Run to the end; one outcome a host, in the hosts' order. handled: see ``Runner``."""
        self._feed.start()
        with inbox.told(lambda signum: self.tell(ev.SignalReceived(signum)), handled):
            try:
                self._do(self._rounds.begin(time.monotonic()))
                while self._outcomes is None:
                    self._step()
            finally:
                for visit in self._visits.values():
                    visit.close()
                if self._dialogue is not None:
                    self._dialogue.close()
                self._desk.join(JOIN_LIMIT)
                self._feed.finish(self._inbox.asks_to_leave)
        return self._outcomes

    def _step(self) -> None:
        # what has arrived goes before what is due, so that nobody is late for our own delay
        for event in self._inbox.wait(self._rounds.next_deadline()):
            self._record(event)
            self._do(self._rounds.handle(event, time.monotonic()))
        self._do(self._rounds.tick(time.monotonic()))

    def _record(self, event: ev.Event) -> None:
        self._seq += 1
        self._feed.event(Stamped(self._seq, time.monotonic() - self._began, event))

    def _taken(self, node: int, nbytes: int) -> None:
        self._visits[node].taken(nbytes)

    def _output(self, node: int, stream: int, data: bytes) -> None:
        """Output of a host, from its thread."""
        if stream == STDOUT and self._dialogue is not None and self._dialogue.hears:
            self._dialogue.heard(node, data)
            self._taken(node, len(data))
        else:
            self._feed.output(node, node, stream, data)

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case VisitHost():
                    self._visit(action)
                case SignalCommand(node, name):
                    self._visits[node].signal(name)
                case AskPassword():
                    threading.Thread(target=self._asking, name="asking", daemon=True).start()
                case Answer(node, seconds):
                    assert self._password is not None
                    self._visits[node].answer(self._password, seconds)
                case Leave(node):
                    if node in self._visits:
                        self._visits[node].close()
                case Tell(event):
                    self._record(event)
                case Finished(outcomes):
                    self._outcomes = outcomes

    def _asking(self) -> None:
        try:
            self._password = self._ask()
        finally:
            self.tell(PasswordTold(self._password is not None))

    def _visit(self, order: VisitHost) -> None:
        errand, node = self._errand, order.node
        host = errand.hosts[node]
        visit = self._visits[node] = Visit(
            node=node,
            attempt=order.attempt,
            target=Target(host.name, host.user, host.port),
            transport=self._transport_for(host),
            opening=shell.opening(
                errand.words_for(node),
                errand.environment(node),
                stdin=errand.stdin,
                terminal=errand.terminal is not None,
            ),
            door=self._door,
            sudo=errand.sudo is not None,
            window=None if errand.terminal is None else Window(*errand.terminal),
            seconds=order.seconds,
            credit=self._credit,
            dialogue=self._dialogue,
            typed=self._typing.seconds,
            tell=self.tell,
            output=self._output,
        )
        self._desk.serve(visit)


def _chance() -> float:
    """A random number from 0 to 1; needed only where hosts drop connections."""
    import random

    return random.random()  # noqa: S311 - it spreads attempts, nothing is secret


_CALL = object()


class Desk:
    """Carries out visits, and knows their threads."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[Visit, object] | None] = queue.SimpleQueue()
        self._here: set[Visit] = set()  # those on our thread
        self._due: dict[Visit, float] = {}  # when one of them is to be looked at
        self._threads: list[threading.Thread] = []
        self._ours: threading.Thread | None = None

    def serve(self, visit: Visit) -> None:
        """Begin ``visit``; returns at once."""
        if not visit.waits_for_nobody:
            self._apart(visit)
            return
        visit.post = lambda item: self._inbox.put((visit, item))
        if self._ours is None:
            self._ours = threading.Thread(target=self._run, name="desk", daemon=True)
            self._ours.start()
        self._inbox.put((visit, _CALL))

    def join(self, seconds: float) -> None:
        """Wait for the threads to end, at most ``seconds`` in all; visits are over by then."""
        self._inbox.put(None)
        end = time.monotonic() + seconds
        if self._ours is not None:
            self._ours.join(timeout=max(0.0, end - time.monotonic()))
        for thread in list(self._threads):
            thread.join(timeout=max(0.0, end - time.monotonic()))

    # -- a thread for one -----------------------------------------------------------------

    def _apart(self, visit: Visit) -> None:
        """Go on with ``visit`` on a thread of its own."""
        own: queue.SimpleQueue[object] = queue.SimpleQueue()
        visit.post = own.put
        thread = threading.Thread(target=_alone, args=(visit, own), name=visit.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- a thread for all -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            due = min(self._due.values(), default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            items: list[tuple[Visit, object] | None] = []
            try:
                items.append(self._inbox.get(timeout=wait))
            except queue.Empty:
                pass
            items += [self._inbox.get() for _ in range(self._inbox.qsize())]
            now = time.monotonic()
            late = [visit for visit, when in self._due.items() if when <= now]
            items += [(visit, None) for visit in late]
            for one in items:
                if one is None:
                    return
                self._step(*one)

    def _step(self, visit: Visit, item: object) -> None:
        if item is not _CALL and visit not in self._here:
            if not visit.over:
                visit.post(item)  # it has a thread of its own by now
            return
        self._here.add(visit)
        stays = True
        try:
            stays = visit.call() if item is _CALL else visit.step(item)
        except Exception as error:  # noqa: BLE001 - the others go on
            visit.failed(error)
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._ours)))
        due = None if visit.over or not stays else visit.due()
        if due is None:
            self._due.pop(visit, None)
        else:
            self._due[visit] = due
        if visit.over or not stays:
            self._here.discard(visit)
        if visit.over:
            visit.leave()
        elif not stays:
            self._apart(visit)


def _alone(visit: Visit, inbox: queue.SimpleQueue[object]) -> None:
    try:
        visit.open()
        while not visit.over:
            due = visit.due()
            try:
                item = inbox.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            except queue.Empty:
                item = None
            visit.step(item)
    except Exception as error:
        visit.failed(error)
        raise
    finally:
        visit.leave()
