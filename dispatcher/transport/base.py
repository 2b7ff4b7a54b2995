"""The contract of every way to reach a host (``Transport``, ``Link``), and rules that all share.

A host's fault is a ``Failure`` value; exceptions are for mistakes of the caller.
``Transport.open`` blocks, and many threads call it at once. After that one owner thread drives the
link; another may call ``write`` and ``end_input``, so that a full pipe one way does not stop the
other. The transport may call the owner's ``ready`` from its own threads: it must return at once,
and take no lock that is held while the link is called.
"""

from __future__ import annotations

import abc
import re
import threading
import time
from collections import deque
from collections.abc import Callable

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.model.frozen import Value, value


@value
class Target(Value):
    """A host to connect to: its checked name or address, and the user's choices for it."""

    host: str
    user: str | None = None
    port: int | None = None


@value
class Window(Value):
    """The size of a terminal, in characters."""

    columns: int = 80
    rows: int = 24


#: seconds for which sshd waits for a login (LoginGraceTime)
LOGIN_GRACE = 120.0


class LinkClosed(OSError):
    """The far side is gone; data that was written may not have arrived."""


class Link(abc.ABC):
    """An open byte stream to one command on one host."""

    #: numeric address this link reached ("10.0.0.7"), or None where there is none
    address: str | None = None
    #: (name, seconds) of each step it took to open this link, where the transport knows them
    steps: tuple[tuple[str, float], ...] = ()
    #: the transport's name, where that is not the one that was asked
    by: str | None = None
    #: whether ``ready`` is called too when ``gone`` turns true while the streams stay open
    tells_end = False

    @abc.abstractmethod
    def watch(self, ready: Callable[[], None]) -> None:
        """Call ``ready()`` (from any thread) when bytes, error bytes or the end may be waiting.

        Also calls it once at registration if something is waiting already.
        Spurious and merged calls are fine; a missed one is not.
        """

    @abc.abstractmethod
    def read(self, limit: int) -> bytes | None:
        """Up to ``limit`` bytes of standard output; ``None``: none now; ``b""``: the end.

        Unread data is held back: past a fixed amount (1 MiB a link) the
        far side's writes block.
        """

    @abc.abstractmethod
    def read_errors(self, limit: int) -> bytes:
        """Up to ``limit`` bytes of standard error; ``b""``: none now (there may be more later)."""

    @abc.abstractmethod
    def write(self, data: bytes) -> None:
        """Send all of ``data``; blocks while the far side takes none.

        Raises: LinkClosed when the stream is closed at either end.
        """

    @abc.abstractmethod
    def end_input(self) -> None:
        """End the command's standard input after all data written before; idempotent.

        Output still comes. ``write`` raises ``LinkClosed`` from here on.
        """

    @abc.abstractmethod
    def gone(self) -> bool:
        """Whether the command or the connection has ended, so that ``ending`` cannot learn more.

        Output may still be waiting, or processes that the command left behind may hold it open.
        """

    @abc.abstractmethod
    def errors_ended(self) -> bool:
        """Whether all of standard error was read and no more can come."""

    def lies_unread(self) -> bool:
        """Whether output, or its end, has arrived and the owner has not read it yet."""
        return False

    @abc.abstractmethod
    def close(self) -> None:
        """Close both directions; idempotent, returns within a second, never raises."""

    def let_end(self) -> None:
        """As ``close``, for a command that is about to end by itself: the connection may
        serve others once it has ended.
        """
        self.close()

    @abc.abstractmethod
    def ending(self, timeout: float) -> Ending:
        """The command's exit status, waiting up to ``timeout`` seconds for it."""

    def resize(self, window: Window) -> None:  # noqa: B027 - most links have no terminal
        """Set the size of the far side's terminal, where the transport can; never blocks long."""

    def expect_answers(self, seconds: float) -> bool:
        """End the link when the host's kernel has answered nothing for ``seconds``; False where
        the transport cannot see that.

        Kernels ask and answer each second, so a program that is stopped or gets no CPU, at either
        end, does not end the link.
        """
        return False

    def silence(self) -> tuple[float, bool]:
        """Seconds since the host's kernel answered, and whether it had all that was written.

        Known after ``expect_answers`` only, which asks every second; else (0, False).
        """
        return 0.0, False

    def failure(self, timeout: float) -> Failure | None:
        """Why the host was never reached, when the stream ended before any byte came; or which
        other host has taken it along; or that it does not answer any more.

        Where a program (``ssh``) connects later, its end gives the reason: waits up to ``timeout``
        seconds for that. ``None``: the host was reached, or the reason is unknown.
        """
        return None


