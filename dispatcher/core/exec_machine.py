"""A fan-out command as one pure machine: ``handle(event, now) -> [Action]``.

Each host goes its own way::

    waiting --its turn--> connecting --started--> running --over--> done
       ^                      |                      |
       +--dropped, try again--+        stopping: a signal, grace, a harder one, given up

* E-1  a host is contacted only if nothing has stopped the fan-out before its turn
* E-2  never more than ``fanout`` hosts connect (``connect``), and never more than ``serial`` are
  at work; a host begins only when all hosts of the batches before its own are done, and ``delay``
  seconds have passed since
* E-3  every host ends with exactly one outcome, its first
* E-4  a dropped connection is tried again by the rules of ``connect``, before hosts that never were
* E-5  the fan-out ends in bounded time after it was stopped, whatever the hosts do
* E-6  dispatch asks the user for sudo's password once, or twice if it was wrong, and typing it
  costs no host its time. It goes to one host first, and to others when it was right there
* E-7  typing the passphrase of a key costs no host its time either
* E-8  once ``max_fail`` hosts have failed, or all of a batch of canaries, all hosts that were never
  contacted are left out, and no other
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from dispatcher.core.connect import ConnectPolicy
from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, Tell
from dispatcher.core.interrupts import KILL, READER, Interrupts
from dispatcher.model import errors
from dispatcher.model.errors import InternalError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import value
from dispatcher.plan.exec_plan import ExecPlan

WAITING, CONNECTING, RUNNING, DONE = "waiting", "connecting", "running", "done"

#: hosts that may fail after they got sudo's password, before it is known to be right
MOST_UNSETTLED = 3

#: seconds a killed command may take to end before its host is given up
LAST_WAIT = 2.0
#: seconds that dispatch waits for a transport after the connect limit
CONNECT_SLACK = 2.0

#: names, since a signal's number differs between systems
_SIGNALS = {signal.SIGINT: ("INT", "TERM", "KILL")}
_ENDING = ("TERM", "KILL")

#: why a host is stopped
Why = exec_events.TimedOut | exec_events.Interrupted


@value
class StartCommand(Action):
    """Connect to the host and start the command; give up ``seconds`` from now."""

    node: int
    attempt: int
    seconds: float


@value
class SignalCommand(Action):
    """Send ``name`` to the process group of the host's command."""

    node: int
    name: str


@value
class AskPassword(Action):
    """Ask the user for sudo's password; ``again``: the first one was wrong."""

    again: bool = False


@value
class SendPassword(Action):
    """Send the password to the host; give up ``seconds`` from now."""

    node: int
    seconds: float


@value
class CloseHost(Action):
    """Close the connection to the host; nothing from it counts any more."""

    node: int


@value
class Finished(Action):
    """All hosts are done."""

    outcomes: tuple[exec_events.Outcome, ...]


