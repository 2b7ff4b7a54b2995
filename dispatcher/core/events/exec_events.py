"""Events and outcomes of one host of a fan-out command: frozen values.

A fan-out command also uses the events of ``run_events`` that mean the same.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from dispatcher.core.events.run_events import Event
from dispatcher.model import errors
from dispatcher.model.failure import Failure
from dispatcher.model.frozen import OneOf, value


@value
class CommandEnded(Event):
    """The command on the host is over: exit ``code``, or ``signal`` (``KILL``).

    held_open: a process that it left behind keeps its output open; nothing more is read.
    """

    node: int
    code: int | None
    signal: str | None = None
    held_open: bool = False


@value
class PasswordAwaited(Event):
    """sudo on the host asks for the user's password; a second time if the first was wrong."""

    node: int


@value
class PasswordTold(Event):
    """The user answered the question for a password, or gave none."""

    given: bool


@value
class Typing(Event):
    """The user ``began`` to type a secret that was asked for, or ended it."""

    began: bool


@value
class StatusAsked(Event):
    """The user pressed Ctrl-C: these hosts are ``connecting``, these are ``running``."""

    connecting: tuple[int, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]


@value
class BatchStarted(Event):
    """The hosts ``nodes``, which are batch ``number`` (from 1) of ``total``, may begin.

    Only a rolling execution in more than one batch has this event.
    """

    number: int
    total: int
    nodes: tuple[int, ...]


@value
class HostDone(Event):
    """The host's part is over."""

    node: int
    outcome: Outcome


# -- outcomes ------------------------------------------------------------------------------


@value
class Exited(OneOf):
    """The command ended by itself with ``code``."""

    code: int


@value
class Killed(OneOf):
    """A signal that dispatch did not send ended the command: ``KILL``, ``SEGV``."""

    signal: str


@value
class Failed(OneOf):
    """The host was not reached, or lost while the command ran; see the failure's kind."""

    failure: Failure


@value
class TimedOut(OneOf):
    """A limit of ``seconds`` ended it: ``command``, or ``total`` for the whole command.

    ended: whether the command was seen to end; otherwise it was given up.
    """

    limit: str
    seconds: float
    ended: bool = True


@value
class Interrupted(OneOf):
    """Signal ``signum`` to dispatch ended the command while the host was at work."""

    signum: int
    ended: bool = True


@value
class NotCopied(OneOf):
    """The host could not take or give the files of ``put`` or ``get``: ``why``."""

    why: str
    hint: str | None = None


@value
class NotStarted(OneOf):
    """The host was never contacted: the fan-out had been stopped before its turn.

    code: dispatch's exit code for the reason of the stop: 3 (too many had failed), 124, 128+n.
    """

    why: str
    code: int = errors.STOPPED


Outcome = Exited | Killed | Failed | TimedOut | Interrupted | NotCopied | NotStarted


def is_good(outcome: Outcome) -> bool:
    """Whether the command exited with 0."""
    return outcome == Exited(0)


def own_code(outcome: Outcome) -> int:
    """The exit code of one host's outcome, for ``-S``: its own, 128+n, or one of dispatch's."""
    match outcome:
        case Exited(code):
            return code
        case Killed(name):  # the host may run another system, so its number is not asked for
            return errors.SIGNAL_BASE + signal.Signals.__members__.get(f"SIG{name}", 0)
        case TimedOut():
            return errors.TIME_LIMIT
        case Interrupted(signum):
            return errors.SIGNAL_BASE + signum
        case NotStarted():
            return outcome.code
        case NotCopied():
            return 1
    return errors.CLUSTER


def exit_code(outcomes: Iterable[Outcome], *, largest: bool = False) -> int:
    """The exit code of dispatch.

    0 when every command exited 0. Otherwise ``largest``: the largest of the hosts' own
    codes. Else the most severe kind: 128+n interrupted, 3 stopped by failures before
    all hosts were started, 125 a host failed, 124 a time limit, 1 a command failed.
    """
    bad = [outcome for outcome in outcomes if not is_good(outcome)]
    if not bad:
        return errors.OK
    ends = [own_code(outcome) for outcome in bad if isinstance(outcome, Interrupted | NotStarted)]
    interrupted = [code for code in ends if code > errors.SIGNAL_BASE]
    if interrupted:
        return interrupted[0]
    if largest:
        return max(map(own_code, bad))
    if errors.STOPPED in ends:
        return errors.STOPPED
    if any(isinstance(outcome, Failed) for outcome in bad):
        return errors.CLUSTER
    late = errors.TIME_LIMIT in ends or any(isinstance(o, TimedOut) for o in bad)
    return errors.TIME_LIMIT if late else 1
