"""A shell that waits on the host for the next command: most of what a command's start costs.

sshd forks, and starts the login shell and then sh, for each command: 5 ms of the host's
time, after two round trips. All commands of fan-out commands are the same to it
(``lifeline.COMMAND``): what is to run comes by standard input. So while nobody needs a
connection that is kept, its next channel can be opened and the command started; then
it reads, and ends with the connection as every command does, having done nothing.

Each command still has a channel, and processes, of its own. Not done for commands that
differ, nor for those on a terminal. A host that allows one session only refuses, and is
none the worse.

``begin`` is called by whoever keeps the session, ``take`` by who opens a link; between
them things happen on the session's own thread, which sends but never waits here.
"""

from __future__ import annotations

import threading
import time

from dispatcher.transport.ssh.paramiko_internals import Connection, Pipe, request


class Standby:
    """``command``, started on a channel of ``session`` ahead of time."""

    def __init__(self, session: Connection, command: str) -> None:
        self._session = session
        self._command = command
        self._opened = threading.Event()
        self._pipe = session.new_pipe(self)

    def begin(self) -> None:
        """Ask the host for the channel; all else follows when it answers."""
        self._session.ask_for(self._pipe)

    def set(self) -> None:
        """The host has answered, or the connection is gone; on the session's thread."""
        # no exec during a new key exchange: this thread is the one that carries it out
        if self._pipe.active and self._session.clear_to_send.is_set():
            message = request(self._pipe, "exec", wants_reply=True)
            message.add_string(self._command)
            self._session.say(self._pipe, message)
        self._opened.set()

    def serves(self, command: str) -> bool:
        """Whether it is worth a try for ``command``: it is the same, and was not refused."""
        return command == self._command and not self._pipe.refusal

    def take(self, deadline: float) -> Pipe | None:
        """The channel where the command has started; None if it has ended since, or is late."""
        pipe = self._pipe
        if self._opened.wait(max(0.0, deadline - time.monotonic())) and pipe.active:
            pipe.event.wait(max(0.0, deadline - time.monotonic()))
            if self.ready():
                return pipe
        pipe.close()
        return None

    def ready(self) -> bool:
        """Whether the command runs on the channel now, and waits."""
        pipe = self._pipe
        return pipe.event_ready and not pipe.closed and not pipe.status_event.is_set()
