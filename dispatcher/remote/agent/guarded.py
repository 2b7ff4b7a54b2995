"""The agent's side of its guardian: the fork that makes two of one, and the signs of life.

See ``guardian`` for what the other process does; only that process loads it.
"""

from __future__ import annotations

import os
import select
from _signal import (  # type: ignore[import-not-found]
    SIG_BLOCK,
    SIGCONT,
    SIGHUP,
    SIGINT,
    SIGTERM,
    pthread_sigmask,
)

from dispatcher.remote.host import proctree

#: seconds that an agent may take beyond its lifeline grace to sweep and to say its last words
SLACK = 8.0


class Guarded:
    """The agent's side of the pipe to its guardian."""

    def __init__(self, guardian: int, pipe: int) -> None:
        self.guardian = guardian
        self.pipe = pipe

    def why(self, signum: int = 0) -> str:
        """Why the link ended, or why we may have been sent ``signum``."""
        if os.getppid() != self.guardian:
            return "the agent's guardian was killed"  # which may end the link as well
        return "the agent was sent signal %d" % signum if signum else "the link ended"

    def expect(self, silence: float, lifeline_grace: float, folder: str) -> None:
        """Say what to expect of us, and the ``folder`` that should not outlive us.

        silence: seconds without a sign of life after which we are stuck.
        """
        words = "%f %f %s\n" % (silence + SLACK, lifeline_grace + SLACK, folder)
        self._write(os.fsencode(words))

    def alive(self, aside: bool = False) -> None:
        """Give a sign of life. aside: to the launcher too, as its ping has asked."""
        self._write(b"\n")
        if aside:
            self._write(b"\0", 2)

    def leave(self) -> None:
        """We end: a guardian that somebody stopped must go on, to end as well."""
        if os.getppid() == self.guardian:
            os.kill(self.guardian, SIGCONT)

    def _write(self, data: bytes, fd: int | None = None) -> None:
        try:
            os.write(self.pipe if fd is None else fd, data)
        except OSError:
            pass  # it is stopped and the pipe is full, or it is dead, which a signal tells


def divide(link: int) -> Guarded:
    """Fork; returns in the child, which is the agent. The parent watches until the end of both.

    link: the descriptor that orders come by; the guardian only looks for its end.
    """
    told, tell = os.pipe()
    guardian = os.getpid()
    pid = os.fork()
    if pid:
        # until ``watch`` can pass them on: what has told its first word may be told to end
        pthread_sigmask(SIG_BLOCK, (SIGTERM, SIGHUP, SIGINT))
        os.close(tell)
        code = 1
        try:
            first = _first_words(told, link)
            from dispatcher.remote.agent.guardian import Guardian

            code = Guardian(pid, link, told, first).watch()
        finally:
            os._exit(code)
    os.close(told)
    os.setsid()
    proctree.become_subreaper()
    if not proctree.signal_with_parent(guardian, SIGTERM):
        os._exit(1)  # nothing was started yet
    os.set_blocking(tell, False)
    return Guarded(guardian, tell)


def _first_words(told: int, link: int) -> bytes:
    """What the agent says until it has answered its first order: what is to be known of it, and
    that it lives. Or until one of the two has ended. No time is taken from the start before.
    """
    poll = select.poll()
    poll.register(told, select.POLLIN)
    poll.register(link, select.POLLRDHUP)
    words = b""
    while words.count(b"\n") < 2 and poll.poll()[0][0] == told:
        data = os.read(told, 4096)
        if not data:
            break
        words += data
    return words
