"""One host of a fan-out command: connect, start the command, read it to its end.

It owns the link. It reports what happens as events, the last of which is ``NodeLost`` or
``CommandEnded``; output goes to the sinks' queue directly, at most ``credit`` bytes of it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dispatcher.bootstrap import payload, shell
from dispatcher.bootstrap.payload import SyncScanner, flood_hint, remote_message
from dispatcher.bootstrap.shell import Wrapper
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.exec_events import CommandEnded, PasswordAwaited
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.names import size
from dispatcher.runner.exec.stdio import Prompt, PromptScanner, StdioHandler
from dispatcher.runner.loop import CLOSE, READABLE, HostLink
from dispatcher.transport.base import Call, Link, LinkClosed, PromptTimer, Target, Transport, Window

READ_SIZE = 256 << 10
#: bytes of one stream that are read in a row: a host that never runs dry must leave the clock,
#: orders and the other hosts of its thread their turn
TURN = 1 << 20
INTERRUPT = b"\x03"  # Ctrl-C for a terminal
STDOUT, STDERR = 1, 2
#: bytes of standard error kept to explain a command that did not start
ERRORS_LIMIT = 4096
#: bytes of login noise after which no command is waited for
MOST_NOISE = 16 << 20
#: seconds of silence after the command's end until we give up processes that hold its output open
HELD_OPEN = 1.0
#: a part of sudo's message if its rules have ``requiretty``
NO_TERMINAL = "must have a tty"
NOT_THAT = "is not allowed to execute"
#: seconds between two looks at a link that does not report when its command ended
POLL = 1.0


@dataclass(eq=False, kw_only=True)
class CommandLink(HostLink):
    """One attempt at one host.

    opening: the command as ``shell.opening`` made it. wrapper: set if it has to wait for its turn;
    sudo: whether the wrapper is sudo's. plain: sent in the place of both, or None. window: of the
    terminal that the command gets, or None. seconds: until the command must have started. stdio:
    writes the command's input, or None. timer: stops while the user types a secret.
    tell, output: take events and (node, stream, bytes).
    """

    node: int
    attempt: int
    target: Target
    transport: Transport
    opening: bytes
    wrapper: Wrapper | None
    plain: str | None = None
    sudo: bool
    window: Window | None
    seconds: float
    credit: int
    stdio: StdioHandler | None
    timer: PromptTimer
    tell: Callable[[ev.Event], None]
    output: Callable[[int, int, bytes], None]

    def __post_init__(self) -> None:
        super().__init__()
        self.name = f"command:{self.target.host}"
        wrapper = self.wrapper
        self._command = self.plain or (shell.COMMAND if wrapper is None else wrapper.command)
        self._prompts = None if wrapper is None else PromptScanner(wrapper)
        self.never_blocks = not (self._prompts or self.stdio or self.window or self.plain)
        self._deadline = self.timer.now() + self.seconds  # by the timer
        self._call: Call | None = None
        self._quiet_since = 0.0
        self._asked = False  # to end
        self._begun = False
        self._scanner = None if self.plain else SyncScanner()  # None: the command has started
        self._errors = b""
        self._gone = False  # the command or the connection is
        self._ended = False  # standard output is
        self._counts = {STDOUT: 0, STDERR: 0}
        self._lock = threading.Lock()
        self._owed = 0  # bytes given to the sinks and not yet taken
        self._full = False

    # -- called by other threads --------------------------------------------------------

    def signal(self, name: str) -> None:
        """Let the command's process group have signal ``name``; returns at once."""
        self.post(name)

    def answer(self, password: bytes, seconds: float) -> None:
        """Send ``password`` to sudo; the command must have started ``seconds`` from now."""
        self.post((password, seconds))

    def taken(self, nbytes: int) -> None:
        """The sinks took ``nbytes`` of this host's output."""
        with self._lock:
            self._owed -= nbytes
            resume = self._full and self._owed <= self.credit // 2
            if resume:
                self._full = False
        if resume:
            self.wake()

    # -- the thread ---------------------------------------------------------------------

    def call(self) -> bool:
        self._begin()
        until = self.timer.real(self._deadline)
        called = self.transport.call(self.target, self._command, until, self.opening)
        if called is None:
            return False
        self._call = called
        called.watch(self.wake)
        return True

    def open(self) -> None:
        self._begin()
        until = self.timer.real(self._deadline)
        opened = self.transport.open(self.target, self._command, until, self.window)
        self._arrived(opened)
        if self.link is None or self.over:
            return
        if self.plain:
            self.tell(ev.NodeBooted(self.node, 0))
            self.stdio.start(self.node, self.link) if self.stdio else self.link.end_input()
        elif first := self.opening if self.wrapper is None else self.wrapper.first:
            self._write(self.link, first)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.tell(ev.NodeConnecting(self.node, self.attempt))

    def _arrived(self, opened: Link | Failure) -> None:
        if isinstance(opened, Failure):
            if opened.kind is Kind.BOOT:  # which here is no agent's
                opened = replace(opened, kind=Kind.START)
            self.lose(opened)
            return
        self.link = link = opened
        if self.stopping:  # given up by now: the command must not start
            self.over = True
            return
        self.tell(ev.NodeConnected(self.node, link.address, link.by or self.transport.name))
        self._quiet_since = time.monotonic()
        link.watch(self.wake)

    def step(self, item: object) -> bool:
        if item is READABLE:
            self._readable = False
        if item is CLOSE:
            self.over = True
        elif self._call is not None:
            return self._take_answer(self._call)
        elif self.link is not None:
            self._serve(self.link, item)
        return True

    def _take_answer(self, call: Call) -> bool:
        answer = call.answer()
        if answer is None:
            return True
        self._call = None
        if isinstance(answer, Transport):
            self.transport = answer
            return False
        self._arrived(answer)
        return True

    def lose(self, failure: Failure) -> None:
        self._end(ev.NodeLost(self.node, failure))

    def leave(self) -> None:
        super().leave()
        if self._call is not None:
            self._call.close()

    def _end(self, last: ev.Event) -> None:
        self.over = True
        if self.stopping:
            return
        self.stopping = True
        for stream, count in self._counts.items():
            self.tell(ev.OutputEnded(self.node, self.node, stream, count, count))
        self.tell(last)

    def _serve(self, link: Link, item: object) -> None:
        if isinstance(item, str):
            self._order(link, item)
        if isinstance(item, tuple):
            password, seconds = item
            self._deadline = self.timer.now() + seconds
            self._write(link, password + b"\n")
        if self._read(link):
            self._quiet_since = time.monotonic()
        last = self._last_event(link)
        if last is not None:
            if self.stdio is not None:
                self.stdio.finish(self.node)
            self._end(last)

    def due(self) -> float | None:
        link = self.link
        if link is None:
            return None if self._call is None else self._call.until
        if self._gone:
            return None if self._full else self._quiet_since + HELD_OPEN
        if self._ended and link.errors_ended() and not link.tells_end:
            link.ending(POLL)  # an end of output is followed by the command's own end at once
            return 0.0
        if self._scanner is not None and self._deadline < math.inf:
            return self.timer.real(self._deadline)
        return None if link.tells_end else time.monotonic() + POLL

    def _order(self, link: Link, name: str) -> None:
        if self.window is not None and name == "INT":
            self._write(link, INTERRUPT)
        elif self.stdio is not None and self.stdio.takes_output and not self._asked:
            self._asked = True
            link.end_input()  # who we talk with ends in good order when we say no more
        elif self.window is not None or self.stdio is not None or self.plain:
            link.close()  # no line for orders: the far side sees the end
        else:
            self._write(link, shell.order(name))

    @staticmethod
    def _write(link: Link, data: bytes) -> None:
        try:
            link.write(data)
        except LinkClosed:
            pass  # its end, and why, is about to be read

    # -- output ---------------------------------------------------------------------------

    def _read(self, link: Link) -> bool:
        """Read output, up to the credit and a ``TURN``; whether there was any."""
        before = sum(self._counts.values())
        errors = output = 0  # bytes of this turn
        while errors < TURN and self._has_credit() and not self.over:
            data = link.read_errors(READ_SIZE)
            if not data:
                break
            errors += len(data)
            if self._prompts is not None:
                self._scan(link, STDERR, data)
                continue
            self._errors = (self._errors + data)[-ERRORS_LIMIT:]
            self._give(STDERR, data)
        while output < TURN and self._has_credit() and not self._ended and not self.over:
            data_or_none = link.read(READ_SIZE)
            if data_or_none is None:
                break
            output += len(data_or_none)
            self._ended = not data_or_none
            self._take(link, data_or_none)
        if max(errors, output) >= TURN:
            self.wake()
        return sum(self._counts.values()) != before

    def _has_credit(self) -> bool:
        with self._lock:
            self._full = self._owed >= self.credit
            return not self._full

    def _scan(self, link: Link, stream: int, data: bytes) -> bytes:
        """Look for prompts; returns the bytes after them once the command can be sent."""
        assert self._prompts is not None
        found, rest = self._prompts.scan(stream, data)
        if found is Prompt.READY:
            self._prompts = None
            self._write(link, self.opening)
            return rest
        if found is Prompt.PASSWORD and self._deadline < math.inf:
            self._deadline = math.inf  # until the user has answered; sudo asks again only then
            self.tell(PasswordAwaited(self.node))
        self._check_noise(self._prompts.seen)
        return b""

    def _take(self, link: Link, data: bytes) -> None:
        if self._prompts is not None:
            data = self._scan(link, STDOUT, data)
            if not data:
                return
        if self._scanner is not None:
            rest = self._scanner.feed(data)
            if rest is None:
                self._check_noise(self._scanner.dropped)
                return
            self.tell(ev.NodeBooted(self.node, len(self._scanner.noise)))
            self._scanner = None
            if self.stdio is not None:
                self.stdio.start(self.node, link)
            data = rest
        self._give(STDOUT, data)

    def _check_noise(self, nbytes: int) -> None:
        if nbytes > MOST_NOISE:
            why = f"a flood: {size(MOST_NOISE)} of login noise"
            hint = flood_hint(self.transport.by_hand(self.target, "true"))
            self.lose(Failure(Kind.PROTOCOL, why, hint))

    def _give(self, stream: int, data: bytes) -> None:
        if not data or self.stopping:
            return
        self._counts[stream] += len(data)
        with self._lock:
            self._owed += len(data)
        self.output(self.node, stream, data)

    # -- the end --------------------------------------------------------------------------

    def _last_event(self, link: Link) -> ev.Event | None:
        """The last event, or None until the command's end is known and all is read."""
        now = time.monotonic()
        if link.gone() and not self._gone:
            self._gone = True
            self._quiet_since = now  # its last words may be on their way
        if not self._gone:
            if self._scanner is None or self.timer.now() < self._deadline:
                return None
            why = "connected, but the command did not start" + self._last_words()
            hint = (
                payload.slow_hint(self.transport.by_hand(self.target, "true")) + "; or a longer -t"
            )
            return ev.NodeLost(self.node, Failure(Kind.TIMEOUT, why, hint))
        ended = self._ended and link.errors_ended()
        if not ended and (self._full or now < self._quiet_since + HELD_OPEN):
            return None
        if not ended and link.lies_unread():  # not silent: our own reader did not run
            self._quiet_since = now
            return None
        if self._scanner is not None:
            failure = self._not_started(link)
            return ev.NodeLost(self.node, self.transport.explain(self.target, failure))
        ending = link.ending(0.0)
        if self.plain and (known := link.failure(0.5)) is not None:
            return ev.NodeLost(self.node, known)
        if ending.code is None and ending.signal is None:
            lost = Failure(Kind.LOST, "the connection ended while the command ran")
            return ev.NodeLost(self.node, link.failure(0.0) or lost)
        return CommandEnded(self.node, ending.code, ending.signal, held_open=not ended)

    def _not_started(self, link: Link) -> Failure:
        known = link.failure(0.5)
        if known is not None:
            return known
        code = link.ending(0.0).code
        how = "the link ended" if code is None else f"exit code {code}"
        plain = f"dispatch exec --plain -w {self.target.host}"
        if self._prompts is not None and self.sudo and code is not None:
            why = how + self._last_words()
            hint = "--pty" if self.stdio is None else "Defaults !requiretty  # in its sudoers"
            if NOT_THAT in why:
                hint = f"{plain} sudo -n true  # --sudo starts /bin/sh, for which there is no rule"
            return Failure(Kind.SUDO, why, hint if NO_TERMINAL in why or NOT_THAT in why else None)
        reads = payload.READS_INPUT % "command"
        if reads.encode() in self._errors.splitlines():
            return Failure(Kind.START, reads, payload.READ_NO_INPUT)
        why = f"{how} before the command started{self._last_words()}"
        some = f"{plain} true  # if the login allows only some commands"
        return Failure(Kind.START, why, None if code is None else some)

    def _last_words(self) -> str:
        noise = self._scanner.finish() if self._scanner is not None else b""
        if self._prompts is not None:
            noise = b"\n".join(self._prompts.said.values())
        return remote_message(self._errors or noise)