class SudoPassword:
    """Decides which of the hosts that ask for sudo's password get it, and when (E-6).

    A wrong password that goes to all hosts locks an account on each. So one host gets it first, and
    the others when its command has started. A host that asks again got a wrong one.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._told: set[int] = set()
        self._first: int | None = None  # the host that tries it for the others
        self._asked = self._unsettled = 0
        self._asking = self._known = self._proven = False
        self._over = ""  # why no host gets a password any more
        self._wrong: set[int] = set()

    def wanted(self, node: int) -> None:
        """Note that sudo on ``node`` asks for the password."""
        again = node in self._told
        if again:
            self._told.discard(node)
            if self._proven or self._asked > 1:
                self._wrong.add(node)
            if not self._proven:
                self._first, self._known = None, False
                if self._asked > 1:
                    self._over = "not tried: the password was wrong on another host"
        if node not in self._waiting:
            self._waiting.insert(0 if again else len(self._waiting), node)

    def given(self, given: bool) -> None:
        """Note that the user typed a password, or gave none."""
        self._asking, self._known = False, given
        self._over = self._over or ("" if given else "no password was given")

    def left(self, node: int, *, started: bool) -> None:
        """Note that ``node`` does not need it any more; started: its command runs."""
        if node in self._waiting:
            self._waiting.remove(node)
        if node in self._told and started:
            self._proven = True
        elif node == self._first and not self._proven:
            self._first, self._unsettled = None, self._unsettled + 1
            if self._unsettled == MOST_UNSETTLED:
                self._over = "the first hosts that got the password failed with it"
        self._told.discard(node)

    def orders(self) -> Iterator[AskPassword | int | tuple[int, Failure]]:
        """The next steps: ask the user, send the password to a host (its node), or fail a host."""
        waiting, self._waiting = self._waiting, []
        for node in waiting:
            if node in self._wrong:
                yield node, Failure(Kind.SUDO, "wrong password")
            elif self._over:
                yield node, Failure(Kind.SUDO, self._over)
            elif self._known and (self._proven or self._first is None):
                self._first = node
                self._told.add(node)
                yield node
            else:
                self._waiting.append(node)
        if self._waiting and not self._known and not self._asking:
            self._asking, self._asked = True, self._asked + 1
            yield AskPassword(again=self._asked > 1)


class _Host:
    def __init__(self) -> None:
        self.state = WAITING
        self.signals: list[str] = []
        self.why: Why | None = None  # the reason of its stop
        self.outcome: exec_events.Outcome | None = None


class ExecMachine:
    """The state of one fan-out command. random: 0 to 1, for the pauses between attempts."""

    def __init__(self, exec_plan: ExecPlan, random: Callable[[], float]) -> None:
        self._limits = exec_plan.limits
        self._connect = ConnectPolicy(exec_plan.limits.fanout, exec_plan.limits.connect, random)
        self._hosts = [_Host() for _ in exec_plan.hosts]
        self._queue = deque(range(len(self._hosts)))
        self._at_once = exec_plan.limits.at_once(len(self._hosts))
        self._batches = exec_plan.limits.batches(len(self._hosts))
        self._canaries = exec_plan.limits.canaries(len(self._hosts))
        self._batch = 0  # those that have begun
        self._begun = 0  # how many hosts these have; they are the first of all
        self._most_failures = exec_plan.limits.most_failures(len(self._hosts))
        self._at = {WAITING: len(self._hosts), CONNECTING: 0, RUNNING: 0, DONE: 0}
        self._failures = 0
        self._interrupts = Interrupts()
        self._sudo = SudoPassword()
        self._typing = 0  # secrets that are being typed
        self._typing_since = 0.0
        self._stopped = False
        self._over = False
        self._plain = exec_plan.plain  # the end of a command that is stopped is not seen
        self.deadlines: dict[Hashable, float] = {}

    # -- entry points --------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        """The first actions."""
        if self._limits.total is not None:
            self.deadlines["total"] = now + self._limits.total
        return [*self._next_batch(), *self._go_on(now)]

    def handle(self, event: ev.Event, now: float) -> list[Action]:
        """The actions that ``event``, observed at ``now``, calls for."""
        if self._over:
            return []
        match event:
            case ev.NodeConnecting() | ev.NodeConnected() | ev.OutputEnded():
                return []
            case ev.NodeBooted(node):
                return self._started(node, now)
            case ev.NodeLost(node, failure):
                return self._lost(node, failure, now)
            case exec_events.CommandEnded(node, code, name):
                return self._ended(node, code, name, now)
            case ev.SignalReceived(signum):
                return self._signalled(signum, now)
            case exec_events.PasswordAwaited(node):
                return self._await_password(node, now)
            case exec_events.PasswordTold(given):
                self._sudo.given(given)
                return self._answer(now)
            case exec_events.Typing(began):
                self._typed(began, now)
                return []
        raise InternalError(f"exec machine: no rule for {event!r}")

    def tick(self, now: float) -> list[Action]:
        """The actions that are due at ``now``."""
        actions: list[Action] = []
        for key, when in sorted(self.deadlines.items(), key=lambda item: item[1]):
            due = when <= now and self.deadlines.get(key) == when and self._runs(key)
            if due:  # at the end none is
                del self.deadlines[key]
                actions += self._due(key, now)
        return actions

    def next_deadline(self) -> float | None:
        """When ``tick`` must be called next; None if nothing is due."""
        return min((when for key, when in self.deadlines.items() if self._runs(key)), default=None)

    def _runs(self, key: Hashable) -> bool:
        """Whether the time until the deadline ``key`` runs (E-7)."""
        return not (self._typing and isinstance(key, tuple) and key[0] == "connect")

    def _typed(self, began: bool, now: float) -> None:
        if not self._typing:
            self._typing_since = now
        self._typing = max(0, self._typing + (1 if began else -1))
        if self._typing or began:
            return
        pause = now - self._typing_since
        self._connect.extend(pause)
        for node in range(len(self._hosts)):
            if ("connect", node) in self.deadlines:
                self.deadlines["connect", node] += pause

    # -- hosts come and go -------------------------------------------------------------

    def _go_on(self, now: float) -> list[Action]:
        """Start the hosts whose turn it is (E-2); finish when all are done."""
        actions: list[Action] = []
        if self._at[DONE] == self._begun < len(self._hosts) and "batch" not in self.deadlines:
            actions += self._end_batch(now)
        while (
            self._queue
            and self._queue[0] < self._begun
            and not self._stopped
            and self._connect.can_begin
            and self._at[CONNECTING] + self._at[RUNNING] < self._at_once
        ):
            actions.append(self._begin(self._queue.popleft(), now))
        if self._at[DONE] == len(self._hosts) and not self._over:
            self._over = True
            self.deadlines.clear()
            outcomes = [host.outcome for host in self._hosts if host.outcome is not None]
            actions.append(Finished(tuple(outcomes)))
        return actions

    def _end_batch(self, now: float) -> list[Action]:
        """Begin the next batch, now or after the delay, or leave out the other hosts (E-2, E-8)."""
        first = self._begun - self._batches[self._batch - 1]
        outcomes = [host.outcome for host in self._hosts[first : self._begun]]
        if self._batch <= self._canaries and exec_events.Exited(0) not in outcomes:
            return self._leave_out(f"all of batch {self._batch} failed", errors.STOPPED)
        if self._limits.delay:
            self.deadlines["batch"] = now + self._limits.delay
            return []
        return self._next_batch()

    def _next_batch(self) -> list[Action]:
        first, self._begun = self._begun, self._begun + self._batches[self._batch]
        self._batch += 1
        if len(self._batches) == 1:
            return []
        nodes = tuple(range(first, self._begun))
        return [Tell(exec_events.BatchStarted(self._batch, len(self._batches), nodes))]

    def _begin(self, node: int, now: float) -> Action:
        attempt = self._connect.begin(node, now)
        self._move(node, CONNECTING)
        until = attempt.until + self._limits.login
        self.deadlines["connect", node] = until + CONNECT_SLACK
        return StartCommand(node, attempt.number, until - now)

    def _started(self, node: int, now: float) -> list[Action]:
        host = self._hosts[node]
        if host.state != CONNECTING:
            return []
        self._move(node, RUNNING)
        self.deadlines.pop(("connect", node), None)
        self._connect.reached(node)
        if self._limits.command is not None:
            self.deadlines["command", node] = now + self._limits.command
        self._sudo.left(node, started=True)
        return self._answer(now) + self._go_on(now)

    def _lost(self, node: int, failure: Failure, now: float) -> list[Action]:
        host = self._hosts[node]
        if host.state not in (CONNECTING, RUNNING):
            return []
        if host.state == CONNECTING:  # E-4
            again = self._connect.failed(node, failure, now)
            if not isinstance(again, Failure):
                self._move(node, WAITING)
                self.deadlines.pop(("connect", node), None)
                self.deadlines["again", node] = now + again
                self._sudo.left(node, started=False)  # its sudo will ask again
                return self._answer(now) + self._go_on(now)
            failure = again
        return self._finish(node, host.why or exec_events.Failed(failure), now)

    def _await_password(self, node: int, now: float) -> list[Action]:
        """Lift the host's limit until the user has answered its sudo (E-6)."""
        if self._hosts[node].state != CONNECTING:
            return []
        self.deadlines.pop(("connect", node), None)
        self._sudo.wanted(node)
        return self._answer(now)

    def _answer(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for order in list(self._sudo.orders()):
            if isinstance(order, AskPassword):
                actions.append(order)
            elif isinstance(order, tuple):
                node, failure = order
                actions += self._finish(node, exec_events.Failed(failure), now)
            else:
                seconds = self._limits.connect
                self.deadlines["connect", order] = now + seconds + CONNECT_SLACK
                actions.append(SendPassword(order, seconds))
        return actions

    def _ended(self, node: int, code: int | None, name: str | None, now: float) -> list[Action]:
        host = self._hosts[node]
        if host.state not in (CONNECTING, RUNNING):
            return []
        if code != 0 and host.why is not None:
            return self._finish(node, host.why, now)
        outcome = exec_events.Exited(code or 0) if name is None else exec_events.Killed(name)
        return self._finish(node, outcome, now)

    def _finish(self, node: int, outcome: exec_events.Outcome, now: float) -> list[Action]:
        host = self._hosts[node]
        if host.state == DONE:  # E-3
            return []
        self._move(node, DONE)
        self._connect.given_up(node)
        self._sudo.left(node, started=False)
        if self._plain and isinstance(outcome, Why):
            outcome = replace(outcome, ended=False)
        host.outcome = outcome
        for key in ("connect", "command", "kill", "again"):
            self.deadlines.pop((key, node), None)
        actions: list[Action] = [Tell(exec_events.HostDone(node, outcome)), CloseHost(node)]
        if not exec_events.is_good(outcome):
            self._failures += 1
            if self._failures == self._most_failures:
                actions += self._leave_out(f"stopped after {self._failures} failed", errors.STOPPED)
        return actions + self._answer(now) + self._go_on(now)

    def _move(self, node: int, state: str) -> None:
        host = self._hosts[node]
        self._at[host.state] -= 1
        self._at[state] += 1
        host.state = state

    # -- stopping ------------------------------------------------------------------------

    def _due(self, key: Hashable, now: float) -> list[Action]:
        match key:
            case "total":
                assert self._limits.total is not None
                why = exec_events.TimedOut("total", self._limits.total)
                return self._stop_all(why, "time was up", now)
            case "reader":
                return self._signalled(signal.SIGPIPE, now, seen=True)
            case "batch":
                return [*self._next_batch(), *self._go_on(now)]
            case ("again", int(node)):
                self._queue.appendleft(node)
                return self._go_on(now)
            case ("command", int(node)):
                assert self._limits.command is not None
                why = exec_events.TimedOut("command", self._limits.command)
                return self._stop(node, why, _ENDING, now)
            case ("kill", int(node)):
                return self._escalate(node, now)
            case ("connect", int(node)):
                seconds = self._limits.connect + self._limits.login
                late = Failure(Kind.TIMEOUT, f"not ready within {seconds:.0f} s")
                return self._finish(node, self._hosts[node].why or exec_events.Failed(late), now)
        raise InternalError(f"exec machine: no rule for deadline {key!r}")

    def _signalled(self, signum: int, now: float, *, seen: bool = False) -> list[Action]:
        if signum == signal.SIGPIPE and not self._interrupts.level and not seen:
            self.deadlines["reader"] = now + READER  # Ctrl-C, which ends readers, may come yet
            return []
        level = self._interrupts.hear(signum, now)
        if not level:
            return []
        if level > KILL:  # leave at once; the hosts see the end of the connection
            why = exec_events.Interrupted(signum, ended=False)
            hosts = range(len(self._hosts))
            return [action for node in hosts for action in self._finish(node, why, now)]
        busy = [node for node, host in enumerate(self._hosts) if host.state == RUNNING]
        if level == KILL:
            actions: list[Action] = []
            for node in busy:
                self._hosts[node].signals = ["KILL"]
                actions += self._escalate(node, now)
            return actions
        status = exec_events.StatusAsked(
            tuple(n for n, host in enumerate(self._hosts) if host.state == CONNECTING),
            tuple(busy),
            tuple(n for n, host in enumerate(self._hosts) if host.state == WAITING),
        )
        asked = [Tell(status)] if signum != signal.SIGPIPE else []  # SIGPIPE: no reader
        return [*asked, *self._stop_all(exec_events.Interrupted(signum), "interrupted", now)]

    def _stop_all(self, why: Why, unstarted: str, now: float) -> list[Action]:
        """Stop running commands, give up hosts that connect, leave out those that wait (E-1)."""
        signum = why.signum if isinstance(why, exec_events.Interrupted) else None
        signals = _SIGNALS.get(signal.Signals(signum), _ENDING) if signum else _ENDING
        actions = self._leave_out(unstarted, exec_events.own_code(why))
        self._stopped = True
        for node, host in enumerate(self._hosts):
            if host.state == RUNNING:
                actions += self._stop(node, why, signals, now)
            elif host.state in (CONNECTING, WAITING):  # waiting: to be tried again
                actions += self._finish(node, why, now)
        return actions + self._go_on(now)

    def _stop(self, node: int, why: Why, signals: Sequence[str], now: float) -> list[Action]:
        host = self._hosts[node]
        host.why = host.why or why
        host.signals = list(signals)
        return self._escalate(node, now)

    def _escalate(self, node: int, now: float) -> list[Action]:
        """Send the next signal; after the last one give the host up (E-5)."""
        host = self._hosts[node]
        self.deadlines.pop(("command", node), None)
        if not host.signals:
            assert host.why is not None
            return self._finish(node, replace(host.why, ended=False), now)
        name = host.signals.pop(0)
        self.deadlines["kill", node] = now + (self._limits.grace if host.signals else LAST_WAIT)
        return [SignalCommand(node, name)]

    def _leave_out(self, why: str, code: int) -> list[Action]:
        """End hosts that were never contacted; a host that waits for a retry keeps its turn."""
        self._begun = len(self._hosts)  # no batch is left
        actions: list[Action] = []
        for node, host in enumerate(self._hosts):
            if host.state == WAITING and not self._connect.was_tried(node):
                self._queue.remove(node)
                self._move(node, DONE)
                host.outcome = exec_events.NotStarted(why, code)
                actions.append(Tell(exec_events.HostDone(node, host.outcome)))
        return actions
