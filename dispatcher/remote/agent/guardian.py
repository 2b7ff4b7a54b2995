"""The second process on a host: it watches the agent, and sweeps when the agent cannot.

The first process forks at once. The child becomes the agent; the parent stays as its *guardian*
and gets the agent's reports through ``GuardianPipe``::

    sshd -- guardian (subreaper) -- agent (subreaper) -- ranks -- what they start

``docs/design/endings.md`` says what follows when either is killed, stopped or stuck.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import os
import select
from time import monotonic

from dispatcher.remote.host import own_folder, proctree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.remote.host.ssh_peer import SilenceWatch


class Guardian:
    """Watches ``agent`` (a pid): reports on ``pipe``, and the end of the ``link`` that it serves.

    first: the agent's reports so far.
    """

    def __init__(self, agent: int, link: int, pipe: int, first: bytes) -> None:
        self.agent = agent
        self.link = link
        self.pipe = pipe
        self.silence = self.ending = 60.0
        self.heartbeat = 0.0  # of an agent with whom we look whether the launcher's machine answers
        self.question: SilenceWatch | None = None
        self.folder = b""
        self.buffer = b""
        self._take(first)

    def watch(self) -> int:
        """The agent's exit code, once nothing is left of it."""

        def pass_on(number: int, _: object) -> None:
            if self.agent:
                os.kill(self.agent, number)

        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, pass_on)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if self._wait():
            agent, self.agent = self.agent, 0
            code = proctree.exit_status(os.waitpid(agent, 0)[1])
            if code in (0, 3):  # it has swept itself: ``node``
                return code
            self._print("the agent was killed by signal %d" % -code if code < 0 else "it crashed")
        else:
            code = 1
            self._print("the agent was stopped or stuck")
        proctree.kill_all(_reap_all)
        if self.folder:
            own_folder.remove(os.fsdecode(self.folder))
        return code if code >= 0 else 128 - code

    def _wait(self) -> bool:
        """Wait for the agent's end; False when it is stuck and has to be killed."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        poll.register(self.link, select.POLLRDHUP)
        end = monotonic() + self.silence
        look = self._next_look()
        lost = False
        while True:
            if end <= monotonic():
                return False
            if not lost and look <= monotonic():
                look = monotonic() + 1.0
                if self._is_cut(monotonic()):
                    os.kill(self.agent, signal.SIGCONT)
                    os.kill(self.agent, signal.SIGTERM)
                    lost, end = True, monotonic() + self.ending - SLACK + 1.0
            left = (end if lost else min(end, look)) - monotonic()
            for fd, _ in poll.poll(max(0.0, min(left, 1e6)) * 1000):
                if fd == self.link:
                    # the agent sees it as well, unless it was stopped
                    os.kill(self.agent, signal.SIGCONT)
                    poll.unregister(self.link)
                    lost = True
                    end = monotonic() + self.ending
                    continue
                data = os.read(self.pipe, 4096)
                if not data:
                    return True
                self._take(data)
                if not lost:
                    end, look = monotonic() + self.silence, self._next_look()

    def _take(self, data: bytes) -> None:
        lines = (self.buffer + data).split(b"\n")
        self.buffer = lines.pop()
        for line in filter(None, lines):
            *numbers, self.folder = line.split(b" ", 3)
            self.silence, self.ending, self.heartbeat = map(float, numbers)

    def _next_look(self) -> float:
        """When to check whether the launcher's machine answers, if the agent reports nothing."""
        self.question = None
        return monotonic() + LATE_LIFE * self.heartbeat if self.heartbeat else float("inf")

    def _is_cut(self, now: float) -> bool:
        """Whether the launcher's machine stopped answering, which the agent should have seen."""
        from dispatcher.remote.host.ssh_peer import SilenceWatch, SshPeer

        if self.question is None:
            try:
                self.question = SilenceWatch(SshPeer(), now, self.heartbeat)
            except (OSError, ValueError, KeyError):
                return False
        try:
            os.write(2, b"\n")  # something to be acknowledged
        except OSError:
            pass
        return self.question.look(now)

    def _print(self, text: str) -> None:
        try:
            os.write(2, b"%s\n" % text.encode())
        except OSError:
            pass  # the reader is gone


def _reap_all() -> None:
    for _ in proctree.reaped():
        pass


#: seconds that an agent may take beyond its lifeline grace to sweep and to send its last reports
SLACK = 8.0
#: heartbeats without a report after which we check whether the launcher's machine answers
LATE_LIFE = 1.5


class GuardianPipe:
    """The agent's side of the pipe to its guardian."""

    def __init__(self, guardian: int, pipe: int) -> None:
        self.guardian = guardian
        self.pipe = pipe
        self.expected = 60.0, 60.0, 0.0, ""

    def why(self, signum: int = 0) -> str:
        """Why the link ended, or why we may have been sent ``signum``."""
        if os.getppid() != self.guardian:
            return "the agent's guardian was killed"  # which may end the link as well
        return "the agent was sent signal %d" % signum if signum else "the link ended"

    def expect(self, silence: float, lifeline_grace: float, heartbeat: float, folder: str) -> None:
        """Tell the guardian what to expect of us, and the ``folder`` that must not outlive us.

        silence: seconds without a report after which we are stuck. heartbeat: seconds between two
        reports, if the guardian must check the launcher's machine by itself, else 0.
        """
        self.expected = silence + SLACK, lifeline_grace + SLACK, heartbeat, folder
        self.watch_peer(True)

    def watch_peer(self, on: bool) -> None:
        """Switch the guardian's check of the launcher's machine on or off."""
        silence, ending, heartbeat, folder = self.expected
        words = "%f %f %f %s\n" % (silence, ending, heartbeat if on else 0.0, folder)
        self._write(os.fsencode(words))

    def alive(self) -> None:
        """Report that the agent is alive."""
        self._write(b"\n")

    def leave(self) -> None:
        """Wake a guardian that was stopped (SIGSTOP), since it must end with the agent."""
        if os.getppid() == self.guardian:
            os.kill(self.guardian, signal.SIGCONT)

    def _write(self, data: bytes) -> None:
        try:
            os.write(self.pipe, data)
        except OSError:
            pass  # it is stopped and the pipe is full, or it is dead, which a signal reports


def fork_guardian(link: int) -> GuardianPipe:
    """Fork; returns in the child, which is the agent. The parent watches until the end of both.

    link: the descriptor that orders come by; the guardian only looks for its end.
    """
    pipe_in, pipe_out = os.pipe()
    guardian = os.getpid()
    # until ``watch`` can pass them on: after the agent's first report the launcher may send an end
    # signal, and on a busy machine that is before our own fork returns
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    )
    pid = os.fork()
    if pid:
        os.close(pipe_out)
        code = 1
        try:
            code = Guardian(pid, link, pipe_in, _first_words(pipe_in, link)).watch()
        finally:
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(pipe_in)
    os.setsid()
    proctree.become_subreaper()
    if not proctree.signal_with_parent(guardian, signal.SIGTERM):
        os._exit(1)  # nothing was started yet
    os.set_blocking(pipe_out, False)
    return GuardianPipe(guardian, pipe_out)


def _first_words(pipe: int, link: int) -> bytes:
    """Read the agent's reports up to its answer to the first order, or the end of either process.

    The agent sends first what the guardian must expect, then that it is alive. The start of a run
    does not wait for this.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(link, select.POLLRDHUP)
    words = b""
    while words.count(b"\n") < 2 and poll.poll()[0][0] == pipe:
        data = os.read(pipe, 4096)
        if not data:
            break
        words += data
    return words