class Asides:
    """Counts a peer's packets that bring no data, which no window limits: ``most`` at once, and
    ``rate`` a second for ever.
    """

    def __init__(self, most: int, rate: float) -> None:
        self._most = most
        self._rate = rate
        self._count, self._at = 0.0, 0.0

    def came(self, cost: float = 1.0) -> bool:
        """Count one packet, or ``cost`` of them; whether that is too much now."""
        self._count += cost
        if self._count > self._most:
            now = time.monotonic()
            self._count = max(0.0, self._count - (now - self._at) * self._rate)
            self._at = now
        return self._count > self._most

    def paid(self, cost: float) -> None:
        """Take ``cost`` back: the packets brought data after all."""
        self._count = max(0.0, self._count - cost)


class RecvBuffer:
    """Bytes that have arrived on one stream and were not taken yet, in the pieces that came.

    Filled by one thread and emptied by the link's owner; the thread that fills it limits it.
    """

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._ready: Callable[[], None] = lambda: None
        self._cond = threading.Condition()  # reentrant: ``wait`` takes

    def __len__(self) -> int:
        return self._size

    @property
    def spent(self) -> bool:
        return self._ended and not self._size

    def ended(self, seconds: float = 0.0) -> bool:
        """Whether no more can come; waits up to ``seconds`` for that."""
        with self._cond:
            return self._cond.wait_for(lambda: self._ended, max(0.0, seconds))

    def watch(self, ready: Callable[[], None]) -> None:
        """Call ``ready()`` for all that comes, and for the end; at once if something is here."""
        with self._cond:
            self._ready = ready
            if self._size or self._ended:
                ready()

    def take(self, limit: int) -> bytes | None:
        """Up to ``limit`` bytes; ``None``: none now; ``b""``: the end."""
        with self._cond:
            if not self._size:
                return b"" if self._ended else None
            taken: list[bytes] = []
            while limit and self._pieces:
                piece = self._pieces.popleft()
                if len(piece) > limit:
                    self._pieces.appendleft(piece[limit:])
                    piece = piece[:limit]
                taken.append(piece)
                limit -= len(piece)
            data = b"".join(taken)
            self._size -= len(data)
            return data

    def wait(self, limit: int, seconds: float | None) -> bytes:
        """As ``take``, but waits. Raises: TimeoutError."""
        with self._cond:
            if not self._cond.wait_for(lambda: self._size or self._ended, seconds):
                raise TimeoutError
            return self.take(limit) or b""

    def feed(self, data: bytes) -> None:
        """Add ``data``, which has arrived; after the end it is dropped."""
        with self._cond:
            if data and not self._ended:
                self._pieces.append(data)
                self._size += len(data)
                self._tell()

    def close(self) -> None:
        """Mark the end: no more can come."""
        with self._cond:
            self._ended = True
            self._tell()

    def discard(self) -> None:
        """Forget the data that is here, and take no more: the owner has stopped reading."""
        with self._cond:
            self._pieces.clear()
            self._size = 0
            self.close()

    def _tell(self) -> None:
        self._ready()
        self._cond.notify_all()


class Call(abc.ABC):
    """A link that is being opened while no thread waits for it; driven by one thread."""

    #: the second (``time.monotonic``) from which on there is an answer
    until: float

    @abc.abstractmethod
    def watch(self, ready: Callable[[], None]) -> None:
        """Call ``ready()`` (from any thread) when there may be an answer; see ``Link.watch``."""

    @abc.abstractmethod
    def answer(self) -> Link | Failure | Transport | None:
        """The result; None: none yet. A transport: ask that one instead."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the call up before it has an answer. Idempotent."""


class Transport(abc.ABC):
    """One way of reaching hosts; shared by all hosts of a run.

    typing: called when the user begins (True) and ends to type a secret for it; its user sets that.
    """

    name: str
    typing: Callable[[bool], None] = staticmethod(lambda began: None)

    @abc.abstractmethod
    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        """Run ``command`` (one line of POSIX shell text) on the host.

        window: give the command a terminal of that size (or of no set size, where the transport
        cannot set one); its error output then comes with its output. deadline: the
        ``time.monotonic()`` second by which all must be done, from name lookup to the start of the
        command; after it a ``Failure(Kind.TIMEOUT)`` names the step that was late.
        """

    def by_hand(self, target: Target, command: str) -> str:
        """The line with which a user can try ``command``, plain text, on the host the same way."""
        return f"ssh {target.host} {command}"

    def explain(self, target: Target, failure: Failure) -> Failure:
        """``failure`` of a start on the host, in terms of what this transport puts in between."""
        return failure

    def call(self, target: Target, command: str, deadline: float, opening: bytes) -> Call | None:
        """Do as ``open`` and then a ``write`` of ``opening``, but without waiting.

        None: this host cannot be called so; use ``open``.
        """
        return None

    def prepare(self, command: str) -> None:  # noqa: B027 - most transports keep nothing
        """Start ``command`` over idle connections, for the next user to find it running."""

    def close(self) -> None:  # noqa: B027 - most transports share nothing
        """Release what is shared between hosts (agent connection, bastions); idempotent."""


