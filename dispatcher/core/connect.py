"""When a host may be connected to, and when again: one policy for runs and commands. Pure.

sshd's MaxStartups drops connections at random when too many come at once. So connections are made
through a window, as TCP sends through one, and a dropped connection waits before it is tried again.

* C-1  no more hosts connect at once than the window holds: ``most`` at first, half of it after
  each drop, one more for each host reached, never less than one
* C-2  only a failure that is ``retryable`` is tried again; any other is final at once
* C-3  before attempt n+1 a host waits ``FIRST_PAUSE`` * 2**(n-1) seconds times a random 0.5 to
  1.5, and not in the window, where it would hold up others
* C-4  a host's limit counts from its first attempt; no attempt begins after it, and the failure
  of the last one is the host's failure
* C-5  an attempt that the limit cut off shows only that; if one before it was dropped, that is the
  host's failure
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value, value

#: seconds before the second attempt; doubled each time, times a random 0.5 to 1.5
FIRST_PAUSE = 0.1


@value
class ConnectAttempt(Value):
    """A connection to make: its ``number``, from 1 on, and its deadline ``until``."""

    number: int
    until: float


class ConnectPolicy:
    """Decides when the hosts of one run or command may connect; the caller numbers the hosts.

    most: hosts that may connect at once. seconds: a host's limit. random: numbers from 0 to 1.
    """

    def __init__(self, most: int, seconds: float, random: Callable[[], float]) -> None:
        self._most = most
        self._seconds = seconds
        self._random = random
        self._window = float(most)
        self._connecting: set[int] = set()
        self._attempts: dict[int, ConnectAttempt] = {}  # host -> its latest
        self._dropped: dict[int, Failure] = {}  # host -> why it came to another attempt

    @property
    def can_begin(self) -> bool:
        """Whether one more host may connect now (C-1)."""
        return len(self._connecting) < max(1, int(self._window))

    def was_tried(self, host: int) -> bool:
        """Whether an attempt to connect to ``host`` was ever made."""
        return host in self._attempts

    def begin(self, host: int, now: float) -> ConnectAttempt:
        """Begin the next attempt at ``host``, which takes room in the window from now on."""
        last = self._attempts.get(host, ConnectAttempt(0, now + self._seconds))
        self._attempts[host] = attempt = ConnectAttempt(last.number + 1, last.until)
        self._connecting.add(host)
        return attempt

    def reached(self, host: int) -> None:
        """Note that ``host`` is connected."""
        self._connecting.discard(host)
        self._dropped.pop(host, None)
        self._window = min(self._window + 1, self._most)

    def failed(self, host: int, failure: Failure, now: float) -> float | Failure:
        """Return the seconds until ``host`` may be tried again, or the failure if it is final."""
        self._connecting.discard(host)
        attempt = self._attempts[host]
        if not failure.retryable:  # C-2
            cut_off = failure.kind is Kind.TIMEOUT and now >= attempt.until
            return self._dropped.get(host, failure) if cut_off else failure  # C-5
        self._dropped[host] = failure
        self._window = max(1.0, self._window / 2)
        pause = FIRST_PAUSE * 2 ** (attempt.number - 1) * (0.5 + self._random())
        return pause if now + pause < attempt.until else failure  # C-4

    def anew(self, host: int) -> None:
        """Forget the earlier attempts at ``host``."""
        self._attempts.pop(host, None)
        self._dropped.pop(host, None)

    def given_up(self, host: int) -> None:
        """Free the room in the window of ``host``, which is not being connected to any more."""
        self._connecting.discard(host)

    def extend(self, seconds: float) -> None:
        """Give all hosts ``seconds`` more, in which none could connect: the user was typing."""
        self._attempts = {
            host: ConnectAttempt(attempt.number, attempt.until + seconds)
            for host, attempt in self._attempts.items()
        }