class Steps:
    """The step that is under way, and the earlier steps with their seconds, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._since = time.monotonic()
        self._done: list[tuple[str, float]] = []

    def enter(self, name: str) -> None:
        """Begin the step ``name``, and so end the one before it."""
        now = time.monotonic()
        self._done.append((self.name, now - self._since))
        self.name, self._since = name, now

    def taken(self) -> tuple[tuple[str, float], ...]:
        """(name, seconds) of every step so far, the current one until now."""
        return (*self._done, (self.name, time.monotonic() - self._since))


_HOST = re.compile(r"[A-Za-z0-9_.:%-]{1,255}")  # no "@" and no "/": ssh reads those as more
_USER = re.compile(r"[A-Za-z0-9_.:%@+=~,/^!*?#\\-]{1,255}")
#: text that a shell reads as one plain word without quotes
_SHELL_SAFE = re.compile(r"[A-Za-z0-9_.:%@+=,/-]*")


class PromptTimer:
    """A clock that stops while the user types a secret: that time counts against no host.

    Any thread may call.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._since = 0.0
        self._before = 0.0

    def changed(self, began: bool) -> None:
        """Note that the user begins to type a secret, or has ended."""
        with self._lock:
            now = self._clock()
            if self._count:
                self._before += now - self._since
            self._since = now
            self._count += 1 if began else -1

    def seconds(self) -> float:
        """For how long the user has typed so far."""
        with self._lock:
            return self._before + (self._clock() - self._since if self._count else 0.0)

    def now(self) -> float:
        """The second of this clock."""
        return self._clock() - self.seconds()

    def real(self, second: float) -> float:
        """The ``time.monotonic`` second at ``second`` here, if the user types no more before."""
        return second + self.seconds()


def valid_host(name: str) -> bool:
    """True for a host name or address that is safe as an argument and in a token."""
    return _HOST.fullmatch(name) is not None and not name.startswith("-")


def valid_user(name: str) -> bool:
    """True for a user name that is safe as an argument and in a token."""
    return _USER.fullmatch(name) is not None and name[0] != "-" and name[-1] != "\\"


def shell_safe(text: str) -> bool:
    """True when a shell reads ``text`` as one word that means itself."""
    return _SHELL_SAFE.fullmatch(text) is not None


def bad_target(target: Target) -> Failure | None:
    """The reason why ``target`` must not be connected to, or ``None``."""
    if not valid_host(target.host):
        return Failure(Kind.CONFIG, f"bad host name: {target.host[:80]!r}")
    if target.user is not None and not valid_user(target.user):
        return Failure(Kind.CONFIG, f"bad user name: {target.user[:80]!r}")
    if target.port is not None and not 0 < target.port < 65536:
        return Failure(Kind.CONFIG, f"bad port: {target.port}")
    return None


#: seconds of silence until a question, and how many questions may stay unanswered
ALIVE_INTERVAL, ALIVE_COUNT = 15.0, 3


def questions_due(silent: float, interval: float, most: int) -> int | None:
    """How many questions are due after ``silent`` seconds; None: the host is given up.

    interval: 0 for never.
    """
    count = int(silent // interval) if interval > 0 else 0
    return None if count > most else count


@value
class Keepalive(Value):
    """How to ask hosts whether they live. seconds: of silence until a question, 0: never; None: as
    ssh_config sets it for the host, or ``otherwise`` where it sets nothing."""

    seconds: float | None = None
    otherwise: float = 0.0

    def limits(self, interval: float | None, count: int | None) -> tuple[float, int]:
        """The host's interval and number; ``interval`` and ``count`` come from its ssh_config."""
        seconds = interval if self.seconds is None else self.seconds
        seconds = self.otherwise if seconds is None else seconds
        return seconds, ALIVE_COUNT if count is None else count


#: for connections that another part of dispatch watches
UNLESS_CONFIGURED = Keepalive()
